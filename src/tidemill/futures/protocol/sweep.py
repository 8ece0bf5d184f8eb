"""The sweep: ended futures that nobody needs are deleted, in small pages (FUT-34).

Rows are walked from the oldest on. One goes when it ended longer ago than it is kept for (24 h), and

- no handle keeps it: its owner has released it, or is not alive any more (FUT-64);
- no pin keeps it, which other clients' handles are too;
- no dependent could need it again: each is gone, or has ended, and a result of its own is in the row or in
  object storage (FUT-61). One whose result lies in a node's memory may be lost, and would be computed from
  this.

Dep rows of dependents that cannot need it are cleared as they are found, a page per look, so a row with any
number of dependents is judged in short transactions.
"""

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.futures.protocol import actors, edges, results, rows
from tidemill.futures.protocol.claim import read_lanes
from tidemill.futures.protocol.keys import FutureKeys, args_object
from tidemill.futures.protocol.rows import AnyRow, Cancelled, Failed, Quarantined, Realized, Spec
from tidemill.store import Tx

KEEP_S = 24 * 3600.0
KEEP_QUARANTINED = 7
"""Those that wait for a person are kept this many times as long."""

PAGE = 40
DEPENDENTS_PAGE = 100
ROOM_WRITES = 500


class Swept(msgspec.Struct, frozen=True):
    """A page of the walk: what was deleted, and whether the walk goes on."""

    deleted: list[bytes]
    more: bool


def sweep_page(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, keep_us: int, *, limit: int = PAGE) -> Swept:
    """Look at the next page of rows and delete those that nobody needs; the position is kept in the store."""
    after = tx.get(keys.swept) or b""
    lo, _ = keys.future.all()
    oldest_kept = max(0, tx.wall() - keep_us) // 1000
    hi = keys.future[min(oldest_kept, 2**48 - 1).to_bytes(6, "big")]
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    ids = [one for row in found if isinstance(one := keys.future.unpack(row.key)[0], bytes)]
    old = [
        one
        for one, row in zip(ids, found, strict=True)
        if _is_old(rows.decode_row(row.value), tx.now(), keep_us)
    ]
    deleted: list[bytes] = []
    position = found[-1].key if len(found) == limit else b""
    states = dict(zip(old, edges.read_many(tx, keys, old), strict=True))
    for future_id in old:
        state = states[future_id]
        if tx.writes > ROOM_WRITES:
            position = keys.future[future_id][:-1]  # just before it: it is the first of the next page
            break
        if (
            state is not None
            and _is_old(state, tx.now(), keep_us)
            and is_free(tx, keys, cluster, future_id, state)
        ):
            delete(tx, keys, future_id, state)
            deleted.append(future_id)
    if position or after:
        tx.set(keys.swept, position)
    return Swept(deleted, bool(position))


def _is_old(row: AnyRow, now_us: int, keep_us: int) -> bool:
    match row:
        case Quarantined():
            return row.at + KEEP_QUARANTINED * keep_us <= now_us
        case Realized() | Failed() | Cancelled():
            return row.at + keep_us <= now_us
    return False


def is_free(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, row: AnyRow) -> bool:
    """Does nobody need this ended future? Forgets dependents that do not, on the way."""
    if tx.get(keys.cursor[future_id], lock=True) is not None:
        return False  # some dependents are not told yet
    spec = edges.must_read_spec(tx, keys, future_id)
    if spec.owner and not row.tally.released and _is_alive(tx, cluster, spec.owner):
        return False
    if tx.range(*keys.pin.under(future_id), limit=1):
        return False
    if isinstance(row, Realized) and row.result.location.kind == "actor":
        return False  # it lives
    page = tx.range(*keys.dep.under(future_id), limit=DEPENDENTS_PAGE)
    down = [one for found in page if isinstance(one := keys.dep.unpack(found.key)[1], bytes)]
    needed = False
    for found, state in zip(page, edges.read_many(tx, keys, down), strict=True):
        if _needs_no_input(state):
            tx.clear(found.key)
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
    """Delete an ended future with everything that hangs on it."""
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
    """Free released results whose dependents have ended; where the next page begins, empty at the end."""
    lo, hi = keys.loose.all()
    found = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    ids = [one for row in found if isinstance(one := keys.loose.unpack(row.key)[0], bytes)]
    for future_id, row in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        results.collect(tx, keys, future_id, row)
    return found[-1].key if len(found) == limit else b""


def close_lanes(tx: Tx, keys: FutureKeys, *, limit: int = 50) -> int:
    """Take empty lanes off the directory. Whoever enters something lists its lane in the same transaction."""
    closed = 0
    for lane in read_lanes(tx, keys):
        prefix = keys.ready[lane.key]
        if closed < limit and not tx.range(prefix + b"\x00", prefix + b"\xff", limit=1):
            tx.clear(keys.lane[lane.key])
            closed += 1
    return closed
