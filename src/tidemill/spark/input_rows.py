"""Convert rows that a user passes in to an Arrow table with the declared types, without loss (LOT-41).

Columns are matched by name. A missing column is NULL. A column that is not declared is refused, and so is a
value that does not fit its type without loss. The error names the column and the first bad row.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, DecimalException
from reprlib import Repr
from typing import Any, Final

import pyarrow as pa

from tidemill.errors import AppendRefused
from tidemill.schemas.columns import Simple
from tidemill.spark.row_values import preparation
from tidemill.spark.schema import of_arrow

_MISFITS: Final = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    pa.ArrowCapacityError,
    DecimalException,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
)
"""The errors that a value raises if it does not fit its column."""

_SHOWN: Final = Repr()  # shortens values of any size and depth
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxlong, _SHOWN.maxother = 3, 80, 80, 80
_MOST_NAMES: Final = 5


def to_table(rows: Any, schema: pa.Schema, table: str) -> pa.Table:
    """Convert rows to an Arrow table with this schema.

    Args:
        rows: dictionaries, tuples in the order of the columns, an Arrow table or batch, or a pandas frame.
        schema: the declared types.
        table: the name of the user's table, for error messages.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return _cast(rows, schema, table)
    if type(rows).__module__.partition(".")[0] == "pandas":
        return _cast(_of_pandas(rows, schema, table), schema, table)
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise AppendRefused(
            f"{table}: {type(rows).__name__} is not a collection of rows",
            hint="pass a list of dictionaries or tuples, an Arrow table, or a pandas or Spark DataFrame",
        )
    return _of_python(list(rows), schema, table)


def digest(table: pa.Table) -> str:
    """Return the digest of a table's content. How the table is split into chunks does not matter (LOT-36)."""
    state = hashlib.sha256(table.schema.serialize())
    for batch in table.combine_chunks().to_batches(max_chunksize=1 << 20):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        state.update(sink.getvalue())
    return state.hexdigest()[:32]


def _of_python(rows: Sequence[Any], schema: pa.Schema, table: str) -> pa.Table:
    names = schema.names
    columns: dict[str, list[Any]] = {name: [] for name in names}
    declared = frozenset(names)
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            if not row.keys() <= declared:
                _check_names(row, names, table, f"row {number}")
            for name in names:
                columns[name].append(row.get(name))
        elif isinstance(row, Sequence) and not isinstance(row, str | bytes) and len(row) == len(names):
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
        else:
            raise AppendRefused(
                f"row {number} for {table} is neither a dictionary nor a tuple of {len(names)} values:"
                f" {_SHOWN.repr(row):.80}",
                hint=f"pass values for the columns {', '.join(names)}",
            )
    return pa.table([array(columns[field.name], field, table) for field in schema], schema=schema)


def array(values: list[Any], field: pa.Field, table: str) -> pa.Array:
    """Convert values to a column. If one does not fit, raise `AppendRefused` with the first such value."""
    try:
        return _converted(values, field.type)
    except _MISFITS as error:
        raise AppendRefused(_which(values, field, table, error), hint=_format_hint(field.type)) from None


def _converted(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    is_date = pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type)
    if is_date and all(value is None or isinstance(value, str) for value in values):
        return pa.array(values, pa.string()).cast(arrow_type)  # ISO 8601, as in files
    prepare = preparation(arrow_type)
    if prepare is None or (pa.types.is_integer(arrow_type) and Decimal not in map(type, values)):
        return pa.array(values, type=arrow_type, from_pandas=False)
    prepared = [None if value is None else prepare(value) for value in values]
    column = pa.array(prepared, type=arrow_type, from_pandas=False)
    column.validate(full=True)
    return column


def _which(values: list[Any], field: pa.Field, table: str, error: Exception) -> str:
    for number, value in enumerate(values):
        try:
            _converted([value], field.type)
        except _MISFITS:
            shown = str(value) if isinstance(value, Decimal) else _SHOWN.repr(value)
            return (
                f"{table}: column {field.name} expects {_type_name(field.type)},"
                f" got {shown:.80} (row {number})"
            )
    return printable(f"{table}: column {field.name}: {error}")


def _format_hint(arrow_type: pa.DataType) -> str | None:
    """Return a hint on how to write a date, time or interval as text; None for other types."""
    types = pa.types
    if types.is_timestamp(arrow_type):
        zoned = "2026-01-31T12:30:00Z or 2026-01-31 13:30:00+01:00 (with a time zone)"
        example = "2026-01-31T12:30:00" if arrow_type.tz is None else zoned
    elif types.is_date(arrow_type):
        example = "2026-01-31"
    elif types.is_time(arrow_type):
        example = "12:30:00"
    elif types.is_duration(arrow_type):
        example = "1 02:03:04 or P1DT2H3M4S"
    else:
        return None
    return f"write {_type_name(arrow_type)} as text like {example}; none of the rows was stored"


def _type_name(arrow_type: pa.DataType) -> str:
    """Return a type as declarations write it. The names of a struct's fields keep their case."""
    declared = of_arrow(pa.schema([("value", arrow_type)])).columns[0].type
    return str(declared).upper() if isinstance(declared, Simple) else str(declared)


def _of_pandas(frame: Any, schema: pa.Schema, table: str) -> pa.Table:
    _check_names(frame.columns, schema.names, table, "the frame")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except _MISFITS as error:
        raise AppendRefused(f"the pandas DataFrame for {table} cannot be converted: {error}") from None


def _cast(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    _check_names(rows.column_names, schema.names, table, "the table")
    for name, count in Counter(rows.column_names).items():
        if count > 1:
            raise AppendRefused(f"column {name} appears twice in the rows for {table}")
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        if pa.types.is_string(column.type) and _is_time_or_interval(field.type):  # Arrow can't cast these
            columns.append(array(column.to_pylist(), field, table))
            continue
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            declared = _type_name(field.type)
            raise AppendRefused(
                f"{table}: column {field.name} expects {declared}, got {column.type}: {error}",
                hint=_format_hint(field.type) if pa.types.is_string(column.type) else None,
            ) from None
    return pa.table(columns, schema=schema)


def _is_time_or_interval(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type))


def _check_names(names: Iterable[Any], declared: Sequence[str], table: str, container: str) -> None:
    unknown = [str(name) for name in names if name not in declared]
    if unknown:
        shown = ", ".join(name[:80] for name in unknown[:_MOST_NAMES])
        more = f" and {len(unknown) - _MOST_NAMES:,} more" if len(unknown) > _MOST_NAMES else ""
        raise AppendRefused(
            f"{container} for {table} has the unknown column {printable(shown)}{more}",
            hint=f"remove or rename it; the columns of {table} are {', '.join(declared)}"[:2000],
        )


def printable(text: str) -> str:
    """Escape lone surrogates (halves of surrogate pairs), so that the text can be stored and printed."""
    return text.encode("utf-8", "backslashreplace").decode()
