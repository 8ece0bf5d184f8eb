"""Send traces with OpenTelemetry: one trace for each lot, from its source through arcs to the steps of views.

    a batch of a source      a span; the root of the trace
    a try of an arc          a span, whose parent is the span that wrote the lot it reads
    a step of views          a span in the trace of each lot that it processed

The ids of traces and spans follow from the dataset, the lot and the arc. So the spans of one lot are in one
trace, although different runners send them, and nothing about traces is stored. A span is created when its
work ends. If a runner dies in the middle, the runner that continues sends the span.

The exporter, its address, its headers and the sampler are those of OpenTelemetry's environment variables:
`OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_TRACES_EXPORTER` switches traces on. A thread of the SDK sends them,
and the pipeline never waits for the server.

This module needs `opentelemetry-sdk` and an exporter (`pip install 'tidemill[otel]'`).
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, cast

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotMissing, ArcLotPartial
from tidemill.clock import SYSTEM, Clock
from tidemill.events import Emit, Event, ignore
from tidemill.obs.events import TracesUnsent
from tidemill.obs.lineage import LineageGraph
from tidemill.publish.events import ChecksFailed, PartEnded
from tidemill.sources.events import BatchFetched, BatchReceived, WindowPublished, WindowTaken
from tidemill.store.secrets import redact_text
from tidemill.triggers.events import RunStarted
from tidemill.views.steps.events import StepAbandoned, StepCommitted

MOST_LOTS = 50
"""In the traces of how many lots of one dataset a step has a span."""

MOST_OPEN = 10_000
"""How many lots may be in work at the same time. Above, the oldest are forgotten."""

CLOSE_MS = 5_000
"""How long the end of a run waits until the last spans are sent."""

LotsBetween = Callable[[str, int, int, int], Sequence[str]]
"""Returns the lots of a dataset after a position, up to another one, at most so many."""


@dataclass
class _OpenWork:
    """Work that has begun: when, in nanoseconds, and what happened since."""

    began_ns: int
    notes: list[tuple[str, dict[str, Any], int]] = field(default_factory=list)


class _Ids:
    """The ids of the next span, as the SDK asks for them."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return True


class Traces:
    """Turns the events of one run of a pipeline into spans. Any thread may pass events to it.

    Args:
        graph: the jobs and tables of the pipeline.
        exporter: receives the finished spans: a `SpanExporter` of the SDK.
        cluster: the name of the cluster; a part of the ids.
        node: the node that sends, as the instance of the service.
        lots_between: finds the lots that a step processed.
        clock: the source of time.
        at_once: whether to export each span when it ends, instead of in batches by a thread.
    """

    def __init__(
        self,
        graph: LineageGraph,
        exporter: Any,
        *,
        cluster: str,
        node: str = "",
        lots_between: LotsBetween = lambda dataset, after, to, limit: (),
        clock: Clock = SYSTEM,
        at_once: bool = False,
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        self._graph = graph
        self._cluster = cluster
        self._lots_between = lots_between
        self._clock = clock
        self._makers = {table: (id_, job) for id_, job in graph.arcs.items() for table in job.writes}
        self._sources = {table for job in graph.sources.values() for table in job.writes}
        self._open: dict[tuple[str, ...], _OpenWork] = {}
        self._stepped: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ids = cast("Any", _Ids())
        about = {
            "service.instance.id": node,
            "tidemill.cluster": cluster,
            "tidemill.pipeline": graph.pipeline,
        }
        own_name = os.environ.get("OTEL_SERVICE_NAME"), os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        if not own_name[0] and "service.name" not in own_name[1]:
            about["service.name"] = "tidemill"
        resource = Resource.create(about)
        self._provider = TracerProvider(id_generator=self._ids, resource=resource, shutdown_on_exit=False)
        processor: Any = SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tidemill")

    def __call__(self, event: Event) -> None:
        """Take an event of the pipeline."""
        with self._lock:
            self._take(event)

    def close(self) -> None:
        """Send the last spans, if the server answers soon."""
        self._provider.force_flush(CLOSE_MS)
        self._provider.shutdown()

    # --- events

    def _take(self, event: Event) -> None:
        match event:
            case WindowTaken() if event.source in self._graph.sources:
                self._begin("window", event.source, str(event.window))
            case WindowPublished() if event.source in self._graph.sources:
                work = self._end("window", event.source, str(event.window))
                self._source(event.source, event.lot, work, rows=event.rows, files=event.files)
            case BatchReceived() | BatchFetched() if event.source in self._graph.sources:
                self._source(event.source, event.lot, _OpenWork(self._now()), rows=event.rows)
            case ArcLotBegan() if event.arc in self._graph.arcs:
                self._begin("arc", event.arc, event.lot)
            case PartEnded():
                facts = {"part": event.part, "rows": event.rows, "error": event.error}
                self._note("part", ("arc", event.author, event.lot), facts)
            case ChecksFailed():
                self._note("checks failed", ("arc", event.author, event.lot), dict(event.checks))
            case ArcLotComplete() if event.arc in self._graph.arcs:
                facts = {f"rows.{name.partition('@')[0]}": rows for name, rows in event.rows.items()}
                self._arc(event.arc, event.lot, event.generation, "", facts)
            case ArcLotPartial() | ArcLotMissing() if event.arc in self._graph.arcs:
                self._arc(event.arc, event.lot, event.generation, event.error or "failed", {})
            case RunStarted():
                self._stepped[event.name] = self._now()
            case StepCommitted():
                self._step(event)
            case StepAbandoned():
                began = self._stepped.get(f"views:{event.pipeline}/{event.group}", self._now())
                trace = self._number("step", event.pipeline, event.group, event.attempt, bits=128)
                self._span(
                    f"views {event.group}", trace, "step", None, began, {"step": event.step}, event.why
                )

    def _source(self, source: str, lot: str, work: _OpenWork, **facts: int) -> None:
        (table,) = self._graph.sources[source].writes
        trace = self._trace(table, lot)
        self._span(f"source {table}", trace, "source", None, work.began_ns, {"lot": lot, **facts})

    def _arc(self, arc: str, lot: str, generation: int, error: str, facts: Mapping[str, Any]) -> None:
        job, work = self._graph.arcs[arc], self._end("arc", arc, lot)
        base, *_ = job.reads or job.writes
        # A span that failed has its own id: the one that completes the lot is the parent of what follows.
        own = f"{arc} failed at {work.began_ns}" if error else arc
        known = {"lot": lot, "generation": generation, **facts}
        trace = self._trace(base, lot)
        self._span(f"arc {job.name}", trace, own, self._writer(base), work.began_ns, known, error, work.notes)

    def _step(self, event: StepCommitted) -> None:
        group = f"views:{event.pipeline}/{event.group}"
        began, now = self._stepped.get(group, self._now()), self._now()
        self._stepped[group] = now
        facts = {"step": event.step, "views": list(event.views), "rows": event.rows}
        for dataset, (after, to) in event.positions.items():
            table = dataset.partition("@")[0]
            for lot in self._lots_between(dataset, after, to, MOST_LOTS):
                trace, own = self._trace(table, lot), f"{group} {event.step}"
                known = {"lot": lot, "table": table, **facts}
                self._span(f"views {event.group}", trace, own, self._writer(table), began, known)

    # --- work that has begun

    def _begin(self, *key: str) -> None:
        self._open[key] = _OpenWork(self._now())
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _note(self, name: str, key: tuple[str, ...], facts: dict[str, Any]) -> None:
        if key in self._open:
            kept = {each: value for each, value in facts.items() if value not in ("", None)}
            self._open[key].notes.append((name, kept, self._now()))

    def _end(self, *key: str) -> _OpenWork:
        return self._open.pop(key, None) or _OpenWork(self._now())

    def _now(self) -> int:
        return int(self._clock.wall() * 1e9)

    # --- ids

    def _trace(self, table: str, lot: str) -> int:
        """Return the trace of a lot. Tables that arcs make from one dataset have its lots, and its traces."""
        visited = {table}
        while table in self._makers:
            reads = self._makers[table][1].reads
            if not reads or reads[0] in visited:
                break
            table = reads[0]
            visited.add(table)
        return self._number("lot", table, lot, bits=128)

    def _writer(self, table: str) -> str | None:
        """Return the name of the span that wrote a table's lot; None if a user appended it."""
        if table in self._makers:
            return self._makers[table][0]
        return "source" if table in self._sources else None

    def _number(self, *parts: str, bits: int) -> int:
        text = "\n".join((self._cluster, self._graph.pipeline, *parts))
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=bits // 8).digest()
        return int.from_bytes(digest, "big") or 1

    # --- spans

    def _span(
        self,
        name: str,
        trace: int,
        own: str,
        parent: str | None,
        began_ns: int,
        facts: Mapping[str, Any],
        error: str = "",
        notes: Sequence[tuple[str, dict[str, Any], int]] = (),
    ) -> None:
        """Send a span. `own` and `parent` identify spans within the trace."""
        from opentelemetry.trace import Status, StatusCode

        self._ids.trace_id = trace
        self._ids.span_id = self._number(str(trace), own, bits=64)
        span = self._tracer.start_span(
            name,
            context=self._context(trace, parent, name),
            start_time=began_ns,
            attributes={f"tidemill.{key}": _safe(value) for key, value in facts.items()},
        )
        for title, known, at in notes:
            span.add_event(title, {f"tidemill.{key}": _safe(value) for key, value in known.items()}, at)
        if error:
            span.set_status(Status(StatusCode.ERROR, redact_text(error)))
        span.end(max(began_ns, self._now()))

    def _context(self, trace: int, parent: str | None, name: str) -> Any:
        """Return the context of a span: its parent, which another process may send; empty for a root."""
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        if parent is None:
            return Context()
        decision = self._provider.sampler.should_sample(None, trace, name).decision
        flags = TraceFlags(1 if decision is Decision.RECORD_AND_SAMPLE else 0)
        above = self._number(str(trace), parent, bits=64)
        remote = NonRecordingSpan(SpanContext(trace, above, is_remote=True, trace_flags=flags))
        return set_span_in_context(remote, Context())


def _safe(value: Any) -> Any:
    return redact_text(value) if isinstance(value, str) else value


def wanted() -> str:
    """Return the name of the exporter that the environment asks for; empty if traces are off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "")
    if not exporter and not any(
        os.environ.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ):
        return ""
    return "" if exporter == "none" else exporter or "otlp"


def open_exporter(name: str) -> Any:
    """Return the exporter with this name; raise `LookupError` if it is not installed."""
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
        )
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for exporter in metadata.entry_points(group="opentelemetry_traces_exporter", name=name):
        return exporter.load()()
    raise LookupError(f"there is no exporter {name!r:.100}: pip install 'tidemill[otel]'")


@contextlib.contextmanager
def traces_of(
    graph: LineageGraph,
    emit: Emit,
    *,
    cluster: str,
    node: str,
    lots_between: LotsBetween,
    clock: Clock,
) -> Iterator[Emit]:
    """Send traces until the end of the block, if they are wanted; yield the receiver of events."""
    name = wanted()
    if not name:
        yield ignore
        return
    try:
        traces = Traces(
            graph,
            open_exporter(name),
            cluster=cluster,
            node=node,
            lots_between=lots_between,
            clock=clock,
        )
    except Exception as error:  # noqa: BLE001 - a plug-in of the user raises anything; the pipeline must run
        emit(TracesUnsent(error=redact_text(f"{type(error).__name__}: {error}")))
        yield ignore
        return
    try:
        yield traces
    finally:
        traces.close()
