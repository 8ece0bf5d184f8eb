"""Claiming and giving back: the edges between unclaimed and claimed.

Both are batched `take` transactions. A claim is a lease whose time is that of its holder's node: one beat
renews every claim of a node (FUT-36), and a claim names (node, node epoch, epoch). The future's epoch
grows with every claim and every return, so a late write is refused whatever its author believes (FUT-13).
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.futures.protocol import edges, limits, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity, Lane, bounds_of, fits, how_many
from tidemill.futures.protocol.rows import AnyRow, Claimed, Spec, Unclaimed
from tidemill.futures.protocol.states import FutureEdge, FutureState, step
from tidemill.store import Row, Swap, Tx, unpack

LEAST_LEFT_US = 2_500_000
"""A node whose lease has less left than a transaction may last claims nothing: so that every claim of a
node is committed before its lease runs out, and the reaper, who comes after, sees all of them."""


class Claim(msgspec.Struct, frozen=True):
    """What a node got: the id, the row and its stored bytes, which are the fence of the completion."""

    id: bytes
    row: Claimed
    raw: bytes

    @property
    def epoch(self) -> int:
        return self.row.tally.epoch


def read_lanes(tx: Tx, keys: FutureKeys) -> list[Lane]:
    """The directory of lanes, in the order they are served."""
    found = []
    for row in tx.range(*keys.lane.all(), snapshot=True):
        queue, label, minus_priority = keys.lane.unpack(row.key)
        found.append(Lane(int(minus_priority), str(queue), str(label)))  # type: ignore[arg-type]
    return sorted(found)


def claim(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    node: Node,
    lanes: Sequence[Lane],
    free: Capacity,
    limit: int,
) -> list[Claim]:
    """Claim up to `limit` futures that fit together: our assignments first, then the lanes (FUT-43).

    Runs in a `take` transaction. What is taken leaves the index in the same transaction that writes the
    claim and the holder's pointer: a crash in between gives everything back (STO-4). Lanes are served by
    priority, and within a priority by who has waited longest (FUT-26).
    """
    check_time(tx, cluster, node)
    taken = _take_assigned(tx, keys, node, free, limit)
    claims = _claim_rows(tx, keys, node, taken)
    free = left(free, taken)
    for minus_priority in sorted({lane.minus_priority for lane in lanes}):
        if len(claims) >= limit:
            break
        able = [
            lane
            for lane in lanes
            if lane.minus_priority == minus_priority and fits(bounds_of(lane.label)[0], free)
        ]
        turns = _shares(tx, keys, able, limit - len(claims))
        if len(able) > 1:  # what the oldest cannot use, because they do not fit together, others can
            turns += [(lane, limit) for lane in able]
        for lane, share in turns:
            taken = _take_lane(tx, keys, lane, free, min(share, limit - len(claims)))
            claims += _claim_rows(tx, keys, node, taken)
            free = left(free, taken)
    return claims


def check_time(tx: Tx, cluster: ClusterKeys, node: Node) -> None:
    """Refuse to claim for a node that is not there, or may not be by the time of the commit."""
    current = nodes.check(tx, cluster, node, lock=True)
    if current.expires_at - tx.now() < LEAST_LEFT_US:
        raise LeaseLost(f"node {node.id} has too little of its lease left to claim")


def left(free: Capacity, taken: Sequence[Row]) -> Capacity:
    """What is free after these."""
    for row in taken:
        free = free.minus(rows.decode_ask(row.value).needs)
    return free


def claim_these(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, specs: Sequence[Spec], free: Capacity
) -> list[Claim]:
    """Claim particular futures that are unclaimed and fit: what our own waiting tasks await (FUT-41)."""
    check_time(tx, cluster, node)
    got: list[Claim] = []
    for spec in specs:
        row = _peek(tx, keys, spec.id)
        if not isinstance(row, Unclaimed) or row.ready_at > tx.now():
            continue
        if row.hard and row.assigned != node.id:
            continue
        if spec.queue and limits.allowed(tx, keys, spec.queue, 1) < 1:
            continue
        index = Row(edges.ready_key(keys, spec, row), edges.ready_value(spec, row.tally))
        if fits(edges.needs_of(spec, row.tally), free) and tx.swap(index.key, index.value, None):
            got += _claim_rows(tx, keys, node, [index])
            free = left(free, [index])
    return got


def _peek(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow | None:
    """A row without a lock: the index row is what is fought for, and taken first, as in `claim`."""
    key = keys.future[future_id]
    found = tx.range(key, key + b"\x00", snapshot=True)
    return rows.decode_row(found[0].value) if found else None


def _take_assigned(tx: Tx, keys: FutureKeys, node: Node, free: Capacity, limit: int) -> list[Row]:
    ripe: list[Row] = []
    for row in tx.range(*keys.assigned.under(node.id), limit=4 * limit, snapshot=True):
        ready_at = keys.assigned.unpack(row.key)[3]
        ask = rows.decode_ask(row.value)
        if not isinstance(ready_at, int) or ready_at > tx.now() or not fits(ask.needs, free):
            continue
        with_it = 1 + _of_queue(ripe, ask.queue)
        if ask.queue and limits.allowed(tx, keys, ask.queue, with_it) < with_it:
            continue
        ripe.append(row)
        free = left(free, [row])
        if len(ripe) == limit:
            break
    return _swap_out(tx, ripe)


def _of_queue(found: Sequence[Row], queue: str) -> int:
    return sum(rows.decode_ask(row.value).queue == queue for row in found)


def _swap_out(tx: Tx, found: Sequence[Row]) -> list[Row]:
    done = tx.swap_many([Swap(row.key, row.value, None) for row in found])
    return [row for row, ok in zip(found, done, strict=True) if ok]


def _shares(tx: Tx, keys: FutureKeys, able: Sequence[Lane], limit: int) -> list[tuple[Lane, int]]:
    """How many to take from each of several lanes of one priority, so that the oldest go first."""
    if len(able) < 2:
        return [(lane, limit) for lane in able]
    heads: list[tuple[int, int]] = []
    for number, lane in enumerate(able):
        lo, hi = _ripe(tx, keys, lane)
        for row in tx.range(lo, hi, limit=limit, snapshot=True):
            ready_at = unpack(row.key)[-2]
            heads.append((ready_at if isinstance(ready_at, int) else 0, number))
    shares: dict[int, int] = {}
    for _, number in sorted(heads)[:limit]:
        shares[number] = shares.get(number, 0) + 1
    return [(able[number], share) for number, share in shares.items()]


def _ripe(tx: Tx, keys: FutureKeys, lane: Lane) -> tuple[bytes, bytes]:
    """The part of a lane whose time has come."""
    return keys.ready[lane.key] + b"\x00", keys.ready[(*lane.key, tx.now() + 1)]


def _take_lane(tx: Tx, keys: FutureKeys, lane: Lane, free: Capacity, limit: int) -> list[Row]:
    if limit < 1 or not fits(bounds_of(lane.label)[0], free):
        return []
    allowed = limits.allowed(tx, keys, lane.queue, limit) if lane.queue else limit
    lo, hi = _ripe(tx, keys, lane)
    high = bounds_of(lane.label)[1]
    taken: list[Row] = []
    while len(taken) < allowed:
        together = min(allowed - len(taken), how_many(high, free))
        if together < 1:
            break
        more = tx.take(lo, hi, together, quiet=True)
        taken += more
        free = left(free, more)
        if len(more) < together:
            return taken
    small: list[Row] = []  # the class may be too large for us, some of its members may not
    if len(taken) < allowed:
        for row in tx.range(lo, hi, limit=200, snapshot=True):
            if len(taken) + len(small) < allowed and fits(rows.decode_ask(row.value).needs, free):
                small.append(row)
                free = left(free, [row])
    return taken + _swap_out(tx, small)


def _claim_rows(tx: Tx, keys: FutureKeys, node: Node, taken: Sequence[Row]) -> list[Claim]:
    ids = [_id_of(row.key) for row in taken]
    claims = []
    written: list[tuple[bytes, bytes]] = []
    for index, future_id, row in zip(taken, ids, edges.read_many(tx, keys, ids), strict=True):
        if not isinstance(row, Unclaimed):
            continue  # an index row without its future: taking it is all that was to be done
        step(FutureState.UNCLAIMED, FutureEdge.CLAIM)
        queue = rows.decode_ask(index.value).queue
        limited = bool(queue) and limits.started(tx, keys, queue)
        claimed = Claimed(
            tally=edges.bump(row.tally),
            holder=node.id,
            node_epoch=node.epoch,
            claimed_at=tx.now(),
            limited=limited,
        )
        raw = rows.encode(claimed)
        written += [(keys.future[future_id], raw), (keys.own[node.id, future_id], b"")]
        claims.append(Claim(future_id, claimed, raw))
    tx.set_many(written, quiet=True)  # who awaits a future is not concerned with who has it
    return claims


def _id_of(key: bytes) -> bytes:
    future_id = unpack(key)[-1]
    assert isinstance(future_id, bytes)
    return future_id


def is_held(row: AnyRow | None, claim: Claim) -> bool:
    """Is the row still claimed by us under our epoch?"""
    return (
        isinstance(row, Claimed)
        and row.tally.epoch == claim.epoch
        and row.holder == claim.row.holder
        and row.node_epoch == claim.row.node_epoch
    )


def held(row: AnyRow | None, claim: Claim) -> Claimed:
    """The fence of a claimant: `LeaseLost` unless the row is still claimed by us under our epoch."""
    if not isinstance(row, Claimed) or not is_held(row, claim):
        raise LeaseLost(f"the claim on {claim.id.hex()} under epoch {claim.epoch} is over")
    return row
