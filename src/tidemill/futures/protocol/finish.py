"""How a claim ends: realised, failed, given back, parked, cancelled.

Every function here is the write of a claimant and fenced twice in its own transaction: the node's lease runs
(`nodes.check`), and the row is still claimed under our epoch (`claim.held`, or the row's very bytes). A late
write is refused with `LeaseLost` whatever its author believes (FUT-13, FUT-55).

`realize_many` is the fast path, a `take` transaction: it compares bytes and reads nothing. It refuses rows
that somebody rewrote since the claim (a dependent was attached, a cancel was asked for, the claim is over),
and `realize`, which is serial, then decides.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import actors, depend, edges, retries, rows, submit
from tidemill.futures.protocol.claim import Claim, held, is_held
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
    """A finished task: its claim, its spec and what it made. `result.version` is the claim's epoch."""

    claim: Claim
    spec: Spec
    result: Result


def realize_many(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, items: Sequence[Completion]
) -> list[bool]:
    """Realise several futures in a `take` transaction; False for those that `realize` must decide on.

    Those that have dependents leave a cursor: tell them with `depend.tell` right after the commit. If we die
    before that, whoever finds the cursor does it.
    """
    nodes.check(tx, cluster, node, lock=True)
    plain = [item for item in items if item.result.location.kind != "actor"]
    swaps = []
    for item in plain:
        step(FutureState.CLAIMED, FutureEdge.REALIZE)
        row = _realized(tx, item.claim.row, item.result)
        swaps.append(Swap(keys.future[item.claim.id], item.claim.raw, rows.encode(row)))
    made: set[bytes] = set()
    for item, ok in zip(plain, tx.swap_many(swaps), strict=True):
        if ok:
            made.add(item.claim.id)
            edges.withdraw(tx, keys, item.spec, item.claim.row)
            _keep(tx, keys, item.spec, item.claim.row, item.result)
            if item.claim.row.tally.dependents:
                tx.set(keys.cursor[item.claim.id], b"")
    return [item.claim.id in made for item in items]


def realize(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, done: Completion) -> Realized:
    """Realise one future and wake the first page of its dependents; `LeaseLost` when the claim is over."""
    row = _ours(tx, keys, cluster, node, done.claim)
    new = _realized(tx, row, done.result)
    _keep(tx, keys, done.spec, row, new.result)
    if new.result.location.kind == "actor":
        actors.born(tx, keys, done.spec, new.result)
    depend.end(tx, keys, done.spec, row, FutureEdge.REALIZE, new)
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
    """An attempt failed: another one, or the end (FUT-4, FUT-5, FUT-8). Returns the row it became.

    - failure: what happened; its kind decides which count grows (FUT-20).
    - jitter: from 0 to 1, by chance; how much of the pause before the next attempt is waited.
    - ram_used: bytes the task had when it ran out of memory, for one that had asked for none.
    """
    row = _ours(tx, keys, cluster, node, claim)
    spec = edges.must_read_spec(tx, keys, claim.id)
    failure = msgspec.structs.replace(failure, node=failure.node or node.id, at=tx.now())
    if row.cancel:
        return _end_cancelled(tx, keys, spec, row, failure)
    verdict = retries.judge(tx, keys, cluster, node, spec, row, failure, jitter=jitter, ram_used=ram_used)
    if isinstance(verdict.row, Unclaimed):
        edges.set_failure(tx, keys, spec.id, failure)
        return depend.back(tx, keys, spec, row, verdict.edge, verdict.row)
    return depend.end(tx, keys, spec, row, verdict.edge, verdict.row, failure)


def relinquish(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claims: Sequence[Claim]
) -> list[AnyRow | None]:
    """Give claims back without a verdict: a drain, a recall, a task that never began (FUT-3, FUT-17).

    Counts as no attempt. None for claims that are over already. At most 100 at once.
    """
    nodes.check(tx, cluster, node)
    found = edges.read_many(tx, keys, [claim.id for claim in claims])
    given: list[AnyRow | None] = []
    for claim, row in zip(claims, found, strict=True):
        ours = is_held(row, claim)
        given.append(give_back(tx, keys, claim.id, held(row, claim)) if ours else None)
    return given


def block(
    tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claim: Claim, upstreams: Sequence[bytes]
) -> AnyRow:
    """Park a claimed task until these futures are realised (FUT-45, FUT-41). Returns the row it became.

    For a task that found inputs gone (call `results.lose` for those in the same transaction, before this),
    or one that waits and must make room. When all of them are realised by now it goes straight back to the
    pool; when an input failed for good it fails; an awaited future that failed is for the task itself to see.
    """
    row = _ours(tx, keys, cluster, node, claim)
    spec = edges.must_read_spec(tx, keys, claim.id)
    if row.cancel:
        return _end_cancelled(tx, keys, spec, row, None)
    extra = tuple(one for one in dict.fromkeys(upstreams) if one not in spec.inputs)
    if len(extra) > submit.MOST_INPUTS - len(spec.inputs):
        extra = extra[: submit.MOST_INPUTS - len(spec.inputs)]  # it asks again for the others when it runs
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
    """The task was ended as its row asked: cancelled, or failed by its deadline. Returns the row it became.

    When nobody asked (the command was stale) the claim is only given back.
    """
    row = _ours(tx, keys, cluster, node, claim)
    spec = edges.must_read_spec(tx, keys, claim.id)
    if not row.cancel:
        return give_back(tx, keys, claim.id, row)
    return _end_cancelled(tx, keys, spec, row, failure)


# --- what these and the reaper share


def give_back(tx: Tx, keys: FutureKeys, future_id: bytes, row: Claimed) -> AnyRow:
    """Claimed -> unclaimed under the next epoch (or blocked), or its end when that was asked for."""
    spec = edges.must_read_spec(tx, keys, future_id)
    if row.cancel:
        return _end_cancelled(tx, keys, spec, row, None)
    new = submit.unclaimed(tx, keys, spec, edges.bump(row.tally))
    return depend.back(tx, keys, spec, row, FutureEdge.RELINQUISH, new)


def _ours(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claim: Claim) -> Claimed:
    nodes.check(tx, cluster, node)
    return held(edges.read(tx, keys, claim.id), claim)


def _realized(tx: Tx, row: Claimed, result: Result) -> Realized:
    return Realized(tally=row.tally, result=msgspec.structs.replace(result, at=tx.now()), at=tx.now())


def _keep(tx: Tx, keys: FutureKeys, spec: Spec, row: Claimed, result: Result) -> None:
    if result.location.kind in ("segment", "object"):
        submit.keep(tx, keys, spec, msgspec.structs.replace(result, at=tx.now()), held=not row.tally.released)


def _end_cancelled(tx: Tx, keys: FutureKeys, spec: Spec, row: Claimed, failure: Failure | None) -> AnyRow:
    tally = edges.bump(row.tally)
    if row.cancel == "deadline":
        late = failure or Failure(kind="deadline", message="its deadline passed while it ran")
        late = msgspec.structs.replace(late, kind="deadline", at=tx.now())
        failed = Failed(tally=tally, at=tx.now(), kind="deadline")
        return depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, late)
    return depend.end(tx, keys, spec, row, FutureEdge.CANCEL, Cancelled(tally=tally, at=tx.now()), failure)
