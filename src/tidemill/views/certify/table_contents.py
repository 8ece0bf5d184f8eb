"""Steps over tables, as values: rows that come and rows that go, and what the tables hold after each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import BadSchema, UsageError
from tidemill.schemas.type_table import CAST, row_of
from tidemill.spark import schema
from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]

SMALL = 5_000
"""Fewer rows than these are one partition."""


@dataclass(frozen=True)
class Step:
    """What changes in one step, by table: rows are dictionaries, a column that is missing is NULL.

    - now: the time of the step in µs since 1970; None where it stays as it was.
    """

    inserts: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    deletes: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    now: int | None = None


class TableContents:
    """What tables hold; `ddl` are their columns by name, as Spark writes them."""

    def __init__(self, ddl: Mapping[str, str]) -> None:
        self._columns = {name: schema.parse(text) for name, text in ddl.items()}
        self._rows: dict[str, list[Row]] = {name: [] for name in ddl}
        self.now = 0

    def apply(self, step: Step) -> None:
        """Go one step on. `UsageError` for a deletion of a row that is not there; then nothing is changed."""
        after = {name: list(rows) for name, rows in self._rows.items()}
        for name, rows in step.inserts.items():
            after[name] += rows
        for name, rows in step.deletes.items():
            for row in rows:
                at = next((i for i, one in enumerate(after[name]) if _same(one, row)), None)
                if at is None:
                    raise UsageError(f"step deletes {row} from {name}, where it is not")
                after[name].pop(at)
        self._rows = after
        self.now = self.now if step.now is None else step.now

    @property
    def tables(self) -> Mapping[str, object]:
        """The tables by name."""
        return self._rows

    def copy(self) -> "TableContents":
        """The same, which later steps do not move."""
        other = TableContents({})
        other._columns, other._rows, other.now = self._columns, dict(self._rows), self.now
        return other

    def same(self, other: "TableContents") -> bool:
        """Do they hold the same, at the same time?"""
        return self.now == other.now and all(
            len(rows) == len(other._rows[name]) and all(map(_same, rows, other._rows[name]))
            for name, rows in self._rows.items()
        )

    @property
    def small(self) -> bool:
        """Are there so few rows that one task has them all?"""
        return sum(map(len, self._rows.values())) < SMALL

    def rows(self, table: str) -> list[Row]:
        """What a table holds."""
        return list(self._rows[table])

    def frame(self, spark: "SparkSession", table: str, *, backwards: bool = False) -> "DataFrame":
        """A table as a frame; `backwards` has its rows in the opposite order."""
        columns = self._columns[table]
        rows = self._rows[table][:: -1 if backwards else 1]
        if not rows:
            # Of no rows Spark Connect infers no columns, and a list of none would be read by a Python worker.
            nothing = (f"{_made(one, there=False)} AS {quoted(one.name)}" for one in columns.columns)
            return spark.sql(f"SELECT {', '.join(nothing)} WHERE false")
        # Types that have no form outside of Spark are there as NULL: a column that only exists. One column
        # more, for a table in which no other is left: rows would be lost with it.
        kept = [carried for one in columns.columns if (carried := _carried(one)) is not None]
        texts = {one.name for one in kept if one not in columns.columns and str(one.type) == "string"}
        every = schema.Schema((*kept, schema.Column("__n", schema.Simple("bigint"))))
        given = [
            {"__n": n, **{one.name: _given(row.get(one.name), one.name in texts) for one in kept}}
            for n, row in enumerate(rows)
        ]
        frame = spark.createDataFrame(pa.Table.from_pylist(given, schema.to_arrow(every)))
        if len(rows) < SMALL:
            frame = frame.coalesce(1)  # in one partition nothing has to be exchanged
        names = {one.name for one in kept}
        return frame.selectExpr(
            *(f"{_made(one, there=one.name in names)} AS {quoted(one.name)}" for one in columns.columns)
        )


def _other(kind: schema.Type) -> tuple[str, str] | None:
    """For a type that Spark takes from no Arrow table: the type to carry it in, and the SQL to make it."""
    return row_of(kind).carried if isinstance(kind, schema.Simple) else None


def _made(column: schema.Column, *, there: bool) -> str:
    """A column of its type again."""
    other = _other(column.type)
    text = CAST if other is None or not there else other[1]
    return text.format(quoted(column.name) if there else "NULL", column.type)


def _carried(column: schema.Column) -> schema.Column | None:
    """A column in a type that Arrow and Spark both have: its own, or one that it is made of; or none."""
    other = _other(column.type)
    if other is not None:
        return schema.Column(column.name, schema.Simple(other[0]))
    try:
        schema.to_arrow(schema.Schema((column,)))
    except BadSchema:
        return None
    return column


def _given(value: Any, text: bool) -> Any:
    return str(value) if text and value is not None else value


def _same(one: Row, other: Row) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))
