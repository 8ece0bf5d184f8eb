"""The tables after each of several steps, as temporary views of a Spark session."""

import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Self

from tidemill.spark import queries
from tidemill.views.certify.table_contents import Step, TableContents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NUMBERS = count()


class StepTables:
    """The contents of tables after each step. Several comparisons, also in several threads, can share them.

    Leaving the block drops the temporary views.

    Args:
        spark: the session of the temporary views.
        ddl: the columns of each table.
        steps: the steps; the tables are empty before the first one.
    """

    def __init__(self, spark: "SparkSession", ddl: Mapping[str, str], steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.contents: list[TableContents] = []
        contents = TableContents(ddl)
        for step in steps:
            contents.apply(step)
            self.contents.append(contents.copy())
        self._same_rows = [
            number > 0 and now.same_rows(self.contents[number - 1])
            for number, now in enumerate(self.contents)
        ]
        self.after: list[TablesAfterStep] = []
        for number, now in enumerate(self.contents):
            # The same rows need no further views, even if the time is another one.
            before = self.after[-1] if self._same_rows[number] else None
            self.after.append(TablesAfterStep(spark, now, before))

    def same_rows(self, number: int) -> bool:
        """Return whether a step leaves all tables unchanged."""
        return self._same_rows[number]

    def only_time_changed(self, number: int) -> bool:
        """Return whether a step changes the time and no table."""
        return self._same_rows[number] and self.contents[number].now != self.contents[number - 1].now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for tables in self.after:
            tables.drop()


class TablesAfterStep:
    """The tables after one step, as temporary views that are created when a query first reads them."""

    def __init__(
        self, spark: "SparkSession", contents: TableContents, before: "TablesAfterStep | None" = None
    ) -> None:
        self.now = contents.now
        self.small = contents.small
        self._spark = spark
        self._contents = contents
        self._tag = f"tidemill_step{next(_NUMBERS)}"
        self._views: dict[tuple[str, bool], str] = {} if before is None else before._views
        self._frames: dict[int, tuple[DataFrame, str]] = {} if before is None else before._frames
        self._lock: threading.Lock = threading.Lock() if before is None else before._lock

    def query(self, sql: str, *, backwards: bool = False) -> str:
        """Return a query over these tables; `backwards` reverses the order of their rows."""
        return queries.renamed(sql.rstrip().rstrip(";"), lambda name: self._view(name, backwards=backwards))

    def named(self, frame: "DataFrame") -> str:
        """Return a query that selects all rows of a DataFrame."""
        with self._lock:
            _, view = self._frames.get(id(frame), (frame, ""))
            if not view:
                view = f"{self._tag}_held{next(_NUMBERS)}"
                frame.createOrReplaceTempView(view)
                self._frames[id(frame)] = frame, view
                self._views[view, False] = view
        return f"SELECT * FROM {view}"  # noqa: S608

    def drop(self) -> None:
        """Drop the temporary views."""
        with self._lock:
            views = list(self._views.values())
            self._views.clear()
            self._frames.clear()
        for view in views:
            self._spark.catalog.dropTempView(view)

    def _view(self, name: str, *, backwards: bool) -> str:
        table = queries.match(name, self._contents.tables)
        with self._lock:
            key = (table, backwards)
            if key not in self._views:
                view = f"{self._tag}_{len(self._views)}"
                self._contents.frame(self._spark, table, backwards=backwards).createOrReplaceTempView(view)
                self._views[key] = view
            return self._views[key]
