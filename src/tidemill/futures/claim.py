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
from tidemill.futures import edges, limits, rows
from tidemill.futures.keys import FutureKeys
from tidemill.futures.lanes import Capacity, Lane, bounds_of, fits
from tidemill.futures.rows import AnyRow, Claimed, Needs, Spec, Unclaimed
from tidemill.futures.states import FutureEdge, FutureState, step
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
    """Claim up to `limit` futures that fit: our assignments first, then the lanes in their order (FUT-43).

    Runs in a `take` transaction. What is taken leaves the index in the same transaction that writes the
    claim and the holder's pointer: a crash in between gives everything back (STO-4).
    """
    current = nodes.check(tx, cluster, node, lock=True)
    if current.expires_at - tx.now() < LEAST_LEFT_US:
        raise LeaseLost(f"node {node.id} has too little of its lease left to claim")
    assigned = _take_assigned(tx, keys, node, free, limit)
    claims = _claim_rows(tx, keys, node, [(row, "") for row in assigned])
    for lane in lanes:
        if len(claims) >= limit:
            break
        claims += _claim_lane(tx, keys, node, lane, free, limit - len(claims))
    return claims


def claim_these(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, specs: Sequence[Spec], free: Capacity
) -> list[Claim]:
    """Claim particular futures that are unclaimed and fit: what our own waiting tasks await (FUT-41)."""
    nodes.check(tx, cluster, node, lock=True)
    got: list[Claim] = []
    for spec, row in zip(specs, edges.read_many(tx, keys, [spec.id for spec in specs]), strict=True):
        if (
            not isinstance(row, Unclaimed)
            or row.ready_at > tx.now()
            or (row.hard and row.assigned != node.id)
        ):
            continue
        if spec.queue and limits.allowed(tx, keys, spec.queue, 1) < 1:
            continue
        key, value = edges.ready_key(keys, spec, row), edges.ready_value(spec, row.tally)
        if fits(edges.needs_of(spec, row.tally), free) and tx.swap(key, value, None):
            got += _claim_rows(tx, keys, node, [(Row(key, value), spec.queue)])
    return got


def _take_assigned(tx: Tx, keys: FutureKeys, node: Node, free: Capacity, limit: int) -> list[Row]:
    lo, hi = keys.assigned.under(node.id)
    ripe = []
    for row in tx.range(lo, hi, limit=4 * limit, snapshot=True):
        ready_at = keys.assigned.unpack(row.key)[2]
        if isinstance(ready_at, int) and ready_at <= tx.now() and fits(_needs(row), free):
            ripe.append(row)
    ripe = ripe[:limit]
    taken = tx.swap_many([Swap(row.key, row.value, None) for row in ripe])
    return [row for row, ok in zip(ripe, taken, strict=True) if ok]


def _claim_lane(tx: Tx, keys: FutureKeys, node: Node, lane: Lane, free: Capacity, limit: int) -> list[Claim]:
    low, high = bounds_of(lane.label)
    if not fits(low, free):
        return []
    allowed = limits.allowed(tx, keys, lane.queue, limit) if lane.queue else limit
    if allowed < 1:
        return []
    prefix = keys.ready[lane.key]
    lo, hi = prefix + b"\x00", keys.ready[(*lane.key, tx.now() + 1)]
    if fits(high, free):
        taken = tx.take(lo, hi, allowed)
    else:  # the class may be too large for us, some of its members may not
        small = [row for row in tx.range(lo, hi, limit=200, snapshot=True) if fits(_needs(row), free)][
            :allowed
        ]
        done = tx.swap_many([Swap(row.key, row.value, None) for row in small])
        taken = [row for row, ok in zip(small, done, strict=True) if ok]
    return _claim_rows(tx, keys, node, [(row, lane.queue) for row in taken])


def _needs(row: Row) -> Needs:
    return msgspec.msgpack.decode(row.value, type=Needs)


def _claim_rows(tx: Tx, keys: FutureKeys, node: Node, taken: Sequence[tuple[Row, str]]) -> list[Claim]:
    ids = [_id_of(row.key) for row, _ in taken]
    claims = []
    for (_, queue), future_id, row in zip(taken, ids, edges.read_many(tx, keys, ids), strict=True):
        if not isinstance(row, Unclaimed):
            continue  # an index row without its future: taking it is all that was to be done
        step(FutureState.UNCLAIMED, FutureEdge.CLAIM)
        limited = bool(queue) and limits.started(tx, keys, queue)
        claimed = Claimed(
            tally=edges.bump(row.tally),
            holder=node.id,
            node_epoch=node.epoch,
            claimed_at=tx.now(),
            limited=limited,
        )
        raw = rows.encode(claimed)
        tx.set(keys.future[future_id], raw)
        tx.set(keys.own[node.id, future_id], b"")
        claims.append(Claim(future_id, claimed, raw))
    return claims


def _id_of(key: bytes) -> bytes:
    future_id = unpack(key)[-1]
    assert isinstance(future_id, bytes)
    return future_id


def held(row: AnyRow | None, claim: Claim) -> Claimed:
    """The fence of a claimant: `LeaseLost` unless the row is still claimed by us under our epoch."""
    if (
        not isinstance(row, Claimed)
        or row.tally.epoch != claim.epoch
        or row.holder != claim.row.holder
        or row.node_epoch != claim.row.node_epoch
    ):
        raise LeaseLost(f"the claim on {claim.id.hex()} under epoch {claim.epoch} is over")
    return row
