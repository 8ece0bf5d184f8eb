"""Update the dependents of a future, page by page, when the state of the future changes.

A row `dep[upstream, id]` records that `id` needs the upstream's result. The row's value is "w" while the
dependent's `waits_on` counts the upstream, and "s" afterwards. So if a dependent is notified twice, the
upstream is still counted only once. A parked task depends in the same way on the futures that it waits for
(`Blocked.extra`). These may end with or without a result: the task runs again and checks them itself.

When a future with dependents ends, is lost or is requeued, the same transaction writes `cursor[id]`. The
cursor means: "dependents after this key may not know the state of the upstream". `notify_page` reads the
current state and updates a page of dependents. If the state changes in the meantime, the cursor is reset to
the start. This works for any number of dependents (FUT-65), and any process may advance a cursor.

Why no dependent is missed: `submit` reads the upstream's row under a lock, in the transaction that adds the
dep row. Suppose that `submit` reads the state before a change. Then its transaction either conflicts with the
change and runs again, or commits first. If it commits first, its dep row exists before any page is read, and
the pages cover all dep rows of the upstream.
"""

from collections.abc import Sequence

import msgspec

from tidemill.futures.protocol import edges, submit
from tidemill.futures.protocol.edges import Path
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.rows import (
    AnyRow,
    AttemptCounts,
    Blocked,
    Cancelled,
    Claimed,
    Failed,
    Failure,
    Quarantined,
    Realized,
    Spec,
    Unclaimed,
)
from tidemill.futures.protocol.states import ENDED, FutureEdge
from tidemill.futures.protocol.submit import SERVED, WAITING
from tidemill.store import Row, Tx

PAGE = 50
"""Dependents per transaction, each with at most `WRITES_EACH` writes."""

WRITES_EACH = 6
ROOM_WRITES = 500
ROOM_BYTES = 500_000
"""A transaction that has written about `ROOM_WRITES` rows or `ROOM_BYTES` bytes notifies no more dependents.
So a page of futures that end, each with a page of dependents, still fits into one transaction. Cursors record
the rest."""


def end(
    tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: Path, new: AnyRow, failure: Failure | None = None
) -> AnyRow:
    """End a future, store its failure, and notify a page of its dependents. A cursor records the rest."""
    edges.move(tx, keys, spec, old, edge, new)
    if failure is not None:
        edges.set_failure(tx, keys, spec.id, failure)
    if new.tally.dependents:
        reset_cursor(tx, keys, spec.id)
    return new


def reset_cursor(tx: Tx, keys: FutureKeys, upstream: bytes) -> None:
    """Notify all dependents of a future, starting with the first, because its state has changed."""
    tx.set(keys.cursor[upstream], b"")
    notify_page(tx, keys, upstream)


def notify_page(tx: Tx, keys: FutureKeys, upstream: bytes, limit: int = PAGE) -> bool:
    """Notify the next page of a future's dependents. Return True if there is more to do."""
    limit = min(limit, (ROOM_WRITES - tx.writes) // WRITES_EACH)
    if limit < 1 or tx.bytes_written > ROOM_BYTES:
        return True
    position = tx.get(keys.cursor[upstream], lock=True)
    if position is None:
        return False
    row = edges.read(tx, keys, upstream)
    lo, hi = keys.dep.under(upstream)
    page = tx.range(max(lo, position + b"\x00"), hi, limit=limit)
    count = _notify_all(tx, keys, upstream, row, page) if row is not None else len(page)
    if count == len(page) < limit:
        tx.clear(keys.cursor[upstream])
        return False
    tx.set(keys.cursor[upstream], page[count - 1].key if count else position)
    return True


def notify_pending(tx: Tx, keys: FutureKeys, limit: int = PAGE) -> bool:
    """Advance the first cursors by a page each. Return False if there are none.

    If dependents fail, they get cursors for their own dependents, so repeat this until it returns False.
    """
    cursors = tx.range(*keys.cursor.all(), limit=10, snapshot=True)
    for upstream in ids_in(keys.cursor, cursors):
        notify_page(tx, keys, upstream, limit)
    return bool(cursors)


def notify(tx: Tx, keys: FutureKeys, upstreams: Sequence[bytes]) -> bool:
    """Notify a page of dependents of each future. Return True if there is more to do."""
    more = False
    for upstream in upstreams:
        more |= notify_page(tx, keys, upstream)
    return more


def waited_for(tx: Tx, keys: FutureKeys, future_id: bytes) -> list[bytes]:
    """Return the futures that a blocked future waits for. Notify the dependents of those that have ended."""
    row, spec = edges.read(tx, keys, future_id), edges.read_spec(tx, keys, future_id)
    if not isinstance(row, Blocked) or spec is None:
        return []
    ids = list(dict.fromkeys((*spec.inputs, *row.extra)))
    waited = []
    for upstream, state in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if state is not None and state.state in ENDED:
            notify_page(tx, keys, upstream)
        elif state is not None:
            waited.append(upstream)
    return waited


def _notify_all(tx: Tx, keys: FutureKeys, upstream: bytes, row: AnyRow, page: Sequence[Row]) -> int:
    """Notify a page of dependents. Return how many were notified before the transaction was full."""
    ids = ids_in(keys.dep, page, 1)
    states = edges.read_many(tx, keys, ids)
    open_ids = [future_id for future_id, state in zip(ids, states, strict=True) if _may_change(state)]
    specs = edges.read_specs(tx, keys, open_ids)
    failure: Failure | None = None
    if isinstance(row, Failed | Cancelled | Quarantined) and open_ids:
        failure = edges.clipped(submit.upstream_failure(tx, keys, upstream, row), most=8_000)
    for count, (dep, dependent, state) in enumerate(zip(page, ids, states, strict=True)):
        spec = specs.get(dependent)
        if state is not None and spec is not None:
            writes = submit.weight(spec) if isinstance(state, Failed) else WRITES_EACH
            if tx.bytes_written > ROOM_BYTES or tx.writes + writes > 900:
                return count
            _notify_one(tx, keys, upstream, row, spec, state, dep.value, failure)
    return len(page)


def _may_change(state: AnyRow | None) -> bool:
    return state is not None and (
        state.state not in ENDED or (isinstance(state, Failed) and state.kind == "upstream")
    )


def _notify_one(
    tx: Tx,
    keys: FutureKeys,
    upstream: bytes,
    row: AnyRow,
    spec: Spec,
    state: AnyRow,
    mark: bytes,
    failure: Failure | None,
) -> None:
    """Update one dependent for the current state of its upstream."""
    awaited = isinstance(state, Blocked) and upstream in state.extra
    if not awaited and upstream not in spec.inputs:
        return  # a leftover: the task waited for this future when it was parked earlier
    if isinstance(row, Realized) or (awaited and failure is not None):
        if mark == WAITING and isinstance(state, Blocked):
            tx.set(keys.dep[upstream, spec.id], SERVED)
            _count_input(tx, keys, spec, state)
    elif failure is not None:
        _fail_dependent(tx, keys, upstream, spec, state, failure)
    elif mark == SERVED and isinstance(state, Blocked | Unclaimed):
        tx.set(keys.dep[upstream, spec.id], WAITING)
        _uncount_input(tx, keys, spec, state)
    elif isinstance(state, Failed):
        _requeue_dependent(tx, keys, spec, state)


def _count_input(tx: Tx, keys: FutureKeys, spec: Spec, state: Blocked) -> None:
    if state.waits_on > 1:
        edges.rewrite(tx, keys, spec, state, msgspec.structs.replace(state, waits_on=state.waits_on - 1))
    else:
        edges.move(tx, keys, spec, state, FutureEdge.UNBLOCK, submit.unclaimed(tx, keys, spec, state.tally))


def _uncount_input(tx: Tx, keys: FutureKeys, spec: Spec, state: Blocked | Unclaimed) -> None:
    """Make a dependent wait again for an input that was lost (FUT-15)."""
    if isinstance(state, Blocked):
        edges.rewrite(tx, keys, spec, state, msgspec.structs.replace(state, waits_on=state.waits_on + 1))
    else:
        edges.move(tx, keys, spec, state, FutureEdge.BLOCK, Blocked(tally=state.tally, waits_on=1))


def _fail_dependent(
    tx: Tx, keys: FutureKeys, upstream: bytes, spec: Spec, state: AnyRow, failure: Failure
) -> None:
    """Fail a dependent, because its input has failed. It gets a cursor, so its own dependents fail later."""
    kind = "actor" if spec.actor == upstream else "upstream"
    if state.state in ENDED or (isinstance(state, Claimed) and kind != "actor"):
        return  # a running task may have loaded the input; if not, loading it raises the error
    tally = edges.bump(state.tally) if isinstance(state, Claimed) else state.tally
    edges.move(tx, keys, spec, state, FutureEdge.FAIL, Failed(tally=tally, at=tx.now(), kind=kind))
    edges.set_failure(tx, keys, spec.id, msgspec.structs.replace(failure, kind=kind))
    if tally.dependents:
        tx.set(keys.cursor[spec.id], b"")


def _requeue_dependent(tx: Tx, keys: FutureKeys, spec: Spec, state: Failed) -> None:
    """Requeue a future that failed because of its input, after the input was requeued."""
    tally = edges.bump(state.tally)
    new = recompute(tx, keys, spec, state, (FutureEdge.REQUEUE,), tally)
    if not isinstance(new, Failure) and tally.dependents:
        tx.set(keys.cursor[spec.id], b"")


def unclaim(tx: Tx, keys: FutureKeys, spec: Spec, old: Claimed, edge: FutureEdge, new: Unclaimed) -> AnyRow:
    """End a claim without an outcome.

    The future becomes unclaimed. But if an input has failed, the future fails too, and if an input is
    missing, the future becomes blocked. While a future runs, it is not notified about its inputs. So this
    function checks their states (FUT-15).
    """
    inputs = list(dict.fromkeys(spec.inputs))
    if all(isinstance(row, Realized) for row in edges.read_many(tx, keys, inputs)):
        edges.move(tx, keys, spec, old, edge, new)
        return new
    missing, broken = submit.attach(tx, keys, spec)
    if broken is not None:
        failed = Failed(tally=new.tally, at=tx.now(), kind=broken.kind)
        return end(tx, keys, spec, old, FutureEdge.FAIL, failed, broken)
    blocked = Blocked(tally=new.tally, waits_on=missing)
    edges.move(tx, keys, spec, old, (edge, FutureEdge.BLOCK), blocked)
    return blocked


def recompute(
    tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: tuple[FutureEdge, ...], tally: AttemptCounts
) -> AnyRow | Failure:
    """Make a future ready to be computed again: unclaimed, or blocked if an input is missing.

    `edge` has the transitions that lead to unclaimed. Return the new row. If an input has failed or is lost,
    change nothing, and return the failure of the input.
    """
    missing, broken = submit.attach(tx, keys, spec)
    if broken is not None:
        return broken
    new: AnyRow
    if missing:
        new = Blocked(tally=tally, waits_on=missing)
        edges.move(tx, keys, spec, old, (*edge, FutureEdge.BLOCK), new)
    else:
        new = submit.unclaimed(tx, keys, spec, tally)
        edges.move(tx, keys, spec, old, edge, new)
    return new
