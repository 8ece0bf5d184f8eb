"""Rows that come in no files, made to fit a table that lets them drift (LOT-34).

What files bring is taken apart by Spark; what is pushed or fetched is some thousand records at most, and is
taken apart here, with the same outcome:

- rescue: names that are not declared, and values that do not fit, are kept as JSON of texts in `_rescued`.
- evolve: names that are not declared become columns, with the type that their values have together; values
  of several kinds make a text. The table has them from the moment on in which the lot is published. What
  later does not fit such a column does not fit the table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemill.errors import AppendRefused, BadSchema
from tidemill.lots.datasets import Dataset
from tidemill.pipeline import rows as given
from tidemill.schemas.columns import Column, Simple, Type
from tidemill.spark import schema
from tidemill.spark.drift import RESCUED, added
from tidemill.spark.drifting import filled

_TEXT = Simple("string")


def rescuing(dataset: Dataset) -> Callable[[Any], pa.Table]:
    """What makes a table of the declared columns, and of what does not fit them."""
    wanted = schema.to_arrow(schema.parse(dataset.schema))
    declared = [field for field in wanted if field.name != RESCUED]
    names = {field.name for field in declared}

    def convert(rows: Any) -> pa.Table:
        records = _records(rows, dataset.name)
        left = [
            {name: _text(value) for name, value in one.items() if name not in names and value is not None}
            for one in records
        ]
        columns: dict[str, pa.Array] = {}
        for field in declared:
            columns[field.name] = _fitted([one.get(field.name) for one in records], field, dataset.name, left)
        columns[RESCUED] = pa.array(
            [json.dumps(one, ensure_ascii=False) if one else None for one in left], pa.string()
        )
        return pa.table([columns[name] for name in wanted.names], schema=wanted)

    return convert


def _fitted(values: list[Any], field: pa.Field, table: str, left: list[dict[str, str]]) -> pa.Array:
    """Values as a column; those that do not fit are NULL, and are kept."""
    try:
        return given.array(values, field, table)
    except AppendRefused:
        pass
    for number, value in enumerate(values):
        try:
            given.array([value], field, table)
        except AppendRefused:
            left[number][field.name] = _text(value)
            values[number] = None
    return given.array(values, field, table)


class Grown:
    """Makes rows for a dataset that gains the columns which they bring."""

    def __init__(self, dataset: Dataset) -> None:
        self._table = dataset.name
        self._declared = frozenset(schema.parse(dataset.schema).names)

    def columns(self, rows: Any, known: str) -> str:
        """The columns that the table has by now, with those of these rows."""
        there = schema.parse(known)
        names = set(there.names)
        if isinstance(rows, pa.Table):
            found = [_of_field(field) for field in rows.schema if field.name not in names]
        else:
            values: dict[str, list[Any]] = {}
            for one in _records(rows, self._table):
                for name, value in one.items():
                    if name not in names and value is not None:
                        values.setdefault(name, []).append(value)
            found = [Column(name, _type_of(some)) for name, some in values.items()]
        grown = added(there, found)
        return str(grown) if grown != there else known

    def convert(self, rows: Any, columns: str) -> pa.Table:
        """Rows as a table of these columns."""
        there = schema.parse(columns)
        wanted = schema.to_arrow(there)
        texts = {one.name for one in there.columns if one.type == _TEXT and one.name not in self._declared}
        if texts and not isinstance(rows, pa.Table):
            rows = [
                {
                    name: _text(value) if name in texts and value is not None else value
                    for name, value in one.items()
                }
                for one in _records(rows, self._table)
            ]
        if not isinstance(rows, pa.Table):  # a NULL brings no column
            rows = [{n: v for n, v in one.items() if v is not None or n in wanted.names} for one in rows]
        return given.to_table(rows, wanted, self._table)


def _records(rows: Any, table: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(rows, pa.Table):
        found: Sequence[Mapping[str, Any]] = rows.to_pylist()
        return found
    for number, one in enumerate(rows):
        if not isinstance(one, Mapping):
            raise AppendRefused(f"row {number} for {table} is {one!r:.80}", hint="give a dictionary")
    return list(rows)


def _of_field(field: pa.Field) -> Column:
    try:
        (column,) = schema.of_arrow(pa.schema([field])).columns
    except BadSchema as error:
        raise AppendRefused(f"column {field.name}: {error.message}") from None
    return Column(column.name, filled(column.type))


def _type_of(values: list[Any]) -> Type:
    """The type that values of JSON have together; a text where they have none."""
    try:
        kind = pa.array(values).type
        return filled(schema.of_arrow(pa.schema([("it", kind)])).columns[0].type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, BadSchema):
        return _TEXT


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
