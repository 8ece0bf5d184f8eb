"""Traces: the spans of a lot form one trace, whichever runner sends them, and reach a real receiver."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotPartial
from tidemill.events import Event
from tidemill.obs import traces
from tidemill.obs.events import TracesUnsent
from tidemill.obs.lineage import LineageGraph, LineageJob
from tidemill.obs.traces import Traces, traces_of
from tidemill.publish.events import PartEnded
from tidemill.sources.events import WindowPublished, WindowTaken
from tidemill.testing.fake_clock import FakeClock
from tidemill.triggers.events import RunStarted
from tidemill.views.steps.events import StepAbandoned, StepCommitted

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CLEAN, LARGE = "arc:shop/clean", "arc:shop/large"
SOURCE = "source:shop/orders"
LOT = "A00000000000000007"
GRAPH = LineageGraph(
    pipeline="shop",
    tables={},
    arcs={
        CLEAN: LineageJob(name="clean", kind="ARC", reads=("orders",), writes=("cleaned",)),
        LARGE: LineageJob(name="large", kind="ARC", reads=("cleaned",), writes=("larger",)),
    },
    sources={SOURCE: LineageJob(name="orders.source", kind="SOURCE", reads=(), writes=("orders",))},
)


class Runner:
    """One runner of the pipeline, with its own traces."""

    def __init__(self, clock: FakeClock, exporter: Any, cluster: str = "c") -> None:
        self.clock = clock
        self.traces = Traces(
            GRAPH,
            exporter,
            cluster=cluster,
            node="n",
            lots_between=lambda dataset, after, to, limit: [LOT][: to - after],
            clock=clock,
            at_once=True,
        )

    def ingest(self) -> None:
        self.traces(WindowTaken(source=SOURCE, window=1, node="n", attempt="a", files=2, over=False))
        self.clock.advance(2)
        self.traces(WindowPublished(source=SOURCE, window=1, lot=LOT, position=1, files=2, rows=5))

    def make(self, arc: str, *, error: str = "", tries: int = 1) -> None:
        self.traces(ArcLotBegan(arc=arc, lot=LOT, generation=0, attempt="a", tries=tries, parts=1))
        self.clock.advance(1)
        self.traces(PartEnded(attempt="a", author=arc, lot=LOT, part="0", rows=4, error=error))
        if error:
            self.traces(ArcLotPartial(arc=arc, lot=LOT, generation=0, failed=["0"], error=error))
        else:
            rows = {"cleaned@1": 4}
            self.traces(ArcLotComplete(arc=arc, lot=LOT, generation=0, attempt="a", rows=rows))

    def step(self) -> None:
        self.traces(RunStarted(name="views:shop/main", epoch=1, behind=1))
        self.clock.advance(3)
        self.traces(
            StepCommitted(
                pipeline="shop",
                group="main",
                step=9,
                after=8,
                attempt="a",
                views=("totals",),
                rows=2,
                positions={"cleaned@1": (6, 7)},
            )
        )


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def spans(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_lot_has_one_trace_from_its_source_through_arcs_to_the_step(exporter: InMemorySpanExporter) -> None:
    """Each span comes from another runner: they agree about ids without a word to each other."""
    clock = FakeClock()
    Runner(clock, exporter).ingest()
    Runner(clock, exporter).make(CLEAN)
    Runner(clock, exporter).make(LARGE)
    Runner(clock, exporter).step()
    sent = spans(exporter)
    assert set(sent) == {"source orders", "arc clean", "arc large", "views main"}
    assert len({span.context.trace_id for span in sent.values()}) == 1
    assert sent["source orders"].parent is None
    for child, parent in (
        ("arc clean", "source orders"),
        ("arc large", "arc clean"),
        ("views main", "arc clean"),
    ):
        assert sent[child].parent.span_id == sent[parent].context.span_id
    seconds = {name: (span.end_time - span.start_time) / 1e9 for name, span in sent.items()}
    assert seconds == {"source orders": 2, "arc clean": 1, "arc large": 1, "views main": 3}
    assert sent["arc clean"].attributes["tidemill.rows.cleaned"] == 4
    assert sent["views main"].attributes["tidemill.views"] == ("totals",)
    assert [event.name for event in sent["arc clean"].events] == ["part"]
    resource = sent["arc clean"].resource.attributes
    assert (resource["service.name"], resource["tidemill.pipeline"]) == ("tidemill", "shop")


def test_a_failed_try_has_its_own_span_and_shows_no_secret(exporter: InMemorySpanExporter) -> None:
    runner = Runner(FakeClock(), exporter)
    secret = "planted-s3cret"
    runner.make(CLEAN, error=f"cannot reach postgresql://ann:{secret}@db/shop")
    runner.make(CLEAN, tries=2)
    failed, done = exporter.get_finished_spans()
    assert failed.context.trace_id == done.context.trace_id
    assert failed.context.span_id != done.context.span_id
    assert not failed.status.is_ok
    assert done.status.is_ok
    assert "ann" in failed.status.description
    assert secret not in failed.to_json() + done.to_json()


def test_other_lots_and_other_clusters_have_other_traces(exporter: InMemorySpanExporter) -> None:
    clock = FakeClock()
    Runner(clock, exporter).make(CLEAN)
    Runner(clock, exporter, cluster="d").make(CLEAN)
    first, second = exporter.get_finished_spans()
    assert first.context.trace_id != second.context.trace_id


def test_an_abandoned_step_is_an_error(exporter: InMemorySpanExporter) -> None:
    runner = Runner(FakeClock(), exporter)
    runner.traces(StepAbandoned(pipeline="shop", group="main", step=9, attempt="a", why="out of memory"))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.status.description) == ("views main", "out of memory")


def test_traces_of_lots_that_never_end_are_forgotten(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_OPEN", 10)
    runner = Runner(FakeClock(), exporter)
    for number in range(100):
        runner.traces(ArcLotBegan(arc=CLEAN, lot=f"A{number}", generation=0, attempt="a", tries=1, parts=1))
    assert len(runner.traces._open) == 10


# --- the exporter of the environment


class Receiver(HTTPServer):
    """A receiver of OTLP on loopback. It keeps the bodies of requests."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()


@contextmanager
def traced(emitted: list[Event], clock: FakeClock) -> Iterator[Any]:
    with traces_of(
        GRAPH, emitted.append, cluster="c", node="n", lots_between=lambda *_: [], clock=clock
    ) as receiver:
        yield receiver


def test_the_environment_sends_spans_to_a_real_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    emitted: list[Event] = []
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "our-shop")
        with traced(emitted, FakeClock()) as take:
            take(ArcLotBegan(arc=CLEAN, lot=LOT, generation=0, attempt="a", tries=1, parts=1))
            take(ArcLotComplete(arc=CLEAN, lot=LOT, generation=0, attempt="a", rows={}))
    (body,) = receiver.bodies
    (resource,) = proto.ExportTraceServiceRequest.FromString(body).resource_spans
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "our-shop"
    (span,) = resource.scope_spans[0].spans
    assert span.name == "arc clean"
    assert emitted == []


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_traces_are_sent_only_if_the_environment_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    for variable in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert traces.wanted() == name


def test_a_missing_exporter_is_reported_and_the_pipeline_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Event] = []
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "of-nobody")
    with traced(emitted, FakeClock()) as take:
        take(ArcLotBegan(arc=CLEAN, lot=LOT, generation=0, attempt="a", tries=1, parts=1))
    (event,) = emitted
    assert isinstance(event, TracesUnsent)
    assert "tidemill[otel]" in event.error
