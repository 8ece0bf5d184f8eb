"""The rows of actors and their calls (FUT-47).

The creation of an actor is a future. The result of this future is the actor itself (a location of kind
"actor"), and the actor has the id of the future. A call is a future with the creation as its input. The call
is bound to the actor's node and gets its ordinal from the actor's row. The node runs the calls in the order
of their ordinals and finds the next call in `call[actor, ordinal]`. Tidemill never repeats a creation or a
call to recover a lost result. When the actor dies, its creation fails with kind "actor". Then all unfinished
calls of the actor fail, page by page, like any dependents.
"""

from collections.abc import Callable

import msgspec

from tidemill.errors import FutureUnknown
from tidemill.futures.protocol import depend, edges, submit
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import (
    AnyRow,
    Cancelled,
    Failed,
    Failure,
    Quarantined,
    Realized,
    Result,
    Spec,
)
from tidemill.futures.protocol.states import ActorEdge, ActorState, FutureEdge, actor_step
from tidemill.store import Tx


class ActorRow(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's row. `node` is empty until the actor is created."""

    id: bytes
    node: str = ""
    node_epoch: int = 0
    next_ordinal: int = 1
    state: ActorState = ActorState.ALIVE
    failure: Failure | None = None


class ActorCall(msgspec.Struct, frozen=True):
    """One call of an actor. `row` is None if the sweep has deleted the call."""

    ordinal: int
    id: bytes
    row: AnyRow | None


Sign = Callable[[Spec], Spec]
"""Signs a complete spec. It is called inside the transaction, because a call gets its ordinal there."""


def unsigned(spec: Spec) -> Spec:
    """Return the spec unchanged, without a signature: for specs that are never run."""
    return spec


_decoder = msgspec.msgpack.Decoder(ActorRow)


def decode(raw: bytes) -> ActorRow:
    """Decode an actor's row."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: FutureKeys, actor_id: bytes) -> ActorRow | None:
    """Read an actor's row."""
    raw = tx.get(keys.actor[actor_id], lock=tx.mode == "take")
    return None if raw is None else decode(raw)


def _write(tx: Tx, keys: FutureKeys, actor: ActorRow) -> None:
    tx.set(keys.actor[actor.id], msgspec.msgpack.encode(actor))


def create(tx: Tx, keys: FutureKeys, spec: Spec, *, sign: Sign = unsigned) -> bytes:
    """Submit the creation of an actor. Return the actor's id."""
    existing = submit.existing_id(tx, keys, spec)
    if existing is not None:
        return existing
    spec = msgspec.structs.replace(spec, actor=spec.id, ordinal=0, reconstruct=False)
    _write(tx, keys, ActorRow(id=spec.id))
    return submit.submit_one(tx, keys, sign(spec))


def call(
    tx: Tx, keys: FutureKeys, actor_id: bytes, specs: list[Spec], *, sign: Sign = unsigned
) -> list[bytes]:
    """Submit calls in this order, after all earlier calls. Calls of a dead actor fail at once."""
    actor = read(tx, keys, actor_id)
    creation = edges.read(tx, keys, actor_id)
    if actor is None or creation is None:
        raise FutureUnknown(f"actor {actor_id.hex()} does not exist or was deleted")
    failure = actor.failure if actor.state is ActorState.DEAD else None
    if failure is None and isinstance(creation, Failed | Cancelled | Quarantined):
        failure = submit.upstream_failure(tx, keys, actor_id, creation)
    ids = []
    for spec in specs:
        existing = submit.existing_id(tx, keys, spec)
        if existing is not None:
            ids.append(existing)
            continue
        bound = msgspec.structs.replace(
            spec,
            actor=actor_id,
            ordinal=actor.next_ordinal,
            inputs=(actor_id, *(upstream for upstream in spec.inputs if upstream != actor_id)),
            near=actor_id,
            hard=True,
            reconstruct=False,
        )
        tx.set(keys.call[actor_id, actor.next_ordinal], spec.id)
        actor = msgspec.structs.replace(actor, next_ordinal=actor.next_ordinal + 1)
        ids.append(spec.id)
        if failure is not None:
            bound = submit.write_spec(tx, keys, sign(bound))
            edges.enter(tx, keys, bound, Failed(at=tx.now(), kind="actor"))
            edges.set_failure(tx, keys, spec.id, actor_failure(failure, tx.now()))
        else:
            submit.submit_one(tx, keys, sign(bound))
    _write(tx, keys, actor)
    return ids


def calls(tx: Tx, keys: FutureKeys, actor_id: bytes, ordinal: int, limit: int = 20) -> list[ActorCall]:
    """Read the calls from this ordinal on. They show whether the call that a node waits for has ended."""
    lo, hi = keys.call[actor_id, ordinal], keys.call.under(actor_id)[1]
    call_rows = tx.range(lo, hi, limit=limit, snapshot=tx.mode == "take")
    states = edges.read_many(tx, keys, [row.value for row in call_rows])
    return [
        ActorCall(int(keys.call.unpack(row.key)[1]), row.value, state)  # type: ignore[arg-type]
        for row, state in zip(call_rows, states, strict=True)
    ]


def record_location(tx: Tx, keys: FutureKeys, spec: Spec, result: Result) -> None:
    """Record the node of a new actor. `finish.realize` calls this when the creation is realized."""
    actor = read(tx, keys, spec.id) or ActorRow(id=spec.id)
    node, epoch = result.location.node, result.location.node_epoch
    _write(tx, keys, msgspec.structs.replace(actor, node=node, node_epoch=epoch))
    tx.set(keys.hosted[node, spec.id], b"")


def died(tx: Tx, keys: FutureKeys, actor_id: bytes, failure: Failure) -> bool:
    """Record the death of an actor and fail its calls, page by page. Return False if it was already dead."""
    actor = read(tx, keys, actor_id)
    if actor is None or actor.state is ActorState.DEAD:
        return False
    state = actor_step(actor.state, ActorEdge.DIE)
    failure = edges.clipped(actor_failure(failure, tx.now()), most=8_000)
    _write(tx, keys, msgspec.structs.replace(actor, state=state, failure=failure))
    if actor.node:
        tx.clear(keys.hosted[actor.node, actor_id])
    row = edges.read(tx, keys, actor_id)
    if isinstance(row, Realized):
        spec = edges.must_read_spec(tx, keys, actor_id)
        failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="actor")
        depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)
    return True


def actor_failure(failure: Failure, now_us: int) -> Failure:
    """Turn the failure of an actor into the failure of its calls."""
    return msgspec.structs.replace(failure, kind="actor", at=failure.at or now_us)


def forget(tx: Tx, keys: FutureKeys, spec: Spec) -> None:
    """Delete the rows of a creation or a call when the sweep deletes its future."""
    if spec.actor == spec.id:
        actor = read(tx, keys, spec.id)
        if actor is not None and actor.node:
            tx.clear(keys.hosted[actor.node, spec.id])
        tx.clear(keys.actor[spec.id])
        tx.clear_range(*keys.call.under(spec.id))
    elif spec.actor:
        tx.clear(keys.call[spec.actor, spec.ordinal])
