"""A topic of Kafka as a source: `kafka("localhost:9092", "orders")`."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidemill.errors import BadSource

Start = Literal["earliest", "latest"]
OnGone = Literal["fail", "earliest", "latest"]
MOST_RECORDS = 50_000
OURS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
    }
)
"""Settings that are not the user's: offsets are kept with the lots, and nowhere else."""


class KafkaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which topic, where it begins, and how much of it becomes one lot."""

    brokers: str
    topic: str
    start: Start
    on_gone: OnGone
    max_records: int
    linger_s: float
    timeout_s: float
    settings: dict[str, str]  # of librdkafka; may hold secrets

    @property
    def shown(self) -> str:
        """For people: without the settings, which may hold secrets."""
        return f"topic {self.topic} at {self.brokers}"

    def __repr__(self) -> str:
        return f"<KafkaSpec {self.shown}>"


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
) -> KafkaSpec:
    """Messages of a topic, each a JSON object; its partitions are shared by the nodes that run the pipeline.

    >>> kafka("localhost:9092", "orders")
    <KafkaSpec topic orders at localhost:9092>

    Args:
        brokers: `host:port`, or several of them with commas.
        topic: its name.
        start: where a partition begins that was never read: `earliest` or `latest`.
        on_gone: when messages are not kept any more that were not read: `fail`, so that somebody looks; or go
            on with the `earliest` or the `latest` there is.
        max_records: of one lot.
        linger_s: how long messages are waited for, to be in one lot.
        timeout_s: for an answer of the brokers.
        settings: of librdkafka, for example `{"security.protocol": "SASL_SSL", …}`.
    """
    if not brokers.strip() or any(not one.strip() for one in brokers.split(",")):
        raise BadSource(f"the brokers {brokers!r:.100}", hint="host:port, or several of them with commas")
    if (
        not topic
        or len(topic) > 249
        or not all(one.isascii() and (one.isalnum() or one in "._-") for one in topic)
    ):
        raise BadSource(f"the topic {topic!r:.100}", hint="letters, digits, '.', '_' and '-'")
    if start not in ("earliest", "latest"):
        raise BadSource(f"start={start!r}", hint="'earliest' or 'latest'")
    if on_gone not in ("fail", "earliest", "latest"):
        raise BadSource(f"on_gone={on_gone!r}", hint="'fail', 'earliest' or 'latest'")
    if not 1 <= max_records <= MOST_RECORDS:
        raise BadSource(f"max_records={max_records}", hint=f"1 to {MOST_RECORDS:,} in one lot")
    if not 0 < linger_s <= 60 or not 0 < timeout_s <= 600:
        raise BadSource(f"linger_s={linger_s}, timeout_s={timeout_s}", hint="seconds, more than none")
    given = dict(settings or {})
    ours = sorted(OURS & set(given))
    if ours:
        raise BadSource(f"the setting {ours[0]}", hint="offsets are kept with the lots: leave it out")
    return KafkaSpec(
        brokers=brokers,
        topic=topic,
        start=start,  # type: ignore[arg-type] # just told
        on_gone=on_gone,  # type: ignore[arg-type] # just told
        max_records=max_records,
        linger_s=linger_s,
        timeout_s=timeout_s,
        settings=given,
    )
