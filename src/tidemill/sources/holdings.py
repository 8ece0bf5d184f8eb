"""Holdings: which partitions of a topic a node has, while nodes come and go (CLU-20, CLU-21).

Each partition is one of the cluster's (`cluster.partitions`): a lease under an epoch, that a node takes when
it is free, up to its fair share (`cluster.shares`). A node that joins asks the fullest one, which hands back
between two batches, and only then is it taken: revoked before it is assigned. What a dead node held is free
when its lease has run out. Nodes that take part say so again and again in a row of their own; these reports
are their heartbeats, and who has not reported for a ttl has no share any more.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tidemill import crash
from tidemill.clock import Clock
from tidemill.cluster import partitions, shares
from tidemill.cluster.leases import SECOND_US, TTL_S
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Map, Partition, Standing
from tidemill.cluster.shares import Ask, Take
from tidemill.errors import LeaseLost
from tidemill.sources.keys import SourceKeys
from tidemill.store import Store, Tx

T = TypeVar("T")
RENEWALS = 5
"""So often in a ttl a node reports, and renews what it holds."""

MOST_AT_ONCE = 64
"""Partitions that are taken or renewed in one call."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A node takes part: under which epoch, and when it last said so (store time, µs)."""

    epoch: int
    at: int


class Holdings:
    """One node's partitions of one source. Used by one thread.

    Args:
        source: whose partitions they are.
        node: who we are; what its earlier lives held is handed back at once.
        ttl_s: how long a partition is held, and a report counts, without renewal.
    """

    def __init__(
        self,
        source: str,
        *,
        store: Store,
        keys: SourceKeys,
        node: Node,
        clock: Clock,
        chance: random.Random,
        ttl_s: float = TTL_S,
    ) -> None:
        self._source = source
        self._store = store
        self._keys = keys
        self._node = node
        self._chance = chance
        self._ttl_s = ttl_s
        self._clock = clock
        self._made = 0
        self._due = 0.0
        self.mine: dict[str, Partition] = {}
        self.all_held = False  # by anybody, when we last looked

    @property
    def group(self) -> str:
        return f"stream {self._source}"

    @property
    def holder(self) -> str:
        return f"{self._node.id}.{self._node.epoch}"

    def tend(self, names: Sequence[str]) -> None:
        """Report, renew what we hold, hand back what is asked for, and take what is ours to take."""
        if len(names) > self._made:
            self._step("share", lambda tx: self._create(tx, names))
            self._made = len(names)
        standings, nodes, now = self._store.run(self._look)
        if self._clock.monotonic() >= self._due or self._is_asked(standings):
            self.mine = self._step("renew", self._renew)
            self._due = self._clock.monotonic() + self._ttl_s / RENEWALS
            standings, nodes, now = self._store.run(self._look)
        for _ in range(MOST_AT_ONCE):
            self.all_held = all(one.holder and one.expires_at > now for one in standings)
            choice = shares.choose(
                standings,
                nodes,
                self.holder,
                free_slots=len(standings),
                now_us=now,
                ttl_s=self._ttl_s,
                pause_s=0.0,
                chance=self._chance,
            )
            if isinstance(choice, Take):
                part = self._step("take-partition", lambda tx, name=choice.id: self._take(tx, name))  # type: ignore[misc]
                if part is None:
                    return  # another was faster
                self.mine[part.id] = part
                standings, nodes, now = self._store.run(self._look)
            elif isinstance(choice, Ask):
                self._step("ask", lambda tx, name=choice.id: self._ask(tx, name))  # type: ignore[misc]
                return
            else:
                return

    def _is_asked(self, standings: Sequence[Standing]) -> bool:
        return any(one.id in self.mine and one.wanted_by not in ("", self.holder) for one in standings)

    def hurry(self) -> None:
        """Look after what we hold with the next call, whatever the time: something was not as we thought."""
        self._due = 0.0

    def fence(self, names: Sequence[str], tx: Tx) -> None:
        """Refuse the transaction unless we hold all of these."""
        for name in names:
            if name not in self.mine:
                raise LeaseLost(f"partition {name} of {self._source} is not ours")
            partitions.check(tx, self._keys.publish.cluster, self.mine[name])

    def close(self) -> None:
        """Hand everything back, and take part no more."""

        def leave(tx: Tx) -> None:
            tx.clear(self._keys.tending[self._source, self._node.id])
            for part in held:
                self._hand_back(tx, part)

        held = list(self.mine.values())
        self.mine = {}
        self._step("leave", leave)

    # --- steps

    def _create(self, tx: Tx, names: Sequence[str]) -> None:
        cluster = self._keys.publish.cluster
        partitions.create(tx, cluster, self.group, dict.fromkeys(names, b""), Map(0, 0, len(names)))

    def _renew(self, tx: Tx) -> dict[str, Partition]:
        """Report, hand back what an earlier life of ours held, and renew what we hold: what is left of it."""
        cluster, now = self._keys.publish.cluster, tx.now()
        tx.set(
            self._keys.tending[self._source, self._node.id],
            msgspec.msgpack.encode(Report(self._node.epoch, now)),
        )
        kept: dict[str, Partition] = {}
        for part in self.mine.values():
            try:
                current = partitions.check(tx, cluster, part)
                if current.wanted_by not in ("", self.holder):
                    partitions.hand_back(tx, cluster, current)
                    continue
                if current.expires_at - now < int(self._ttl_s * SECOND_US * 2 / 3):
                    current = partitions.renew(tx, cluster, current, int(self._ttl_s * SECOND_US))
                kept[part.id] = current
            except LeaseLost:
                continue  # it ran out: whoever has it goes on
        for one in partitions.standings(tx, cluster, self.group):
            name, _, epoch = one.holder.rpartition(".")
            if name == self._node.id and epoch != str(self._node.epoch):
                earlier = partitions.read(tx, cluster, self.group, one.id)
                if earlier is not None and earlier.holder == one.holder:
                    self._hand_back(tx, earlier)
        return kept

    def _hand_back(self, tx: Tx, part: Partition) -> None:
        try:
            partitions.hand_back(tx, self._keys.publish.cluster, part)
        except LeaseLost:
            return  # it ran out already

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        crash.point(f"sources.{name}.before")
        answer = self._store.run(fn)
        crash.point(f"sources.{name}.after")
        return answer

    def _look(self, tx: Tx) -> tuple[list[Standing], list[Node], int]:
        now, since = tx.now(), tx.now() - int(self._ttl_s * SECOND_US)
        nodes = []
        for row in tx.range(*self._keys.tending.under(self._source), snapshot=True):
            report = msgspec.msgpack.decode(row.value, type=Report)
            if report.at > since:
                name = str(self._keys.tending.unpack(row.key)[1])
                nodes.append(Node(id=f"{name}.{report.epoch}", epoch=report.epoch))
        return partitions.standings(tx, self._keys.publish.cluster, self.group), nodes, now

    def _take(self, tx: Tx, name: str) -> Partition | None:
        ttl_us = int(self._ttl_s * SECOND_US)
        return partitions.take(tx, self._keys.publish.cluster, self.group, name, self.holder, ttl_us)

    def _ask(self, tx: Tx, name: str) -> bool:
        stale_us = int(shares.STALE_TTLS * self._ttl_s * SECOND_US)
        cluster = self._keys.publish.cluster
        return partitions.ask(tx, cluster, self.group, name, self.holder, stale_us=stale_us)
