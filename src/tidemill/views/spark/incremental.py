"""Steps whose cost follows the change: the views of a group that have kernels, and beside them the others.

Each step is one of three things for a view:

    step    all its traces are current: its changes come out of one job with those of all such views
    load    a trace of it is missing, or has to be read again: its kernels are given whole inputs and remember
            nothing, which gives its whole result and builds its traces; the result is compared with its table
    full    it has no chain: it is recomputed by Spark SQL, and compared

A load is the same job as a step. So what a step takes back is to the last bit what was given before, also
where Spark's own sum of doubles would differ from ours (DBSP-20).

The version file of the step lists the runs of all traces; the step's commit names it (DBSP-39).
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.errors import FileUnlike
from tidemill.events import Emit, ignore
from tidemill.lots import layout
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.objects import place_of
from tidemill.spark.lot_reader import naming, read_objects
from tidemill.spark.lot_writer import Written
from tidemill.spark.sessions import parallelism
from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.layer_task import StepPlan, TaskReport, timings
from tidemill.views.chain.outputs import OutputSink, SpillSink
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.render import Renderer
from tidemill.views.kernels.zsets import total_digest
from tidemill.views.spark.arrow_types import struct_of
from tidemill.views.spark.group_chain import GroupChain, group_chain, input_kind
from tidemill.views.spark.inprocess import Grown, InProcess
from tidemill.views.spark.job import Job
from tidemill.views.spark.jobs import Inputs as Given
from tidemill.views.spark.jobs import Jobs
from tidemill.views.spark.places import Estimate, Venue, choose, threads_for
from tidemill.views.spark.recompute import FullViews, ViewCode, difference, step_output
from tidemill.views.spark.sizes import NOTHING, InputSize, size_of, tasks_for
from tidemill.views.spark.step_inputs import FrameInput, LotInput, StepInput
from tidemill.views.spark.table_merges import stored_columns
from tidemill.views.spark.tasks import TaskSite
from tidemill.views.spark.view_tables import ViewAttempt, ViewTables, schema_text
from tidemill.views.steps.commits import QuarantinedRows, StepBatch, StepOutput, StepState
from tidemill.views.steps.events import StepTimed
from tidemill.views.steps.groups import GroupSpec
from tidemill.views.steps.inputs import InputReader, LotSlice
from tidemill.views.steps.keys import changes_of, state_prefix
from tidemill.views.trace.hash_space import ranges
from tidemill.views.trace.version import TraceChanges, TraceVersion, read_version, write_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

LOAD_RATIO = 2
LOAD_LEAST = 50_000
"""A step that brings more than so many times the rows that are known is a load: nothing is gained by looking
up what is there. Fewer rows than the least are no reason."""

CODE = "1"
"""What this release's kernels call themselves in version files."""

Made = StepOutput | QuarantinedRows | StepState


class IncrementalViews:
    """Computes the steps of groups: the port `Compute` of the stepper.

    Args:
        session: gives the Spark session to use, when it is used.
        full: recomputes what has no chain.
        tables: the tables of views.
        inputs: what datasets hold.
        datasets: declarations, by id.
        views: code, by name.
        cache: the folder of the local cache, on the machines that run tasks; empty is the usual one.
        emit: told how long steps took, and where.
    """

    def __init__(
        self,
        session: "Callable[[], SparkSession]",
        full: FullViews,
        tables: ViewTables,
        inputs: InputReader,
        datasets: Mapping[DatasetId, Dataset],
        views: Mapping[str, ViewCode],
        *,
        cache: str = "",
        emit: Emit = ignore,
    ) -> None:
        self.session = session
        self.full = full
        self.tables = tables
        self.inputs = inputs
        self.datasets = datasets
        self.views = views
        self.cache = cache
        self._emit = emit
        self._known: dict[GroupSpec, GroupChain] = {}

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[Made, ...]:
        self.full.check(batch)
        spark = self.session()
        found = self.chained(spark, batch.spec)
        if found.chain is None and not batch.version:
            return self.full(batch, attempt)
        stepping = Stepping(self, spark, found, batch, attempt)
        done = [*stepping.step(), *stepping.load()]
        rest = [view.name for view in batch.spec.views if view.name not in found.views]
        outputs = [*done, *self.full.recomputed(batch, attempt, rest, done)]
        aside = self.full.set_aside(batch, attempt, stepping.doubtful())
        made: list[Made] = [*outputs, StepState(version=stepping.commit())]
        self._emit(stepping.timed())
        return (*made, *([] if aside is None else [aside]))

    def chained(self, spark: "SparkSession", spec: GroupSpec) -> GroupChain:
        """The chain of a group; made once for each declaration of it."""
        if spec not in self._known:
            frames, kinds = {}, {}
            for name, dataset in self.names(spec).items():
                declared = self.datasets[dataset]
                frames[name] = read_objects(spark, self.tables.storage, declared.schema, [])
                kinds[name] = input_kind(declared)
            codes = [self.views[view.name] for view in spec.views]
            outputs = {code.name: None if code.refresh == "full" else code.circuit for code in codes}
            self._known[spec] = group_chain(spark, outputs, frames, kinds, "chain")
        return self._known[spec]

    def names(self, spec: GroupSpec) -> dict[str, DatasetId]:
        """The datasets that a group's circuits read, by the names they have there."""
        return {name: one for view in spec.views for name, one in self.views[view.name].datasets.items()}


class Stepping:
    """One step of a group, on its way: which traces are current, and what its tasks have kept so far."""

    def __init__(
        self,
        owner: IncrementalViews,
        spark: "SparkSession",
        found: GroupChain,
        batch: StepBatch,
        attempt: str,
    ) -> None:
        self._owner = owner
        self._spark = spark
        self._found = found
        self._batch = batch
        self._attempt = attempt
        self._storage = owner.tables.storage
        self._prefix = state_prefix(batch.pipeline, batch.spec.name, batch.lot, attempt)
        self._version = (
            read_version(self._storage.objects, batch.version) if batch.version else TraceVersion()
        )
        self._chain = found.chain or Chain((), ())
        self._names = owner.names(batch.spec)
        self._kept = TraceChanges()
        self._told: list[TaskReport] = []
        self._told_by_load: list[TaskReport] = []
        self._loaded: frozenset[int] = frozenset()
        self._plan_s = self._job_s = self._load_s = 0.0
        self._estimate = Estimate(Venue.SPARK, 0.0)
        self._exchanges = {
            name: owner.inputs.between(one, batch.before[one], batch.positions[one])
            for name, one in self._names.items()
            if name in self._chain.inputs and one in batch.moved
        }
        known = {one.number: self._is_current(one) for one in self._chain.stations if one.reads}
        self._size = sum((size_of((*one.plus, *one.minus)) for one in self._exchanges.values()), NOTHING)
        self._changed = self._size.rows
        self._known = max(
            (sum(run.rows for run in runs) for runs in self._version.traces.values()), default=0
        )
        lost = {number for number, current in known.items() if not current} | self._rewound()
        self._current = known.keys() - self._chain.above(lost)  # nobody would tell them what changed
        if self._changed > LOAD_RATIO * max(self._known, LOAD_LEAST):
            self._current = set()
        self.ready = frozenset(view for view in found.views if self._is_ready(view))

    def _is_current(self, placed: PlacedOperator) -> bool:
        steps = self._version.steps
        return all(steps.get(name, -1) == self._version.step for name in placed.reads)

    def _rewound(self) -> set[int]:
        """Sources of keyed datasets of which a write was taken back: what it had replaced is not known."""
        return {
            edge.target
            for name, exchange in self._exchanges.items()
            if exchange.minus and self._declared(name).kind is Kind.KEYED
            for edge in self._chain.leaving(name)
        }

    def _is_ready(self, view: str) -> bool:
        needs = {one.number for one in self._chain.stations if view in one.views and one.reads}
        batch = self._batch
        return view not in batch.stale and view in batch.tables and needs <= self._current

    def _declared(self, name: str) -> Dataset:
        return self._owner.datasets[self._names[name]]

    # --- the step of what is current

    def step(self) -> list[StepOutput]:
        """The changes of the views that are ready, in one job, and one more behind each keyed operator."""
        outputs = {one.number for view, one in self._chain.outputs.items() if view in self.ready}
        active = frozenset(self._current | outputs | self._spills_of(self._current))
        plan = StepPlan(self._chain, active, ranges(tasks_for(self._spark, self._size)))
        inputs = {
            name: LotInput(self._spark, self._storage, self._declared(name), exchange.plus, exchange.minus)
            for name, exchange in self._exchanges.items()
        }
        if not inputs:
            return []
        jobs = self._placed(plan, inputs, self._size, self.ready)
        self._told, self._plan_s, self._job_s = jobs.told, jobs.plan_s, jobs.job_s
        self._keep(jobs.kept)
        return [made for view in self._batch.spec.views if (made := self._output(view.name)) is not None]

    def _spills_of(self, numbers: Collection[int]) -> set[int]:
        """The stations that keep rows of these for a later job."""
        return {
            edge.target
            for edge in self._chain.edges
            if edge.origin in numbers and isinstance(self._chain.stations[edge.target].station, SpillSink)
        }

    def _placed(self, plan: StepPlan, inputs: Given, size: InputSize, views: Collection[str]) -> Jobs:
        """The jobs of a plan where they take the least; what grew too large in the runner is Spark's."""
        self._estimate = choose(plan, inputs, size, parallelism(self._spark))
        if self._estimate.place is Venue.RUNNER:
            try:
                here = replace(plan, ranges=ranges(threads_for(size)))
                return self._jobs(here, inputs, views, InProcess)
            except (Grown, MemoryError):
                self._estimate = self._estimate._replace(place=Venue.SPARK)
        return self._jobs(plan, inputs, views)

    def _jobs(self, plan: StepPlan, inputs: Given, views: Collection[str], kind: type[Job] = Job) -> Jobs:
        jobs = Jobs(self._spark, self._storage, plan, self._site(views), self._kinds_of, kind)
        try:
            with naming(self._storage):
                return jobs.run(inputs)
        except (FileUnlike, Grown, MemoryError) as error:
            self._drop(jobs.told, views)  # they come again, from another way of doing it
            if not isinstance(error, FileUnlike):
                raise
        spark = {
            name: replace(one, by_spark=True) if isinstance(one, LotInput) else one
            for name, one in inputs.items()
        }
        return self._jobs(plan, spark, views, kind)

    def _drop(self, told: Iterable[TaskReport], views: Collection[str]) -> None:
        """Remove what was written of changes that nobody may take for the whole of them."""
        for name, key, *_ in (file for one in told for file in one.files):
            if name in views:
                self._storage.objects.delete(key)

    def _keep(self, kept: TraceChanges) -> None:
        """What the job kept, but for operators with a group whose values have to be read again, and for those
        that read them: these are loaded (DBSP-13).
        """
        lost = self._chain.above({int(number) for one in self._told for number in one.exhausted})
        self._current -= lost
        stepped, self.ready = self.ready, frozenset(view for view in self.ready if self._is_ready(view))
        self._drop(self._told, stepped - self.ready)
        gone = {name for one in self._chain.stations if one.number in lost for name in one.traces.values()}
        self._kept = TraceChanges(
            tuple(one for one in kept.added if one.trace not in gone),
            tuple(one for one in kept.merged if one.trace not in gone),
        )

    def _output(self, view: str) -> StepOutput | None:
        """The output of a view that was stepped; None when nothing of it changed."""
        if view not in self.ready:
            return None
        written, digest = _written(view, self._told)
        if not written.rows:
            return None
        tables, before = self._owner.tables, self._batch.tables[view]
        schema = tables.schema(before)
        changes = tables.keep_changes(self._place(view), written, schema, digest)
        return step_output(self._spark, tables, self._place(view), before, changes, written, schema)

    # --- building traces

    def load(self) -> list[StepOutput]:
        """Build the traces that are missing, and give the changes of the views that have them."""
        missing = frozenset(one.number for one in self._chain.stations if one.reads) - self._current
        views = [view.name for view in self._batch.spec.views if self._is_to_load(view.name)]
        if not missing and not views:
            return []
        began = time.perf_counter()
        outputs = {self._chain.outputs[view].number for view in views}
        slices = {name: self._held(one) for name, one in self._names.items() if name in self._chain.inputs}
        size = sum((size_of(many) for many in slices.values()), NOTHING)
        active = self._chain.below(missing | outputs)
        plan = StepPlan(self._chain, active, ranges(tasks_for(self._spark, size)), first=True, kept=missing)
        inputs: dict[str, StepInput] = {
            name: LotInput(self._spark, self._storage, self._declared(name), many)
            for name, many in slices.items()
        }
        inputs |= {name: FrameInput(self._constant(op)) for name, op in self._chain.constants}
        jobs = self._placed(plan, inputs, size, [view for view in views if not self._comparable(view)])
        self._kept = TraceChanges.together([self._kept, jobs.kept])
        self._loaded, self._told_by_load = missing, jobs.told
        self._load_s = time.perf_counter() - began
        return [made for view in views if (made := self._compared(view, jobs.told)) is not None]

    def _constant(self, operator: Operator) -> "DataFrame":
        """Rows that stand in a query: they come once, with the first step."""
        chosen = [*(f"c{i}" for i in range(operator.width)), "1L AS _w"]
        inner = Renderer().sql(operator, [])
        return self._spark.sql(f"SELECT {', '.join(chosen)} FROM ({inner})")  # noqa: S608  # the view's own query

    def _is_to_load(self, view: str) -> bool:
        return view in self._found.views and view not in self.ready

    def _held(self, dataset: DatasetId) -> list[LotSlice]:
        return self._owner.inputs.at(dataset, self._batch.positions[dataset])

    def _comparable(self, view: str) -> str:
        """The table that a view's whole result is compared with; empty if it has none with these columns.

        Such a result is no change of the view: it is written beside the state, as what later jobs read is.
        """
        before = self._batch.tables.get(view, "")
        same = before and schema_text(self._owner.tables.schema(before)) == schema_text(self._schema(view))
        return before if same else ""

    def _compared(self, view: str, told: list[TaskReport]) -> StepOutput | None:
        """The output of a view that was loaded: its whole result, against its table if it has one."""
        tables, place = self._owner.tables, self._place(view)
        schema = self._schema(view)
        written, digest = _written(view, told)
        before = self._comparable(view)
        if before:
            whole = read_objects(self._spark, self._storage, stored_columns(schema), written.objects)
            with naming(self._storage):
                frame = difference(self._spark, tables, whole, schema, before)
                changes, written = tables.write_changes(place, frame, schema)
            return (
                step_output(self._spark, tables, place, before, changes, written, schema) if changes else None
            )
        changes = tables.keep_changes(place, written, schema, digest)
        return step_output(self._spark, tables, place, "", changes, written, schema)

    # --- the end

    def doubtful(self) -> set[DatasetId]:
        """Datasets that may have rows to set aside: those whose source operator says so or was not asked."""
        told = {int(number) for one in (*self._told, *self._told_by_load) for number in one.aside}
        computed = self._current | {number for one in self._told_by_load for number in one.stations}
        found = set()
        for name, one in self._names.items():
            sources = {edge.target for edge in self._chain.leaving(name)} & computed
            if one in self._batch.moved and (not sources or sources & told):
                found.add(one)
        return found

    def commit(self) -> str:
        """Write the version file of the step; its key."""
        loaded = {
            name for one in self._chain.stations if one.number in self._loaded for name in one.traces.values()
        }
        outcome = self._version.apply(
            self._batch.step,
            self._kept.added,
            self._kept.merged,
            rebuilt=loaded,
            dropped=set(self._version.steps) - self._chain.traces,
            code=CODE,
        )
        key = f"{self._prefix}version"
        write_version(self._storage.objects, key, outcome.version)
        return key

    def timed(self) -> StepTimed:
        """How long it took."""
        return StepTimed(
            pipeline=self._batch.pipeline,
            group=self._batch.spec.name,
            step=self._batch.step,
            views=tuple(sorted(self.ready)),
            plan_s=self._plan_s,
            job_s=self._job_s,
            load_s=self._load_s,
            kernel_s=timings(self._told)["kernel_s"],
            place=self._estimate.place,
            estimated_s=self._estimate.seconds,
            changed_rows=self._changed,
            known_rows=self._known,
        )

    # --- where

    def _site(self, views: Iterable[str]) -> TaskSite:
        batch = self._batch
        folders = tuple(
            (view, layout.data_prefix(*changes_of(batch.pipeline, view).parts, batch.lot, self._attempt))
            for view in sorted(views)
        )
        objects = place_of(self._storage.objects)
        return TaskSite(objects, batch.version, self._prefix, folders, self._owner.cache)

    def _place(self, view: str) -> ViewAttempt:
        batch = self._batch
        return ViewAttempt(pipeline=batch.pipeline, view=view, lot=batch.lot, attempt=self._attempt)

    def _kinds_of(self, number: int) -> "list[DataType]":
        station = self._chain.stations[number].station
        assert isinstance(station, OutputSink)
        return [field.dataType for field in self._schema(station.view).fields]

    def _schema(self, view: str) -> "StructType":
        """The columns of a view, as its chain gives them."""
        station = self._chain.outputs[view].station
        assert isinstance(station, OutputSink)
        return struct_of(station.names, self._found.types[view])


def _written(view: str, every: Iterable[TaskReport]) -> tuple[Written, int]:
    """What tasks wrote for a view, and its digest."""
    files = [file for told in every for file in told.files if file[0] == view]
    objects = tuple(StoredObject(uri=key, rows=rows, size=size) for _, key, rows, size, _ in files)
    return Written(objects, sum(file[2] for file in files)), total_digest(int(file[4], 16) for file in files)
