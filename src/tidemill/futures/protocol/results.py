"""Record the copies of results, handle lost copies, and delete results that are no longer needed.

The row of a realized future contains its latest result (FUT-18). A result outside the row has one record per
copy, `copy[id, node]`; for a copy in object storage, the node is "". A result outside the row is kept as long
as one of these exists: a handle of the client that submitted the future, a handle of another client (`hold`),
a dependent that has not ended, or a pin (FUT-34). A result in the row is kept as long as the row (`sweep`).

A reader reports a loss for the version that it read. If two readers report the same loss, the second report
finds another version, or none, and changes nothing (FUT-63). A loss is accepted if the node of the copy is
dead, or if the reader failed to fetch the copy several times.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import depend, edges, inbox, rows
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.rows import AnyRow, Failed, Failure, Location, Realized, Result, Spec
from tidemill.futures.protocol.states import ENDED, FutureEdge
from tidemill.store import Tx

MOST_REBUILDS = 10
FREED = Location(kind="freed")
DEPENDENTS_PAGE = 100
RELEASE_PAGE = 50


def copies(tx: Tx, keys: FutureKeys, future_id: bytes) -> list[Result]:
    """Read the records of a future's copies (FUT-28)."""
    return [rows.decode_result(row.value) for row in tx.range(*keys.copy.under(future_id))]


# --- losses


def lose(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    future_id: bytes,
    version: int,
    *,
    node: str | None = None,
    unreachable: bool = False,
) -> AnyRow | None:
    """Report a lost copy of this version. Use another copy, or compute the future again (FUT-7, FUT-51).

    The count of exceptions does not change (FUT-9). Return the current row. If the loss was already handled,
    nothing is written.

    Args:
        tx: the transaction.
        keys: the keys of futures.
        cluster: the keys of nodes.
        future_id: the future.
        version: the version of the lost result.
        node: the node of the lost copy, empty for object storage; by default, the node of the latest result.
        unreachable: whether fetching failed repeatedly. If not, the copy is lost only if its node is dead.
    """
    row = edges.read(tx, keys, future_id)
    if not isinstance(row, Realized) or row.result.version != version:
        return row
    kind = row.result.location.kind
    node = row.result.location.node if node is None else node
    if kind in ("inline", "actor") or (kind != "freed" and not unreachable and _is_alive(tx, cluster, node)):
        return row
    left = []
    for copy in copies(tx, keys, future_id):
        if copy.location.node == node or not _is_available(tx, cluster, copy):
            tx.clear(keys.copy[future_id, copy.location.node])  # lost, or its node is dead (FUT-30)
        else:
            left.append(copy)
    if left:
        if row.result.location.node != node:
            return row
        new = msgspec.structs.replace(row, result=left[0])
        edges.rewrite(tx, keys, edges.must_read_spec(tx, keys, future_id), row, new)
        return new
    return _rebuild(tx, keys, future_id, row)


def _is_alive(tx: Tx, cluster: ClusterKeys, node_id: str) -> bool:
    if not node_id:
        return True  # object storage
    node = nodes.read(tx, cluster, node_id)
    return node is not None and node.expires_at > tx.now()


def _is_available(tx: Tx, cluster: ClusterKeys, copy: Result) -> bool:
    return copy.location.kind == "object" or _is_alive(tx, cluster, copy.location.node)


def _rebuild(tx: Tx, keys: FutureKeys, future_id: bytes, row: Realized) -> AnyRow:
    spec = edges.must_read_spec(tx, keys, future_id)
    drop_copies(tx, keys, spec, row)
    tally = edges.bump(row.tally, rebuilds=row.tally.rebuilds + 1)
    message = "every copy of its result is lost, and "
    if not spec.reconstruct:
        message += "it cannot be computed again"
    elif tally.rebuilds > MOST_REBUILDS:
        message += f"it has already been computed again {MOST_REBUILDS} times"
    else:
        new = depend.recompute(tx, keys, spec, row, (FutureEdge.LOSE,), tally)
        if not isinstance(new, Failure):
            if tally.dependents:
                depend.reset_cursor(tx, keys, future_id)
            return new
        message += "one of its inputs is lost too"
    failed = Failed(tally=tally, at=tx.now(), kind="lost")
    failure = Failure(kind="lost", type="ResultLost", message=message, at=tx.now())
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)


# --- copies


def add_copy(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, future_id: bytes, result: Result
) -> bool:
    """Record that this node has a copy too (FUT-31). Return False if a newer version exists."""
    nodes.check(tx, cluster, node)
    row = edges.read(tx, keys, future_id)
    if not isinstance(row, Realized) or row.result.version != result.version:
        return False
    if row.result.location.kind in ("inline", "freed", "actor"):
        return False
    tx.set(keys.copy[future_id, result.location.node], rows.encode(result))
    return True


def transfer(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, future_id: bytes, result: Result
) -> bool:
    """Make this node, which has a copy, the owner of a result. Other nodes delete their copies (FUT-31)."""
    if not add_copy(tx, keys, cluster, node, future_id, result):
        return False
    row = edges.read(tx, keys, future_id)
    assert isinstance(row, Realized)
    for copy in copies(tx, keys, future_id):
        if copy.location.node != result.location.node:
            _delete_copy(tx, keys, future_id, copy)
    spec = edges.must_read_spec(tx, keys, future_id)
    edges.rewrite(tx, keys, spec, row, msgspec.structs.replace(row, result=result))
    return True


def delete_results(tx: Tx, keys: FutureKeys, ids: Sequence[bytes]) -> int:
    """Delete the results of at most 100 futures, but not the rows (FUT-32). Return how many had results.

    A later request for such a result computes it again, if that is possible.
    """
    deleted = 0
    for future_id, row in zip(ids, edges.read_many(tx, keys, list(ids)), strict=True):
        if isinstance(row, Realized) and row.result.location.kind not in ("freed", "actor"):
            free(tx, keys, future_id, row)
            deleted += 1
    return deleted


def free(tx: Tx, keys: FutureKeys, future_id: bytes, row: Realized) -> Realized:
    """Delete every copy of a result, and record that in the row."""
    spec = edges.must_read_spec(tx, keys, future_id)
    drop_copies(tx, keys, spec, row)
    freed = msgspec.structs.replace(row.result, location=FREED, head=b"", signature=b"")
    new = msgspec.structs.replace(row, result=freed)
    edges.rewrite(tx, keys, spec, row, new)
    return new


def drop_copies(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Remove the records of all copies, and have their nodes delete the copies."""
    for copy in copies(tx, keys, spec.id):
        _delete_copy(tx, keys, spec.id, copy)
    if isinstance(row, Realized) and row.result.location.kind != "inline" and spec.owner:
        tx.clear(keys.hold[spec.owner, spec.id])


def _delete_copy(tx: Tx, keys: FutureKeys, future_id: bytes, copy: Result) -> None:
    tx.clear(keys.copy[future_id, copy.location.node])
    if copy.location.kind == "object":
        tx.set(keys.garbage[copy.location.name], b"")
    elif copy.location.kind == "segment":
        inbox.post(tx, keys, copy.location.node, inbox.FreeSegment(future_id, copy.location.name))


# --- pins and handles


def pin(tx: Tx, keys: FutureKeys, future_id: bytes, owner: str) -> None:
    """Keep a future and its result until `unpin`."""
    tx.set(keys.pin[future_id, owner], b"")


def unpin(tx: Tx, keys: FutureKeys, future_id: bytes, owner: str) -> None:
    """Remove one pin."""
    tx.clear(keys.pin[future_id, owner])


def hold(tx: Tx, keys: FutureKeys, client: str, ids: Sequence[bytes]) -> None:
    """Record a client's handles on futures of other clients. The handles end with its lease (FUT-64)."""
    for future_id in ids:
        tx.set(keys.hold[client, future_id], b"")
        tx.set(keys.pin[future_id, client], b"")


def release(tx: Tx, keys: FutureKeys, client: str, ids: Sequence[bytes]) -> None:
    """Release at most 50 handles of a client. Delete results that nothing else keeps."""
    for future_id, row in zip(ids, edges.read_many(tx, keys, list(ids)), strict=True):
        tx.clear(keys.hold[client, future_id])
        tx.clear(keys.pin[future_id, client])
        if row is None:
            continue
        spec = edges.must_read_spec(tx, keys, future_id)
        tx.set(keys.loose[future_id], b"")
        collect(tx, keys, future_id, _mark_released(tx, keys, spec, row) if spec.owner == client else row)


def _mark_released(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> AnyRow:
    if row.tally.released:
        return row
    released = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, released=True))
    tx.set(keys.future[spec.id], rows.encode(released))
    return released


def release_client(tx: Tx, keys: FutureKeys, client: str, limit: int = RELEASE_PAGE) -> int:
    """Release a page of the handles of a dead client. Return how many handles the page has."""
    ids = ids_in(keys.hold, tx.range(*keys.hold.under(client), limit=limit), 1)
    release(tx, keys, client, ids)
    return len(ids)


def collect(tx: Tx, keys: FutureKeys, future_id: bytes, row: AnyRow | None) -> bool:
    """Delete a released result if no dependent needs it. Return True if there is nothing left to do.

    `loose[id]` records the last dependent that was checked and has ended. The next check starts after it.
    """
    if row is None or (row.state in ENDED and not _outside(row)):
        tx.clear(keys.loose[future_id])
        return True
    if (
        not isinstance(row, Realized)
        or not row.tally.released
        or tx.range(*keys.pin.under(future_id), limit=1)
    ):
        return False
    position = tx.get(keys.loose[future_id]) or b""
    lo, hi = keys.dep.under(future_id)
    page = tx.range(max(lo, position + b"\x00"), hi, limit=DEPENDENTS_PAGE)
    ended = 0
    for state in edges.read_many(tx, keys, ids_in(keys.dep, page, 1)):
        if state is not None and state.state not in ENDED:
            break
        ended += 1
    if ended < len(page) or len(page) == DEPENDENTS_PAGE:
        if ended:
            tx.set(keys.loose[future_id], page[ended - 1].key)
        return False
    free(tx, keys, future_id, row)
    tx.clear(keys.loose[future_id])
    return True


def _outside(row: AnyRow) -> bool:
    return isinstance(row, Realized) and row.result.location.kind in ("segment", "object")
