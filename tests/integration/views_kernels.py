"""Views computed by the kernels of one chain, step by step, for the judge: many queries, a job or none.

A step is given as values. Its tasks run in this process (`InProcessExecutor`) or as a Spark job. The state
is in real run files under a version file per step, as a pipeline has it.
"""

import copy
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidemill.clock import SYSTEM
from tidemill.objects import place_of
from tidemill.objects.local import LocalObjects
from tidemill.spark import schema
from tidemill.spark.storage import Storage
from tidemill.testing import MaintainedView, Step
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.chain.chain import Chain, InputKind
from tidemill.views.chain.layer_task import StepPlan, TaskReport
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.circuit.operators import Operator, ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.kernels.zsets import net_rows, total_digest
from tidemill.views.spark.arrow_types import struct_of
from tidemill.views.spark.executor import ChainExecutor
from tidemill.views.spark.group_chain import GroupChain, group_chain
from tidemill.views.spark.in_process_executor import InProcessExecutor
from tidemill.views.spark.spark_executor import SparkExecutor
from tidemill.views.spark.step_inputs import FrameInput, StepInput
from tidemill.views.spark.tasks import TaskPaths
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import ALL, ranges
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceChanges, TraceVersion
from tidemill.views.trace.version_file import write_version

WEIGHT = "_weight"


class Kernels:
    """The views of a chain with their current content.

    Args:
        spark: the session, for types and row expressions.
        folder: the folder of the state.
        tables: the columns of the tables.
        outputs: the circuits of views.
        kinds: the kinds of the tables' rows; "rows" by default.
        count: the number of ranges.
        job: whether to compute steps as Spark jobs.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        tables: Mapping[str, str],
        outputs: Mapping[str, ViewOutput],
        *,
        kinds: Mapping[str, str] | None = None,
        count: int = 2,
        job: bool = False,
    ) -> None:
        self.spark = spark
        self.objects = LocalObjects(folder, SYSTEM, random.Random(1))
        self.columns = {name: schema.parse(text) for name, text in tables.items()}
        frames = {name: schema.empty_frame(spark, str(text)) for name, text in self.columns.items()}
        table_kinds = {name: InputKind((kinds or {}).get(name, "rows")) for name in tables}
        self.group: GroupChain = group_chain(spark, outputs, frames, table_kinds, "kernels")
        self.count = count
        self.runs_jobs = job
        self.version, self.key, self.number = TraceVersion(), "", 0
        self.base: dict[str, list[tuple[Any, int]]] = {name: [] for name in tables}
        self.contents: dict[str, pa.Table] = {}
        self.loads = 0
        self.attempt = "0"
        self._last: Step | None = None

    @property
    def chain(self) -> Chain:
        assert self.group.chain is not None
        return self.group.chain

    def maintained(self, view: str) -> MaintainedView:
        """Return a view for a case of the judge; all cases of a step share one computation."""

        def after(step: Step) -> DataFrame:
            if step is not self._last:
                self._last = step
                self.step(step)
            return self.frame(view)

        return MaintainedView(after)

    def fork(self, attempt: str, count: int) -> "Kernels":
        """Return a copy with the same state, which continues independently in so many ranges."""
        other = copy.copy(self)
        other.attempt, other.count = attempt, count
        other.base = {name: list(rows) for name, rows in self.base.items()}
        other.contents = dict(self.contents)
        return other

    def state(self) -> dict[str, Counter[str]]:
        """Return all rows of all traces with their weights, as text."""
        cache, state = Cache(self.objects, None), {}
        for placed in self.chain.operators:
            for name, trace_id in placed.traces.items():
                layout = placed.operator.layouts[name]
                trace = Trace.of(self.version, trace_id, layout, cache, ALL, self.version.step)
                state[trace_id] = Counter(repr(row) for table in trace.scan() for row in table.to_pylist())
        return state

    def frame(self, view: str) -> DataFrame:
        """Return the content of a view."""
        content = self.contents[view]
        weights = content[WEIGHT].to_numpy()
        assert (weights > 0).all(), f"{view} has rows with a negative count"
        rows = content.drop_columns([WEIGHT]).take(pa.array(np.repeat(np.arange(len(weights)), weights)))
        kind = struct_of(rows.column_names, self.group.types[view])
        return (
            self.spark.createDataFrame(rows, kind) if rows.num_rows else self.spark.createDataFrame([], kind)
        )

    # --- steps

    def step(self, step: Step) -> list[TaskReport]:
        """Run a step; return the reports of its tasks."""
        changes = {
            name: [
                *((row, 1) for row in step.inserts.get(name, ())),
                *((row, -1) for row in step.deletes.get(name, ())),
            ]
            for name in self.base
        }
        for name, rows in changes.items():
            self.base[name] += rows
        self.number += 1
        every = frozenset(range(len(self.chain.operators)))
        reports: list[TaskReport] = []
        lost, trace_changes = every, TraceChanges()
        if self.number > 1:
            plan = StepPlan(self.chain, every, ranges(self.count))
            executor = self._run(plan, changes, "step")
            reports, trace_changes = executor.reports, executor.changes
            lost = self.chain.above({int(number) for report in reports for number in report.exhausted})
            current = {view for view, sink in self.chain.outputs.items() if sink.number not in lost}
            self._apply(reports, current)
        rebuilt = {trace for number in lost for trace in self.chain.operators[number].traces.values()}
        if lost:
            self.loads += 1
            plan = StepPlan(
                self.chain, self.chain.below(lost), ranges(self.count + 1), first=True, stored=lost
            )
            executor = self._run(plan, self.base, "load")
            loaded = executor.reports
            trace_changes = TraceChanges.combine(
                [
                    TraceChanges(
                        tuple(run for run in trace_changes.added if run.trace not in rebuilt),
                        tuple(runs for runs in trace_changes.merged if runs.trace not in rebuilt),
                    ),
                    executor.changes,
                ]
            )
            views = {view for view, sink in self.chain.outputs.items() if sink.number in lost}
            self.contents = {view: table for view, table in self.contents.items() if view not in views}
            self._apply(loaded, views)
            reports = [*reports, *loaded]
        outcome = self.version.apply(self.number, trace_changes.added, trace_changes.merged, rebuilt=rebuilt)
        self.version, self.key = outcome.version, f"state/{self.number:06}/{self.attempt}/version"
        write_version(self.objects, self.key, self.version)
        return reports

    def _run(
        self, plan: StepPlan, changes: Mapping[str, list[tuple[Any, int]]], purpose: str
    ) -> ChainExecutor:
        folders = tuple(
            (view, f"views/{self.number:06}/{self.attempt}/{purpose}/{view}/")
            for view in sorted(self.chain.outputs)
        )
        prefix = f"state/{self.number:06}/{self.attempt}/{purpose}/"
        paths = TaskPaths(place_of(self.objects), self.key, prefix, folders, "off")
        frames: dict[str, StepInput] = {
            name: FrameInput(self._frame(name, rows))
            for name, rows in changes.items()
            if name in self.chain.inputs and (rows or plan.first)
        }
        if plan.first:
            frames |= {name: FrameInput(self._constant(op)) for name, op in self.chain.constants}
        kind = SparkExecutor if self.runs_jobs else InProcessExecutor
        return kind(self.spark, Storage(self.objects), plan, paths, self._types_of).run(frames)

    def _frame(self, table: str, rows: list[tuple[Any, int]]) -> DataFrame:
        contents = TableContents({table: f"{self.columns[table]}, _w BIGINT"})
        contents.apply(Step({table: [{**row, "_w": weight} for row, weight in rows]}))
        names = [f"c{i}" for i in range(len(self.columns[table].columns))]
        return contents.frame(self.spark, table).toDF(*names, "_w")

    def _constant(self, operator: Operator) -> DataFrame:
        columns = [*(f"c{i}" for i in range(operator.width)), "1L AS _w"]
        return self.spark.sql(f"SELECT {', '.join(columns)} FROM ({Renderer().sql(operator, [])})")

    def _types_of(self, number: int) -> Any:
        operator = self.chain.operators[number].operator
        assert isinstance(operator, OutputSink)
        return [each.dataType for each in struct_of(operator.names, self.group.types[operator.view]).fields]

    def _apply(self, reports: list[TaskReport], views: set[str]) -> None:
        """Add the written changes to the contents of these views."""
        for view in views:
            operator = self.chain.outputs[view].operator
            assert isinstance(operator, OutputSink)
            kind = pa.schema(
                [
                    *(pa.field(f"q{i}", each) for i, each in enumerate(operator.types)),
                    pa.field(WEIGHT, pa.int64()),
                ]
            )
            parts = [self.contents.get(view, kind.empty_table())]
            for written, key, *_ in (file for report in reports for file in report.files):
                if written == view:
                    body = pq.read_table(pa.BufferReader(self.objects.get(key)[0]))
                    names = [name for name in body.column_names if name not in {"_h1", "_h2"}]
                    parts.append(body.select(names).rename_columns(kind.names).cast(kind))
            self.contents[view] = net_rows(
                pa.concat_tables(parts).rename_columns([*kind.names[:-1], "_w"])
            ).rename_columns(kind.names)


def digests(reports: Iterable[TaskReport]) -> dict[str, int]:
    """Return the digest of the written changes of each view that changed."""
    by_view: dict[str, list[int]] = {}
    for view, _, _, _, digest in (file for report in reports for file in report.files):
        by_view.setdefault(view, []).append(int(digest, 16))
    return {view: total for view, parts in by_view.items() if (total := total_digest(parts))}
