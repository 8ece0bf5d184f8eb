"""A source closes although its poll hangs: a runner that stops after an error must end."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_sources_http_poll import Stage
from tidemill.sources import source as source_module
from tidemill.sources import source_lease
from tidemill.sources.http_poll import PollArrival, http_poll
from tidemill.sources.http_push import PushArrival, PushHost, http_push
from tidemill.sources.kafka import KafkaArrival, kafka
from tidemill.sources.source import Arrival
from tidemill.sources.topic_reader import TopicReader
from tidemill.testing.threads import STUCK_S

SOURCES = {
    "kafka": lambda target, runtime: KafkaArrival(kafka("127.0.0.1:1", "orders"), target, runtime),
    "http_poll": lambda target, runtime: PollArrival(http_poll("http://127.0.0.1:1/"), target, runtime),
    "http_push": lambda target, runtime: PushArrival(http_push(token="t" * 20), target, runtime),
}

POLLS = {
    "kafka": (TopicReader, "read"),
    "http_poll": (source_lease, "acquire"),
    "http_push": (PushHost, "tick"),
}
"""What each source calls in its poll."""


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_closes_although_its_poll_hangs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "CLOSE_S", 0.01)
    arrival, hangs, go = opened(kind), threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        hangs.set()
        assert go.wait(STUCK_S)
        raise InterruptedError

    monkeypatch.setattr(*POLLS[kind], hang)
    polls = threading.Thread(target=quietly, args=(arrival,))
    polls.start()
    try:
        assert hangs.wait(STUCK_S)
        closes = threading.Thread(target=arrival.close, daemon=True)
        closes.start()
        closes.join(STUCK_S)
        assert not closes.is_alive()
    finally:
        go.set()
        polls.join(STUCK_S)
    arrival.poll()  # does nothing: it is closed


def quietly(arrival: Arrival) -> None:
    with pytest.raises(InterruptedError):
        arrival.poll()


def opened(kind: str) -> Arrival:
    stage = Stage()
    runtime = SimpleNamespace(
        scope=stage.scope(stage.node("a")),
        keeper=stage.keeper("a"),
        watching=lambda: True,
        evaluate=None,
        parts=None,
    )
    return SOURCES[kind](stage.target(), runtime)  # type: ignore[no-untyped-call]
