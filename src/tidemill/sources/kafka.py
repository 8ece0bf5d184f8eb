"""A Kafka topic as a source: `kafka("localhost:9092", "orders")`."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from tidemill.errors import BadSource
from tidemill.sources import batch_publisher
from tidemill.sources.batch_publisher import BatchPublisher
from tidemill.sources.keys import SourceKeys
from tidemill.sources.row_converters import check_types
from tidemill.sources.source import (
    POLL_EVERY_S,
    PollResult,
    Source,
    SourceRuntime,
    SourceStatus,
    SourceTarget,
    acquired,
)
from tidemill.sources.topic_partitions import TopicPartitions
from tidemill.sources.topic_reader import TopicReader
from tidemill.store import Tx

Start = Literal["earliest", "latest"]
OnGone = Literal["fail", "earliest", "latest"]
MOST_RECORDS = 50_000
RESERVED = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
    }
)
"""Settings that users cannot set, because offsets are stored with the lots and nowhere else."""


@dataclass(frozen=True, kw_only=True, repr=False)
class KafkaSource(Source):
    """A topic, where to begin, and how many of its messages become one lot.

    Args:
        settings: settings of librdkafka; they may contain secrets.
    """

    brokers: str
    topic: str
    start: Start
    on_gone: OnGone
    max_records: int
    linger_s: float
    timeout_s: float
    settings: dict[str, str] = field(repr=False)

    @property
    def description(self) -> str:
        """The topic, without the settings, which may contain secrets."""
        return f"topic {self.topic} at {self.brokers}"

    def __repr__(self) -> str:
        return f"<KafkaSource {self.description}>"

    def check(self, target: SourceTarget) -> None:
        check_types(target.dataset)

    def open(self, target: SourceTarget, runtime: SourceRuntime) -> "KafkaArrival":
        return KafkaArrival(self, target, runtime)

    def status(self, tx: Tx, keys: SourceKeys, source: str) -> SourceStatus:
        return SourceStatus(errors=batch_publisher.problems(tx, keys, source))


def kafka(
    brokers: str,
    topic: str,
    *,
    start: str = "earliest",
    on_gone: str = "fail",
    max_records: int = 10_000,
    linger_s: float = 0.5,
    timeout_s: float = 10.0,
    settings: Mapping[str, str] | None = None,
) -> KafkaSource:
    """Declare a source: the messages of a topic, each a JSON object.

    The nodes that run the pipeline share the partitions of the topic.

    >>> kafka("localhost:9092", "orders")
    <KafkaSource topic orders at localhost:9092>

    Args:
        brokers: `host:port`, or several of them separated by commas.
        topic: the name of the topic.
        start: where to begin a partition that was never read: `earliest` or `latest`.
        on_gone: what to do if Kafka has deleted messages that were not read: `fail`, or continue at the
            `earliest` or the `latest` offset.
        max_records: the maximum number of messages in one lot.
        linger_s: how long to wait for more messages to put into the same lot.
        timeout_s: how long to wait for a response from the brokers.
        settings: settings of librdkafka, for example `{"security.protocol": "SASL_SSL", …}`.
    """
    if not brokers.strip() or any(not broker.strip() for broker in brokers.split(",")):
        raise BadSource(
            f"invalid brokers {brokers!r:.100}", hint="use host:port, or several of them separated by commas"
        )
    if (
        not topic
        or len(topic) > 249
        or not all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in topic)
    ):
        raise BadSource(
            f"invalid topic {topic!r:.100}", hint="use 1 to 249 letters, digits, '.', '_' and '-'"
        )
    if start not in ("earliest", "latest"):
        raise BadSource(f"invalid start={start!r}", hint="use 'earliest' or 'latest'")
    if on_gone not in ("fail", "earliest", "latest"):
        raise BadSource(f"invalid on_gone={on_gone!r}", hint="use 'fail', 'earliest' or 'latest'")
    if not 1 <= max_records <= MOST_RECORDS:
        raise BadSource(f"invalid max_records={max_records}", hint=f"use a value from 1 to {MOST_RECORDS}")
    if not 0 < linger_s <= 60:
        raise BadSource(f"invalid linger_s={linger_s}", hint="use a positive number of seconds, up to 60")
    if not 0 < timeout_s <= 600:
        raise BadSource(f"invalid timeout_s={timeout_s}", hint="use a positive number of seconds, up to 600")
    reserved = sorted(RESERVED & set(settings or {}))
    if reserved:
        raise BadSource(
            f"the setting {reserved[0]} cannot be changed", hint="omit it; Tidemill sets it itself"
        )
    return KafkaSource(
        brokers=brokers,
        topic=topic,
        start=cast(Start, start),
        on_gone=cast(OnGone, on_gone),
        max_records=max_records,
        linger_s=linger_s,
        timeout_s=timeout_s,
        settings=dict(settings or {}),
    )


class KafkaArrival:
    """A topic that is open on one node. A run that only catches up reads the partitions to their end."""

    def __init__(self, source: KafkaSource, target: SourceTarget, runtime: SourceRuntime) -> None:
        self._watching = runtime.watching
        self._lock = threading.Lock()
        self._closed = False
        self._partitions = TopicPartitions(target.id, runtime.scope)
        publisher = BatchPublisher(target, runtime.scope, runtime.evaluate)
        self._reader = TopicReader(source, publisher, self._partitions)

    def poll(self) -> PollResult:
        with self._lock:
            if self._closed:
                return PollResult()
            read = self._reader.read()
        idle_s = 0.1 if self._watching() else POLL_EVERY_S  # a read already waits for messages
        return PollResult(
            settled=read.caught_up,
            failed=read.stuck,
            wait_s=0.0 if read.batch.lot else idle_s,
            fetched=bool(self._partitions.held),
        )

    def close(self) -> None:
        self._closed = True
        with acquired(self._lock) as free:
            if free:
                self._reader.close()
