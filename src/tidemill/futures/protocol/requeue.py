"""Requeueing: a person sends a failed or quarantined future back to be computed (FUT-53)."""

from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import actors, depend, edges
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Failed, Failure, Quarantined
from tidemill.futures.protocol.states import ActorState, FutureEdge
from tidemill.store import Tx


def requeue(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow:
    """Failed or quarantined -> unclaimed, or blocked while an input is missing; every count begins again.

    What failed because of it follows by itself, page by page. The latest failure stays on record.
    """
    row = edges.read(tx, keys, future_id)
    if row is None:
        raise FutureUnknown(f"future {future_id.hex()} does not exist any more")
    if not isinstance(row, Failed | Quarantined):
        raise UsageError(
            f"future {future_id.hex()} is {row.state.value}", hint="only failed and quarantined ones can be"
        )
    spec = edges.must_read_spec(tx, keys, future_id)
    if spec.actor:
        actor = actors.read(tx, keys, spec.actor)
        if actor is None or actor.state is ActorState.DEAD:
            raise UsageError(
                f"future {future_id.hex()} belongs to a dead actor", hint="create the actor again"
            )
    fresh = edges.bump(row.tally, exceptions=0, crashes=0, ooms=0, strange=0, reaps=0, rebuilds=0, ram=0)
    new = depend.again(tx, keys, spec, row, (FutureEdge.REQUEUE,), fresh)
    if isinstance(new, Failure):
        raise UsageError(
            f"an input of future {future_id.hex()} has failed: {new.message}", hint="requeue the input first"
        )
    if fresh.dependents:
        depend.set_back(tx, keys, future_id)
    return new
