"""Send what a pipeline does to a lineage server: one OpenLineage run for each lot of an arc, each batch of a
source, and each step of a view.

    arc, view, source         a job; its name is the pipeline and the arc, view or table
    a lot, a step, a batch    a run of this job, with the run of `tidemill run` as its parent
    table                     a dataset, with its columns; for a view, also the inputs of each column
    check                     an assertion about the table; a run of the job `<job>.checks` reports it

The ids of runs follow from the pipeline and the lot. So a lot that another runner completes after a crash
has one run. A thread sends the events; the pipeline never waits for the server. If the server does not
answer, events wait in memory, and the oldest are dropped.

This module needs `openlineage-python` (`pip install 'tidemill[lineage]'`).
"""

import contextlib
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotMissing, ArcLotPartial
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import UsageError
from tidemill.events import Emit, Event, ignore
from tidemill.lots.checks import Check
from tidemill.obs.waiting_events import WaitingEvents
from tidemill.publish.events import ChecksFailed
from tidemill.sources.events import WindowPublished
from tidemill.store.secrets import redact_text
from tidemill.views.circuit.column_lineage import ColumnLineage
from tidemill.views.steps.events import StepAbandoned, StepCommitted, ViewChecked

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent, RunState

PRODUCER = "https://pypi.org/project/tidemill"
_RUNS = uuid.UUID("7c1f9d52-0f0b-5a55-9a77-6f2b7f9c1e44")
"""The namespace of the ids of runs."""


class LineageUnsent(Event, frozen=True):
    """A lineage server did not take events. They are sent again; if too many wait, the oldest are dropped."""

    waiting: int
    error: str


@dataclass(frozen=True, kw_only=True)
class LineageTable:
    """A table: its columns with their types, and its checks."""

    name: str
    columns: tuple[tuple[str, str], ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LineageJob:
    """An arc, a view or a source: what it reads and writes, its query, and the lineage of its columns."""

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sql: str = ""
    columns: ColumnLineage | None = None


@dataclass(frozen=True, kw_only=True)
class LineageGraph:
    """The jobs and tables of a pipeline.

    - arcs, sources: the jobs by the id of the arc or source in events.
    - views: the jobs of views by name.
    """

    pipeline: str
    tables: Mapping[str, LineageTable]
    arcs: Mapping[str, LineageJob] = field(default_factory=dict)
    sources: Mapping[str, LineageJob] = field(default_factory=dict)
    views: Mapping[str, LineageJob] = field(default_factory=dict)


class Send(Protocol):
    """Sends an event to a server or a file; raises an error if this fails."""

    def emit(self, event: "RunEvent") -> Any: ...


def open_client(target: str) -> Send:
    """Return a client for the URL of a server, or for a file that gets one event per line.

    A server that needs a key gets that of the environment variable `OPENLINEAGE_API_KEY`.
    """
    import os

    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        raise UsageError(
            "lineage= needs openlineage-python", hint="pip install 'tidemill[lineage]'"
        ) from None
    if "://" not in target:
        return OpenLineageClient(
            config={"transport": {"type": "file", "log_file_path": target, "append": True}}
        )
    if not target.startswith(("http://", "https://")):
        raise UsageError(
            "lineage= is neither a URL nor a file", hint='pass "http://marquez:5000" or "lineage.jsonl"'
        )
    transport: dict[str, Any] = {"type": "http", "url": target, "retry": {"total": 0}}
    key = os.environ.get("OPENLINEAGE_API_KEY")
    if key:
        transport["auth"] = {"type": "api_key", "apiKey": key}
    return OpenLineageClient(config={"transport": transport})


class LineageEvents:
    """Turns the events of one run of a pipeline into OpenLineage events.

    Args:
        graph: the jobs and tables of the pipeline.
        namespace: the namespace of jobs and datasets.
        run: identifies the run of the pipeline.
        clock: the source of time.
    """

    def __init__(self, graph: LineageGraph, namespace: str, run: str, clock: Clock = SYSTEM) -> None:
        self._graph = graph
        self._namespace = namespace
        self._clock = clock
        self._parent = self._run_id(graph.pipeline, run)
        self._failing: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)

    def of(self, event: Event) -> "Iterator[RunEvent]":
        """Yield the OpenLineage events for an event of the pipeline."""
        from openlineage.client.event_v2 import RunState

        match event:
            case ChecksFailed():
                self._failing[event.author, event.lot, event.dataset.partition("@")[0]].update(event.checks)
            case ArcLotBegan() if event.arc in self._graph.arcs:
                yield self._event(RunState.START, self._graph.arcs[event.arc], event.lot, event.generation)
            case ArcLotComplete() if event.arc in self._graph.arcs:
                job = self._graph.arcs[event.arc]
                rows = {name.partition("@")[0]: count for name, count in event.rows.items()}
                yield self._event(RunState.COMPLETE, job, event.lot, event.generation, rows=rows)
                for table in job.writes:
                    counts = self._failing.pop((event.arc, event.lot, table), Counter())
                    yield from self._assertions(job, table, event.lot, event.generation, counts)
            case ArcLotPartial() | ArcLotMissing() if event.arc in self._graph.arcs:
                job = self._graph.arcs[event.arc]
                yield self._event(RunState.FAIL, job, event.lot, event.generation, error=event.error)
            case WindowPublished() if event.source in self._graph.sources:
                job = self._graph.sources[event.source]
                rows = dict.fromkeys(job.writes, event.rows)
                yield self._event(RunState.START, job, event.lot, 0)
                yield self._event(RunState.COMPLETE, job, event.lot, 0, rows=rows)
            case StepCommitted():
                for view in event.views:
                    if view in self._graph.views:
                        rows = {view: event.changes[view]} if view in event.changes else {}
                        job = self._graph.views[view]
                        yield self._event(RunState.START, job, str(event.step), 0)
                        yield self._event(RunState.COMPLETE, job, str(event.step), 0, rows=rows)
            case ViewChecked() if event.view in self._graph.views:
                job = self._graph.views[event.view]
                yield from self._assertions(job, event.view, str(event.step), 0, Counter(event.rows))
            case StepAbandoned():
                job = LineageJob(name=f"views.{event.group}", kind="VIEW_GROUP", reads=(), writes=())
                yield self._event(RunState.START, job, event.attempt, 0)
                yield self._event(RunState.FAIL, job, event.attempt, 0, error=event.why)

    def begin(self) -> "RunEvent":
        """Return the event with which the run of the pipeline begins."""
        from openlineage.client.event_v2 import RunState

        return self._of_pipeline(RunState.START)

    def end(self, *, ok: bool) -> "RunEvent":
        """Return the event with which the run of the pipeline ends."""
        from openlineage.client.event_v2 import RunState

        return self._of_pipeline(RunState.COMPLETE if ok else RunState.FAIL)

    # --- parts of events

    def _of_pipeline(self, state: "RunState") -> "RunEvent":
        from openlineage.client.event_v2 import Job, Run, RunEvent

        job = Job(self._namespace, self._graph.pipeline, {"jobType": self._job_type("PIPELINE")})
        return RunEvent(
            eventTime=self._now(), producer=PRODUCER, eventType=state, job=job, run=Run(self._parent)
        )

    def _event(
        self,
        state: "RunState",
        job: LineageJob,
        lot: str,
        generation: int,
        *,
        rows: Mapping[str, int] | None = None,
        error: str = "",
    ) -> "RunEvent":
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
        from openlineage.client.generated.error_message_run import ErrorMessageRunFacet
        from openlineage.client.generated.output_statistics_output_dataset import (
            OutputStatisticsOutputDatasetFacet,
        )
        from openlineage.client.generated.sql_job import SQLJobFacet

        name = f"{self._graph.pipeline}.{job.name}"
        job_facets: dict[str, Any] = {"jobType": self._job_type(job.kind)}
        if job.sql:
            job_facets["sql"] = SQLJobFacet(query=job.sql, dialect="spark")
        run_facets: dict[str, Any] = {"parent": self._parent_facet()}
        if error:
            run_facets["errorMessage"] = ErrorMessageRunFacet(
                message=redact_text(error), programmingLanguage="PYTHON"
            )
        outputs = []
        for table in job.writes:
            facets = self._dataset_facets(table)
            if job.columns is not None:
                facets["columnLineage"] = self._column_facet(job.columns)
            written: dict[str, Any] = (
                {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows[table])}
                if rows is not None and table in rows
                else {}
            )
            outputs.append(OutputDataset(self._namespace, table, facets=facets, outputFacets=written))
        return RunEvent(
            eventTime=self._now(),
            producer=PRODUCER,
            eventType=state,
            run=Run(self._run_id(name, lot, str(generation)), run_facets),
            job=Job(self._namespace, name, job_facets),
            inputs=[
                InputDataset(self._namespace, each, facets=self._dataset_facets(each)) for each in job.reads
            ],
            outputs=outputs,
        )

    def _assertions(
        self, job: LineageJob, table: str, lot: str, generation: int, failing: Mapping[str, int]
    ) -> "Iterator[RunEvent]":
        """Yield the run that reports the checks of a table, which is its input."""
        from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
        from openlineage.client.generated.data_quality_assertions_dataset import (
            Assertion,
            DataQualityAssertionsDatasetFacet,
        )

        checks = self._graph.tables[table].checks if table in self._graph.tables else ()
        if not checks:
            return
        assertions = [
            Assertion(
                assertion=check.kind,
                success=not failing.get(check.name),
                column=check.columns[0] if len(check.columns) == 1 else None,
                severity="error" if check.on_fail.value == "fail" else "warn",
                name=check.name,
                description=check.problem,
                actual=f"{failing.get(check.name, 0)} rows fail",
            )
            for check in checks
        ]
        checked = InputDataset(
            self._namespace,
            table,
            facets=self._dataset_facets(table),
            inputFacets={"dataQualityAssertions": DataQualityAssertionsDatasetFacet(assertions)},
        )
        name = f"{self._graph.pipeline}.{job.name}.checks"
        for state in (RunState.START, RunState.COMPLETE):
            yield RunEvent(
                eventTime=self._now(),
                producer=PRODUCER,
                eventType=state,
                run=Run(self._run_id(name, table, lot, str(generation)), {"parent": self._parent_facet()}),
                job=Job(self._namespace, name, {"jobType": self._job_type("CHECKS")}),
                inputs=[checked],
            )

    def _dataset_facets(self, table: str) -> dict[str, Any]:
        from openlineage.client.generated.schema_dataset import (
            SchemaDatasetFacet,
            SchemaDatasetFacetFields,
        )

        known = self._graph.tables.get(table)
        if known is None or not known.columns:
            return {}
        fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in known.columns]
        return {"schema": SchemaDatasetFacet(fields=fields)}

    def _column_facet(self, lineage: ColumnLineage) -> Any:
        from openlineage.client.generated import column_lineage_dataset as facet

        def source(column: Any, kind: str, how: Any) -> Any:
            transformation = facet.Transformation(type=kind, subtype=how.name)
            return facet.InputField(self._namespace, column.table, column.column, [transformation])

        fields = {
            name: facet.Fields([source(column, "DIRECT", how) for column, how in sorted(inputs.items())])
            for name, inputs in lineage.columns.items()
        }
        indirect = [source(column, "INDIRECT", how) for column, how in sorted(lineage.indirect.items())]
        return facet.ColumnLineageDatasetFacet(fields=fields, dataset=indirect)

    def _parent_facet(self) -> Any:
        from openlineage.client.generated import parent_run

        job = parent_run.Job(self._namespace, self._graph.pipeline)
        return parent_run.ParentRunFacet(run=parent_run.Run(self._parent), job=job)

    def _job_type(self, kind: str) -> Any:
        from openlineage.client.generated.job_type_job import JobTypeJobFacet

        return JobTypeJobFacet(processingType="BATCH", integration="TIDEMILL", jobType=kind)

    def _run_id(self, *parts: str) -> str:
        return str(uuid.uuid5(_RUNS, "\n".join((self._namespace, *parts))))

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).isoformat()


class LineageSender:
    """Sends lineage events from a thread, until `close`. Any thread may pass events to it.

    Args:
        events: turns events of the pipeline into OpenLineage events.
        send: the client of the server.
        emit: receives `LineageUnsent` when the server does not answer.
        clock: the source of time.
    """

    def __init__(self, events: LineageEvents, send: Send, emit: Emit = ignore, clock: Clock = SYSTEM) -> None:
        self._events = events
        self._send = send
        self._emit = emit
        self._lock = threading.Lock()  # `LineageEvents` remembers what it has seen
        self._waiting: WaitingEvents[RunEvent] = WaitingEvents("tidemill-lineage", 1, self._pass_on, clock)

    def __call__(self, event: Event) -> None:
        """Take an event of the pipeline."""
        with self._lock:
            self._waiting.add(self._events.of(event))

    def start(self) -> None:
        """Begin to send: first, that the pipeline runs."""
        self._waiting.add([self._events.begin()])
        self._waiting.start()

    def close(self, *, ok: bool) -> None:
        """Send the waiting events and the end of the run, if the server answers."""
        with self._lock:
            self._waiting.add([self._events.end(ok=ok)])
        self._waiting.close()

    def flush(self) -> bool:
        """Send the waiting events, in order; return False if the server does not answer."""
        return self._waiting.flush()

    def _pass_on(self, events: "list[RunEvent]", waiting: int) -> bool:
        try:
            for event in events:
                self._send.emit(event)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the pipeline goes on
            self._emit(LineageUnsent(waiting=waiting, error=f"{type(error).__name__}: {error}"))
            return False
        return True


@contextlib.contextmanager
def lineage_of(
    target: str, graph: LineageGraph, namespace: str, run: str, emit: Emit, clock: Clock
) -> Iterator[Emit]:
    """Send lineage until the end of the block; yield the receiver of events.

    - target: a URL or a file; see `open_client`. Empty to send nothing.
    """
    if not target:
        yield ignore
        return
    sender = LineageSender(LineageEvents(graph, namespace, run, clock), open_client(target), emit, clock)
    sender.start()
    ok = False
    try:
        yield sender
        ok = True
    finally:
        sender.close(ok=ok)
