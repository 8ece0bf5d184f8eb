"""Dependents: whoever hangs on a future is brought in step with it, in pages.

A row `dep[upstream, id]` says that `id` needs the upstream's result: "w" while it is counted in the
dependent's `waits_on`, "s" once it is served. The mark says what has been counted, so telling a dependent
twice counts nothing twice. What a parked task awaits hangs in the same way while it is parked
(`Blocked.extra`), and is served by any end: the task runs again and looks at it itself.

A future that ends, is lost or is requeued leaves `cursor[id]` when it has dependents. The cursor means:
"the dependents behind this key may be out of step with the state of the upstream". `tell_page` reads that
state, whatever it is by now, and brings a page in step with it; so a state that changes while a page is
under way only sets the cursor back to the front. Nothing else is needed for a fan-out of any size (FUT-65),
and whoever finds a cursor may move it on.

Why no dependent is forgotten: `submit` reads the upstream's row under a lock in the transaction that adds
the dep row, and the last page reads the dep rows plainly to the end of their range. So a submit that saw the
old state either commits before that page, and is seen by it, or conflicts.
"""

from collections.abc import Sequence

import msgspec

from tidemill.futures.protocol import edges, submit
from tidemill.futures.protocol.edges import Path
from tidemill.futures.protocol.keys import FutureKeys
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
"""Nobody is told in a transaction that has written more than this: a page of ends, each with a page of
dependents, must fit as well. What is left is the cursor's."""


def end(
    tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: Path, new: AnyRow, failure: Failure | None = None
) -> AnyRow:
    """Move a future, keep why, and tell its dependents: the first page now, the rest by a cursor."""
    edges.move(tx, keys, spec, old, edge, new)
    if failure is not None:
        edges.set_failure(tx, keys, spec.id, failure)
    if new.tally.dependents:
        set_back(tx, keys, spec.id)
    return new


def set_back(tx: Tx, keys: FutureKeys, upstream: bytes) -> None:
    """A future's state has changed: its dependents are to be told from the first one on."""
    tx.set(keys.cursor[upstream], b"")
    tell_page(tx, keys, upstream)


def tell_page(tx: Tx, keys: FutureKeys, upstream: bytes, limit: int = PAGE) -> bool:
    """Bring the next page of a future's dependents in step with it; True when there is more to do."""
    limit = min(limit, (ROOM_WRITES - tx.writes) // WRITES_EACH)
    if limit < 1 or tx.bytes_written > ROOM_BYTES:
        return True
    position = tx.get(keys.cursor[upstream], lock=True)
    if position is None:
        return False
    row = edges.read(tx, keys, upstream)
    lo, hi = keys.dep.under(upstream)
    page = tx.range(max(lo, position + b"\x00"), hi, limit=limit)
    done = _tell_all(tx, keys, upstream, row, page) if row is not None else len(page)
    if done == len(page) < limit:
        tx.clear(keys.cursor[upstream])
        return False
    tx.set(keys.cursor[upstream], page[done - 1].key if done else position)
    return True


def drain_cursors(tx: Tx, keys: FutureKeys, limit: int = PAGE) -> bool:
    """A page of the first cursors there are, for whoever has time; False when there was none.

    Telling a failure leaves cursors at those that failed with it: go on until there is none.
    """
    found = tx.range(*keys.cursor.all(), limit=10, snapshot=True)
    for row in found:
        upstream = keys.cursor.unpack(row.key)[0]
        assert isinstance(upstream, bytes)
        tell_page(tx, keys, upstream, limit)
    return bool(found)


def tell(tx: Tx, keys: FutureKeys, upstreams: Sequence[bytes]) -> bool:
    """A page each for futures that were realised together; True when there is more to do."""
    more = False
    for upstream in upstreams:
        more |= tell_page(tx, keys, upstream)
    return more


def waited_for(tx: Tx, keys: FutureKeys, future_id: bytes) -> list[bytes]:
    """What a blocked future waits for; those among it that have ended tell their dependents first."""
    row, spec = edges.read(tx, keys, future_id), edges.read_spec(tx, keys, future_id)
    if not isinstance(row, Blocked) or spec is None:
        return []
    ids = list(dict.fromkeys((*spec.inputs, *row.extra)))
    waited = []
    for upstream, state in zip(ids, edges.read_many(tx, keys, ids), strict=True):
        if state is not None and state.state in ENDED:
            tell_page(tx, keys, upstream)
        elif state is not None:
            waited.append(upstream)
    return waited


def _tell_all(tx: Tx, keys: FutureKeys, upstream: bytes, row: AnyRow, page: Sequence[Row]) -> int:
    """Tell a page of dependents; how many were told before the transaction was full."""
    ids = [one for found in page if isinstance(one := keys.dep.unpack(found.key)[1], bytes)]
    states = edges.read_many(tx, keys, ids)
    open_ids = [one for one, state in zip(ids, states, strict=True) if _may_change(state)]
    specs = edges.read_specs(tx, keys, open_ids)
    failure: Failure | None = None
    if isinstance(row, Failed | Cancelled | Quarantined) and open_ids:
        failure = edges.clipped(submit.upstream_failure(tx, keys, upstream, row), most=8_000)
    for done, (found, down, state) in enumerate(zip(page, ids, states, strict=True)):
        spec = specs.get(down)
        if state is not None and spec is not None:
            heavy = submit.weight(spec) if isinstance(state, Failed) else WRITES_EACH
            if tx.bytes_written > ROOM_BYTES or tx.writes + heavy > 900:
                return done
            _tell(tx, keys, upstream, row, spec, state, found.value, failure)
    return len(page)


def _may_change(state: AnyRow | None) -> bool:
    return state is not None and (
        state.state not in ENDED or (isinstance(state, Failed) and state.kind == "upstream")
    )


def _tell(
    tx: Tx,
    keys: FutureKeys,
    upstream: bytes,
    row: AnyRow,
    spec: Spec,
    state: AnyRow,
    mark: bytes,
    failure: Failure | None,
) -> None:
    """Bring one dependent in step with what its upstream is now."""
    awaited = isinstance(state, Blocked) and upstream in state.extra
    if not awaited and upstream not in spec.inputs:
        return  # of a task that was parked once, and is not any more
    if isinstance(row, Realized) or (awaited and failure is not None):
        if mark == WAITING and isinstance(state, Blocked):
            tx.set(keys.dep[upstream, spec.id], SERVED)
            _serve(tx, keys, spec, state)
    elif failure is not None:
        _break(tx, keys, upstream, spec, state, failure)
    elif mark == SERVED and isinstance(state, Blocked | Unclaimed):
        tx.set(keys.dep[upstream, spec.id], WAITING)
        _recall(tx, keys, spec, state)
    elif isinstance(state, Failed):
        _revive(tx, keys, spec, state)


def _serve(tx: Tx, keys: FutureKeys, spec: Spec, state: Blocked) -> None:
    if state.waits_on > 1:
        edges.rewrite(tx, keys, spec, state, msgspec.structs.replace(state, waits_on=state.waits_on - 1))
    else:
        edges.move(tx, keys, spec, state, FutureEdge.UNBLOCK, submit.unclaimed(tx, keys, spec, state.tally))


def _recall(tx: Tx, keys: FutureKeys, spec: Spec, state: Blocked | Unclaimed) -> None:
    """An input is lost: its dependent waits for it again (FUT-15)."""
    if isinstance(state, Blocked):
        edges.rewrite(tx, keys, spec, state, msgspec.structs.replace(state, waits_on=state.waits_on + 1))
    else:
        edges.move(tx, keys, spec, state, FutureEdge.BLOCK, Blocked(tally=state.tally, waits_on=1))


def _break(tx: Tx, keys: FutureKeys, upstream: bytes, spec: Spec, state: AnyRow, failure: Failure) -> None:
    """An input never comes: its dependent fails, and so do those behind it, each by its own cursor."""
    kind = "actor" if spec.actor == upstream else "upstream"
    if state.state in ENDED or (isinstance(state, Claimed) and kind != "actor"):
        return  # one that runs may have the input already; if not, it finds out when it asks for it
    tally = edges.bump(state.tally) if isinstance(state, Claimed) else state.tally
    edges.move(tx, keys, spec, state, FutureEdge.FAIL, Failed(tally=tally, at=tx.now(), kind=kind))
    edges.set_failure(tx, keys, spec.id, msgspec.structs.replace(failure, kind=kind))
    if tally.dependents:
        tx.set(keys.cursor[spec.id], b"")


def _revive(tx: Tx, keys: FutureKeys, spec: Spec, state: Failed) -> None:
    """The input that failed was requeued: so is what failed because of it, unless another input is broken."""
    tally = edges.bump(state.tally)
    new = again(tx, keys, spec, state, (FutureEdge.REQUEUE,), tally)
    if not isinstance(new, Failure) and tally.dependents:
        tx.set(keys.cursor[spec.id], b"")


def back(tx: Tx, keys: FutureKeys, spec: Spec, old: Claimed, edge: FutureEdge, new: Unclaimed) -> AnyRow:
    """A claim ends without a verdict on the future: unclaimed, unless an input was lost or failed meanwhile.

    A claimed future is told nothing while it runs on what it was given; here it is brought in step (FUT-15).
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


def again(
    tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: tuple[FutureEdge, ...], tally: AttemptCounts
) -> AnyRow | Failure:
    """Send a future back to be computed: unclaimed, or blocked while an input is missing.

    `edge` leads to unclaimed. When an input is broken or gone for good nothing is moved, and why is returned.
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
