"""Move futures from unclaimed to claimed, in batches, in `take` transactions.

A claim is a lease that lasts as long as the lease of its node. So one renewal of the node's lease renews all
claims of the node (FUT-36). A claim consists of the node, the node's epoch and the future's epoch. The
future's epoch grows whenever the future is claimed or returned, so the store refuses a late write (FUT-13).
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
"""A node may claim only if its lease still lasts this long, which is longer than a transaction may take. So
every claim of a node is committed before its lease expires, and the reaper, which runs later, sees all of
them."""


class Claim(msgspec.Struct, frozen=True):
    """The id and the row of a claimed future, and the row's stored bytes, which `realize_many` compares."""

    id: bytes
    row: Claimed
    raw: bytes

    @property
    def epoch(self) -> int:
        return self.row.tally.epoch


def read_lanes(tx: Tx, keys: FutureKeys) -> list[Lane]:
    """Read the list of lanes, in the order in which workers serve them."""
    lanes = []
    for row in tx.range(*keys.lane.all(), snapshot=True):
        queue, label, minus_priority = keys.lane.unpack(row.key)
        lanes.append(Lane(int(minus_priority), str(queue), str(label)))  # type: ignore[arg-type]
    return sorted(lanes)


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

    Runs in a `take` transaction, which removes futures from the index and writes their claims and the `own`
    rows of the node. A crash before the commit undoes all of this (STO-4). Lanes are served by priority, and
    within a priority the futures that have waited longest come first (FUT-26).
    """
    check_time(tx, cluster, node)
    index_rows = _take_assigned(tx, keys, node, free, limit)
    claims = _claim_rows(tx, keys, node, index_rows)
    free = remaining(free, index_rows)
    for minus_priority in sorted({lane.minus_priority for lane in lanes}):
        if len(claims) >= limit:
            break
        able = [
            lane
            for lane in lanes
            if lane.minus_priority == minus_priority and fits(bounds_of(lane.label)[0], free)
        ]
        shares = _shares(tx, keys, able, limit - len(claims))
        if len(able) > 1:  # if the oldest futures do not fit together, others may use the remaining capacity
            shares += [(lane, limit) for lane in able]
        for lane, share in shares:
            index_rows = _take_lane(tx, keys, lane, free, min(share, limit - len(claims)))
            claims += _claim_rows(tx, keys, node, index_rows)
            free = remaining(free, index_rows)
    return claims


def check_time(tx: Tx, cluster: ClusterKeys, node: Node) -> None:
    """Raise `LeaseLost` if the node's lease has expired, or may expire before the commit."""
    current = nodes.check(tx, cluster, node, lock=True)
    if current.expires_at - tx.now() < LEAST_LEFT_US:
        raise LeaseLost(f"the lease of node {node.id} expires too soon to claim more futures")


def remaining(free: Capacity, claimed: Sequence[Row]) -> Capacity:
    """Return the free capacity after these rows are claimed."""
    for row in claimed:
        free = free.minus(rows.decode_lane_entry(row.value).needs)
    return free


def claim_these(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, specs: Sequence[Spec], free: Capacity
) -> list[Claim]:
    """Claim these futures, which our waiting tasks need, if they are unclaimed and fit (FUT-41)."""
    check_time(tx, cluster, node)
    claims: list[Claim] = []
    for spec in specs:
        row = _read_unlocked(tx, keys, spec.id)
        if not isinstance(row, Unclaimed) or row.ready_at > tx.now():
            continue
        if row.hard and row.assigned != node.id:
            continue
        if spec.queue and limits.allowed(tx, keys, spec.queue, 1) < 1:
            continue
        index = Row(edges.ready_key(keys, spec, row), edges.ready_value(spec, row.tally))
        if fits(edges.needs_of(spec, row.tally), free) and tx.swap(index.key, index.value, None):
            claims += _claim_rows(tx, keys, node, [index])
            free = remaining(free, [index])
    return claims


def _read_unlocked(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow | None:
    """Read a row without a lock. This is safe: only the node that removes the index row claims the future."""
    key = keys.future[future_id]
    single = tx.range(key, key + b"\x00", snapshot=True)
    return rows.decode_row(single[0].value) if single else None


def _take_assigned(tx: Tx, keys: FutureKeys, node: Node, free: Capacity, limit: int) -> list[Row]:
    chosen: list[Row] = []
    for row in tx.range(*keys.assigned.under(node.id), limit=4 * limit, snapshot=True):
        ready_at = keys.assigned.unpack(row.key)[3]
        entry = rows.decode_lane_entry(row.value)
        if not isinstance(ready_at, int) or ready_at > tx.now() or not fits(entry.needs, free):
            continue
        of_queue = 1 + _count_queue(chosen, entry.queue)
        if entry.queue and limits.allowed(tx, keys, entry.queue, of_queue) < of_queue:
            continue
        chosen.append(row)
        free = remaining(free, [row])
        if len(chosen) == limit:
            break
    return _swap_out(tx, chosen)


def _count_queue(chosen: Sequence[Row], queue: str) -> int:
    return sum(rows.decode_lane_entry(row.value).queue == queue for row in chosen)


def _swap_out(tx: Tx, chosen: Sequence[Row]) -> list[Row]:
    """Remove index rows. Return those that no other node had already removed."""
    swapped = tx.swap_many([Swap(row.key, row.value, None) for row in chosen])
    return [row for row, ok in zip(chosen, swapped, strict=True) if ok]


def _shares(tx: Tx, keys: FutureKeys, able: Sequence[Lane], limit: int) -> list[tuple[Lane, int]]:
    """Return how many futures to take from each lane of one priority, so that the oldest come first."""
    if len(able) < 2:
        return [(lane, limit) for lane in able]
    heads: list[tuple[int, int]] = []
    for number, lane in enumerate(able):
        lo, hi = _ready_range(tx, keys, lane)
        for row in tx.range(lo, hi, limit=limit, snapshot=True):
            ready_at = unpack(row.key)[-2]
            heads.append((ready_at if isinstance(ready_at, int) else 0, number))
    shares: dict[int, int] = {}
    for _, number in sorted(heads)[:limit]:
        shares[number] = shares.get(number, 0) + 1
    return [(able[number], share) for number, share in shares.items()]


def _ready_range(tx: Tx, keys: FutureKeys, lane: Lane) -> tuple[bytes, bytes]:
    """Return the key range of a lane with futures that may run now."""
    return keys.ready[lane.key] + b"\x00", keys.ready[(*lane.key, tx.now() + 1)]


def _take_lane(tx: Tx, keys: FutureKeys, lane: Lane, free: Capacity, limit: int) -> list[Row]:
    if limit < 1 or not fits(bounds_of(lane.label)[0], free):
        return []
    allowed = limits.allowed(tx, keys, lane.queue, limit) if lane.queue else limit
    lo, hi = _ready_range(tx, keys, lane)
    high = bounds_of(lane.label)[1]
    index_rows: list[Row] = []
    while len(index_rows) < allowed:
        together = min(allowed - len(index_rows), how_many(high, free))
        if together < 1:
            break
        more = tx.take(lo, hi, together, quiet=True)
        index_rows += more
        free = remaining(free, more)
        if len(more) < together:
            return index_rows
    small: list[Row] = []  # the upper bound of the class does not fit, but some of its futures may
    if len(index_rows) < allowed:
        for row in tx.range(lo, hi, limit=200, snapshot=True):
            if len(index_rows) + len(small) < allowed and fits(rows.decode_lane_entry(row.value).needs, free):
                small.append(row)
                free = remaining(free, [row])
    return index_rows + _swap_out(tx, small)


def _claim_rows(tx: Tx, keys: FutureKeys, node: Node, index_rows: Sequence[Row]) -> list[Claim]:
    ids = [_id_of(row.key) for row in index_rows]
    claims = []
    writes: list[tuple[bytes, bytes]] = []
    for index, future_id, row in zip(index_rows, ids, edges.read_many(tx, keys, ids), strict=True):
        if not isinstance(row, Unclaimed):
            continue  # an orphaned index row: removing it is enough
        step(FutureState.UNCLAIMED, FutureEdge.CLAIM)
        queue = rows.decode_lane_entry(index.value).queue
        limited = bool(queue) and limits.count_start(tx, keys, queue)
        claimed = Claimed(
            tally=edges.bump(row.tally),
            holder=node.id,
            node_epoch=node.epoch,
            claimed_at=tx.now(),
            limited=limited,
        )
        raw = rows.encode(claimed)
        writes += [(keys.future[future_id], raw), (keys.own[node.id, future_id], b"")]
        claims.append(Claim(future_id, claimed, raw))
    tx.set_many(writes, quiet=True)  # clients that wait for the future need not know about the claim
    return claims


def _id_of(key: bytes) -> bytes:
    future_id = unpack(key)[-1]
    assert isinstance(future_id, bytes)
    return future_id


def is_held(row: AnyRow | None, claim: Claim) -> bool:
    """Return whether the row is still claimed by this node under this epoch."""
    return (
        isinstance(row, Claimed)
        and row.tally.epoch == claim.epoch
        and row.holder == claim.row.holder
        and row.node_epoch == claim.row.node_epoch
    )


def check_held(row: AnyRow | None, claim: Claim) -> Claimed:
    """Return the claimed row. Raise `LeaseLost` if this node no longer holds this claim."""
    if not isinstance(row, Claimed) or not is_held(row, claim):
        raise LeaseLost(f"this worker no longer holds the claim on {claim.id.hex()} (epoch {claim.epoch})")
    return row
