"""Choose which partition a node takes next: a pure function of the rows that the node has read (CLU-13).

1. Expired partitions come first: any node with a free slot takes them, even above its fair share.
2. A node takes free partitions up to its fair share, which depends on its slots. If a partition stays free
   for a ttl, any node can take it, because the node that should take it is slow or dead.
3. If no partition is free, a node requests one partition at a time from the fullest node. When the holder
   hands the partition back, it is reserved for the requesting node for a short time. If the holder does not
   hand it back within a ttl, its lease is not extended. After the lease has expired, the partition is
   reserved in the same way.

Each node starts at a different place in the list, and pauses for a random time between two acquisitions. So
nodes do not compete for the same partition.

Requests stop after a finite number of moves. A share is rarely a whole number, so it has two bounds: `least`
(rounded down) and `most` (rounded up). A node below its `most` requests from a node above its `most`. A node
below its `least` requests from a node above its `least`. Neither move takes a node out of its bounds, and
each move brings at least one node closer to them. When no move is left, every node is within its bounds,
because the sum of all `least` is at most the number of partitions, and the sum of all `most` is at least that
number.
"""

import random
from typing import NamedTuple

import msgspec

from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import PartitionSummary

STALE_TTLS = 2  # a request older than this many ttls does not block another one


class TakePartition(msgspec.Struct, frozen=True):
    """Try to take this partition."""

    id: str


class RequestPartition(msgspec.Struct, frozen=True):
    """Request this partition from its holder."""

    id: str


class WaitForChange(msgspec.Struct, frozen=True):
    """There is nothing to do until `wait_s` has passed."""

    wait_s: float


Choice = TakePartition | RequestPartition | WaitForChange


class Share(NamedTuple):
    """How many partitions a node should hold."""

    least: int
    most: int


def fair_share(nodes: list[Node], node_id: str, partitions: int) -> Share:
    """Return the share of a node according to its slots, rounded down and up; zero if it is draining."""
    slots = {node.id: node.slots for node in nodes if not node.draining}
    total = sum(slots.values())
    if not total:
        return Share(0, 0)
    least, rest = divmod(partitions * slots.get(node_id, 0), total)
    return Share(least, least + bool(rest))


def choose(
    summaries: list[PartitionSummary],
    nodes: list[Node],
    node_id: str,
    *,
    free_slots: int,
    now_us: int,
    ttl_s: float,
    pause_s: float,
    chance: random.Random,
) -> Choice:
    """Return what to do next.

    Args:
        summaries: all partitions that are not done.
        nodes: the live nodes.
        node_id: our id.
        free_slots: how many partitions we can still take.
        now_us: the store's time.
        ttl_s: how long a partition is held without renewal.
        pause_s: the maximum random time that is added to a wait.
        chance: the source of random numbers.
    """
    if free_slots <= 0:
        return WaitForChange(ttl_s)
    ttl_us = int(ttl_s * 1_000_000)
    ordered = _from_own_place(sorted(summaries, key=lambda part: part.id), nodes, node_id)
    reserved_us = ttl_us * 2 // 5  # for the node that requested it, which checks twice in that time

    def is_available(part: PartitionSummary, since_us: int) -> bool:
        return since_us <= now_us and (part.wanted_by in ("", node_id) or since_us + reserved_us <= now_us)

    expired = [part for part in ordered if part.holder and is_available(part, part.expires_at)]
    if expired:
        return TakePartition(expired[0].id)
    own = sum(part.holder == node_id for part in summaries)
    share = fair_share(nodes, node_id, len(summaries))
    free = [part for part in ordered if not part.holder and is_available(part, part.free_since)]
    free.sort(key=lambda part: part.wanted_by != node_id)
    left_over = [part for part in free if part.free_since + ttl_us <= now_us]
    if free and own < share.most:
        return TakePartition(free[0].id)
    if left_over:
        return TakePartition(left_over[0].id)
    if own < share.most:
        is_open = any(part.wanted_by and part.wanted_at + STALE_TTLS * ttl_us > now_us for part in summaries)
        excess = None if is_open else _excess(ordered, nodes, node_id, below_least=own < share.least)
        if excess is not None:
            return RequestPartition(excess.id)
    next_expiry = min((part.expires_at for part in summaries if part.holder), default=now_us + ttl_us)
    wait_s = min(ttl_s, max(0.0, (next_expiry - now_us) / 1_000_000))
    if any(part.expires_at <= now_us for part in summaries):  # reserved for another node, for a short time
        wait_s = ttl_s / 5
    return WaitForChange(wait_s + pause_s * chance.random())


def _from_own_place(
    summaries: list[PartitionSummary], nodes: list[Node], node_id: str
) -> list[PartitionSummary]:
    ids = sorted(node.id for node in nodes)
    if not summaries or node_id not in ids:
        return summaries
    start = ids.index(node_id) * len(summaries) // len(ids)
    return summaries[start:] + summaries[:start]


def _excess(
    summaries: list[PartitionSummary], nodes: list[Node], node_id: str, *, below_least: bool
) -> PartitionSummary | None:
    """Return a partition of the fullest node that has more than its share; None if there is no such node.

    A draining node gets no requests: it hands back what it does not finish in its grace period (CLU-25).
    """
    by_holder: dict[str, list[PartitionSummary]] = {}
    for part in summaries:
        by_holder.setdefault(part.holder, []).append(part)
    slots = {node.id: max(1, node.slots) for node in nodes if node.id != node_id and not node.draining}
    shares = {holder: fair_share(nodes, holder, len(summaries)) for holder in by_holder if holder in slots}
    over = [holder for holder, share in shares.items() if len(by_holder[holder]) > share.most]
    if not over and below_least:
        over = [holder for holder, share in shares.items() if len(by_holder[holder]) > share.least]
    if not over:
        return None
    fullest = max(over, key=lambda holder: (len(by_holder[holder]) / slots[holder], holder))
    return by_holder[fullest][0]
