"""The event log: batches, order, filters, retention, a store that is away, and no secrets."""

import io
import json
import random

import msgspec
import pytest

from tidemill.arcs.events import ArcLotMissing
from tidemill.cluster.events import NodeLeft, NodeLost
from tidemill.errors import StoreUnavailable
from tidemill.obs import event_log
from tidemill.obs.event_log import EventFilter, EventLog
from tidemill.obs.json_log import JsonLog
from tidemill.obs.keys import ObservationKeys
from tidemill.obs.lines import Severity
from tidemill.store import open_store
from tidemill.store.memory import MemoryStore
from tidemill.store.secrets import redact_text
from tidemill.testing import FakeClock
from tidemill.triggers.events import RunFailed

KEYS = ObservationKeys("c")
SECRET = "p%40ss-w0rd"


def failed(message: str = "it broke", name: str = "arc:shop/clean") -> RunFailed:
    return RunFailed(name=name, code="arc", message=message, backoff_s=1.0, failures=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> EventLog:
    store = MemoryStore(clock=clock, chance=random.Random(1))
    return EventLog(store, KEYS, pipeline="shop", node="n1", keep_s=100, clock=clock)


def texts(log: EventLog, **wanted: object) -> list[str]:
    rows, _ = event_log.search(log._store, KEYS, EventFilter(**wanted))  # type: ignore[arg-type]
    return [row.event.text for row in rows]


def test_events_are_written_in_order_and_read_newest_first(log: EventLog) -> None:
    for number in range(250):
        log(failed(f"number {number}"))
    log(NodeLeft(node="n1"))  # users do not need to see it
    assert log.flush()
    assert len(texts(log)) == 100
    rows, cursor = event_log.search(log._store, KEYS, EventFilter(), limit=2)
    assert ["number 249" in rows[0].event.text, "number 248" in rows[1].event.text] == [True, True]
    older, _ = event_log.search(log._store, KEYS, EventFilter(), before=cursor, limit=1)
    assert "number 247" in older[0].event.text
    oldest = log._store.run(lambda tx: event_log.read(tx, KEYS, limit=2))
    after = log._store.run(lambda tx: event_log.read(tx, KEYS, oldest[0].key, limit=1))
    assert after == oldest[1:]


def test_filters_select_by_severity_subject_lot_kind_and_text(log: EventLog) -> None:
    log(failed("first"))
    log(NodeLost(node="n2", epoch=1))
    log(ArcLotMissing(arc="arc:shop/clean", lot="L1", generation=1, error="no such column"))
    log.flush()
    assert texts(log, severity=Severity.ERROR) == [
        "lot L1 failed: no such column",
        "failed: first; retrying in 1.0 s",
    ]
    assert texts(log, about="n2") == ["lost its lease"]
    assert texts(log, lot="L1") == ["lot L1 failed: no such column"]
    assert texts(log, kind="NodeLost") == ["lost its lease"]
    assert texts(log, text="SUCH COLUMN") == ["lot L1 failed: no such column"]
    assert texts(log, pipeline="other") == []


def test_old_and_too_many_events_are_removed(log: EventLog, clock: FakeClock) -> None:
    for number in range(700):
        log(failed(f"number {number}"))
    log.flush()
    clock.advance(60)
    log(failed("new"))
    log.flush()
    assert log.expire() == 0
    clock.advance(50)
    assert log.expire() == 700
    assert texts(log) == ["failed: new; retrying in 1.0 s"]
    for number in range(9):
        log(failed(f"number {number}"))
    log.flush()
    assert log._store.run(lambda tx: event_log.expire(tx, KEYS, 0.0, most=4)) == 6
    assert len(texts(log)) == 4


def test_events_wait_while_the_store_is_away(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    store = log._store

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    log(failed("first"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "run", away)
        assert not log.flush()
        log(failed("second"))
        assert not log.flush()
    assert log.flush()
    assert texts(log) == ["failed: second; retrying in 1.0 s", "failed: first; retrying in 1.0 s"]


def test_the_thread_writes_what_waits_at_the_end(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        with EventLog(store, KEYS, pipeline="shop", node="n1") as log:
            log(failed())
        assert len(texts(log)) == 1


@pytest.mark.rule("STO-14")
def test_secrets_of_urls_reach_neither_the_log_nor_the_lines(log: EventLog) -> None:
    message = f"cannot connect to postgresql://ann:{SECRET}@db/shop?sslpassword={SECRET}"
    log(failed(message))
    log.flush()
    (row,) = event_log.search(log._store, KEYS, EventFilter())[0]
    assert SECRET not in msgspec.json.encode(row.event).decode()
    lines = io.StringIO()
    JsonLog(lines, pipeline="shop")(failed(message))
    assert SECRET not in lines.getvalue()
    assert "postgresql://ann:***@db" in redact_text(message)


def test_json_lines_have_the_time_the_severity_and_the_fields(clock: FakeClock) -> None:
    lines = io.StringIO()
    sink = JsonLog(lines, pipeline="shop", clock=clock)
    sink(failed("a\nb"))
    sink(NodeLeft(node="n1"))
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert first["event"] == "RunFailed"
    assert first["severity"] == "error"
    assert first["about"] == "clean"
    assert first["code"] == "arc"
    assert "a\nb" in first["message"]
    assert second == {**second, "event": "NodeLeft", "severity": "detail", "node": "n1"}
