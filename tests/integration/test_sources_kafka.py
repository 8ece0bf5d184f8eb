"""A topic as a source, against a real broker: each message in one lot, partitions shared by nodes."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.servers.kafka import KafkaServer
from tests.unit.push_stage import SOURCE
from tests.unit.test_sources_http_poll import Stage
from tidemill import crash
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.crash import Crashed
from tidemill.errors import BadSource, LeaseLost, MissingDriver, SourceUnavailable
from tidemill.lots.datasets import Kind
from tidemill.sources import topic_reader
from tidemill.sources.batch_publisher import BatchPublisher
from tidemill.sources.events import CheckpointSkipped, PartitionStuck
from tidemill.sources.kafka import kafka
from tidemill.sources.topic_partitions import TopicPartitions
from tidemill.sources.topic_reader import TopicRead, TopicReader

TTL_S = 30.0


class Topic(Stage):
    """A dataset and nodes that read a topic for it; the store's time is the test's."""

    def __init__(self, server: KafkaServer, partitions: int = 4, **declared: Any) -> None:
        super().__init__(**declared)
        self.server = server
        self.count = partitions
        self.topic = server.new_topic(partitions)

    def send(self, *ids: int) -> None:
        made = [(n % self.count, json.dumps({"id": n, "name": f"n{n}"}).encode()) for n in ids]
        self.server.send(self.topic, list(made))

    def reader(self, name: str, *, again: Node | None = None, **options: Any) -> TopicReader:
        node = again or self.node(name)
        source = kafka(self.server.brokers, self.topic, **{"linger_s": 0.1, **options})
        scope = replace(self.scope(node, self.stage.clock), timing=LeaseTiming(TTL_S))
        publisher = BatchPublisher(self.target(), scope)
        return TopicReader(source, publisher, TopicPartitions(SOURCE, scope))


def until(act: Callable[[], TopicRead], ready: Callable[[TopicRead], object]) -> TopicRead:
    for _ in range(100):
        result = act()
        if ready(result):
            return result
    raise AssertionError(result)


def drain(*readers: TopicReader) -> None:
    for reader in readers:
        until(reader.read, lambda result: result.caught_up)


@pytest.mark.rule("LOT-35", "CLU-22")
def test_each_message_is_in_one_lot_and_its_offset_moves_with_it(kafka_server: KafkaServer) -> None:
    topic = Topic(kafka_server, 2)
    topic.send(*range(20))
    topic.server.send(topic.topic, [(0, b"no JSON"), (1, None), (1, b'{"id": "x"}')])
    reader = topic.reader("a", max_records=7)
    drain(reader)
    assert topic.ids() == list(range(20))
    bad = sorted((row["file"], row["line"], row["record"]) for row in topic.quarantined())
    name = topic.topic
    assert bad == [(f"{name}/0", 10, "no JSON"), (f"{name}/1", 10, None), (f"{name}/1", 11, '{"id": "x"}')]
    reader.close()
    topic.send(*range(20, 24))
    again = topic.reader("b")
    drain(again)
    again.close()
    assert topic.ids() == list(range(24)), "another node goes on where the first one was"


def test_large_messages_end_a_lot_before_they_fill_the_memory(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(kafka_server, 1)
    topic.send(*range(topic_reader.AT_ONCE + 20))
    monkeypatch.setattr(topic_reader, "MOST_BYTES", 100)
    reader = topic.reader("a")
    first = until(reader.read, lambda result: result.batch.lot)
    assert len(topic.ids()) == topic_reader.AT_ONCE, first
    drain(reader)
    reader.close()
    assert topic.ids() == list(range(topic_reader.AT_ONCE + 20))


@pytest.mark.rule("CLU-20", "CLU-21", "CLU-22")
def test_partitions_are_shared_revoked_before_they_are_assigned_and_a_leavers_taken_over(
    kafka_server: KafkaServer,
) -> None:
    topic = Topic(kafka_server)
    topic.send(*range(40))
    first, second = topic.reader("one"), topic.reader("two")
    first.read()
    assert len(first.partitions.held) == 4, "a reader that is alone holds all"
    for start in range(40, 140, 20):  # a rebalance in the middle of what arrives
        topic.send(*range(start, start + 20))
        first.read()
        second.read()
        assert not first.partitions.held.keys() & second.partitions.held.keys(), "no partition is held twice"
    assert sorted([len(first.partitions.held), len(second.partitions.held)]) == [2, 2]
    drain(first, second)
    assert topic.ids() == list(range(140))

    topic.send(*range(140, 160))
    topic.stage.clock.advance(TTL_S / 2)
    second.read()
    assert len(second.partitions.held) == 2, "the first is late, but still a member"
    topic.stage.clock.advance(TTL_S / 2 + 1)
    until(second.read, lambda _: len(second.partitions.held) == 4)  # the first is gone
    drain(second)
    assert topic.ids() == list(range(160))
    first.read()  # it comes back, and the other reader holds its partitions
    assert len(first.partitions.held) == 0
    assert topic.ids() == list(range(160))
    second.close()
    drain(first)
    assert len(first.partitions.held) == 4, "what is handed back is there at once"
    first.close()


@pytest.mark.rule("CLU-22")
def test_a_node_that_was_paused_publishes_nothing_of_what_it_had_fetch(kafka_server: KafkaServer) -> None:
    topic = Topic(kafka_server, 1)
    paused, other = topic.reader("paused"), topic.reader("other")
    drain(paused)
    topic.send(*range(10))
    fetched = paused._fetch

    def slow() -> Any:
        answer = fetched()
        if answer[1]:
            topic.stage.clock.advance(2 * TTL_S)  # its lease runs out, and it does not know
            until(other.read, lambda result: result.batch.lot)
        return answer

    paused._fetch = slow  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        until(paused.read, lambda result: result.batch.lot)
    assert topic.ids() == list(range(10))
    other.close()
    paused.close()


@pytest.mark.rule("CLU-22")
def test_wherever_a_node_is_killed_each_message_is_in_exactly_one_lot(kafka_server: KafkaServer) -> None:
    with crash.recorded() as points:
        topic = Topic(kafka_server, 1)
        topic.send(1, 2)
        reader = topic.reader("a")
        drain(reader)
        reader.close()
    mine = sorted(point for point in points if point.startswith(("sources.", "publish.")))
    assert {"sources.take-partition.after", "sources.fetch.before", "sources.checkpoint.after"} < set(mine)
    topic, sent = Topic(kafka_server, 1), 0
    node = topic.node("a")
    for point in mine:
        topic.send(sent)
        sent += 1
        reader = topic.reader("a", again=node)
        with crash.armed(point):
            try:
                drain(reader)
                reader.close()
            except Crashed:
                reader._consumer.close() if reader._consumer is not None else None
        node = topic.node("a")  # its next life
    last = topic.reader("a", again=node)
    drain(last)
    last.close()
    assert topic.ids() == list(range(sent))


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_an_offset_that_is_gone_stops_its_partition_or_is_skipped_as_told(
    kafka_server: KafkaServer, policy: str
) -> None:
    topic = Topic(kafka_server, 2)
    topic.send(0, 1)
    reader = topic.reader("a")
    drain(reader)
    reader.close()
    topic.send(*range(2, 12))
    topic.server.forget(topic.topic, 0, 4)  # 0, 2, 4 and 6; only 0 was read
    reopened = topic.reader("a", on_gone=policy)
    result = until(reopened.read, lambda result: result.caught_up)
    odd = [1, 3, 5, 7, 9, 11]
    if policy == "fail":
        (stuck,) = result.stuck
        assert f"{topic.topic}/0 was read up to offset 1, but Kafka now has only the offsets 4 to 6" in stuck
        assert "on_gone='earliest'" in stuck
        assert [event.checkpoint for event in topic.told if isinstance(event, PartitionStuck)] == ["000000"]
        assert topic.ids() == [0, *odd], "the other partition goes on"
    else:
        skipped = [
            (event.before, event.after) for event in topic.told if isinstance(event, CheckpointSkipped)
        ]
        assert skipped == [("1", "4" if policy == "earliest" else "6")]
        assert topic.ids() == sorted([0, *odd, *([8, 10] if policy == "earliest" else [])])
    reopened.close()


def test_a_topic_may_begin_with_what_comes(kafka_server: KafkaServer) -> None:
    topic = Topic(kafka_server, 1, key=("id",), kind=Kind.KEYED, deletes=True)
    topic.send(1)
    reader = topic.reader("a", start="latest")
    drain(reader)
    reader.close()
    topic.send(2)
    topic.server.send(topic.topic, [(0, b'{"name": "no key"}')])
    again = topic.reader("b", start="latest")
    drain(again)
    again.close()
    assert topic.ids() == [2], "where it began was settled by the first look"
    assert [row["error"] for row in topic.quarantined()] == ["the key column id is NULL"]


def test_brokers_and_topics_that_are_not_there_are_told_of(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(kafka_server, 1)
    topic.topic = "nothing"
    lost = topic.reader("a")
    with pytest.raises(SourceUnavailable, match="topic nothing at"):
        lost.read()
    lost.close()
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDriver, match=r"tidemill\[kafka\]"):
        topic.reader("b").read()


@pytest.mark.parametrize(
    "options",
    [
        {"brokers": " "},
        {"brokers": "a:1,,b:2"},
        {"topic": "a/b"},
        {"start": "middle"},
        {"on_gone": "ignore"},
        {"max_records": 0},
        {"linger_s": 0},
        {"settings": {"group.id": "mine"}},
    ],
    ids=str,
)
def test_a_topic_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadSource):
        kafka(**{"brokers": "localhost:9092", "topic": "orders", **options})


def test_an_error_of_the_driver_does_not_quote_the_values_of_settings() -> None:
    stage = Stage()
    scope = replace(stage.scope(stage.node("n0"), stage.stage.clock), timing=LeaseTiming(TTL_S))
    source = kafka("127.0.0.1:1", "orders", settings={"security.protocol": "HUNTER2"})
    partitions = TopicPartitions(SOURCE, scope)
    with pytest.raises(SourceUnavailable, match=r"security\.protocol") as refused:
        TopicReader(source, BatchPublisher(stage.target(), scope), partitions).read()
    assert "HUNTER2" not in str(refused.value)
