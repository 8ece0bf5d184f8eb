"""The jobs of a step, one behind the other: a keyed operator's query stands between two of them (DBSP-17).

A job writes the rows that later ones need to files of the attempt. A query reads those of its inputs, each
row as often as it is there, and gives the result of the keys that changed: Spark SQL as it is, over few rows.
"""

import time
from collections.abc import Mapping
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
from tidemill.views.spark.job import Job
from tidemill.views.spark.row_expressions import WEIGHT, KindsOf
from tidemill.views.spark.step_inputs import FrameInput, SpilledInput, StepInput
from tidemill.views.spark.tasks import TaskSite
from tidemill.views.trace.version import TraceChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Inputs = Mapping[str, StepInput]
"""The rows of tables, by their names."""


@dataclass
class Jobs:
    """Runs the jobs of a plan, and collects what their tasks told.

    Args:
        spark: the session.
        storage: where objects are, for Spark.
        plan: what is computed; its job is set here.
        site: where tasks find things.
        kinds_of: the Spark types of a view's columns.
        kind: what runs one of them.
    """

    spark: "SparkSession"
    storage: Storage
    plan: StepPlan
    site: TaskSite
    kinds_of: KindsOf
    kind: type[Job] = Job
    told: list[TaskReport] = field(default_factory=list)
    kept: TraceChanges = field(default_factory=TraceChanges)
    plan_s: float = 0.0
    job_s: float = 0.0

    def run(self, inputs: Inputs) -> "Jobs":
        """Run them all; those to which nothing comes are left out."""
        for number in range(self.plan.chain.jobs):
            plan = replace(self.plan, job=number)
            with ExitStack() as open_queries:
                began = time.perf_counter()
                given = self._given(plan, inputs, open_queries)
                if not plan.mine or not (given or plan.first):
                    continue
                job = self.kind(self.spark, plan, self.site, self.kinds_of)
                run = job.planned(given)
                planned = time.perf_counter()
                told = run()
            self.plan_s += planned - began
            self.job_s += time.perf_counter() - planned
            self.kept = TraceChanges.together([self.kept, complete_changes(plan, told)])
            self.told += told
        return self

    def _given(self, plan: StepPlan, inputs: Inputs, open_queries: ExitStack) -> dict[str, StepInput]:
        """What a job reads."""
        named = {query.table: query for query in plan.chain.queries}
        found: dict[str, StepInput] = {}
        wanted = {
            edge.origin.table
            for edge in plan.chain.edges
            if isinstance(edge.origin, ChainInput) and edge.target in plan.mine
        }
        for name in sorted(wanted):
            if name in inputs:
                found[name] = inputs[name]
            elif name in named:
                result = self._result(named[name], open_queries)
                found |= {} if result is None else {name: FrameInput(result)}
            elif self._files(name):
                found[name] = self._spilled(name)
        return found

    def _files(self, name: str) -> list[StoredObject]:
        files = [file for told in self.told for file in told.files if file[0] == name]
        return [StoredObject(uri=key, rows=rows, size=size) for _, key, rows, size, _ in files]

    def _spilled(self, name: str) -> SpilledInput:
        station = self.plan.chain.spills[name].station
        assert isinstance(station, OutputSink)
        schema = pa.schema(with_weight(numbered_columns(station.types)))
        return SpilledInput(self.spark, self.storage, schema, self._files(name))

    def _result(self, query: KeyedQuery, open_queries: ExitStack) -> "DataFrame | None":
        """The result of a keyed operator for the keys that changed; None when they have no rows at all."""
        if not any(self._files(name) for name in query.reads):
            return None
        inputs = {f"__in{n}": self._repeated(name) for n, name in enumerate(query.reads)}
        inner = Renderer().sql(query.operator, list(inputs))
        return open_queries.enter_context(queries.over(self.spark, _text(query, inner), inputs, "keyed"))

    def _repeated(self, name: str) -> "DataFrame":
        """Rows, each as often as it is there."""
        df = self._spilled(name).frame()
        names = [one for one in df.columns if one != WEIGHT]
        again = f"explode(array_repeat(1, CAST({WEIGHT} AS INT))) AS _again"
        return df.selectExpr(*names, again).selectExpr(*names)


def _text(query: KeyedQuery, inner: str) -> str:
    """The rows of a keyed operator at the end of its leg, c0, c1, …, with their key behind them."""
    width, keys = query.operator.width, [f"k{n}" for n in range(len(query.key))]
    shown = [f"c{i}" for i in range(width)]
    given = [*shown, *(f"{one.sql()} AS k{n}" for n, one in enumerate(query.key))]
    text = f"SELECT {', '.join(given)} FROM ({inner})"  # noqa: S608  # the view's own query
    for step in query.leg.steps:
        if isinstance(step, FilterStep):
            conditions = " AND ".join(one.enclosed().sql() for one in step.conditions)
            text = f"SELECT * FROM ({text}) WHERE {conditions}"  # noqa: S608
        else:
            assert isinstance(step, SelectStep), "what explodes is no part of a query"
            made = [f"{one.sql()} AS c{i}" for i, one in enumerate(step.expressions)]
            shown = [f"c{i}" for i in range(len(made))]
            text = f"SELECT {', '.join([*made, *keys])} FROM ({text})"  # noqa: S608
    last = [*shown, *(f"{name} AS c{len(shown) + n}" for n, name in enumerate(keys)), f"1L AS {WEIGHT}"]
    return f"SELECT {', '.join(last)} FROM ({text})"  # noqa: S608
