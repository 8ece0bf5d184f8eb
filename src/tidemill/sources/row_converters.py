"""Convert pushed and fetched rows to the columns of a dataset, under its drift policy (LOT-34).

Spark converts the rows of files. Pushed and fetched rows come in batches of a few thousand, so this module
converts them without Spark, with the same result:

- freeze: names that are not declared, and values that do not fit, are refused.
- rescue: names that are not declared, and values that do not fit, are kept as JSON in `_rescued`.
- evolve: names that are not declared become columns, with a type that fits all their values; STRING if no
  other type does. The table has these columns from the moment the lot is published. Later values must fit
  them. A row that needs more columns than a table can have is refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemill.errors import AppendRefused, BadSchema, BadSource
from tidemill.lots.datasets import DatasetRow, Drift
from tidemill.schemas.columns import Column, Schema, Simple, Struct, Type, check_columns
from tidemill.schemas.type_table import parts_of
from tidemill.spark import input_rows, schema
from tidemill.spark.drift import MOST_SCHEMA_BYTES, RESCUED, added, storable

_TEXT = Simple("string")

Convert = Callable[[Any], pa.Table]
"""Converts dictionaries, or a table, to a table of the declared columns; raises if rows do not fit."""


def check_types(dataset: DatasetRow) -> None:
    """Raise `BadSource` if a column of a dataset has a type that only Spark can write."""
    try:
        schema.to_arrow(schema.parse(dataset.schema))
    except BadSchema as error:
        raise BadSource(
            f"{dataset.name}: {error.message}; pushed and fetched rows are written without Spark",
            hint="declare the column as STRING, and convert it in an arc or a view; or load files instead"
            " (tm.folder, tm.bucket)",
        ) from None


def converter(dataset: DatasetRow) -> Convert:
    """Return a function that converts rows to the columns of a dataset."""
    if dataset.drift is Drift.RESCUE:
        return _rescuing(dataset)
    evolving = evolving_converter(dataset)
    if evolving is not None:
        return lambda rows: evolving.convert(rows, evolving.columns(rows, dataset.schema))
    arrow = schema.to_arrow(schema.parse(dataset.schema))
    return lambda rows: input_rows.to_table(rows, arrow, dataset.name)


def evolving_converter(dataset: DatasetRow) -> "EvolvingConverter | None":
    """Return the converter for a dataset that gains columns; None for any other dataset."""
    return EvolvingConverter(dataset) if dataset.drift is Drift.EVOLVE else None


class EvolvingConverter:
    """Converts rows for a dataset that gains a column for each undeclared name in its rows."""

    def __init__(self, dataset: DatasetRow) -> None:
        self._table = dataset.name
        self._declared = frozenset(schema.parse(dataset.schema).names)

    def columns(self, rows: Any, current: str) -> str:
        """Return the current columns of the table, and the columns that these rows add.

        If the schema of the table has no room for all new columns, add them row by row, and skip a row if
        there is no more room for its columns.
        """
        present = schema.parse(current)
        if isinstance(rows, pa.Table):
            names = set(present.names)
            new = [_of_field(field) for field in rows.schema if field.name not in names]
            grown = added(present, new)
        else:
            records = _records(rows, self._table)
            grown = _with_columns_of(records, present)
            if _is_too_large(grown):
                grown = present
                for record in records:
                    wider = _with_columns_of([record], grown)
                    if not _is_too_large(wider):
                        grown = wider
        return str(grown) if grown != present else current

    def convert(self, rows: Any, columns: str) -> pa.Table:
        """Convert rows to a table of these columns."""
        parsed = schema.parse(columns)
        arrow = schema.to_arrow(parsed)
        texts = {
            column.name
            for column in parsed.columns
            if column.type == _TEXT and column.name not in self._declared
        }
        if not isinstance(rows, pa.Table):
            self._check_room(_records(rows, self._table), parsed)
        if texts and not isinstance(rows, pa.Table):
            rows = [
                {
                    name: _text(value) if name in texts and value is not None else value
                    for name, value in record.items()
                }
                for record in _records(rows, self._table)
            ]
        if not isinstance(rows, pa.Table):  # a NULL adds no column
            rows = [
                {name: value for name, value in record.items() if value is not None or name in arrow.names}
                for record in rows
            ]
        return input_rows.to_table(rows, arrow, self._table)

    def _check_room(self, records: Sequence[Mapping[str, Any]], columns: Schema) -> None:
        """Refuse records with more new columns than fit in the schema of the table."""
        names = set(columns.names)
        for number, record in enumerate(records):
            new = [name for name, value in record.items() if name not in names and value is not None]
            candidates = [Column(name, _TEXT) for name in new]
            if new and added(columns, candidates, most_bytes=None) != columns:
                count = "new column" if len(new) == 1 else f"{len(new):,} new columns"
                raise AppendRefused(
                    f"the {count} in row {number} cannot be added to {self._table}: the column names and"
                    f" types of a table may take at most {MOST_SCHEMA_BYTES >> 10} KiB in total",
                    hint="if the names vary from row to row, send them as keys of one MAP column, or send the"
                    " values as JSON in one STRING column",
                )


def _with_columns_of(records: Sequence[Mapping[str, Any]], present: Schema) -> Schema:
    """Add the new columns of records to a schema, without a limit on the size of the schema."""
    names = set(present.names)
    values: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            if name not in names and value is not None:
                values.setdefault(name, []).append(value)
    if not values:
        return present
    return added(
        present, [Column(name, _type_of(column)) for name, column in values.items()], most_bytes=None
    )


def _is_too_large(columns: Schema) -> bool:
    return len(str(columns).encode()) > MOST_SCHEMA_BYTES


def _rescuing(dataset: DatasetRow) -> Convert:
    """Return a converter that moves values that do not fit to the column `_rescued`."""
    arrow = schema.to_arrow(schema.parse(dataset.schema))
    declared = [field for field in arrow if field.name != RESCUED]
    names = {field.name for field in declared}

    def convert(rows: Any) -> pa.Table:
        records = _records(rows, dataset.name)
        rescued = [
            {name: _text(value) for name, value in record.items() if name not in names and value is not None}
            for record in records
        ]
        columns: dict[str, pa.Array] = {}
        for field in declared:
            values = [record.get(field.name) for record in records]
            columns[field.name] = _fitted(values, field, dataset.name, rescued)
        texts = [json.dumps(values, ensure_ascii=False) if values else None for values in rescued]
        columns[RESCUED] = input_rows.array(texts, pa.field(RESCUED, pa.string()), dataset.name)
        return pa.table([columns[name] for name in arrow.names], schema=arrow)

    return convert


def _fitted(values: list[Any], field: pa.Field, table: str, rescued: list[dict[str, str]]) -> pa.Array:
    """Convert values to a column. A value that does not fit becomes NULL, and is added to `rescued`."""
    try:
        return input_rows.array(values, field, table)
    except AppendRefused:
        pass
    for number, value in enumerate(values):
        try:
            input_rows.array([value], field, table)
        except AppendRefused:
            rescued[number][field.name] = _text(value)
            values[number] = None
    return input_rows.array(values, field, table)


def _records(rows: Any, table: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(rows, pa.Table):
        try:
            records: Sequence[Mapping[str, Any]] = rows.to_pylist()
        except (ValueError, OverflowError) as error:  # a date that Python cannot represent
            raise AppendRefused(f"a value for {table} is out of range: {error}") from None
        return records
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise AppendRefused(
                f"row {number} for {table} is not a dictionary: {row!r:.80}",
                hint="pass each row as a dictionary",
            )
    return list(rows)


def _of_field(field: pa.Field) -> Column:
    try:
        (column,) = schema.of_arrow(pa.schema([field])).columns
        _check_fields(column.type)
    except BadSchema as error:
        raise AppendRefused(f"column {field.name}: {error.message}") from None
    return Column(column.name, storable(column.type))


def _type_of(values: list[Any]) -> Type:
    """Return a type that fits all these JSON values; STRING if no other type does."""
    try:
        inferred = schema.of_arrow(pa.schema([("value", pa.array(values).type)])).columns[0].type
        _check_fields(inferred)
        return storable(inferred)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, OverflowError, BadSchema):
        return _TEXT


def _check_fields(kind: Type) -> None:
    """Raise `BadSchema` for a struct that no file can hold: it has no fields, or an unusable field name."""
    if isinstance(kind, Struct):
        if not kind.fields:
            raise BadSchema("a struct has no fields", hint="store it as text")
        check_columns(kind.fields)
    for part in parts_of(kind):
        _check_fields(part)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
