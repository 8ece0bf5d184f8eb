"""Steps over tables in memory: inserted and deleted rows, and the contents of the tables after each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import BadSchema, UsageError
from tidemill.schemas.type_table import CAST, row_of
from tidemill.spark import schema
from tidemill.spark.queries import quoted
from tidemill.spark.sessions import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]

SMALL = 5_000
"""Tables with fewer rows have one Spark partition."""


@dataclass(frozen=True)
class Step:
    """The changes of one step, for each table. Rows are dictionaries; a missing column is NULL.

    - now: the time of the step in µs since 1970; None if the time does not change.
    - extreme: whether the rows have extreme values, on which many queries raise an error.
    """

    inserts: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    deletes: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    now: int | None = None
    extreme: bool = False


def merged_step(first: Step, second: Step) -> Step:
    """Return one step that leaves the same rows and time as two steps in sequence."""
    tables = {*first.inserts, *second.inserts, *first.deletes, *second.deletes}
    return Step(
        inserts={name: [*first.inserts.get(name, ()), *second.inserts.get(name, ())] for name in tables},
        deletes={name: [*first.deletes.get(name, ()), *second.deletes.get(name, ())] for name in tables},
        now=first.now if second.now is None else second.now,
        extreme=first.extreme or second.extreme,
    )


class TableContents:
    """The contents of tables. `ddl` has the columns of each table, such as `a INT`."""

    def __init__(self, ddl: Mapping[str, str]) -> None:
        self._columns = {name: schema.parse(text).unlimited() for name, text in ddl.items()}
        self._rows: dict[str, list[Row]] = {name: [] for name in ddl}
        self.now = 0

    def apply(self, step: Step) -> None:
        """Apply a step. If it deletes a row that does not exist, raise `UsageError` and change nothing."""
        after = {name: list(rows) for name, rows in self._rows.items()}
        for name, rows in step.inserts.items():
            after[name] += rows
        for name, rows in step.deletes.items():
            for row in rows:
                index = next((i for i, candidate in enumerate(after[name]) if _same(candidate, row)), None)
                if index is None:
                    raise UsageError(
                        f"the step deletes {row} from {name}, which does not contain it",
                        hint="delete only rows that the table contains",
                    )
                after[name].pop(index)
        self._rows = after
        self.now = self.now if step.now is None else step.now

    @property
    def tables(self) -> Mapping[str, object]:
        """The tables by name."""
        return self._rows

    def copy(self) -> "TableContents":
        """Return a copy that later steps do not change."""
        copy = TableContents({})
        copy._columns, copy._rows, copy.now = self._columns, dict(self._rows), self.now
        return copy

    def same_rows(self, other: "TableContents") -> bool:
        """Return whether the contents are equal; the times may differ."""
        return all(
            len(rows) == len(other._rows[name]) and all(map(_same, rows, other._rows[name]))
            for name, rows in self._rows.items()
        )

    @property
    def small(self) -> bool:
        """Whether the tables have so few rows that one task should read them all."""
        return sum(map(len, self._rows.values())) < SMALL

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        return list(self._rows[table])

    def frame(self, spark: "SparkSession", table: str, *, backwards: bool = False) -> "DataFrame":
        """Return a table as a DataFrame; `backwards` reverses the order of its rows."""
        table_schema = self._columns[table]
        rows = self._rows[table][:: -1 if backwards else 1]
        if not rows:
            # Without rows Spark Connect infers no columns, and an empty list would need a Python worker.
            nothing = (
                f"{_as_type(column, exists=False)} AS {quoted(column.name)}"
                for column in table_schema.columns
            )
            return spark.sql(f"SELECT {', '.join(nothing)} WHERE false")
        # Columns of types that only Spark can represent are NULL. The additional column `__n` keeps the
        # number of rows if no other column is left.
        carried_columns = [
            carried for column in table_schema.columns if (carried := _carried(column)) is not None
        ]
        texts = {
            column.name
            for column in carried_columns
            if column not in table_schema.columns and str(column.type) == "string"
        }
        arrow_schema = schema.Schema((*carried_columns, schema.Column("__n", schema.Simple("bigint"))))
        records = [
            {
                "__n": n,
                **{
                    column.name: _as_text(row.get(column.name), column.name in texts)
                    for column in carried_columns
                },
            }
            for n, row in enumerate(rows)
        ]
        frame = frame_of(spark, pa.Table.from_pylist(records, schema.to_arrow(arrow_schema)))
        if len(rows) < SMALL:
            frame = frame.coalesce(1)  # one partition needs no exchange
        names = {column.name for column in carried_columns}
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        return frame.selectExpr(
            *(
                # Without a needless cast, each query over the table is planned faster.
                quoted(column.name)
                if types.get(column.name) == str(column.type) and _carrier(column.type) is None
                else f"{_as_type(column, exists=column.name in names)} AS {quoted(column.name)}"
                for column in table_schema.columns
            )
        )


def _carrier(kind: schema.Type) -> tuple[str, str] | None:
    """If Spark cannot read a type from Arrow, return a type to carry its values, and SQL to convert them."""
    return row_of(kind).carried if isinstance(kind, schema.Simple) else None


def _as_type(column: schema.Column, *, exists: bool) -> str:
    """Return the SQL that converts a carried column to its declared type."""
    carrier = _carrier(column.type)
    text = CAST if carrier is None or not exists else carrier[1]
    return text.format(quoted(column.name) if exists else "NULL", column.type)


def _carried(column: schema.Column) -> schema.Column | None:
    """Return the column with a type that both Arrow and Spark have; None if there is no such type."""
    carrier = _carrier(column.type)
    if carrier is not None:
        return schema.Column(column.name, schema.Simple(carrier[0]))
    try:
        schema.to_arrow(schema.Schema((column,)))
    except BadSchema:
        return None
    return column


def _as_text(value: Any, text: bool) -> Any:
    return str(value) if text and value is not None else value


def _same(left: Row, right: Row) -> bool:
    return repr(sorted(left.items())) == repr(sorted(right.items()))
