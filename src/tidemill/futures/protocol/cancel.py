"""End futures when a user cancels them or their deadline passes (FUT-56).

A future that is not claimed ends at once. A claimed future is marked (`Claimed.cancel`), and its node gets a
command. The node ends the task and calls `finish.cancelled`. A marked future cannot return to the pool: if
its node or the reaper returns the claim, the future ends instead.
"""

import msgspec

from tidemill.errors import FutureUnknown
from tidemill.futures.protocol import depend, edges, inbox
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.reap import ReapPage
from tidemill.futures.protocol.rows import AnyRow, Cancelled, Claimed, Failed, Failure, Spec
from tidemill.futures.protocol.states import ENDED, FutureEdge
from tidemill.store import Tx

PAGE = 50


def cancel(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow:
    """Cancel a future. Return its row: ended, or claimed and marked.

    A future that has already ended does not change. The dependents of the future fail with kind "upstream".
    """
    row = edges.read(tx, keys, future_id)
    if row is None:
        raise FutureUnknown(f"future {future_id.hex()} does not exist or was deleted")
    if row.state in ENDED:
        return row
    spec = edges.must_read_spec(tx, keys, future_id)
    if isinstance(row, Claimed):
        return _mark(tx, keys, spec, row, "cancelled")
    new = Cancelled(tally=edges.bump(row.tally), at=tx.now())
    return depend.end(tx, keys, spec, row, FutureEdge.CANCEL, new)


def _mark(tx: Tx, keys: FutureKeys, spec: Spec, row: Claimed, why: str) -> Claimed:
    if row.cancel:
        return row
    marked = msgspec.structs.replace(row, cancel=why)
    edges.rewrite(tx, keys, spec, row, marked)
    inbox.post(tx, keys, row.holder, inbox.EndTask(spec.id, row.tally.epoch, why))
    return marked


def deadline_page(tx: Tx, keys: FutureKeys, *, limit: int = PAGE) -> ReapPage:
    """End a page of futures with a deadline in the past, earliest first."""
    lo = keys.deadline.prefix + b"\x00"
    deadlines = tx.range(lo, keys.deadline[tx.now() + 1], limit=limit)
    ids = ids_in(keys.deadline, deadlines, 1)
    moved: list[tuple[bytes, AnyRow]] = []
    for deadline, future_id, row in zip(deadlines, ids, edges.read_many(tx, keys, ids), strict=True):
        tx.clear(deadline.key)
        if row is None or row.state in ENDED:
            continue
        spec = edges.must_read_spec(tx, keys, future_id)
        if isinstance(row, Claimed):
            moved.append((future_id, _mark(tx, keys, spec, row, "deadline")))
            continue
        failure = Failure(kind="deadline", message=f"its deadline passed while it was {row.state.value}")
        failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="deadline")
        failure = msgspec.structs.replace(failure, at=tx.now())
        moved.append((future_id, depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)))
    return ReapPage(moved, len(deadlines) == limit)


def until_next(tx: Tx, keys: FutureKeys) -> int:
    """Return the microseconds until the next deadline; an hour if there is none."""
    first = tx.range(*keys.deadline.all(), limit=1, snapshot=True)
    at = keys.deadline.unpack(first[0].key)[0] if first else None
    return max(0, at - tx.now()) if isinstance(at, int) else 3_600_000_000
