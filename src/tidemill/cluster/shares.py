"""Which partition a node should take next: a pure function of what the node sees (CLU-13).

Expired leases come before balance: work that nobody does is taken by whoever has a free slot. Free
partitions are taken up to the fair share, which follows the slots; one that stays free for a ttl (its
rightful taker is slow, or dead and not yet known to be) is anybody's. Only when nothing is free is a
partition asked for from the fullest node, one at a time. Each node starts at its own place in the list,
so that nodes do not run after the same one, and pauses at random between two acquisitions.
"""

import random
from math import ceil

import msgspec

from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Standing


class Take(msgspec.Struct, frozen=True):
    """Try to become the holder of this partition."""

    id: str


class Ask(msgspec.Struct, frozen=True):
    """Ask its holder for this partition."""

    id: str


class Rest(msgspec.Struct, frozen=True):
    """There is nothing to do before `wait_s` is over."""

    wait_s: float


Choice = Take | Ask | Rest


def fair_share(nodes: list[Node], node_id: str, partitions: int) -> int:
    """How many partitions a node should hold: by its slots, rounded up."""
    slots = {node.id: node.slots for node in nodes if not node.draining}
    total = sum(slots.values())
    return ceil(partitions * slots.get(node_id, 0) / total) if total else 0


def choose(
    standings: list[Standing],
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
        return Rest(ttl_s)
    ordered = _from_own_place(sorted(standings, key=lambda one: one.id), nodes, node_id)
    expired = [one for one in ordered if one.holder and one.expires_at <= now_us]
    if expired:
        return Take(expired[0].id)
    mine = sum(one.holder == node_id for one in standings)
    share = fair_share(nodes, node_id, len(standings))
    free = [one for one in ordered if not one.holder]
    left_over = [one for one in free if one.free_since + ttl_s * 1_000_000 <= now_us]
    if free and mine < share:
        return Take(free[0].id)
    if left_over:
        return Take(left_over[0].id)
    wanted = _excess(ordered, nodes, node_id, mine, share)
    if wanted is not None:
        return Ask(wanted.id)
    next_expiry = min((one.expires_at for one in standings if one.holder), default=now_us)
    wait_s = min(ttl_s, max(0.0, (next_expiry - now_us) / 1_000_000))
    return Rest((wait_s if not free else ttl_s / 5) + pause_s * chance.random())


def _from_own_place(standings: list[Standing], nodes: list[Node], node_id: str) -> list[Standing]:
    ids = sorted(node.id for node in nodes)
    if not standings or node_id not in ids:
        return standings
    start = ids.index(node_id) * len(standings) // len(ids)
    return standings[start:] + standings[:start]


def _excess(
    standings: list[Standing], nodes: list[Node], node_id: str, mine: int, share: int
) -> Standing | None:
    """A partition of the fullest node above its own share, when we are below ours and ask for nothing yet."""
    if mine >= share or any(one.wanted for one in standings):
        return None
    held: dict[str, list[Standing]] = {}
    for one in standings:
        held.setdefault(one.holder, []).append(one)
    held.pop(node_id, None)
    slots = {node.id: max(1, node.slots) for node in nodes}
    over = {
        holder: parts
        for holder, parts in held.items()
        if holder in slots and len(parts) > fair_share(nodes, holder, len(standings))
    }
    if not over:  # shares are rounded up: a difference of two is still worth a move
        over = {holder: parts for holder, parts in held.items() if holder in slots and len(parts) - mine >= 2}
    if not over:
        return None
    fullest = max(over, key=lambda holder: (len(over[holder]) / slots[holder], holder))
    return over[fullest][0]
