"""Messages of a topic, from the mock broker in Kafka's client: each is stored once, or quarantined."""

import functools
import itertools
import random
from typing import Any

from confluent_kafka import Producer

from tests.fuzz.mutation import json_text, text
from tests.fuzz.targets.json_input import RecordStage, declaration, row
from tests.unit.push_stage import SOURCE
from tidemill.sources.kafka import kafka
from tidemill.sources.topic_partitions import TopicPartitions
from tidemill.sources.topic_reader import TopicReader
from tidemill.testing.threads import STUCK_S

CASES = 20
_PARTITIONS = 4
_SETTINGS = {"fetch.wait.max.ms": "5"}
"""The broker answers at once that a partition has ended. By default it waits half a second."""


def generate(rng: random.Random) -> dict[str, Any]:
    case = declaration(rng)
    case["max_records"] = rng.choice((1, 2, 100))
    case["messages"] = [
        {
            "partition": rng.randrange(_PARTITIONS),
            "value": None if rng.random() < 0.05 else json_text(rng, row(rng, case["columns"])),
            "key": rng.choice((None, b"", b"\xff\0", b"k" * 3000)),
            "headers": {text(rng).replace("\0", ""): rng.randbytes(3)} if rng.random() < 0.2 else {},
        }
        for _ in range(rng.choice((0, 1, 2, 5)))
    ]
    return case


class _Broker:
    """A mock broker in this process; each case uses a topic of its own."""

    def __init__(self) -> None:
        settings = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
        self.producer = Producer(settings)
        (broker,) = self.producer.list_topics(timeout=STUCK_S).brokers.values()
        self.address = f"{broker.host}:{broker.port}"
        self._topics = itertools.count()

    def send(self, messages: list[dict[str, Any]]) -> str:
        topic = f"topic{next(self._topics)}"
        self.producer.list_topics(topic, timeout=STUCK_S)  # creates it
        for message in messages:
            headers = {
                name.encode(errors="replace").decode(): body for name, body in message["headers"].items()
            }
            self.producer.produce(
                topic, message["value"], message["key"], partition=message["partition"], headers=headers
            )
        assert self.producer.flush(STUCK_S) == 0
        return topic


@functools.cache
def _broker() -> _Broker:
    return _Broker()


def check(case: dict[str, Any]) -> None:
    stage, messages = RecordStage(case), case.get("messages", [])
    topic = _broker().send(messages)
    most = case.get("max_records", 10)
    source = kafka(_broker().address, topic, linger_s=0.05, max_records=most, settings=_SETTINGS)
    scope = stage.scope(stage.node("n0"), stage.stage.clock)
    partitions = TopicPartitions(SOURCE, scope)
    reader = TopicReader(source, stage.publisher(), partitions)
    for _ in range(10_000):
        if reader.read().caught_up:
            break
    else:
        raise AssertionError("the reader does not reach the end of the topic")
    reader.close()
    assert stage.stored(stage.dataset.id) + stage.stored(stage.bad_id) == len(messages)
    stage.check_columns()
