"""Actors: an object that lives in one node's memory, and the calls that are bound to it (FUT-47).

Creating an actor is a future whose result is the actor itself (a location of kind "actor"); its id is that
future's. A call is a future with the creation as its input, assigned hard to the actor's node, with an
ordinal from the actor's row. Calls are carried out in the order of their ordinals by the node, which finds
the next one in `call[actor, ordinal]`. Neither is ever computed again by itself: when the actor dies its
creation fails with kind "actor", and with it, page by page as any dependent, every call that has not ended.
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
    """An actor's row. `node` is empty until it is born."""

    id: bytes
    node: str = ""
    node_epoch: int = 0
    next_ordinal: int = 1
    state: ActorState = ActorState.ALIVE
    failure: Failure | None = None


class ActorCall(msgspec.Struct, frozen=True):
    """One call in its order; `row` is None when it was swept."""

    ordinal: int
    id: bytes
    row: AnyRow | None


Sign = Callable[[Spec], Spec]
"""Signs a spec when all of it is known: the ordinal of a call is known in its transaction only."""


def unsigned(spec: Spec) -> Spec:
    """For specs that nobody will run."""
    return spec


_decoder = msgspec.msgpack.Decoder(ActorRow)


def decode(raw: bytes) -> ActorRow:
    """An actor's row from its stored bytes."""
    return _decoder.decode(raw)


def read(tx: Tx, keys: FutureKeys, actor_id: bytes) -> ActorRow | None:
    """An actor's row."""
    raw = tx.get(keys.actor[actor_id], lock=tx.mode == "take")
    return None if raw is None else decode(raw)


def _write(tx: Tx, keys: FutureKeys, actor: ActorRow) -> None:
    tx.set(keys.actor[actor.id], msgspec.msgpack.encode(actor))


def create(tx: Tx, keys: FutureKeys, spec: Spec, *, sign: Sign = unsigned) -> bytes:
    """Submit the creation of an actor; the id is the actor's."""
    known = submit.known_as(tx, keys, spec)
    if known is not None:
        return known
    spec = msgspec.structs.replace(spec, actor=spec.id, ordinal=0, reconstruct=False)
    _write(tx, keys, ActorRow(id=spec.id))
    return submit.submit_one(tx, keys, sign(spec))


def call(
    tx: Tx, keys: FutureKeys, actor_id: bytes, specs: list[Spec], *, sign: Sign = unsigned
) -> list[bytes]:
    """Submit calls, in this order, behind all earlier ones. On a dead actor they fail at once."""
    actor = read(tx, keys, actor_id)
    creation = edges.read(tx, keys, actor_id)
    if actor is None or creation is None:
        raise FutureUnknown(f"actor {actor_id.hex()} does not exist any more")
    over = actor.failure if actor.state is ActorState.DEAD else None
    if over is None and isinstance(creation, Failed | Cancelled | Quarantined):
        over = submit.upstream_failure(tx, keys, actor_id, creation)
    ids = []
    for spec in specs:
        known = submit.known_as(tx, keys, spec)
        if known is not None:
            ids.append(known)
            continue
        bound = msgspec.structs.replace(
            spec,
            actor=actor_id,
            ordinal=actor.next_ordinal,
            inputs=(actor_id, *(one for one in spec.inputs if one != actor_id)),
            near=actor_id,
            hard=True,
            reconstruct=False,
        )
        tx.set(keys.call[actor_id, actor.next_ordinal], spec.id)
        actor = msgspec.structs.replace(actor, next_ordinal=actor.next_ordinal + 1)
        ids.append(spec.id)
        if over is not None:
            bound = submit.begin(tx, keys, sign(bound))
            edges.enter(tx, keys, bound, Failed(at=tx.now(), kind="actor"))
            edges.set_failure(tx, keys, spec.id, death(over, tx.now()))
        else:
            submit.submit_one(tx, keys, sign(bound))
    _write(tx, keys, actor)
    return ids


def calls(tx: Tx, keys: FutureKeys, actor_id: bytes, ordinal: int, limit: int = 20) -> list[ActorCall]:
    """The calls from this ordinal on: how a node learns that the next one it waits for has ended."""
    lo, hi = keys.call[actor_id, ordinal], keys.call.under(actor_id)[1]
    found = tx.range(lo, hi, limit=limit, snapshot=tx.mode == "take")
    states = edges.read_many(tx, keys, [row.value for row in found])
    return [
        ActorCall(int(keys.call.unpack(row.key)[1]), row.value, state)  # type: ignore[arg-type]
        for row, state in zip(found, states, strict=True)
    ]


def born(tx: Tx, keys: FutureKeys, spec: Spec, result: Result) -> None:
    """The creation is realised: the actor has a home. Called by `finish.realize`."""
    actor = read(tx, keys, spec.id) or ActorRow(id=spec.id)
    node, epoch = result.location.node, result.location.node_epoch
    _write(tx, keys, msgspec.structs.replace(actor, node=node, node_epoch=epoch))
    tx.set(keys.hosted[node, spec.id], b"")


def died(tx: Tx, keys: FutureKeys, actor_id: bytes, failure: Failure) -> bool:
    """The actor is gone: its calls fail, a page now and the rest by a cursor. False if it was dead."""
    actor = read(tx, keys, actor_id)
    if actor is None or actor.state is ActorState.DEAD:
        return False
    state = actor_step(actor.state, ActorEdge.DIE)
    failure = edges.clipped(death(failure, tx.now()), most=8_000)
    _write(tx, keys, msgspec.structs.replace(actor, state=state, failure=failure))
    if actor.node:
        tx.clear(keys.hosted[actor.node, actor_id])
    row = edges.read(tx, keys, actor_id)
    if isinstance(row, Realized):
        spec = edges.must_read_spec(tx, keys, actor_id)
        failed = Failed(tally=edges.bump(row.tally), at=tx.now(), kind="actor")
        depend.end(tx, keys, spec, row, FutureEdge.FAIL, failed, failure)
    return True


def death(failure: Failure, now_us: int) -> Failure:
    """Why a call fails whose actor is dead."""
    return msgspec.structs.replace(failure, kind="actor", at=failure.at or now_us)


def forget(tx: Tx, keys: FutureKeys, spec: Spec) -> None:
    """A creation or a call is swept: so are its rows here."""
    if spec.actor == spec.id:
        actor = read(tx, keys, spec.id)
        if actor is not None and actor.node:
            tx.clear(keys.hosted[actor.node, spec.id])
        tx.clear(keys.actor[spec.id])
        tx.clear_range(*keys.call.under(spec.id))
    elif spec.actor:
        tx.clear(keys.call[spec.actor, spec.ordinal])
