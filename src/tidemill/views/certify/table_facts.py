"""How the tables of a view change: which generated rows they can have, and how lots store these rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.spark import schema
from tidemill.spark.operations import OP, ORDINAL, WEIGHT, RowOperation
from tidemill.views.certify.table_contents import Row, Step
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import InputTable, ViewOutput


@dataclass(frozen=True)
class TableFacts:
    """What is declared about a table.

    - key: the columns of its key; a new row replaces the row with the same key.
    - append_only: whether no row is ever removed.
    """

    key: tuple[str, ...] = ()
    append_only: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of its rows."""
        return Kind.KEYED if self.key else Kind.ROWS if self.append_only else Kind.CHANGES

    def dataset(self, name: str, ddl: str) -> DatasetRow:
        """Return the declaration of a dataset with these facts."""
        columns = str(schema.parse(ddl).stored())
        deletes = self.kind is not Kind.ROWS
        return DatasetRow(name=name, kind=self.kind, key=self.key, deletes=deletes, schema=columns)

    def fit(self, steps: Sequence[Step], table: str) -> list[Step]:
        """Return generated steps of one table, without changes that such a table cannot have."""
        if self.kind is Kind.CHANGES:
            return [
                replace(
                    step,
                    inserts={table: _with_stored_zeros(step.inserts.get(table, ()))},
                    deletes={table: _with_stored_zeros(step.deletes.get(table, ()))},
                )
                for step in steps
            ]
        rows: list[Row] = []
        fitting = []
        for step in steps:
            inserts = list(step.inserts.get(table, ()))
            deletes = [] if self.append_only else _contained(step.deletes.get(table, ()), rows)
            if self.key:
                inserts = list({self._key(row): row for row in inserts if self._has_key(row)}.values())
                keys = {self._key(row) for row in inserts}
                gone = {self._key(row) for row in deletes}
                deletes += [row for row in rows if self._key(row) in keys and self._key(row) not in gone]
            rows = _without(rows, deletes) + inserts
            fitting.append(replace(step, inserts={table: inserts}, deletes={table: deletes}))
        return fitting

    def stored(self, step: Step, table: str) -> list[Row]:
        """Return the rows that the lot of a step stores, with the columns for row operations."""
        inserts, deletes = step.inserts.get(table, ()), step.deletes.get(table, ())
        if self.kind is Kind.ROWS:
            return list(inserts)
        if self.kind is Kind.CHANGES:
            changes = [*((row, 1) for row in inserts), *((row, -1) for row in deletes)]
            return [{**row, WEIGHT: weight} for row, weight in changes]
        inserted = {self._key(row) for row in inserts}
        writes = [(row, RowOperation.DELETE) for row in deletes if self._key(row) not in inserted]
        writes += [(row, RowOperation.UPSERT) for row in inserts]
        return [{**row, OP: op.value, ORDINAL: number} for number, (row, op) in enumerate(writes)]

    def _has_key(self, row: Row) -> bool:
        return all(row.get(name) is not None for name in self.key)

    def _key(self, row: Row) -> str:
        # 0.0 and -0.0 are the same key.
        values = (row.get(name) for name in self.key)
        return repr([value + 0.0 if isinstance(value, float) else value for value in values])


def facts_of(outputs: Iterable[ViewOutput]) -> dict[str, TableFacts]:
    """Return what circuits know about the tables that they read."""
    return {
        operator.table: TableFacts(
            tuple(operator.columns[place].name for place in operator.key), operator.append_only
        )
        for output in outputs
        for operator in walk(output)
        if isinstance(operator, InputTable)
    }


def _with_stored_zeros(rows: Sequence[Row]) -> list[Row]:
    """Return rows with 0.0 instead of -0.0, as a dataset with deletes stores them."""
    return [{name: _stored(value) for name, value in row.items()} for row in rows]


def _stored(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if value == 0 else value
    if isinstance(value, list | tuple):
        return type(value)(map(_stored, value))
    if isinstance(value, dict):
        return {key: _stored(item) for key, item in value.items()}
    return value


def _contained(deletes: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the deletes of rows that the table contains."""
    texts = [_text(row) for row in rows]
    contained = []
    for row in deletes:
        if _text(row) in texts:
            texts.remove(_text(row))
            contained.append(row)
    return contained


def _without(rows: Sequence[Row], deletes: Sequence[Row]) -> list[Row]:
    left = list(rows)
    for row in deletes:
        left.pop(next(place for place, candidate in enumerate(left) if _text(candidate) == _text(row)))
    return left


def _text(row: Mapping[str, Any]) -> str:
    return repr(sorted(row.items()))
