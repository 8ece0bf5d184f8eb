"""Which partition a node should take next: a pure function of what the node sees (CLU-13).

Expired leases come before balance: work that nobody does is taken by whoever has a free slot. Free
partitions are taken up to the fair share, which follows the slots; one that stays free for a ttl (its
rightful taker is slow, or dead and not yet known to be) is anybody's. Only when nothing is free is a
partition asked for from the fullest node, one at a time; what is then handed back is kept for the asker for
a moment. A holder that does not let go within a ttl is given no more time, and what runs out then is kept
for the asker too. Each node starts at its own place in the list, so that nodes do not run after the same
one, and pauses at random between two acquisitions.

Balance comes to rest. A share is rarely a whole number, so it has two: `least` (rounded down) and `most`
(rounded up). A node below its most asks one that is above its most; a node below its least asks one that is
above its least. Neither move takes anybody out of its bounds, and each brings at least one node closer to
them; when no move is left everybody is within them, because the leasts add up to no more than there is, and
the mosts to no less.
"""

import random
from typing import NamedTuple

import msgspec

from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import PartitionSummary

STALE_TTLS = 2  # a request as old as that no longer keeps others from asking


class TakePartition(msgspec.Struct, frozen=True):
    """Try to become the holder of this partition."""

    id: str


class AskHolder(msgspec.Struct, frozen=True):
    """Ask its holder for this partition."""

    id: str


class WaitForChange(msgspec.Struct, frozen=True):
    """There is nothing to do before `wait_s` is over."""

    wait_s: float


Choice = TakePartition | AskHolder | WaitForChange


class Share(NamedTuple):
    """The bounds of what a node should hold."""

    least: int
    most: int


def fair_share(nodes: list[Node], node_id: str, partitions: int) -> Share:
    """How many partitions a node should hold: by its slots, rounded down and up; none when it drains."""
    slots = {node.id: node.slots for node in nodes if not node.draining}
    total = sum(slots.values())
    if not total:
        return Share(0, 0)
    whole, rest = divmod(partitions * slots.get(node_id, 0), total)
    return Share(whole, whole + bool(rest))


def choose(
    standings: list[PartitionSummary],
    nodes: list[Node],
    node_id: str,
    *,
    free_slots: int,
    now_us: int,
    ttl_s: float,
    pause_s: float,
    chance: random.Random,
) -> Choice:
    """What to do next. `nodes` are the live ones; `standings` every partition that is not done."""
    if free_slots <= 0:
        return WaitForChange(ttl_s)
    ttl_us = int(ttl_s * 1_000_000)
    ordered = _from_own_place(sorted(standings, key=lambda one: one.id), nodes, node_id)
    kept_us = ttl_us * 2 // 5  # for whoever asked for it: two rounds of a node that looks

    def nobodys(one: PartitionSummary, since_us: int) -> bool:
        return since_us <= now_us and (one.wanted_by in ("", node_id) or since_us + kept_us <= now_us)

    expired = [one for one in ordered if one.holder and nobodys(one, one.expires_at)]
    if expired:
        return TakePartition(expired[0].id)
    mine = sum(one.holder == node_id for one in standings)
    share = fair_share(nodes, node_id, len(standings))
    free = [one for one in ordered if not one.holder and nobodys(one, one.free_since)]
    free.sort(key=lambda one: one.wanted_by != node_id)
    left_over = [one for one in free if one.free_since + ttl_us <= now_us]
    if free and mine < share.most:
        return TakePartition(free[0].id)
    if left_over:
        return TakePartition(left_over[0].id)
    if mine < share.most:
        asked = any(one.wanted_by and one.wanted_at + STALE_TTLS * ttl_us > now_us for one in standings)
        excess = None if asked else _excess(ordered, nodes, node_id, below_least=mine < share.least)
        if excess is not None:
            return AskHolder(excess.id)
    next_expiry = min((one.expires_at for one in standings if one.holder), default=now_us + ttl_us)
    wait_s = min(ttl_s, max(0.0, (next_expiry - now_us) / 1_000_000))
    if any(one.expires_at <= now_us for one in standings):  # left to others, but perhaps not for long
        wait_s = ttl_s / 5
    return WaitForChange(wait_s + pause_s * chance.random())


def _from_own_place(
    standings: list[PartitionSummary], nodes: list[Node], node_id: str
) -> list[PartitionSummary]:
    ids = sorted(node.id for node in nodes)
    if not standings or node_id not in ids:
        return standings
    start = ids.index(node_id) * len(standings) // len(ids)
    return standings[start:] + standings[:start]


def _excess(
    standings: list[PartitionSummary], nodes: list[Node], node_id: str, *, below_least: bool
) -> PartitionSummary | None:
    """A partition of the fullest node that has more than its share, when there is one.

    One that drains is not asked: it hands back by itself what it does not finish in its grace (CLU-25).
    """
    held: dict[str, list[PartitionSummary]] = {}
    for one in standings:
        held.setdefault(one.holder, []).append(one)
    slots = {node.id: max(1, node.slots) for node in nodes if node.id != node_id and not node.draining}
    shares = {holder: fair_share(nodes, holder, len(standings)) for holder in held if holder in slots}
    over = [holder for holder, share in shares.items() if len(held[holder]) > share.most]
    if not over and below_least:
        over = [holder for holder, share in shares.items() if len(held[holder]) > share.least]
    if not over:
        return None
    fullest = max(over, key=lambda holder: (len(held[holder]) / slots[holder], holder))
    return held[fullest][0]
