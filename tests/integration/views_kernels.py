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
from tidemill.views.chain.chain import Chain
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
from tidemill.views.trace.version import TraceChanges, TraceVersion, write_version

WEIGHT = "_weight"


class Kernels:
    """The views of a chain, with what they hold.

    Args:
        spark: for types and expressions.
        folder: where state is.
        tables: the columns of the tables.
        outputs: the circuits of views.
        kinds: how the rows of tables come; "rows" where nothing is said.
        count: how many ranges.
        job: compute steps as Spark jobs.
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
        frames = {name: spark.createDataFrame([], str(text)) for name, text in self.columns.items()}
        known = dict.fromkeys(tables, "rows") | dict(kinds or {})
        self.found: GroupChain = group_chain(spark, outputs, frames, known, "kernels")
        self.count = count
        self.runs_jobs = job
        self.version, self.key, self.number = TraceVersion(), "", 0
        self.base: dict[str, list[tuple[Any, int]]] = {name: [] for name in tables}
        self.held: dict[str, pa.Table] = {}
        self.loads = 0
        self.attempt = "0"
        self._last: Step | None = None

    @property
    def chain(self) -> Chain:
        assert self.found.chain is not None
        return self.found.chain

    def holding(self, view: str) -> MaintainedView:
        """For a case of the judge; all cases of a step share one computation."""

        def after(step: Step) -> DataFrame:
            if step is not self._last:
                self._last = step
                self.step(step)
            return self.frame(view)

        return MaintainedView(after)

    def fork(self, attempt: str, count: int) -> "Kernels":
        """The same state in the same files, which goes on by itself from here, in so many ranges."""
        other = copy.copy(self)
        other.attempt, other.count = attempt, count
        other.base = {name: list(rows) for name, rows in self.base.items()}
        other.held = dict(self.held)
        return other

    def state(self) -> dict[str, Counter[str]]:
        """All rows of all traces with their sums, as text."""
        cache, found = Cache(self.objects, None), {}
        for one in self.chain.operators:
            for name, trace in one.traces.items():
                layout = one.operator.layouts[name]
                spine = Trace.of(self.version, trace, layout, cache, ALL, self.version.step)
                found[trace] = Counter(repr(row) for table in spine.scan() for row in table.to_pylist())
        return found

    def frame(self, view: str) -> DataFrame:
        """What a view holds."""
        held = self.held[view]
        weights = held[WEIGHT].to_numpy()
        assert (weights > 0).all(), f"{view} holds rows fewer than no times"
        rows = held.drop_columns([WEIGHT]).take(pa.array(np.repeat(np.arange(len(weights)), weights)))
        kind = struct_of(rows.column_names, self.found.types[view])
        return (
            self.spark.createDataFrame(rows, kind) if rows.num_rows else self.spark.createDataFrame([], kind)
        )

    # --- steps

    def step(self, step: Step) -> list[TaskReport]:
        """Go one step on; what tasks told."""
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
        every = frozenset(one.number for one in self.chain.operators)
        told: list[TaskReport] = []
        lost, kept = every, TraceChanges()
        if self.number > 1:
            plan = StepPlan(self.chain, every, ranges(self.count))
            ran = self._run(plan, changes, "step")
            told, kept = ran.reports, ran.changes
            lost = self.chain.above({int(number) for one in told for number in one.exhausted})
            self._take(told, {view for view, one in self.chain.outputs.items() if one.number not in lost})
        rebuilt = {name for one in self.chain.operators if one.number in lost for name in one.traces.values()}
        if lost:
            self.loads += 1
            plan = StepPlan(
                self.chain, self.chain.below(lost), ranges(self.count + 1), first=True, stored=lost
            )
            ran = self._run(plan, self.base, "load")
            loaded, again = ran.reports, ran.changes
            kept = TraceChanges.combine(
                [
                    TraceChanges(
                        tuple(one for one in kept.added if one.trace not in rebuilt),
                        tuple(one for one in kept.merged if one.trace not in rebuilt),
                    ),
                    again,
                ]
            )
            views = {view for view, one in self.chain.outputs.items() if one.number in lost}
            self.held = {view: table for view, table in self.held.items() if view not in views}
            self._take(loaded, views)
            told = [*told, *loaded]
        outcome = self.version.apply(self.number, kept.added, kept.merged, rebuilt=rebuilt)
        self.version, self.key = outcome.version, f"state/{self.number:06}/{self.attempt}/version"
        write_version(self.objects, self.key, self.version)
        return told

    def _run(self, plan: StepPlan, changes: Mapping[str, list[tuple[Any, int]]], what: str) -> ChainExecutor:
        folders = tuple(
            (view, f"views/{self.number:06}/{self.attempt}/{what}/{view}/")
            for view in sorted(self.chain.outputs)
        )
        prefix = f"state/{self.number:06}/{self.attempt}/{what}/"
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
        given = TableContents({table: f"{self.columns[table]}, _w BIGINT"})
        given.apply(Step({table: [{**row, "_w": weight} for row, weight in rows]}))
        names = [f"c{i}" for i in range(len(self.columns[table].columns))]
        return given.frame(self.spark, table).toDF(*names, "_w")

    def _constant(self, operator: Operator) -> DataFrame:
        chosen = [*(f"c{i}" for i in range(operator.width)), "1L AS _w"]
        return self.spark.sql(f"SELECT {', '.join(chosen)} FROM ({Renderer().sql(operator, [])})")

    def _types_of(self, number: int) -> Any:
        operator = self.chain.operators[number].operator
        assert isinstance(operator, OutputSink)
        return [each.dataType for each in struct_of(operator.names, self.found.types[operator.view]).fields]

    def _take(self, told: list[TaskReport], views: set[str]) -> None:
        for view in views:
            operator = self.chain.outputs[view].operator
            assert isinstance(operator, OutputSink)
            kind = pa.schema(
                [
                    *(pa.field(f"q{i}", each) for i, each in enumerate(operator.types)),
                    pa.field(WEIGHT, pa.int64()),
                ]
            )
            parts = [self.held.get(view, kind.empty_table())]
            for written, key, *_ in (file for one in told for file in one.files):
                if written == view:
                    body = pq.read_table(pa.BufferReader(self.objects.get(key)[0]))
                    names = [name for name in body.column_names if name not in {"_h1", "_h2"}]
                    parts.append(body.select(names).rename_columns(kind.names).cast(kind))
            self.held[view] = net_rows(
                pa.concat_tables(parts).rename_columns([*kind.names[:-1], "_w"])
            ).rename_columns(kind.names)


def digests(told: Iterable[TaskReport]) -> dict[str, int]:
    """The digest of what tasks wrote for each view that changed."""
    found: dict[str, list[int]] = {}
    for view, _, _, _, digest in (file for one in told for file in one.files):
        found.setdefault(view, []).append(int(digest, 16))
    return {view: total for view, many in found.items() if (total := total_digest(many))}
