"""Results of queries after many steps from one plan of each: for tiny tables, planning a query is the cost.

A table is an RDD that holds what the table holds after the step whose number a property of this Java says. So
a query is planned once; for every step what Spark planned is made ready to run anew, with exchanges and
subqueries of its own, and run, many queries by one job. It is plain Spark, up to a class of adaptive
execution (`LogicalQueryStage`) by which a physical plan stands for a query. What Spark refuses to plan and
what raises is left to the judge, which asks for it by itself.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import Any

from tests.integration.views_oracle import SETTINGS, settings
from tidemill.errors import QueryError
from tidemill.spark import queries
from tidemill.views.certify.equality import Row
from tidemill.views.certify.query_results import JSON_COLUMNS, ResultReader
from tidemill.views.certify.table_contents import TableContents

BATCH = 40
"""So many plans go to one job."""

_NUMBERS = count()


@dataclass(frozen=True)
class _Planned:
    text: str
    place: int
    reader: ResultReader
    stage: Any


class Ahead:
    """For `Judge(precomputed=…)`. `known` counts the results that it had, `left` those that it had not."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._sql = spark._jvm.org.apache.spark.sql
        self.known = self.left = 0

    def __call__(
        self, contents: Sequence[TableContents], asked: Sequence[Collection[str]]
    ) -> Sequence[Mapping[str, list[Row]]]:
        step = f"tidemill.ahead.{next(_NUMBERS)}"
        texts = list(dict.fromkeys(text for some in asked for text in sorted(some)))
        found: list[dict[str, list[Row]]] = []
        with settings(self._spark, SETTINGS), _tables(self._spark, contents, step) as views:
            planned = [self._planned(text, place, views) for place, text in enumerate(texts)]
            for number, some in enumerate(asked):
                self._spark._jvm.java.lang.System.setProperty(step, str(number))
                ready = [one for one in planned if one is not None and one.text in some]
                computed: dict[str, list[Row]] = {}
                for start in range(0, len(ready), BATCH):
                    computed.update(self._computed(ready[start : start + BATCH]))
                found.append(computed)
        self.known += sum(map(len, found))
        self.left += sum(map(len, asked)) - sum(map(len, found))
        return found

    def _planned(self, text: str, place: int, views: Mapping[str, str]) -> _Planned | None:
        """The query, planned; None if Spark refuses it."""
        from pyspark.errors import PySparkException

        try:
            over = queries.renamed(text.rstrip().rstrip(";"), lambda name: views[queries.match(name, views)])
            frame = self._spark.sql(f"SELECT {place} AS place, {JSON_COLUMNS} FROM (\n{over}\n)")
            made = frame._jdf.queryExecution()
            stage = self._sql.execution.adaptive.LogicalQueryStage(made.optimizedPlan(), made.sparkPlan())
        except (PySparkException, QueryError):
            return None
        return _Planned(text, place, ResultReader(self._spark, over), stage)

    def _computed(self, planned: Sequence[_Planned]) -> Iterator[tuple[str, list[Row]]]:
        """The rows of queries by one job, in one task where it can; a query that raises is left out."""
        from pyspark.errors import PySparkException

        rows: dict[int, list[Row]] = {one.place: [] for one in planned}
        readers = {one.place: one.reader for one in planned}
        stages = self._spark._jvm.PythonUtils.toSeq([one.stage for one in planned])
        every = self._sql.catalyst.plans.logical.Union(stages, False, False)
        try:
            for place, said, kind in _frame(self._spark, every).coalesce(1).collect():
                rows[place].append(readers[place].row(said, kind))
        except PySparkException:
            if len(planned) > 1:
                half = len(planned) // 2
                yield from self._computed(planned[:half])
                yield from self._computed(planned[half:])
            return
        yield from ((one.text, rows[one.place]) for one in planned)


def _frame(spark: Any, plan: Any) -> Any:
    from pyspark.sql import DataFrame

    made = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(made, spark)


@contextmanager
def _tables(spark: Any, contents: Sequence[TableContents], step: str) -> Iterator[dict[str, str]]:
    """Temporary views of the tables, by their names, with the contents whose number is in the property."""
    views: dict[str, str] = {}
    try:
        for number, name in enumerate(contents[0].tables):
            view = f"ahead_{number}"
            _table(spark, [one.frame(spark, name) for one in contents], step).createOrReplaceTempView(view)
            views[name] = view
        yield views
    finally:
        for view in views.values():
            spark.catalog.dropTempView(view)
        spark._jvm.java.lang.System.clearProperty(step)


def _table(spark: Any, frames: Sequence[Any], step: str) -> Any:
    """A table that has at any time the rows of the frame whose number the property says, in one partition."""
    chosen = f"java_method('java.lang.System', 'getProperty', '{step}')"
    parts = [frame.selectExpr("*", f"'{number}' AS __step") for number, frame in enumerate(frames)]
    every = reduce(lambda one, other: one.unionAll(other), parts).coalesce(1)
    rows = every.where(f"__step = {chosen}").drop("__step")._jdf.queryExecution()
    sql, scala = spark._jvm.org.apache.spark.sql, spark._jvm.scala
    scan = sql.execution.LogicalRDD(
        rows.analyzed().output(),
        rows.toRdd(),
        rows.executedPlan().outputPartitioning(),
        rows.executedPlan().outputOrdering(),
        False,
        _object(scala, "None"),
        spark._jsparkSession,
        scala.Some(rows.optimizedPlan().stats()),  # where nothing is said of its size it is large
        _object(scala, "None"),
        False,
    )
    return _frame(spark, scan)


def _object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")
