"""End claims: the future of a claim is realized, failed, returned, parked or cancelled.

The holder of the claim calls these functions. Each transaction checks two fences: the node's lease is valid
(`nodes.check`), and the row is still claimed under our epoch (`claim.check_held`, or the row has the same
bytes). A late write is refused with `LeaseLost` (FUT-13, FUT-55).

`realize_many` is the fast path. It is a `take` transaction that compares bytes and reads no state rows. It
refuses rows that have changed since the claim: a dependent was added, a cancel was requested, or the claim
was lost. The caller then passes these rows to `realize`, which is a serial transaction.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import actors, depend, edges, retries, rows, submit
from tidemill.futures.protocol.claim import Claim, check_held, is_held
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import (
    AnyRow,
    Blocked,
    Cancelled,
    Claimed,
    Failed,
    Failure,
    Realized,
    Result,
    Spec,
    Unclaimed,
)
from tidemill.futures.protocol.states import FutureEdge, FutureState, step
from tidemill.store import Swap, Tx


class Completion(msgspec.Struct, frozen=True):
    """A finished task: its claim, its spec and its result. `result.version` is the claim's epoch."""

    claim: Claim
    spec: Spec
    result: Result


def realize_many(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, items: Sequence[Completion]
) -> list[bool]:
    """Realize futures in a `take` transaction. Return True for each that is done; the others need `realize`.

    For a future with dependents this writes a cursor: call `depend.notify` right after the commit. If this
    node dies before that, the leader finds the cursor and notifies the dependents.
    """
    nodes.check(tx, cluster, node, lock=True)
    plain = [item for item in items if item.result.location.kind != "actor"]
    swaps = []
    for item in plain:
        step(FutureState.CLAIMED, FutureEdge.REALIZE)
        row = _realized(tx, item.claim.row, item.result)
        swaps.append(Swap(keys.future[item.claim.id], item.claim.raw, rows.encode(row)))
    written: set[bytes] = set()
    for item, ok in zip(plain, tx.swap_many(swaps), strict=True):
        if ok:
            written.add(item.claim.id)
            edges.withdraw(tx, keys, item.spec, item.claim.row)
            _record_result(tx, keys, item.spec, item.claim.row, item.result)
            if item.claim.row.tally.dependents:
                tx.set(keys.cursor[item.claim.id], b"")
    return [item.claim.id in written for item in items]


def realize(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, item: Completion) -> Realized:
    """Realize one future and notify a page of its dependents. Raise `LeaseLost` if the claim is over."""
    row = _check_claim(tx, keys, cluster, node, item.claim)
    new = _realized(tx, row, item.result)
    _record_result(tx, keys, item.spec, row, new.result)
    if new.result.location.kind == "actor":
        actors.record_location(tx, keys, item.spec, new.result)
    depend.end(tx, keys, item.spec, row, FutureEdge.REALIZE, new)
    return new


def fail(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    node: Node,
    claim: Claim,
    failure: Failure,
    *,
    jitter: float = 1.0,
    ram_used: int = 0,
) -> AnyRow:
    """Record a failed attempt: retry, or fail the future (FUT-4, FUT-5, FUT-8). Return the new row.

    Args:
        tx: the transaction.
        keys: the keys of futures.
        cluster: the keys of nodes.
        node: the node that holds the claim.
        claim: the claim.
        failure: what happened; its kind decides which count grows (FUT-20).
        jitter: a random number from 0 to 1, for the delay before the next attempt.
        ram_used: how many bytes the task used when memory ran out, if it did not declare `ram`.
    """
    row = _check_claim(tx, keys, cluster, node, claim)
    spec = edges.must_read_spec(tx, keys, claim.id)
    failure = msgspec.structs.replace(failure, node=failure.node or node.id, at=tx.now())
    if row.cancel:
        return _end_cancelled(tx, keys, spec, row, failure)
    decision = retries.decide(tx, keys, cluster, node, spec, row, failure, jitter=jitter, ram_used=ram_used)
    if isinstance(decision.row, Unclaimed):
        edges.set_failure(tx, keys, spec.id, failure)
        return depend.unclaim(tx, keys, spec, row, decision.edge, decision.row)
    return depend.end(tx, keys, spec, row, decision.edge, decision.row, failure)


def relinquish(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claims: Sequence[Claim]
) -> list[AnyRow | None]:
    """Give up claims without an outcome, because of a drain or a recall (FUT-3, FUT-17).

    A node also gives up claims whose tasks never started. This does not count as an attempt. The result has
    None for claims that this node no longer holds. Pass at most 100 claims.
    """
    nodes.check(tx, cluster, node)
    current = edges.read_many(tx, keys, [claim.id for claim in claims])
    return [
        give_back(tx, keys, claim.id, check_held(row, claim)) if is_held(row, claim) else None
        for claim, row in zip(claims, current, strict=True)
    ]


def block(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claim: Claim, upstreams: Sequence[bytes]
) -> AnyRow:
    """Park a claimed task until these futures are realized (FUT-45, FUT-41). Return the new row.

    A task is parked if inputs were lost (call `results.lose` for them first, in the same transaction), or if
    it waits for futures and must free its memory. If all of the futures are already realized, the task goes
    back to the pool. If an input has failed, the task fails. If another future that it waits for has failed,
    the task runs again and sees the failure itself.
    """
    row = _check_claim(tx, keys, cluster, node, claim)
    spec = edges.must_read_spec(tx, keys, claim.id)
    if row.cancel:
        return _end_cancelled(tx, keys, spec, row, None)
    extra = tuple(upstream for upstream in dict.fromkeys(upstreams) if upstream not in spec.inputs)
    if len(extra) > submit.MOST_INPUTS - len(spec.inputs):
        # The task waits for the others when it runs again.
        extra = extra[: submit.MOST_INPUTS - len(spec.inputs)]
    missing, broken = submit.attach(tx, keys, spec, extra=extra)
    if broken is not None:
        failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind=broken.kind)
        return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, broken)
    if not missing:
        return give_back(tx, keys, claim.id, row)
    parked = Blocked(tally=edges.bump(row.tally), waits_on=missing, extra=extra)
    edges.move(tx, keys, spec, row, FutureEdge.BLOCK, parked)
    return parked


def cancelled(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    node: Node,
    claim: Claim,
    failure: Failure | None = None,
) -> AnyRow:
    """Record that a task was cancelled, or ended by its deadline, as its row requests. Return the new row.

    If the row does not request this (the command was stale), the future only returns to the pool.
    """
    row = _check_claim(tx, keys, cluster, node, claim)
    spec = edges.must_read_spec(tx, keys, claim.id)
    if not row.cancel:
        return give_back(tx, keys, claim.id, row)
    return _end_cancelled(tx, keys, spec, row, failure)


# --- shared with the reaper


def give_back(tx: Tx, keys: FutureKeys, future_id: bytes, row: Claimed) -> AnyRow:
    """Move a claimed future to unclaimed (or blocked) under the next epoch. End it if it was cancelled."""
    spec = edges.must_read_spec(tx, keys, future_id)
    if row.cancel:
        return _end_cancelled(tx, keys, spec, row, None)
    new = submit.unclaimed(tx, keys, spec, edges.bump(row.tally))
    return depend.unclaim(tx, keys, spec, row, FutureEdge.RELINQUISH, new)


def _check_claim(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claim: Claim) -> Claimed:
    nodes.check(tx, cluster, node)
    return check_held(edges.read(tx, keys, claim.id), claim)


def _realized(tx: Tx, row: Claimed, result: Result) -> Realized:
    return Realized(tally=row.tally, result=msgspec.structs.replace(result, at=tx.now()), at=tx.now())


def _record_result(tx: Tx, keys: FutureKeys, spec: Spec, row: Claimed, result: Result) -> None:
    if result.location.kind in ("segment", "object"):
        record = msgspec.structs.replace(result, at=tx.now())
        submit.record_copy(tx, keys, spec, record, has_handle=not row.tally.released)


def _end_cancelled(tx: Tx, keys: FutureKeys, spec: Spec, row: Claimed, failure: Failure | None) -> AnyRow:
    tally = edges.bump(row.tally)
    if row.cancel == "deadline":
        late = failure or Failure(kind="deadline", message="its deadline passed while it ran")
        late = msgspec.structs.replace(late, kind="deadline", at=tx.now())
        failed = Failed(tally=tally, at=tx.now(), kind="deadline")
        return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, late)
    return depend.end(tx, keys, spec, row, FutureEdge.CANCEL, Cancelled(tally=tally, at=tx.now()), failure)
