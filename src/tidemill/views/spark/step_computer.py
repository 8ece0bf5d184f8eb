"""Compute the steps of groups of views.

The cost of an incremental step is proportional to the size of the change (DBSP-17).

In each step, a view is computed in one of three ways:

    incremental  all its traces are current: one execution of the chain computes the changes of all such views
    load         one of its traces is missing or must be rebuilt: its kernels get complete inputs and start
                 without state. This computes its complete result and builds its traces; the result is
                 compared with its table
    full         it has no chain: Spark SQL recomputes it, and the result is compared with its table

A load runs the same kernels as an incremental step. So the rows that a step removes are bit for bit the rows
that earlier steps added, even where Spark's sum of doubles would differ in the last bit (DBSP-20).

The version file of the step lists the runs of all traces, and the step's commit names the version file
(DBSP-39).

The file is long because a step is one class: the three ways share the plan, the traces and the reports of the
step. Planning, execution and loading are in other modules of this package.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.errors import CodeDiffers, NotIncremental, ViewRefused
from tidemill.events import Emit, ignore
from tidemill.lots import layout
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.objects import place_of
from tidemill.spark.lot_reader import read_errors, read_objects
from tidemill.spark.lot_writer import Written
from tidemill.spark.outages import outages
from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.layer_task import CODE, StepPlan, TaskReport, timings, work_by_operator
from tidemill.views.chain.outputs import OutputSink, SpillSink
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.render import Renderer
from tidemill.views.kernels.zsets import total_digest
from tidemill.views.spark.arrow_types import struct_of
from tidemill.views.spark.clock_alarms import ClockUse, next_crossing
from tidemill.views.spark.execution import (
    EMPTY,
    Estimate,
    ExecutionPlace,
    InputSize,
    delete_changes,
    execute,
    size_of,
)
from tidemill.views.spark.executor import ChainExecutor, Inputs
from tidemill.views.spark.failing_rows import failed_input
from tidemill.views.spark.failures import failing_view, failing_views
from tidemill.views.spark.group_chain import GroupChain, input_kind, remembered_chain
from tidemill.views.spark.recompute import (
    difference,
    quarantine_rows,
    recompute_views,
    step_output,
    with_copied,
)
from tidemill.views.spark.set_aside import rows_set_aside
from tidemill.views.spark.step_inputs import FrameInput, LotInput, StepInput
from tidemill.views.spark.table_merges import stored_columns
from tidemill.views.spark.tasks import TaskPaths
from tidemill.views.spark.view_checks import checked_views
from tidemill.views.spark.view_sources import ViewCode, ViewSources
from tidemill.views.spark.view_tables import ViewAttempt, schema_text
from tidemill.views.steps import failed_views
from tidemill.views.steps.commits import StepAlarm, StepBatch, StepOutput, StepPart, StepState, WholeReads
from tidemill.views.steps.events import StepTimed
from tidemill.views.steps.failed_views import FailedInput
from tidemill.views.steps.groups import GroupSpec
from tidemill.views.steps.inputs import LotSlice
from tidemill.views.steps.keys import changes_of, state_prefix
from tidemill.views.trace.hash_space import HashRange, ranges
from tidemill.views.trace.version import TraceChanges, TraceVersion
from tidemill.views.trace.version_file import read_version, write_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

LOAD_RATIO = 2
LOAD_LEAST = 50_000
"""A step with more than `LOAD_RATIO` times as many changed rows as stored rows becomes a load: lookups would
not be faster. Stored rows count as at least `LOAD_LEAST`."""


class StepComputer:
    """Computes the steps of groups: implements `Compute` of the stepper.

    Args:
        sources: what views are computed from.
        specs: the groups that this program declares. If the group of a step is declared differently here, the
            step raises `CodeDiffers`, because the rows of a table must all come from the code that the table
            names.
        views: returns the code of the views for the next step, if it can change between steps: a view whose
            circuit is not certified has no circuit.
        confirm: called after a step is computed, with the views whose circuits it used; raises an error if
            the step must not be committed.
        cache: the folder of the local cache on the machines that run tasks; empty for the default.
        during: returns a context manager for an attempt. Spark jobs that run inside it can be interrupted.
        emit: receives the times of steps.
    """

    def __init__(
        self,
        sources: ViewSources,
        specs: Sequence[GroupSpec] | None = None,
        *,
        views: Callable[[], Mapping[str, ViewCode]] | None = None,
        confirm: Callable[[Collection[str]], None] = lambda _: None,
        cache: str = "",
        during: Callable[[str], AbstractContextManager[object]] = nullcontext,
        emit: Emit = ignore,
    ) -> None:
        self._sources = sources
        self._specs = specs
        self._views = views
        self._confirm = confirm
        self._cache = cache
        self._during = during
        self._emit = emit
        self._chains: dict[tuple[GroupSpec, frozenset[str]], GroupChain] = {}

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        with self._during(attempt), _exits_refused(batch), outages():
            if self._specs is not None and batch.spec not in self._specs:
                raise CodeDiffers(
                    f"this runner's code for the views of group {batch.spec.name!r} is not the code that was"
                    " declared for this step"
                )
            kept = failed_views.inputs_of(batch.spec, batch.aside)
            whole, batch = batch, batch.computed
            sources = self._current_sources()
            _refuse_uncertified(sources, batch.spec)
            step = _Step(sources, self._chain_of(sources, batch), batch, attempt, self._cache)
            outputs = step.run()
            checked = list(checked_views(sources, whole, outputs))
            quarantined = quarantine_rows(
                sources, batch, attempt, step.datasets_to_check(), step.rows_set_aside()
            )
            parts: list[StepPart] = [*outputs, *checked]
            if step.has_state:
                parts.append(step.write_version())
                self._emit(step.timed())
            parts += [] if quarantined is None else [quarantined]
            parts.append(WholeReads(datasets=step.whole_reads() | kept))
            parts += self._alarm(batch, outputs, attempt)
            codes = [sources.code(view.name) for view in batch.spec.views]
            used = [(code.name, *code.copied) for code in codes if code.circuit is not None]
            self._confirm(sorted({name for names in used for name in names}))
            return tuple(parts)

    def find_input(self, batch: StepBatch, view: str) -> FailedInput:
        """Return the lots and the row on which a view fails: implements `FindInput` of the stepper."""
        tag = f"failed_{batch.step}"
        with self._during(tag):
            return failed_input(self._current_sources(), batch, view, tag)

    def _current_sources(self) -> ViewSources:
        return self._sources if self._views is None else replace(self._sources, views=self._views())

    def _chain_of(self, sources: ViewSources, batch: StepBatch) -> GroupChain:
        """Return the chain of a group; it is built once for each declaration and set of circuits.

        A view that passes over lots is recomputed: the chain computes all views from the same input.
        """
        spec = batch.spec
        codes = [sources.code(view.name) for view in spec.views]
        recomputed = {code.name for code in codes if code.refresh == "full"} | batch.passed.keys()
        chained = (code.name for code in codes if code.circuit is not None and code.name not in batch.passed)
        key = (spec, frozenset(chained))
        if key not in self._chains:
            declared = {
                name: sources.datasets[dataset] for name, dataset in _datasets_of(sources, spec).items()
            }
            self._chains[key] = remembered_chain(
                sources.session(),
                {code.name: None if code.name in recomputed else code.circuit for code in codes},
                {name: dataset.schema for name, dataset in declared.items()},
                {name: input_kind(dataset) for name, dataset in declared.items()},
            )
        return self._chains[key]

    def _alarm(self, batch: StepBatch, outputs: Sequence[StepOutput], attempt: str) -> Iterator[StepAlarm]:
        """Yield the group's alarm: when time alone changes one of its views (DBSP-22).

        If no view reads the clock, there is no alarm. The tables after the step determine when a row next
        passes a temporal filter. A view that reads the clock in another way is due at the group's cadence.
        Without a cadence, it is computed only in the group's other steps.
        """
        clocks = {view.name: self._sources.code(view.name).clock for view in batch.spec.views}
        if not any(clocks.values()):
            return
        tables = batch.tables | {output.view: output.table for output in outputs}
        times = []
        for view, use in clocks.items():
            if use is not None and use.other and batch.spec.cadence_us:
                times.append(batch.now + batch.spec.cadence_us)
            if use is not None and use.filters:
                with read_errors(self._sources.tables.storage), failing_view(self._sources.code(view)):
                    at = self._next_crossing(view, use, batch, tables, f"{attempt}_{batch.lot}")
                times += [] if at is None else [at]
        yield StepAlarm(at=min(times, default=None))

    def _next_crossing(
        self, view: str, use: ClockUse, batch: StepBatch, tables: Mapping[str, str], tag: str
    ) -> int | None:
        sources = self._sources
        frames = sources.frames(view, batch, tables)
        with with_copied(sources, sources.code(view), frames, batch.now, tag.replace(".", "_")) as inputs:
            return next_crossing(sources.session(), use.filters, inputs, batch.now, tag)


def _refuse_uncertified(sources: ViewSources, spec: GroupSpec) -> None:
    """Raise `NotIncremental` if a view must not be recomputed, but its circuit is not certified."""
    for view in spec.views:
        code = sources.code(view.name)
        if code.refresh == "incremental" and code.circuit is None:
            raise NotIncremental(
                f"view {view.name} has refresh='incremental', but its updates are not certified",
                hint=f"tidemill explain {view.name} says why; refresh='auto' recomputes the view instead",
            )


@contextmanager
def _exits_refused(batch: StepBatch) -> Iterator[None]:
    """Report a `SystemExit` or `KeyboardInterrupt` of a user's code outside of a view function as a failure.

    Signals only reach the main thread, so the exception does not come from a signal. `failing_view` reports
    those of view functions, with the name of the view.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise ViewRefused(
            f"a view function in group {batch.spec.name!r} raised {type(error).__name__}",
            hint="do not exit inside a view function; to report a failure, raise an Exception such as"
            " ValueError",
        ) from error


def _datasets_of(sources: ViewSources, spec: GroupSpec) -> dict[str, DatasetId]:
    """Return the datasets that a group's circuit reads, by their names in the circuit."""
    return {
        name: dataset for view in spec.views for name, dataset in sources.code(view.name).datasets.items()
    }


class _Step:
    """One step of a group: the traces that are current, and the reports of its tasks so far."""

    def __init__(
        self, sources: ViewSources, group: GroupChain, batch: StepBatch, attempt: str, cache: str
    ) -> None:
        self._sources = sources
        self._spark = sources.session()
        self._group = group
        self._batch = batch
        self._attempt = attempt
        self._cache = cache
        self._storage = sources.tables.storage
        self._prefix = state_prefix(batch.pipeline, batch.spec.name, batch.lot, attempt)
        self._chain = group.chain or Chain((), ())
        self._names = _datasets_of(sources, batch.spec)
        self._changes = TraceChanges()
        self._reports: list[TaskReport] = []
        self._load_reports: list[TaskReport] = []
        self._loaded: frozenset[int] = frozenset()
        self._plan_s = self._job_s = self._load_s = 0.0
        self._recomputed_rows = 0
        self._estimate = Estimate(ExecutionPlace.SPARK, 0.0)
        self.has_state = group.chain is not None or bool(batch.version)
        self._version = (
            read_version(self._storage.objects, batch.version) if batch.version else TraceVersion()
        )
        self._input_changes = {
            name: sources.inputs.between(dataset, batch.before[dataset], batch.positions[dataset])
            for name, dataset in self._names.items()
            if name in self._chain.inputs and dataset in batch.moved
        }
        self._size = sum(
            (size_of((*change.plus, *change.minus)) for change in self._input_changes.values()), EMPTY
        )
        self._rows_of_traces = self._version.runs.rows()
        self._stored_rows = max(self._rows_of_traces.values(), default=0)
        self._current = self._current_operators()
        self.ready = frozenset(view for view in group.views if self._is_ready(view))

    def _current_operators(self) -> set[int]:
        """Return the operators whose traces are current, so that the step can update them.

        The other operators are loaded.
        """
        large = self._size.rows > LOAD_RATIO * max(self._stored_rows, LOAD_LEAST)
        if large and self._sources.inputs.is_complete(self._names.values()):
            return set()
        stateful = [placed for placed in self._chain.operators if placed.reads]
        lost = {placed.number for placed in stateful if not self._is_current(placed)}
        lost |= self._retracted_sources()
        # Operators that read a lost one do not receive its changes.
        return {placed.number for placed in stateful} - self._chain.above(lost)

    def _is_current(self, placed: PlacedOperator) -> bool:
        steps = self._version.steps
        return all(steps.get(name, -1) == self._version.step for name in placed.reads)

    def _retracted_sources(self) -> set[int]:
        """Return sources of keyed datasets with a retracted write: the row that it replaced is not stored."""
        return {
            edge.target
            for name, change in self._input_changes.items()
            if change.minus and self._declared(name).kind is Kind.KEYED
            for edge in self._chain.leaving(name)
        }

    def _is_ready(self, view: str) -> bool:
        needs = {placed.number for placed in self._chain.operators if view in placed.views and placed.reads}
        batch = self._batch
        return view not in batch.stale and view in batch.tables and needs <= self._current

    def _declared(self, name: str) -> DatasetRow:
        return self._sources.datasets[self._names[name]]

    def run(self) -> list[StepOutput]:
        """Update the views that are ready, load those that are not, and recompute those without a chain.

        A view is ready if all its traces are current.
        """
        with failing_views():
            chained = [*self._step(), *self._load()]
        return [*chained, *recompute_views(self._sources, self._batch, self._attempt, self._rest(), chained)]

    def _rest(self) -> list[str]:
        """Return the views without a chain."""
        return [view.name for view in self._batch.spec.views if view.name not in self._group.views]

    def whole_reads(self) -> frozenset[DatasetId]:
        """Return the datasets that every step reads as a whole.

        These are the datasets of views without a chain, and of views with temporal filters, which look for
        the next time at which a row passes the filter.
        """
        codes = [self._sources.code(view.name) for view in self._batch.spec.views]
        rest = set(self._rest())
        whole = [code for code in codes if code.name in rest or (code.clock and code.clock.filters)]
        return frozenset(dataset for code in whole for dataset in code.datasets.values())

    # --- the step of current operators

    def _step(self) -> list[StepOutput]:
        """Compute the changes of the views that are ready."""
        if not self._input_changes:
            return []
        outputs = {placed.number for view, placed in self._chain.outputs.items() if view in self.ready}
        active = frozenset(self._current | outputs | self._spills_of(self._current))
        size = self._size + self._stored_inputs()
        plan = StepPlan(self._chain, active, self._ranges())
        inputs = {
            name: LotInput(self._spark, self._storage, self._declared(name), change.plus, change.minus)
            for name, change in self._input_changes.items()
        }
        executor = self._execute(plan, inputs, size, self.ready)
        self._reports, self._plan_s, self._job_s = executor.reports, executor.plan_s, executor.job_s
        self._keep_current(executor.changes)
        outputs_of_views = (self._output(view.name) for view in self._batch.spec.views)
        return [output for output in outputs_of_views if output is not None]

    def _ranges(self) -> tuple[HashRange, ...]:
        """Return the ranges that the step has at least; a large step has more."""
        return ranges(max(1, self._batch.ranges))

    def _stored_inputs(self) -> InputSize:
        """Return how many rows the recomputed operators read in a step of all views that are ready."""
        changed = {edge.target for name in self._input_changes for edge in self._chain.leaving(name)}
        reached = self._chain.above(changed) & self._current
        traces = [
            trace
            for placed in self._chain.stored_inputs
            if placed.number in reached
            for trace in placed.reads
        ]
        return InputSize(sum(self._rows_of_traces.get(trace, 0) for trace in traces), 0)

    def _spills_of(self, numbers: Collection[int]) -> set[int]:
        """Return the sinks that write rows of these operators for a later job."""
        return {
            edge.target
            for edge in self._chain.edges
            if edge.origin in numbers and isinstance(self._chain.operators[edge.target].operator, SpillSink)
        }

    def _execute(
        self, plan: StepPlan, inputs: Inputs, size: InputSize, views: Collection[str]
    ) -> ChainExecutor:
        paths = self._paths(views)
        execution = execute(self._spark, self._storage, plan, inputs, size, paths, self._types_of)
        self._estimate = execution.estimate
        self._recomputed_rows += execution.executor.recomputed_rows
        return execution.executor

    def _keep_current(self, changes: TraceChanges) -> None:
        """Keep the changes of operators that are still current.

        An operator with an exhausted group, and those that read it, are loaded instead (DBSP-13).
        """
        lost = self._chain.above({int(number) for report in self._reports for number in report.exhausted})
        self._current -= lost
        stepped, self.ready = self.ready, frozenset(view for view in self.ready if self._is_ready(view))
        delete_changes(self._storage, self._reports, stepped - self.ready)
        dropped = self._traces_of(lost)
        self._changes = TraceChanges(
            tuple(run for run in changes.added if run.trace not in dropped),
            tuple(runs for runs in changes.merged if runs.trace not in dropped),
        )

    def _traces_of(self, numbers: Collection[int]) -> set[str]:
        return {
            trace
            for placed in self._chain.operators
            if placed.number in numbers
            for trace in placed.traces.values()
        }

    def _output(self, view: str) -> StepOutput | None:
        """Return the output of a view that is ready; None if the view is not ready or did not change."""
        if view not in self.ready:
            return None
        written, digest = _written(view, self._reports)
        if not written.rows:
            return None
        tables, before = self._sources.tables, self._batch.tables[view]
        schema = tables.schema(before)
        view_attempt = self._view_attempt(view)
        changes = tables.record_changes(view_attempt, written, schema, digest)
        return step_output(self._spark, tables, view_attempt, before, changes, written, schema)

    # --- loading

    def _load(self) -> list[StepOutput]:
        """Build the missing traces, and compute the changes of the views that need them."""
        missing = frozenset(placed.number for placed in self._chain.operators if placed.reads) - self._current
        views = [view.name for view in self._batch.spec.views if self._needs_load(view.name)]
        if not missing and not views:
            return []
        began = time.perf_counter()
        outputs = {self._chain.outputs[view].number for view in views}
        slices = {
            name: self._lots_at_step(dataset)
            for name, dataset in self._names.items()
            if name in self._chain.inputs
        }
        size = sum((size_of(lots) for lots in slices.values()), EMPTY)
        active = self._chain.below(missing | outputs)
        plan = StepPlan(self._chain, active, self._ranges(), first=True, stored=missing)
        inputs: dict[str, StepInput] = {
            name: LotInput(self._spark, self._storage, self._declared(name), lots)
            for name, lots in slices.items()
        }
        inputs |= {name: FrameInput(self._constant(op)) for name, op in self._chain.constants}
        executor = self._execute(
            plan, inputs, size, [view for view in views if not self._comparable_table(view)]
        )
        self._changes = TraceChanges.combine([self._changes, executor.changes])
        self._loaded, self._load_reports = missing, executor.reports
        self._load_s = time.perf_counter() - began
        return [output for view in views if (output := self._loaded_output(view)) is not None]

    def _constant(self, operator: Operator) -> "DataFrame":
        """Return the rows of a VALUES clause: they are input of the first step only."""
        columns = [*(f"c{i}" for i in range(operator.width)), "1L AS _w"]
        inner = Renderer().sql(operator, [])
        return self._spark.sql(f"SELECT {', '.join(columns)} FROM ({inner})")  # noqa: S608  # the view's own query

    def _needs_load(self, view: str) -> bool:
        return view in self._group.views and view not in self.ready

    def _lots_at_step(self, dataset: DatasetId) -> list[LotSlice]:
        return self._sources.inputs.at(dataset, self._batch.positions[dataset])

    def _comparable_table(self, view: str) -> str:
        """Return the table to compare a view's complete result with; empty if none has the view's columns.

        The complete result is not a change of the view. It is written next to the state, like spilled rows.
        """
        before = self._batch.tables.get(view, "")
        same = before and schema_text(self._sources.tables.schema(before)) == schema_text(self._schema(view))
        return before if same else ""

    def _loaded_output(self, view: str) -> StepOutput | None:
        """Return the output of a loaded view: its result, compared with its table if it has one."""
        tables, view_attempt = self._sources.tables, self._view_attempt(view)
        schema = self._schema(view)
        written, digest = _written(view, self._load_reports)
        before = self._comparable_table(view)
        if not before:
            changes = tables.record_changes(view_attempt, written, schema, digest)
            return step_output(self._spark, tables, view_attempt, "", changes, written, schema)
        result = read_objects(self._spark, self._storage, stored_columns(schema), written.objects)
        with read_errors(self._storage):
            frame = difference(self._spark, tables, result, schema, before)
            changes, written = tables.write_changes(view_attempt, frame, schema)
        if not changes:
            return None
        return step_output(self._spark, tables, view_attempt, before, changes, written, schema)

    # --- results

    def datasets_to_check(self) -> set[DatasetId]:
        """Return datasets that may have rows to quarantine: no source operator ran that reports such rows."""
        if not self.has_state:
            read = {dataset for view in self._batch.spec.views for dataset in view.reads}
            return read & self._batch.moved
        return {
            dataset
            for name, dataset in self._names.items()
            if dataset in self._batch.moved and not self._computed_sources(name)
        }

    def rows_set_aside(self) -> "dict[DatasetId, tuple[DataFrame, StructType]]":
        """Return the rows that source operators put into quarantine in this step."""
        reported = {
            int(number) for report in (*self._reports, *self._load_reports) for number in report.aside
        }
        frames = {}
        for name, dataset in self._names.items():
            for number in sorted(self._computed_sources(name) & reported)[:1]:
                aside = rows_set_aside(
                    self._spark,
                    self._storage,
                    self._declared(name),
                    self._chain.operators[number],
                    self._changes.added,
                    f"{self._prefix}spill/",
                )
                if aside is not None:
                    frames[dataset] = aside
        return frames

    def _computed_sources(self, name: str) -> set[int]:
        """Return the source operators of a dataset that ran in this step."""
        computed = self._current | {number for report in self._load_reports for number in report.operators}
        return {edge.target for edge in self._chain.leaving(name)} & computed

    def write_version(self) -> StepState:
        """Write the version file of the step; return its key and the size of the traces."""
        applied = self._version.apply(
            self._batch.step,
            self._changes.added,
            self._changes.merged,
            rebuilt=self._traces_of(self._loaded),
            dropped=set(self._version.steps) - self._chain.traces,
            code=CODE,
        )
        key = f"{self._prefix}version"
        write_version(self._storage.objects, key, applied.version)
        return StepState(version=key, size=applied.version.size)

    def timed(self) -> StepTimed:
        """Return the event with the times of the step."""
        changed, recomputed = self._size.rows, self._recomputed_rows
        return StepTimed(
            pipeline=self._batch.pipeline,
            group=self._batch.spec.name,
            step=self._batch.step,
            views=tuple(sorted(self.ready)),
            plan_s=self._plan_s,
            job_s=self._job_s,
            load_s=self._load_s,
            kernel_s=timings(self._reports)["kernel_s"],
            place=self._estimate.place,
            estimated_s=self._estimate.seconds,
            changed_rows=changed,
            known_rows=self._stored_rows,
            operators=work_by_operator(self._chain, [*self._reports, *self._load_reports]),
            loaded_traces=len(self._traces_of(self._loaded)),
            rewritten_rows=sum(report.rewritten for report in self._reports),
            recomputed_rows=recomputed,
            incremental_share=changed / (changed + recomputed) if recomputed else 1.0,
        )

    # --- names and types

    def _paths(self, views: Iterable[str]) -> TaskPaths:
        batch = self._batch
        folders = tuple(
            (view, layout.data_prefix(*changes_of(batch.pipeline, view).parts, batch.lot, self._attempt))
            for view in sorted(views)
        )
        objects = place_of(self._storage.objects)
        return TaskPaths(objects, batch.version, self._prefix, folders, self._cache)

    def _view_attempt(self, view: str) -> ViewAttempt:
        batch = self._batch
        return ViewAttempt(
            pipeline=batch.pipeline,
            view=view,
            lot=batch.lot,
            attempt=self._attempt,
            by_check=bool(self._sources.code(view).checked),
        )

    def _types_of(self, number: int) -> "list[DataType]":
        sink = self._chain.operators[number].operator
        assert isinstance(sink, OutputSink)
        return [field.dataType for field in self._schema(sink.view).fields]

    def _schema(self, view: str) -> "StructType":
        """Return the columns of a view from its chain."""
        sink = self._chain.outputs[view].operator
        assert isinstance(sink, OutputSink)
        return struct_of(sink.names, self._group.types[view])


def _written(view: str, reports: Iterable[TaskReport]) -> tuple[Written, int]:
    """Return the files that tasks wrote for a view, and their digest."""
    files = [file for report in reports for file in report.files if file[0] == view]
    objects = tuple(StoredObject(uri=key, rows=rows, size=size) for _, key, rows, size, _ in files)
    return Written(objects, sum(file[2] for file in files)), total_digest(int(file[4], 16) for file in files)
