"""Divide the partitions of a topic among the nodes, as nodes join and leave (CLU-20, CLU-21).

Each partition of the topic is a partition of the cluster (`cluster.partitions`): a lease under an epoch. A
node takes free partitions, up to its fair share (`cluster.shares`). A node that joins requests partitions
from the node that holds the most. That node releases them between two batches, and only then can the new node
take them: a partition is revoked before it is assigned. The partitions of a dead node are free when their
leases expire. Each participating node regularly writes a report into its own row. A node that has not
reported within the lease's ttl has no share.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes, partitions, shares
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Partition, PartitionMap, PartitionSummary
from tidemill.cluster.shares import RequestPartition, TakePartition
from tidemill.errors import LeaseLost
from tidemill.scope import Scope
from tidemill.sources.keys import SourceKeys
from tidemill.store import Tx

MOST_AT_ONCE = 64
"""The maximum number of partitions that one call of `maintain` takes."""


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """The report of a participating node: its epoch, and when it reported (store time, µs)."""

    epoch: int
    at: int


class TopicPartitions:
    """The partitions of one source that this node holds. Use it from one thread only.

    Args:
        source: the id of the source.
        scope: the node. It immediately releases partitions that it held in an earlier epoch. Its timing
            decides how long a partition stays held, and a report stays valid, without renewal.
    """

    def __init__(self, source: str, scope: Scope) -> None:
        self._source = source
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._timing = scope.timing
        self._created = 0
        self._renew_at = 0.0
        self.held: dict[str, Partition] = {}
        self.all_held = False  # whether live nodes held all partitions at the last read

    @property
    def group(self) -> str:
        return f"stream {self._source}"

    @property
    def holder(self) -> str:
        return f"{self._scope.node.id}.{self._scope.node.epoch}"

    def maintain(self, names: Sequence[str]) -> None:
        """Write our report, renew our partitions, release requested ones, and take up to our share."""
        scope = self._scope
        if len(names) > self._created:
            scope.step("sources.share", lambda tx: self._create(tx, names))
            self._created = len(names)
        summaries, nodes, now = scope.store.run(self._read)
        if scope.clock.monotonic() >= self._renew_at or self._is_requested(summaries):
            self.held = scope.step("sources.renew", self._renew)
            self._renew_at = scope.clock.monotonic() + self._timing.every_s
            summaries, nodes, now = scope.store.run(self._read)
        for _ in range(MOST_AT_ONCE):
            self.all_held = all(summary.holder and summary.expires_at > now for summary in summaries)
            choice = shares.choose(
                summaries,
                nodes,
                self.holder,
                free_slots=len(summaries),
                now_us=now,
                ttl_s=self._timing.ttl_s,
                pause_s=0.0,
                chance=scope.chance,
            )
            if isinstance(choice, TakePartition):
                part = scope.step(
                    "sources.take-partition",
                    lambda tx, name=choice.id: self._take(tx, name),  # type: ignore[misc]
                )
                if part is None:
                    return  # another node was faster
                self.held[part.id] = part
                summaries, nodes, now = scope.store.run(self._read)
            elif isinstance(choice, RequestPartition):
                scope.step(
                    "sources.ask",
                    lambda tx, name=choice.id: self._request(tx, name),  # type: ignore[misc]
                )
                return
            else:
                return

    def _is_requested(self, summaries: Sequence[PartitionSummary]) -> bool:
        return any(
            summary.id in self.held and summary.wanted_by not in ("", self.holder) for summary in summaries
        )

    def renew_now(self) -> None:
        """Make the next call of `maintain` renew our partitions, because something unexpected happened."""
        self._renew_at = 0.0

    def fence(self, names: Sequence[str], tx: Tx) -> None:
        """Refuse the transaction unless we hold all of these partitions."""
        for name in names:
            if name not in self.held:
                raise LeaseLost(f"this node does not hold partition {name} of {self._source}")
            partitions.check(tx, self._keys.publish.cluster, self.held[name])

    def close(self) -> None:
        """Release all partitions, and stop participating."""

        def leave(tx: Tx) -> None:
            tx.clear(self._keys.member[self._source, self._scope.node.id])
            for part in released:
                self._hand_back(tx, part)

        released = list(self.held.values())
        self.held = {}
        self._scope.step("sources.leave", leave)

    # --- transactions

    def _create(self, tx: Tx, names: Sequence[str]) -> None:
        cluster = self._keys.publish.cluster
        partitions.create(tx, cluster, self.group, dict.fromkeys(names, b""), PartitionMap(0, 0, len(names)))

    def _renew(self, tx: Tx) -> dict[str, Partition]:
        """Write our report, and renew or release our partitions; return the renewed ones.

        This releases partitions that another node requests, and those of our earlier epochs.
        """
        cluster, node, now = self._keys.publish.cluster, self._scope.node, tx.now()
        report = msgspec.msgpack.encode(MemberReport(node.epoch, now))
        tx.set(self._keys.member[self._source, node.id], report)
        self._remove_dead(tx, now)
        renewed: dict[str, Partition] = {}
        for part in self.held.values():
            try:
                current = partitions.check(tx, cluster, part)
                if current.wanted_by not in ("", self.holder):
                    partitions.hand_back(tx, cluster, current)
                    continue
                if current.expires_at - now < self._timing.ttl_us * 2 // 3:
                    current = partitions.renew(tx, cluster, current, self._timing.ttl_us)
                renewed[part.id] = current
            except LeaseLost:
                continue  # it expired; another node may hold it
        for summary in partitions.summaries(tx, cluster, self.group):
            name, _, epoch = summary.holder.rpartition(".")
            if name == node.id and epoch != str(node.epoch):
                earlier = partitions.read(tx, cluster, self.group, summary.id)
                if earlier is not None and earlier.holder == summary.holder:
                    self._hand_back(tx, earlier)
        return renewed

    def _remove_dead(self, tx: Tx, now: int) -> None:
        """Remove the reports of nodes that have left the node list. A killed node does not remove its own."""
        for row in tx.range(*self._keys.member.under(self._source), snapshot=True):
            report = msgspec.msgpack.decode(row.value, type=MemberReport)
            name = str(self._keys.member.unpack(row.key)[1])
            old = report.at <= now - shares.STALE_TTLS * self._timing.ttl_us
            if old and nodes.read(tx, self._keys.publish.cluster, name) is None:
                tx.clear(row.key)

    def _hand_back(self, tx: Tx, part: Partition) -> None:
        try:
            partitions.hand_back(tx, self._keys.publish.cluster, part)
        except LeaseLost:
            return  # it has expired

    def _read(self, tx: Tx) -> tuple[list[PartitionSummary], list[Node], int]:
        now, since = tx.now(), tx.now() - self._timing.ttl_us
        reporting = []
        for row in tx.range(*self._keys.member.under(self._source), snapshot=True):
            report = msgspec.msgpack.decode(row.value, type=MemberReport)
            if report.at > since:
                name = str(self._keys.member.unpack(row.key)[1])
                reporting.append(Node(id=f"{name}.{report.epoch}", epoch=report.epoch))
        return partitions.summaries(tx, self._keys.publish.cluster, self.group), reporting, now

    def _take(self, tx: Tx, name: str) -> Partition | None:
        cluster, ttl_us = self._keys.publish.cluster, self._timing.ttl_us
        return partitions.take(tx, cluster, self.group, name, self.holder, ttl_us)

    def _request(self, tx: Tx, name: str) -> bool:
        stale_us = shares.STALE_TTLS * self._timing.ttl_us
        cluster = self._keys.publish.cluster
        return partitions.request(tx, cluster, self.group, name, self.holder, stale_us=stale_us)
