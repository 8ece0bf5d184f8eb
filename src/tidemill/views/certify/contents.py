"""Steps over tables, as values: rows that come and rows that go, and what the tables hold after each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import BadSchema, UsageError
from tidemill.spark import schema
from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]

_AS_TEXT = ("time(", "interval year to month")

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


class Contents:
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

    def copy(self) -> "Contents":
        """The same, which later steps do not move."""
        other = Contents({})
        other._columns, other._rows, other.now = self._columns, dict(self._rows), self.now
        return other

    def same(self, other: "Contents") -> bool:
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
        # Types that Arrow has not are there as NULL: a column that only exists.
        kept = [carried for one in columns.columns if (carried := _carried(one)) is not None]
        texts = {one.name for one in kept if one not in columns.columns}
        arrow = schema.to_arrow(schema.Schema(tuple(kept)))
        given = [{name: _given(row.get(name), name in texts) for name in arrow.names} for row in rows]
        # One column more, for a table in which no other is left: rows would be lost with it.
        table_ = pa.Table.from_pylist(given, arrow).append_column(
            "__n", pa.array(range(len(rows)), pa.int64())
        )
        if rows:
            frame = spark.createDataFrame(table_)
        else:  # of no rows Spark Connect infers no columns
            ddl = [str(schema.Schema(tuple(kept)))] if kept else []
            frame = spark.createDataFrame([], ", ".join([*ddl, "__n BIGINT"]))
        if len(rows) < SMALL:
            frame = frame.coalesce(1)  # in one partition nothing has to be exchanged
        names = {one.name for one in kept}
        given_as = {one.name: quoted(one.name) if one.name in names else "NULL" for one in columns.columns}
        return frame.selectExpr(
            *(f"CAST({given_as[one.name]} AS {one.type}) AS {quoted(one.name)}" for one in columns.columns)
        )


def _carried(column: schema.Column) -> schema.Column | None:
    """A column in a type that Arrow and Spark both have: its own, or text that Spark casts; or none."""
    kind = column.type
    if isinstance(kind, schema.Simple) and kind.name.startswith(_AS_TEXT):
        return schema.Column(column.name, schema.Simple("string"))
    try:
        schema.to_arrow(schema.Schema((column,)))
    except BadSchema:
        return None
    return column


def _given(value: Any, text: bool) -> Any:
    return str(value) if text and value is not None else value


def _same(one: Row, other: Row) -> bool:
    return repr(sorted(one.items())) == repr(sorted(other.items()))
