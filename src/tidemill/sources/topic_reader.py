"""Read a topic, and publish each message in exactly one lot (LOT-35, CLU-22).

The reader does not use Kafka's consumer groups. The cluster decides which node reads which partition
(`topic_partitions`), and a checkpoint in the store holds the offset of each partition. The transaction that
publishes a lot also advances the checkpoints. So an offset always matches the published rows, and a message
is in exactly one lot, no matter which nodes die, pause or join.

If Kafka has already deleted the next message of a partition, the reader stops reading that partition and
reports it. It continues to read the others.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tidemill.errors import CheckpointGone, MissingDriver, SourceUnavailable
from tidemill.sources.batch_publisher import BatchPublisher, CheckpointMove, PublishedBatch
from tidemill.sources.events import CheckpointSkipped, PartitionStuck
from tidemill.sources.records import SourceRecord
from tidemill.sources.topic_partitions import TopicPartitions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from tidemill.sources.kafka import KafkaSource

_LOG = logging.getLogger("tidemill.kafka")
_LOG.addHandler(logging.NullHandler())
TOPIC_EVERY = 20
"""The reader requests the list of the topic's partitions once per this many reads."""

MOST_BYTES: Final = 32 << 20
"""A lot gets no further messages after this many bytes."""

AT_ONCE: Final = 100
"""How many messages are fetched before their size is added up."""


class TopicRead(NamedTuple):
    """The result of one read.

    `caught_up` means that this node has read its partitions to the end, and that live nodes hold all
    partitions. `stuck` has an error message for each partition that the reader stopped reading.
    """

    batch: PublishedBatch
    caught_up: bool
    stuck: tuple[str, ...]


class TopicReader:
    """One node's part in reading a topic. Use it from one thread only.

    Args:
        source: the topic.
        publisher: publishes batches.
        partitions: the partitions that this node holds.
    """

    def __init__(self, source: "KafkaSource", publisher: BatchPublisher, partitions: TopicPartitions) -> None:
        self.source = source
        self.partitions = partitions
        self._publisher = publisher
        self._consumer: Consumer | None = None
        self._names: list[str] = []
        self._reads = 0
        self._checkpoints: dict[str, bytes] = {}  # of the assigned partitions
        self._assigned: frozenset[str] = frozenset()
        self._at_end: set[str] = set()
        self._stuck: dict[str, str] = {}

    def read(self) -> TopicRead:
        """Maintain our partitions, and publish their new messages in at most one lot."""
        try:
            if self._reads % TOPIC_EVERY == 0:
                self._names = self._partition_names()
            self._reads += 1
            self.partitions.maintain(self._names)
            if self._assigned != frozenset(self.partitions.held):
                self._assign()
            batch = self._publish_batch() if self._checkpoints else PublishedBatch()
        except BaseException:
            self._assigned = frozenset({""})  # the next read gets the checkpoints from the store again
            self.partitions.renew_now()
            raise
        caught_up = (
            not batch.lot
            and self.partitions.all_held
            and self._at_end >= self._checkpoints.keys() - self._stuck.keys()
        )
        return TopicRead(batch, caught_up, tuple(self._stuck.values()))

    def close(self) -> None:
        """Release our partitions, so that other nodes can take them."""
        try:
            self.partitions.close()
        finally:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close()

    # --- the broker

    def _open(self) -> "Consumer":
        if self._consumer is None:
            try:
                from confluent_kafka import Consumer, KafkaException
            except ImportError:
                raise MissingDriver(
                    "reading Kafka needs the package confluent-kafka", hint="pip install 'tidemill[kafka]'"
                ) from None
            try:
                self._consumer = Consumer(
                    {
                        "client.id": "tidemill",
                        **self.source.settings,
                        "bootstrap.servers": self.source.brokers,
                        "group.id": f"tidemill {self._publisher.source}",  # required, but never joined
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "auto.offset.reset": "error",
                        "enable.partition.eof": True,
                    },
                    logger=_LOG,
                )
            except KafkaException as error:
                raise SourceUnavailable(
                    f"{self.source.description}: {self._text(error)}", hint="check the settings of the source"
                ) from None
        return self._consumer

    def _request(self, name: str, *arguments: Any, **options: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return getattr(self._open(), name)(*arguments, timeout=self.source.timeout_s, **options)
        except KafkaException as error:
            raise SourceUnavailable(
                f"{self.source.description}: {self._text(error)}",
                hint="check that the brokers are running; the runner retries automatically",
            ) from None

    def _partition_names(self) -> list[str]:
        self._open()
        topic = self._request("list_topics", self.source.topic).topics.get(self.source.topic)
        if topic is None or topic.error is not None or not topic.partitions:
            reason = (
                topic.error.str() if topic is not None and topic.error is not None else "it does not exist"
            )
            raise SourceUnavailable(
                f"{self.source.description}: {reason}",
                hint="create the topic; the runner retries automatically",
            )
        return [f"{number:06}" for number in sorted(topic.partitions)]

    # --- assignment

    def _assign(self) -> None:
        """Start to read our partitions at their checkpoints."""
        from confluent_kafka import TopicPartition

        names = sorted(self.partitions.held)
        self._stuck, self._at_end, self._checkpoints = {}, set(), {}
        first: dict[str, int] = {}
        moves: list[CheckpointMove] = []
        for name, raw in zip(names, self._publisher.checkpoints(names), strict=True):
            low, high = self._request(
                "get_watermark_offsets", TopicPartition(self.source.topic, int(name)), cached=False
            )
            offset = self._first_offset(name, raw, low, high)
            if offset is None:
                continue
            first[name], self._checkpoints[name] = offset, msgspec.msgpack.encode(offset)
            if self._checkpoints[name] != raw:
                moves.append(CheckpointMove(name, raw, self._checkpoints[name]))
        if moves:  # store the first offset now, so that messages that arrive later are not lost
            fence = partial(self.partitions.fence, names)
            self._publisher.publish(self._publisher.parse([]), moves, fence)
        self._open().assign(
            [TopicPartition(self.source.topic, int(name), offset) for name, offset in first.items()]
        )
        self._publisher.report({name: self._stuck.get(name, "") for name in names})
        self._assigned = frozenset(names)

    def _first_offset(self, name: str, raw: bytes | None, low: int, high: int) -> int | None:
        """Return the offset to read from; None if the next message was deleted and the user has to decide."""
        ends = {"earliest": low, "latest": high}
        if raw is None:
            return ends[self.source.start]
        offset = msgspec.msgpack.decode(raw, type=int)
        if low <= offset <= high:
            return offset
        gone = CheckpointGone(
            f"{self.source.topic}/{int(name)} was read up to offset {offset:,}, but Kafka now has only the"
            f" offsets {low:,} to {high:,}",
            hint="to skip the deleted messages, set on_gone='earliest' or on_gone='latest'",
        )
        if self.source.on_gone == "fail":
            self._stuck[name] = str(gone)
            stuck = PartitionStuck(source=self._publisher.source, checkpoint=name, message=gone.message)
            self._publisher.scope.emit(stuck)
            return None
        new = ends[self.source.on_gone]
        self._publisher.scope.emit(
            CheckpointSkipped(
                source=self._publisher.source, checkpoint=name, before=str(offset), after=str(new)
            )
        )
        return new

    # --- batches

    def _publish_batch(self) -> PublishedBatch:
        records, ends = self._fetch()
        if not ends:
            return PublishedBatch()
        moves = [
            CheckpointMove(name, self._checkpoints[name], msgspec.msgpack.encode(offset))
            for name, offset in ends.items()
        ]
        fence = partial(self.partitions.fence, list(ends))
        batch = self._publisher.publish(self._publisher.parse(records), moves, fence)
        self._checkpoints |= {move.name: move.after for move in moves}
        return batch

    def _fetch(self) -> tuple[list[SourceRecord], dict[str, int]]:
        """Fetch messages; return them, and the next offset of each partition."""
        from confluent_kafka import KafkaError

        records: list[SourceRecord] = []
        ends: dict[str, int] = {}
        for message in self._messages():
            name, offset, error = f"{message.partition():06}", message.offset(), message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._at_end.add(name)
                    continue
                raise SourceUnavailable(
                    f"{self.source.description}: {error.str()}",
                    hint="no action is needed: the runner retries automatically",
                )
            if name not in self._checkpoints or offset is None:
                continue  # it is from a partition that we no longer read
            self._at_end.discard(name)
            records.append(SourceRecord(f"{self.source.topic}/{int(name)}", offset, message.value()))
            ends[name] = offset + 1
        return records, ends

    def _messages(self) -> "Iterator[Message]":
        """Yield messages until there are enough for a lot or `linger_s` is over.

        There are also enough after `MOST_BYTES`: large messages must not fill the memory.
        """
        clock = self._publisher.scope.clock
        until = clock.monotonic() + self.source.linger_s
        left, size = self.source.max_records, 0
        while left > 0 and size < MOST_BYTES:
            wait_s = max(0.0, until - clock.monotonic())
            wanted = min(left, AT_ONCE)
            messages = self._open().consume(wanted, timeout=wait_s)
            yield from messages
            if len(messages) < wanted or not wait_s:
                return
            left -= len(messages)
            size += sum(len(message.value() or b"") for message in messages)

    def _text(self, error: Exception) -> str:
        """Return the driver's error message, without the values of settings that it may quote."""
        arguments: Sequence[Any] = error.args
        text = str(arguments[0].str() if arguments and hasattr(arguments[0], "str") else error)
        for value in sorted(map(str, self.source.settings.values()), key=len, reverse=True):
            text = text.replace(value, "***") if len(value) > 3 else text
        return text[:300]
