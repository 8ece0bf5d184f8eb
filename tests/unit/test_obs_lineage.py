"""Lineage events: runs, tables, columns and checks as OpenLineage describes them, to a file and a server."""

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.views_stage import output
from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotPartial
from tidemill.errors import UsageError
from tidemill.events import Event
from tidemill.lots.checks import expect, unique
from tidemill.obs.lineage import (
    LineageEvents,
    LineageGraph,
    LineageJob,
    LineageSender,
    LineageTable,
    LineageUnsent,
    lineage_of,
    open_client,
)
from tidemill.publish.events import ChecksFailed
from tidemill.sources.events import WindowPublished
from tidemill.testing.fake_clock import FakeClock
from tidemill.views.circuit.column_lineage import column_lineage
from tidemill.views.steps.events import StepAbandoned, StepCommitted, ViewChecked

SQL = "SELECT cust, sum(amount) AS total FROM orders GROUP BY cust"
CLEAN = "arc:shop/clean"
GRAPH = LineageGraph(
    pipeline="shop",
    tables={
        "orders": LineageTable(name="orders", columns=(("id", "bigint"), ("amount", "int"))),
        "clean": LineageTable(
            name="clean", columns=(("id", "bigint"),), checks=(unique("id"), expect("id > 0", on_fail="warn"))
        ),
        "totals": LineageTable(name="totals", checks=(unique("cust"),)),
    },
    arcs={CLEAN: LineageJob(name="clean", kind="ARC", reads=("orders",), writes=("clean",))},
    sources={
        "source:shop/orders": LineageJob(name="orders.source", kind="SOURCE", reads=(), writes=("orders",))
    },
    views={
        "totals": LineageJob(
            name="totals",
            kind="VIEW",
            reads=("orders",),
            writes=("totals",),
            sql=SQL,
            columns=column_lineage(output(SQL)),
        )
    },
)
LOT = "A00000000000000007"
BEGAN = ArcLotBegan(arc=CLEAN, lot=LOT, generation=0, attempt="a", parts=1, tries=1)
COMPLETE = ArcLotComplete(arc=CLEAN, lot=LOT, generation=0, attempt="a", rows={"clean@1": 12})


def translated(*events: Event, run: str = "runner 1") -> list[dict[str, Any]]:
    """Return the OpenLineage events, as they are sent."""
    from openlineage.client.serde import Serde

    lineage = LineageEvents(GRAPH, "tidemill.default", run, FakeClock())
    return [json.loads(Serde.to_json(each)) for event in events for each in lineage.of(event)]


def states(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["job"]["name"], event["eventType"]) for event in events]


def test_a_lot_of_an_arc_is_a_run_with_its_tables_rows_and_parent() -> None:
    began, complete, *_ = translated(BEGAN, COMPLETE)
    assert states([began, complete]) == [("shop.clean", "START"), ("shop.clean", "COMPLETE")]
    assert began["run"]["runId"] == complete["run"]["runId"]
    uuid.UUID(began["run"]["runId"])
    assert began["run"]["facets"]["parent"]["job"]["name"] == "shop"
    (read,), (written,) = complete["inputs"], complete["outputs"]
    assert (read["namespace"], read["name"]) == ("tidemill.default", "orders")
    assert read["facets"]["schema"]["fields"][1] == {"name": "amount", "type": "int", "fields": []}
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 12
    parent, statistics = began["run"]["facets"]["parent"], written["outputFacets"]["outputStatistics"]
    for facet in (read["facets"]["schema"], statistics, parent):
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")
        assert facet["_producer"]


def test_the_run_of_a_lot_has_the_same_id_on_another_runner() -> None:
    (first,), (second, *_) = translated(BEGAN), translated(COMPLETE, run="runner 2")
    assert first["run"]["runId"] == second["run"]["runId"]
    assert first["run"]["facets"]["parent"] != second["run"]["facets"]["parent"]
    (other,) = translated(ArcLotBegan(arc=CLEAN, lot=LOT, generation=1, attempt="a", parts=1, tries=1))
    assert other["run"]["runId"] != first["run"]["runId"]


def test_checks_of_a_lot_are_assertions_about_the_table() -> None:
    failed = ChecksFailed(attempt="a", author=CLEAN, dataset="clean", lot=LOT, part="", checks={"id > 0": 3})
    *_, start, checked = translated(BEGAN, failed, COMPLETE)
    assert states([start, checked]) == [("shop.clean.checks", "START"), ("shop.clean.checks", "COMPLETE")]
    assertions = checked["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(each["name"], each["success"], each["severity"]) for each in assertions] == [
        ("unique(id)", True, "error"),
        ("id > 0", False, "warn"),
    ]
    assert assertions[1]["actual"] == "3 rows fail"


def test_a_step_of_a_view_has_its_query_and_the_lineage_of_its_columns() -> None:
    step = StepCommitted(
        pipeline="shop",
        group="main",
        step=4,
        after=3,
        attempt="a",
        views=("totals", "other"),
        rows=9,
        changes={"totals": 5},
    )
    start, complete = translated(step)
    assert states([start, complete]) == [("shop.totals", "START"), ("shop.totals", "COMPLETE")]
    assert complete["job"]["facets"]["sql"]["query"] == SQL
    (written,) = complete["outputs"]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 5
    columns = written["facets"]["columnLineage"]
    (total,) = columns["fields"]["total"]["inputFields"]
    assert (total["name"], total["field"]) == ("orders", "amount")
    assert total["transformations"][0]["type"] == "DIRECT"
    assert total["transformations"][0]["subtype"] == "AGGREGATION"
    (grouped,) = columns["dataset"]
    assert (grouped["field"], grouped["transformations"][0]["subtype"]) == ("cust", "GROUP_BY")


def test_failures_say_what_failed() -> None:
    partial = ArcLotPartial(arc=CLEAN, lot=LOT, generation=0, failed=["1"], error="ValueError: bad")
    abandoned = StepAbandoned(pipeline="shop", group="main", step=2, attempt="a", why="no memory")
    checked = ViewChecked(
        pipeline="shop", group="main", step=2, view="totals", failures="f", rows={"unique(cust)": 2}
    )
    failed, _, step, _, assertion = translated(partial, abandoned, checked)
    assert failed["eventType"] == step["eventType"] == "FAIL"
    assert failed["run"]["facets"]["errorMessage"]["message"] == "ValueError: bad"
    assert step["run"]["facets"]["errorMessage"]["message"] == "no memory"
    assert not assertion["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"][0]["success"]


def test_a_batch_of_a_source_is_a_run_without_inputs() -> None:
    published = WindowPublished(source="source:shop/orders", window=1, lot=LOT, position=1, files=2, rows=40)
    _, complete = translated(published)
    assert complete["inputs"] == []
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 40


def test_events_are_written_to_a_file_between_the_begin_and_the_end_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    with lineage_of(str(file), GRAPH, "n", "r", lambda _: None, FakeClock()) as emit:
        emit(BEGAN)
    with pytest.raises(RuntimeError), lineage_of(str(file), GRAPH, "n", "r2", lambda _: None, FakeClock()):
        raise RuntimeError
    events = [json.loads(line) for line in file.read_text().splitlines()]
    run = ("shop", "START")
    assert states(events) == [run, ("shop.clean", "START"), ("shop", "COMPLETE"), run, ("shop", "FAIL")]
    assert events[1]["run"]["facets"]["parent"]["run"]["runId"] == events[0]["run"]["runId"]


class Server(HTTPServer):
    """A lineage server that refuses the first requests."""

    refusals = 1

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        refused = self.server.refusals > 0
        self.server.refusals -= 1
        if not refused:
            self.server.received.append(json.loads(body))
            self.server.keys.append(self.headers["Authorization"])
        self.send_response(503 if refused else 201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_events_that_a_server_refuses_are_sent_again_in_order(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "k3y")
    emitted: list[Event] = []
    client = open_client(f"http://127.0.0.1:{server.server_port}")
    sender = LineageSender(LineageEvents(GRAPH, "n", "r"), client, emitted.append, FakeClock())
    sender(BEGAN)
    sender(COMPLETE)
    assert not sender.flush()
    (unsent,) = emitted
    assert isinstance(unsent, LineageUnsent)
    assert unsent.waiting == 4
    assert "k3y" not in unsent.error
    assert sender.flush()
    assert [event["eventType"] for event in server.received] == ["START", "COMPLETE", "START", "COMPLETE"]
    assert set(server.keys) == {"Bearer k3y"}


def test_another_address_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a URL nor a file"):
        open_client("ftp://server")
