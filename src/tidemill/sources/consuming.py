"""Consuming: the messages of a topic become lots, each once, with their offsets (LOT-35, CLU-22).

No consumer group of Kafka's: who reads which partition is decided by the cluster (`holdings`), and how far
each was read is a mark in the store, which moves with the lot. So an offset and its rows cannot come apart,
and a message is in exactly one lot whichever nodes die, pause or join.

A partition whose next message is not kept any more stops alone, and says so; the others go on.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.errors import MarkGone, MissingDriver, SourceUnavailable
from tidemill.events import Emit, ignore
from tidemill.sources.drawing import Drawer, Drawn, Move
from tidemill.sources.events import MarkSkipped, PartitionStuck
from tidemill.sources.holdings import Holdings
from tidemill.sources.kafka import KafkaSpec
from tidemill.sources.records import Convert, Record

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_LOG = logging.getLogger("tidemill.kafka")
_LOG.addHandler(logging.NullHandler())
TOPIC_EVERY = 20
"""So many batches, or empty looks, from one question for the topic's partitions to the next."""


class Consumed(NamedTuple):
    """What one look came to: `caught_up` when all that there is of our partitions is in, and all are held."""

    drawn: Drawn
    caught_up: bool
    stuck: tuple[str, ...]


class TopicReader:
    """One node's part in reading a topic. Used by one thread.

    Args:
        spec: which topic.
        drawer: publishes batches.
        convert: makes a table of dictionaries.
        holdings: the partitions that are ours.
    """

    def __init__(
        self,
        spec: KafkaSpec,
        drawer: Drawer,
        convert: Convert,
        holdings: Holdings,
        *,
        emit: Emit = ignore,
    ) -> None:
        self.spec = spec
        self.holdings = holdings
        self._drawer = drawer
        self._convert = convert
        self._emit = emit
        self._consumer: Consumer | None = None
        self._names: list[str] = []
        self._looks = 0
        self._marks: dict[str, bytes] = {}  # of the partitions that are assigned
        self._assigned: frozenset[str] = frozenset()
        self._at_end: set[str] = set()
        self._stuck: dict[str, str] = {}

    def consume(self) -> Consumed:
        """Look after our partitions, and publish what they have, as one lot at most."""
        try:
            if self._looks % TOPIC_EVERY == 0:
                self._names = self._partitions()
            self._looks += 1
            self.holdings.tend(self._names)
            if self._assigned != frozenset(self.holdings.mine):
                self._assign()
            drawn = self._batch() if self._marks else Drawn("", 0, 0)
        except BaseException:
            self._assigned = frozenset({""})  # where we stand is read again, from the store
            self.holdings.hurry()
            raise
        caught_up = (
            not drawn.lot
            and self.holdings.all_held
            and self._at_end >= self._marks.keys() - self._stuck.keys()
        )
        return Consumed(drawn, caught_up, tuple(self._stuck.values()))

    def close(self) -> None:
        """Let other nodes have our partitions."""
        try:
            self.holdings.close()
        finally:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close()

    # --- the broker

    def _opened(self) -> "Consumer":
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
                        **self.spec.settings,
                        "bootstrap.servers": self.spec.brokers,
                        "group.id": f"tidemill {self._drawer.source}",  # asked for, and joined by nobody
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "auto.offset.reset": "error",
                        "enable.partition.eof": True,
                    },
                    logger=_LOG,
                )
            except KafkaException as error:
                raise SourceUnavailable(
                    f"{self.spec.shown}: {_words(error)}", hint="mind its settings"
                ) from None
        return self._consumer

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return getattr(self._opened(), name)(*arguments, timeout=self.spec.timeout_s, **options)
        except KafkaException as error:
            raise SourceUnavailable(
                f"{self.spec.shown}: {_words(error)}", hint="check that the brokers run; they are asked again"
            ) from None

    def _partitions(self) -> list[str]:
        self._opened()
        topic = self._ask("list_topics", self.spec.topic).topics.get(self.spec.topic)
        if topic is None or topic.error is not None or not topic.partitions:
            said = topic.error.str() if topic is not None and topic.error is not None else "there is none"
            raise SourceUnavailable(
                f"{self.spec.shown}: {said}", hint="make the topic; it is looked for again"
            )
        return [f"{number:06}" for number in sorted(topic.partitions)]

    # --- where we stand

    def _assign(self) -> None:
        """Read our partitions from their marks on."""
        from confluent_kafka import TopicPartition

        names = sorted(self.holdings.mine)
        self._stuck, self._at_end, self._marks = {}, set(), {}
        first: dict[str, int] = {}
        moves: list[Move] = []
        for name, raw in zip(names, self._drawer.marks(names), strict=True):
            low, high = self._ask(
                "get_watermark_offsets", TopicPartition(self.spec.topic, int(name)), cached=False
            )
            at = self._place(name, raw, low, high)
            if at is None:
                continue
            first[name], self._marks[name] = at, msgspec.msgpack.encode(at)
            if self._marks[name] != raw:
                moves.append(Move(name, raw, self._marks[name]))
        if moves:  # where it begins is settled now: what arrives from now on is not lost
            self._drawer.publish(
                self._drawer.sift([], self._convert), moves, partial(self.holdings.fence, names)
            )
        self._opened().assign([TopicPartition(self.spec.topic, int(name), at) for name, at in first.items()])
        self._drawer.tell({name: self._stuck.get(name, "") for name in names})
        self._assigned = frozenset(names)

    def _place(self, name: str, raw: bytes | None, low: int, high: int) -> int | None:
        """The offset to read from; None when that is for somebody to decide."""
        where = {"earliest": low, "latest": high}
        if raw is None:
            return where[self.spec.start]
        at = msgspec.msgpack.decode(raw, type=int)
        if low <= at <= high:
            return at
        gone = MarkGone(
            f"{self.spec.topic}/{int(name)} was read up to {at:,}, and there are {low:,} to {high:,}",
            hint="on_gone='earliest' goes on with what there is, on_gone='latest' with what comes",
        )
        if self.spec.on_gone == "fail":
            self._stuck[name] = str(gone)
            self._emit(PartitionStuck(source=self._drawer.source, mark=name, message=gone.message))
            return None
        to = where[self.spec.on_gone]
        self._emit(MarkSkipped(source=self._drawer.source, mark=name, before=str(at), after=str(to)))
        return to

    # --- batches

    def _batch(self) -> Drawn:
        records, ends = self._fetched()
        if not ends:
            return Drawn("", 0, 0)
        moves = [Move(name, self._marks[name], msgspec.msgpack.encode(at)) for name, at in ends.items()]
        sifted = self._drawer.sift(records, self._convert)
        drawn = self._drawer.publish(sifted, moves, partial(self.holdings.fence, list(ends)))
        self._marks |= {move.mark: move.after for move in moves}
        return drawn

    def _fetched(self) -> tuple[list[Record], dict[str, int]]:
        """Messages, and the offsets behind them by partition."""
        from confluent_kafka import KafkaError

        records: list[Record] = []
        ends: dict[str, int] = {}
        for message in self._opened().consume(self.spec.max_records, timeout=self.spec.linger_s):
            name, offset, error = f"{message.partition():06}", message.offset(), message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._at_end.add(name)
                    continue
                raise SourceUnavailable(
                    f"{self.spec.shown}: {error.str()}", hint="it is read again by itself"
                )
            if name not in self._marks or offset is None:
                continue  # of a partition that was ours before
            self._at_end.discard(name)
            records.append(Record(f"{self.spec.topic}/{int(name)}", offset, message.value()))
            ends[name] = offset + 1
        return records, ends


def _words(error: Exception) -> str:
    found: Sequence[Any] = error.args
    return str(found[0].str() if found and hasattr(found[0], "str") else error)[:300]
