"""Delete ended futures that are no longer needed, in small pages (FUT-34).

This pass is also called a sweep. It reads the rows, oldest first. A future is deleted if it ended more than
24 hours ago (seven days if it is quarantined), and

- no handle keeps it: its owner has released it, or is dead (FUT-64);
- no pin keeps it; the handles of other clients are pins too;
- no dependent can need it again (FUT-61). A dependent no longer needs the future if the dependent was
  deleted, has failed, was cancelled, or has its own result in its row or in object storage. A result in a
  node's memory may be lost; the dependent is then computed again from this future.

The sweep deletes the dep rows of dependents that cannot need the future, a page at a time. So each
transaction is short, even for a future with many dependents.
"""

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.futures.protocol import actors, edges, results, rows
from tidemill.futures.protocol.claim import read_lanes
from tidemill.futures.protocol.keys import FutureKeys, args_object, ids_in
from tidemill.futures.protocol.rows import AnyRow, Cancelled, Failed, Quarantined, Realized, Spec
from tidemill.store import Tx

KEEP_S = 24 * 3600.0
KEEP_QUARANTINED = 7
"""Quarantined futures, which wait for a user, are kept this many times as long as other futures."""

PAGE = 40
DEPENDENTS_PAGE = 100
ROOM_WRITES = 500


class SweepPage(msgspec.Struct, frozen=True):
    """One page of the sweep: the deleted futures, and whether there are more pages."""

    deleted: list[bytes]
    more: bool


def sweep_page(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, keep_us: int, *, limit: int = PAGE
) -> SweepPage:
    """Delete the futures of the next page that are not needed. The store keeps the position of the sweep."""
    after = tx.get(keys.swept) or b""
    lo, _ = keys.future.all()
    oldest_kept = max(0, tx.wall() - keep_us) // 1000
    hi = keys.future[min(oldest_kept, 2**48 - 1).to_bytes(6, "big")]
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    old_rows = [row for row in page if _is_old(rows.decode_row(row.value), tx.now(), keep_us)]
    old = ids_in(keys.future, old_rows)
    deleted: list[bytes] = []
    position = page[-1].key if len(page) == limit else b""
    states = dict(zip(old, edges.read_many(tx, keys, old), strict=True))
    for future_id in old:
        state = states[future_id]
        if tx.writes > ROOM_WRITES:
            position = keys.future[future_id][:-1]  # the next page begins with this future
            break
        if (
            state is not None
            and _is_old(state, tx.now(), keep_us)
            and is_unneeded(tx, keys, cluster, future_id, state)
        ):
            delete(tx, keys, future_id, state)
            deleted.append(future_id)
    if position or after:
        tx.set(keys.swept, position)
    return SweepPage(deleted, bool(position))


def _is_old(row: AnyRow, now_us: int, keep_us: int) -> bool:
    match row:
        case Quarantined():
            return row.at + KEEP_QUARANTINED * keep_us <= now_us
        case Realized() | Failed() | Cancelled():
            return row.at + keep_us <= now_us
    return False


def is_unneeded(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, row: AnyRow) -> bool:
    """Return whether an ended future is not needed. Delete the dep rows of dependents that do not need it."""
    if tx.get(keys.cursor[future_id], lock=True) is not None:
        return False  # some dependents are not notified yet
    spec = edges.must_read_spec(tx, keys, future_id)
    if spec.owner and not row.tally.released and _is_alive(tx, cluster, spec.owner):
        return False
    if tx.range(*keys.pin.under(future_id), limit=1):
        return False
    if isinstance(row, Realized) and row.result.location.kind == "actor":
        return False  # the actor is alive
    page = tx.range(*keys.dep.under(future_id), limit=DEPENDENTS_PAGE)
    needed = False
    for dep, state in zip(page, edges.read_many(tx, keys, ids_in(keys.dep, page, 1)), strict=True):
        if _needs_no_input(state):
            tx.clear(dep.key)
        else:
            needed = True
    return not needed and len(page) < DEPENDENTS_PAGE


def _is_alive(tx: Tx, cluster: ClusterKeys, node_id: str) -> bool:
    node = nodes.read(tx, cluster, node_id)
    return node is not None and node.expires_at > tx.now()


def _needs_no_input(row: AnyRow | None) -> bool:
    match row:
        case None | Failed() | Cancelled():
            return True
        case Realized():
            return row.result.location.kind in ("inline", "object")
    return False


def delete(tx: Tx, keys: FutureKeys, future_id: bytes, row: AnyRow) -> None:
    """Delete an ended future and all its rows."""
    spec = edges.must_read_spec(tx, keys, future_id)
    results.drop_copies(tx, keys, spec, row)
    if spec.args.inline is None:
        tx.set(keys.garbage[args_object(future_id, spec.args.digest)], b"")
    actors.forget(tx, keys, spec)
    for upstream in dict.fromkeys(spec.inputs):
        tx.clear(keys.dep[upstream, future_id])
    if spec.key and tx.get(keys.key[spec.key]) == future_id:
        tx.clear(keys.key[spec.key])
    if spec.deadline_at:
        tx.clear(keys.deadline[spec.deadline_at, future_id])
    tx.clear(keys.error[future_id])
    tx.clear(keys.loose[future_id])
    tx.clear(keys.status[future_id])
    _clear_hold(tx, keys, spec)
    tx.clear(keys.future[future_id])
    tx.clear(keys.spec[future_id])


def _clear_hold(tx: Tx, keys: FutureKeys, spec: Spec) -> None:
    if spec.owner:
        tx.clear(keys.hold[spec.owner, spec.id])


def collect_page(tx: Tx, keys: FutureKeys, *, after: bytes = b"", limit: int = PAGE) -> bytes:
    """Delete a page of released results that no dependent needs. Return where the next page begins."""
    lo, hi = keys.loose.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    ids = ids_in(keys.loose, page)
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        results.collect(tx, keys, future_id, row)
    return page[-1].key if len(page) == limit else b""


def close_lanes(tx: Tx, keys: FutureKeys, *, limit: int = 50) -> int:
    """Remove empty lanes from the list. A transaction that adds a future to a lane also lists the lane."""
    closed = 0
    for lane in read_lanes(tx, keys):
        prefix = keys.ready[lane.key]
        if closed < limit and not tx.range(prefix + b"\x00", prefix + b"\xff", limit=1):
            tx.clear(keys.lane[lane.key])
            closed += 1
    return closed
