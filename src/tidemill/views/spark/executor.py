"""Execute the jobs of a chain in order, with the queries of keyed operators between them (DBSP-17).

A job writes the rows that later jobs need to files of the attempt. A query reads the files of its inputs,
repeats each row as many times as its weight says, and computes the result with Spark SQL: for the changed
keys, or the whole result of a recomputed operator.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.lots.manifest import StoredObject
from tidemill.spark import queries
from tidemill.spark.storage import Storage
from tidemill.views.chain.chain import ChainInput, KeyedQuery
from tidemill.views.chain.layer_task import StepPlan, TaskReport, complete_changes
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.row_expressions import FilterStep, SelectStep
from tidemill.views.chain.stateful_operator import numbered_columns, with_weight
from tidemill.views.circuit.render import Renderer
from tidemill.views.spark.row_expressions import TypesOf
from tidemill.views.spark.shared_projection import WEIGHT
from tidemill.views.spark.step_inputs import FrameInput, SpilledInput, StepInput
from tidemill.views.spark.tasks import TaskPaths
from tidemill.views.trace.version import TraceChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Inputs = Mapping[str, StepInput]
"""The rows of tables by name."""


@dataclass
class ChainExecutor(ABC):
    """Runs the jobs of a plan, and collects the reports of their tasks.

    Args:
        spark: the session.
        storage: the object storage.
        plan: the plan of the step; `run` sets its job.
        paths: where tasks read and write.
        types_of: returns the Spark types of a view's columns.

    `recomputed_rows` counts the stored rows that the queries of recomputed operators read.
    """

    spark: "SparkSession"
    storage: Storage
    plan: StepPlan
    paths: TaskPaths
    types_of: TypesOf
    reports: list[TaskReport] = field(default_factory=list)
    changes: TraceChanges = field(default_factory=TraceChanges)
    plan_s: float = 0.0
    job_s: float = 0.0
    recomputed_rows: int = 0

    @abstractmethod
    def planned(self, inputs: Inputs) -> Callable[[], list[TaskReport]]:
        """Plan the current job; return a function that runs it and raises the errors of its tasks.

        Args:
            inputs: the rows of each changed table, or of all inputs of the job: c0, c1, … and `_w`.
        """

    def run(self, inputs: Inputs) -> "ChainExecutor":
        """Run all jobs that have input."""
        for number in range(self.plan.chain.jobs):
            self.plan = replace(self.plan, job=number)
            with ExitStack() as open_queries:
                began = time.perf_counter()
                job_inputs = self._job_inputs(inputs, open_queries)
                if not self.plan.numbers or not (job_inputs or self.plan.first):
                    continue
                run = self.planned(job_inputs)
                planned = time.perf_counter()
                reports = run()
            self.plan_s += planned - began
            self.job_s += time.perf_counter() - planned
            self.changes = TraceChanges.combine([self.changes, complete_changes(self.plan, reports)])
            self.reports += reports
        return self

    def _job_inputs(self, inputs: Inputs, open_queries: ExitStack) -> dict[str, StepInput]:
        by_table = {query.table: query for query in self.plan.chain.queries}
        job_inputs: dict[str, StepInput] = {}
        tables = {
            edge.origin.table
            for edge in self.plan.chain.edges
            if isinstance(edge.origin, ChainInput) and edge.target in self.plan.numbers
        }
        for name in sorted(tables):
            if name in inputs:
                job_inputs[name] = inputs[name]
            elif name in by_table:
                result = self._query_result(by_table[name], open_queries)
                job_inputs |= {} if result is None else {name: FrameInput(result)}
            elif self._files(name):
                job_inputs[name] = self._spilled(name)
        return job_inputs

    def _files(self, name: str) -> list[StoredObject]:
        files = [file for report in self.reports for file in report.files if file[0] == name]
        return [StoredObject(uri=key, rows=rows, size=size) for _, key, rows, size, _ in files]

    def _spilled(self, name: str) -> SpilledInput:
        sink = self.plan.chain.spills[name].operator
        assert isinstance(sink, OutputSink)
        schema = pa.schema(with_weight(numbered_columns(sink.types)))
        return SpilledInput(self.spark, self.storage, schema, self._files(name))

    def _query_result(self, query: KeyedQuery, open_queries: ExitStack) -> "DataFrame | None":
        """Return the result of a keyed operator for the changed keys, or of a recomputed one.

        Returns None if the changed keys have no rows, or if no input of the recomputed operator changed.
        """
        files = [file for name in query.reads for file in self._files(name)]
        if not files:
            return None
        if query.recomputed:
            markers = len(query.reads) * len(self.plan.ranges)
            self.recomputed_rows += sum(file.rows or 0 for file in files) - markers
        inputs = {f"__in{n}": self._repeated(name) for n, name in enumerate(query.reads)}
        inner = Renderer().sql(query.operator, list(inputs))
        return open_queries.enter_context(
            queries.over(self.spark, _query_text(query, inner), inputs, "keyed")
        )

    def _repeated(self, name: str) -> "DataFrame":
        """Return spilled rows, each repeated as many times as its weight says."""
        df = self._spilled(name).frame()
        names = [column for column in df.columns if column != WEIGHT]
        again = f"explode(array_repeat(1, CAST({WEIGHT} AS INT))) AS _again"
        return df.selectExpr(*names, again).selectExpr(*(names or ["1 AS one"]))


def _query_text(query: KeyedQuery, inner: str) -> str:
    """Return the query of an operator with its row expressions: columns c0, c1, …, then the key."""
    width, keys = query.operator.width, [f"k{n}" for n in range(len(query.key))]
    columns = [f"c{i}" for i in range(width)]
    selected = [*columns, *(f"{expr.sql()} AS k{n}" for n, expr in enumerate(query.key))]
    text = f"SELECT {', '.join(selected) or '1 AS one'} FROM ({inner})"  # noqa: S608  # the view's own query
    for step in query.expressions.steps:
        if isinstance(step, FilterStep):
            conditions = " AND ".join(condition.parenthesized().sql() for condition in step.conditions)
            text = f"SELECT * FROM ({text}) WHERE {conditions}"  # noqa: S608
        else:
            assert isinstance(step, SelectStep), "a query does not explode rows"
            computed = [f"{expr.sql()} AS c{i}" for i, expr in enumerate(step.expressions)]
            columns = [f"c{i}" for i in range(len(computed))]
            text = f"SELECT {', '.join([*computed, *keys]) or '1 AS one'} FROM ({text})"  # noqa: S608
    last = [*columns, *(f"{name} AS c{len(columns) + n}" for n, name in enumerate(keys)), f"1L AS {WEIGHT}"]
    text = f"SELECT {', '.join(last)} FROM ({text})"  # noqa: S608
    if query.recomputed:  # the marker: the operator's result may be empty
        text += f" UNION ALL SELECT {', '.join([*('NULL' for _ in columns), '0L'])}"
    return text
