"""Convert the rows that a user passes to an Arrow table of the declared types, without loss (LOT-41).

Columns are matched by name. A missing column is NULL. A column that is not declared is refused, and so is a
value that does not fit its type without loss. The error names the column and the first bad row.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from tidemill.errors import AppendRefused
from tidemill.spark.schema import of_arrow


def to_table(rows: Any, schema: pa.Schema, table: str) -> pa.Table:
    """Convert rows to a table of this schema.

    Args:
        rows: dictionaries, tuples in the order of the columns, an Arrow table or batch, or a pandas frame.
        schema: the declared types.
        table: the name of the table, for errors.
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
    """Return the digest of a table's content, which does not depend on its chunks (LOT-36)."""
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
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            _check_names(row, names, table, f"row {number}")
            for name in names:
                columns[name].append(row.get(name))
        elif isinstance(row, Sequence) and not isinstance(row, str | bytes) and len(row) == len(names):
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
        else:
            raise AppendRefused(
                f"row {number} for {table} is neither a dictionary nor a tuple of {len(names)} values:"
                f" {row!r:.80}",
                hint=f"pass values for the columns {', '.join(names)}",
            )
    return pa.table([array(columns[field.name], field, table) for field in schema], schema=schema)


def array(values: list[Any], field: pa.Field, table: str) -> pa.Array:
    """Convert values to a column; `AppendRefused` names the first value that does not fit."""
    if pa.types.is_decimal(field.type):
        values = [_decimal(value) for value in values]
    try:
        if pa.types.is_temporal(field.type) and any(isinstance(value, str) for value in values):
            return pa.array(values, pa.string()).cast(field.type)  # ISO 8601, as in files
        return pa.array(values, type=field.type, from_pandas=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
        raise AppendRefused(_which(values, field, table, error)) from None


def _decimal(value: Any) -> Any:
    """Convert a float to the decimal that its text shows: 12.3, not the binary value."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, str):
        try:
            return Decimal(value)
        except InvalidOperation:
            return value
    return value


def _which(values: list[Any], field: pa.Field, table: str, error: Exception) -> str:
    for number, value in enumerate(values):
        try:
            text = isinstance(value, str) and pa.types.is_temporal(field.type)
            pa.array([value], pa.string()).cast(field.type) if text else pa.array([value], field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError):
            shown = str(value) if isinstance(value, Decimal) else repr(value)
            return (
                f"{table}: column {field.name} expects {_type_name(field.type).upper()},"
                f" got {shown:.80} (row {number})"
            )
    return f"{table}: column {field.name}: {error}"


def _type_name(arrow_type: pa.DataType) -> str:
    """Return the name of a type in a declaration."""
    return str(of_arrow(pa.schema([("value", arrow_type)])).columns[0].type)


def _of_pandas(frame: Any, schema: pa.Schema, table: str) -> pa.Table:
    _check_names(frame.columns, schema.names, table, "the frame")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise AppendRefused(f"the pandas DataFrame for {table} cannot be converted: {error}") from None


def _cast(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    _check_names(rows.column_names, schema.names, table, "the table")
    for name, count in Counter(rows.column_names).items():
        if count > 1:
            raise AppendRefused(f"column {name} appears twice in the table for {table}")
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            declared = _type_name(field.type)
            raise AppendRefused(
                f"{table}: column {field.name} expects {declared.upper()}, got {column.type}: {error}"
            ) from None
    return pa.table(columns, schema=schema)


def _check_names(names: Iterable[Any], declared: Sequence[str], table: str, container: str) -> None:
    unknown = [str(name) for name in names if name not in declared]
    if unknown:
        raise AppendRefused(
            f"{container} for {table} has the unknown column {', '.join(unknown)}",
            hint=f"remove or rename it; the columns of {table} are {', '.join(declared)}",
        )
