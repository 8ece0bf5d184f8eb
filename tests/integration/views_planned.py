"""Results of queries after many steps, with one plan per query: planning tiny queries takes most of the time.

A table is an RDD with the rows of one step; a Java system property selects the step. So Spark plans each
query once. For every step the physical plan is prepared again, with new exchanges and subqueries, and one job
runs many queries. This is plain Spark, except that a class of adaptive execution (`LogicalQueryStage`)
inserts a physical plan into a query. The judge itself runs the queries that Spark cannot plan or that raise
an error.
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
"""The number of plans in one job."""

_NUMBERS = count()


@dataclass(frozen=True)
class _PlannedQuery:
    text: str
    number: int
    reader: ResultReader
    stage: Any


class PlannedQueries:
    """Computes results for `Judge(precomputed=…)`; counts those that it `computed` and the `missing` ones."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._sql = spark._jvm.org.apache.spark.sql
        self.computed = self.missing = 0

    def __call__(
        self, contents: Sequence[TableContents], queries_by_step: Sequence[Collection[str]]
    ) -> Sequence[Mapping[str, list[Row]]]:
        step = f"tidemill.planned.{next(_NUMBERS)}"
        texts = list(dict.fromkeys(text for step_queries in queries_by_step for text in sorted(step_queries)))
        results: list[dict[str, list[Row]]] = []
        with settings(self._spark, SETTINGS), _tables(self._spark, contents, step) as views:
            planned = [self._plan(text, number, views) for number, text in enumerate(texts)]
            for number, step_queries in enumerate(queries_by_step):
                self._spark._jvm.java.lang.System.setProperty(step, str(number))
                ready = [plan for plan in planned if plan is not None and plan.text in step_queries]
                computed: dict[str, list[Row]] = {}
                for start in range(0, len(ready), BATCH):
                    computed.update(self._compute(ready[start : start + BATCH]))
                results.append(computed)
        self.computed += sum(map(len, results))
        self.missing += sum(map(len, queries_by_step)) - sum(map(len, results))
        return results

    def _plan(self, text: str, number: int, views: Mapping[str, str]) -> _PlannedQuery | None:
        """Plan a query; None if Spark refuses it."""
        from pyspark.errors import PySparkException

        try:
            over = queries.renamed(text.rstrip().rstrip(";"), lambda name: views[queries.match(name, views)])
            frame = self._spark.sql(f"SELECT {number} AS number, {JSON_COLUMNS} FROM (\n{over}\n)")
            execution = frame._jdf.queryExecution()
            stage = self._sql.execution.adaptive.LogicalQueryStage(
                execution.optimizedPlan(), execution.sparkPlan()
            )
        except (PySparkException, QueryError):
            return None
        return _PlannedQuery(text, number, ResultReader(self._spark, over), stage)

    def _compute(self, planned: Sequence[_PlannedQuery]) -> Iterator[tuple[str, list[Row]]]:
        """Yield the rows of queries from one job with one task, without queries that raise an error."""
        from pyspark.errors import PySparkException

        rows: dict[int, list[Row]] = {plan.number: [] for plan in planned}
        readers = {plan.number: plan.reader for plan in planned}
        stages = self._spark._jvm.PythonUtils.toSeq([plan.stage for plan in planned])
        plan_union = self._sql.catalyst.plans.logical.Union(stages, False, False)
        try:
            for number, text, kind in _frame(self._spark, plan_union).coalesce(1).collect():
                rows[number].append(readers[number].row(text, kind))
        except PySparkException:
            if len(planned) > 1:
                half = len(planned) // 2
                yield from self._compute(planned[:half])
                yield from self._compute(planned[half:])
            return
        yield from ((plan.text, rows[plan.number]) for plan in planned)


def _frame(spark: Any, plan: Any) -> Any:
    from pyspark.sql import DataFrame

    dataset = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(dataset, spark)


@contextmanager
def _tables(spark: Any, contents: Sequence[TableContents], step: str) -> Iterator[dict[str, str]]:
    """Create temporary views of the tables with the contents of the step in the property."""
    views: dict[str, str] = {}
    try:
        for number, name in enumerate(contents[0].tables):
            view = f"planned_{number}"
            _table(spark, [content.frame(spark, name) for content in contents], step).createOrReplaceTempView(
                view
            )
            views[name] = view
        yield views
    finally:
        for view in views.values():
            spark.catalog.dropTempView(view)
        spark._jvm.java.lang.System.clearProperty(step)


def _table(spark: Any, frames: Sequence[Any], step: str) -> Any:
    """Return a table with the rows of the frame whose number is in the property, in one partition."""
    current_step = f"java_method('java.lang.System', 'getProperty', '{step}')"
    parts = [frame.selectExpr("*", f"'{number}' AS __step") for number, frame in enumerate(frames)]
    all_rows = reduce(lambda left, right: left.unionAll(right), parts).coalesce(1)
    rows = all_rows.where(f"__step = {current_step}").drop("__step")._jdf.queryExecution()
    sql, scala = spark._jvm.org.apache.spark.sql, spark._jvm.scala
    scan = sql.execution.LogicalRDD(
        rows.analyzed().output(),
        rows.toRdd(),
        rows.executedPlan().outputPartitioning(),
        rows.executedPlan().outputOrdering(),
        False,
        _object(scala, "None"),
        spark._jsparkSession,
        scala.Some(rows.optimizedPlan().stats()),  # without statistics Spark assumes a large table
        _object(scala, "None"),
        False,
    )
    return _frame(spark, scan)


def _object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")
