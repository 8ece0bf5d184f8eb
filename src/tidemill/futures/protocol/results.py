"""Results: their copies, their loss, and who keeps them.

The row of a realised future names its latest result (FUT-18). Results outside the row have a record per
copy, `copy[id, node]`; object storage is the node "". A result is kept by the handle of the client that
submitted it, by handles of other clients (`hold`), by dependents and by pins (FUT-34).

A loss is reported against the version that was read: of two readers of one lost object the second finds
another version, or none, and changes nothing (FUT-63). A loss is believed when the copy's node is gone, or
when the reader says that it could not be fetched again and again.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import depend, edges, inbox, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Failed, Failure, Location, Realized, Result, Spec
from tidemill.futures.protocol.states import ENDED, FutureEdge
from tidemill.store import Tx

MOST_REBUILDS = 10
FREED = Location(kind="freed")
DEPENDENTS_PAGE = 100
RELEASE_PAGE = 50


def copies(tx: Tx, keys: FutureKeys, future_id: bytes) -> list[Result]:
    """The records of a future's copies (FUT-28)."""
    return [rows.decode_result(row.value) for row in tx.range(*keys.copy.under(future_id))]


# --- losing


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
    """A copy of this version is gone: go on with another one, or compute the future again (FUT-7, FUT-51).

    Never touches the count of exceptions (FUT-9). Returns the row as it is now; when somebody else dealt
    with the loss before us, nothing is written.

    - node: the holder of the copy that is gone, empty for object storage; that of the latest result when
      it is not given.
    - unreachable: fetching failed repeatedly. Otherwise only a node that is not alive proves a loss.
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
        if copy.location.node == node or not _is_there(tx, cluster, copy):
            tx.clear(keys.copy[future_id, copy.location.node])  # of a boot that is over (FUT-30)
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


def _is_there(tx: Tx, cluster: ClusterKeys, copy: Result) -> bool:
    return copy.location.kind == "object" or _is_alive(tx, cluster, copy.location.node)


def _rebuild(tx: Tx, keys: FutureKeys, future_id: bytes, row: Realized) -> AnyRow:
    spec = edges.must_read_spec(tx, keys, future_id)
    drop_copies(tx, keys, spec, row)
    tally = edges.bump(row.tally, rebuilds=row.tally.rebuilds + 1)
    why = "every copy of its result is gone, and "
    if not spec.reconstruct:
        why += "it cannot be computed again"
    elif tally.rebuilds > MOST_REBUILDS:
        why += f"it was computed again {MOST_REBUILDS} times already"
    else:
        new = depend.again(tx, keys, spec, row, (FutureEdge.LOSE,), tally)
        if not isinstance(new, Failure):
            if tally.dependents:
                depend.set_back(tx, keys, future_id)
            return new
        why += "one of its inputs is gone too"
    failed = Failed(tally=tally, at=tx.now(), kind="lost")
    failure = Failure(kind="lost", type="ResultLost", message=why, at=tx.now())
    return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)


# --- copies


def add_copy(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, future_id: bytes, result: Result
) -> bool:
    """Record that we hold a copy too (FUT-31); False when that version is not the latest any more."""
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
    """We have fetched this result and own it from now on; the others delete their copies (FUT-31)."""
    if not add_copy(tx, keys, cluster, node, future_id, result):
        return False
    row = edges.read(tx, keys, future_id)
    assert isinstance(row, Realized)
    for copy in copies(tx, keys, future_id):
        if copy.location.node != result.location.node:
            _free(tx, keys, future_id, copy)
    spec = edges.must_read_spec(tx, keys, future_id)
    edges.rewrite(tx, keys, spec, row, msgspec.structs.replace(row, result=result))
    return True


def delete_results(tx: Tx, keys: FutureKeys, ids: Sequence[bytes]) -> int:
    """Delete the results of futures; the rows stay (FUT-32). Returns how many had one. At most 100 at once.

    Whoever asks for such a result later gets it computed again, where that is possible.
    """
    found = edges.read_many(tx, keys, list(ids))
    deleted = 0
    for future_id, row in zip(ids, found, strict=True):
        if isinstance(row, Realized) and row.result.location.kind not in ("freed", "actor"):
            free(tx, keys, future_id, row)
            deleted += 1
    return deleted


def free(tx: Tx, keys: FutureKeys, future_id: bytes, row: Realized) -> Realized:
    """Let go of every copy; the row says so."""
    spec = edges.must_read_spec(tx, keys, future_id)
    drop_copies(tx, keys, spec, row)
    gone = msgspec.structs.replace(row.result, location=FREED, head=b"", signature=b"")
    new = msgspec.structs.replace(row, result=gone)
    edges.rewrite(tx, keys, spec, row, new)
    return new


def drop_copies(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Forget every copy, and leave word with whoever has to delete it."""
    for copy in copies(tx, keys, spec.id):
        _free(tx, keys, spec.id, copy)
    if isinstance(row, Realized) and row.result.location.kind != "inline" and spec.owner:
        tx.clear(keys.hold[spec.owner, spec.id])


def _free(tx: Tx, keys: FutureKeys, future_id: bytes, copy: Result) -> None:
    tx.clear(keys.copy[future_id, copy.location.node])
    if copy.location.kind == "object":
        tx.set(keys.garbage[copy.location.name], b"")
    elif copy.location.kind == "segment":
        inbox.post(tx, keys, copy.location.node, inbox.FreeSegment(future_id, copy.location.name))


# --- who keeps a result


def pin(tx: Tx, keys: FutureKeys, future_id: bytes, who: str) -> None:
    """Keep a future and its result until `unpin`."""
    tx.set(keys.pin[future_id, who], b"")


def unpin(tx: Tx, keys: FutureKeys, future_id: bytes, who: str) -> None:
    """Take one pin away."""
    tx.clear(keys.pin[future_id, who])


def hold(tx: Tx, keys: FutureKeys, client: str, ids: Sequence[bytes]) -> None:
    """A client that did not submit these has handles of them: kept while its lease runs (FUT-64)."""
    for future_id in ids:
        tx.set(keys.hold[client, future_id], b"")
        tx.set(keys.pin[future_id, client], b"")


def release(tx: Tx, keys: FutureKeys, client: str, ids: Sequence[bytes]) -> None:
    """A client has no handle of these any more; what nobody keeps is freed. At most 50 at once."""
    found = edges.read_many(tx, keys, list(ids))
    for future_id, row in zip(ids, found, strict=True):
        tx.clear(keys.hold[client, future_id])
        tx.clear(keys.pin[future_id, client])
        if row is None:
            continue
        spec = edges.must_read_spec(tx, keys, future_id)
        tx.set(keys.loose[future_id], b"")
        collect(tx, keys, future_id, _let_go(tx, keys, spec, row) if spec.owner == client else row)


def _let_go(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> AnyRow:
    if row.tally.released:
        return row
    free_now = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, released=True))
    tx.set(keys.future[spec.id], rows.encode(free_now))
    return free_now


def release_client(tx: Tx, keys: FutureKeys, client: str, limit: int = RELEASE_PAGE) -> int:
    """Release a page of what a dead client held; how many there were."""
    found = [keys.hold.unpack(row.key)[1] for row in tx.range(*keys.hold.under(client), limit=limit)]
    release(tx, keys, client, [one for one in found if isinstance(one, bytes)])
    return len(found)


def collect(tx: Tx, keys: FutureKeys, future_id: bytes, row: AnyRow | None) -> bool:
    """Free a released result once nobody needs it; True when there is nothing left to do for it.

    `loose[id]` remembers how many dependents were found ended, so that each look is short.
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
    down = [keys.dep.unpack(found.key)[1] for found in page]
    states = edges.read_many(tx, keys, [one for one in down if isinstance(one, bytes)])
    ended = 0
    for state in states:
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
