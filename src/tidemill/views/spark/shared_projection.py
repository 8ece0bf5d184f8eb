"""Evaluate the row expressions of several edges with Spark, in one projection that shares columns.

Edges from the same origin often have equal conditions and read equal columns. The projection computes every
condition and every expression once, however many edges need it. So its size follows the distinct
expressions, not the number of edges times the columns of a row.

A condition becomes a boolean column. The conditions and expressions after it are evaluated only in rows where
that column is true. So an expression can raise errors only on the rows of its own edge. A column that reads
other columns is computed in a later stage, which is a selection on top of the earlier one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tidemill.views.chain.chain import Edge
from tidemill.views.chain.row_expressions import FilterStep, SelectStep
from tidemill.views.circuit.expr import Expr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

WEIGHT = "_w"


class EdgeColumns(NamedTuple):
    """The columns of a projection that belong to an edge.

    - passes: the boolean column that is true in the rows of the edge; empty if all rows belong to it.
    - columns: the columns c0, c1, … of its rows, and their weight.
    """

    passes: str
    columns: tuple[str, ...]

    def rows(self, projected: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return the rows of the edge as c0, c1, … and `_w`."""
        names = [*(f"c{i}" for i in range(len(self.columns) - 1)), WEIGHT]
        rows = pa.table([projected[name] for name in self.columns], names=names)
        return rows.filter(projected[self.passes]) if self.passes else rows


class _Value(NamedTuple):
    """A value of the projection as SQL, and the first stage that can read it."""

    sql: str
    stage: int


class _Rows(NamedTuple):
    """Rows at a place on an edge: the condition under which they pass, and their columns."""

    passes: _Value | None
    columns: tuple[_Value, ...]


@dataclass
class SharedProjection:
    """Builds the projection of several edges. No edge may explode rows."""

    _stages: list[dict[str, str]] = field(default_factory=list)  # the names of columns by their SQL
    _identities: dict[tuple[_Value, ...], "tuple[list[DataType], tuple[str, str]]"] = field(
        default_factory=dict
    )
    _outputs: dict[str, str] = field(default_factory=dict)  # the names of output columns by their SQL
    edges: dict[int, EdgeColumns] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Return how many columns the projection computes or selects."""
        return len(self._outputs)

    def add(self, edge: Edge, width: int, origin: str, identity: "Sequence[DataType] | None") -> None:
        """Add an edge.

        Args:
            edge: the edge.
            width: how many columns its origin has.
            origin: the struct column that holds its rows, NULL in other rows; empty if the frame has the
                columns c0, c1, … and `_w` itself.
            identity: the types of the columns, if the rows need an identity (`weighted_rows`).
        """
        prefix = f"{origin}." if origin else ""
        received = self._named(_Value(f"{origin} IS NOT NULL", 0)) if origin else None
        rows = _Rows(received, tuple(_Value(f"{prefix}c{i}", 0) for i in range(width)))
        for step in edge.expressions.steps:
            if isinstance(step, FilterStep):
                rows = self._filtered(rows, step)
            else:
                assert isinstance(step, SelectStep), "rows that explode have a query of their own"
                rows = self._selected(rows, step)
        values = [value.sql for value in rows.columns]
        if identity is not None:
            values += self._identity(rows.columns, identity)
        columns = tuple(self._output(sql) for sql in [*values, f"{prefix}{WEIGHT}"])
        passes = "" if rows.passes is None else self._output(rows.passes.sql)
        self.edges[edge.number] = EdgeColumns(passes, columns)

    def apply(self, frame: "DataFrame", passed: Sequence[str] = ()) -> "DataFrame":
        """Return the columns of all edges.

        Args:
            frame: the rows.
            passed: columns of the frame that the result has too, before the columns of the edges.
        """
        from pyspark.sql import functions as sf

        # Imported here: it imports the SQL parser, which the workers of Spark do not need.
        from tidemill.views.spark import weighted_rows

        for stage in self._stages:
            frame = frame.selectExpr("*", *(f"{sql} AS {name}" for sql, name in stage.items()))
        hashes = []
        for columns, (kinds, names) in self._identities.items():
            halves = weighted_rows.identity([sf.col(value.sql) for value in columns], kinds)
            hashes += [half.alias(name) for half, name in zip(halves, names, strict=True)]
        if hashes:
            frame = frame.select("*", *hashes)
        return frame.selectExpr(*passed, *(f"{sql} AS {name}" for sql, name in self._outputs.items()))

    def _filtered(self, rows: _Rows, step: FilterStep) -> _Rows:
        conditions = [self._value(rows, condition.parenthesized()) for condition in step.conditions]
        sql = " AND ".join(condition.sql for condition in conditions)
        return rows._replace(passes=self._named(self._guarded(rows, sql, conditions)))

    def _selected(self, rows: _Rows, step: SelectStep) -> _Rows:
        columns = []
        for expression in step.expressions:
            if expression.column is not None:
                columns.append(rows.columns[expression.column])
            else:
                value = self._value(rows, expression)
                columns.append(self._named(self._guarded(rows, value.sql, [value])))
        return rows._replace(columns=tuple(columns))

    @staticmethod
    def _value(rows: _Rows, expression: Expr) -> _Value:
        stages = (rows.columns[place].stage for place in expression.columns)
        return _Value(expression.sql(lambda place: rows.columns[place].sql), max(stages, default=0))

    @staticmethod
    def _guarded(rows: _Rows, sql: str, reads: Sequence[_Value]) -> _Value:
        """Return a value that is computed only in the rows that pass."""
        stage = max(value.stage for value in reads)
        if rows.passes is None:
            return _Value(sql, stage)
        return _Value(f"CASE WHEN {rows.passes.sql} THEN {sql} END", max(stage, rows.passes.stage))

    def _named(self, value: _Value) -> _Value:
        """Compute a value in the first stage that has all it reads; return the column that holds it."""
        while len(self._stages) <= value.stage:
            self._stages.append({})
        stage = self._stages[value.stage]
        name = stage.setdefault(value.sql, f"_x{value.stage}_{len(stage)}")
        return _Value(name, value.stage + 1)

    def _identity(self, columns: tuple[_Value, ...], kinds: "Sequence[DataType]") -> tuple[str, str]:
        number = len(self._identities)
        entry = self._identities.setdefault(columns, (list(kinds), (f"_high{number}", f"_low{number}")))
        return entry[1]

    def _output(self, sql: str) -> str:
        return self._outputs.setdefault(sql, f"o{len(self._outputs)}")
