"""Compute a failed or quarantined future again when a user requests it (FUT-53)."""

from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import actors, depend, edges
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Failed, Failure, Quarantined
from tidemill.futures.protocol.states import ActorState, FutureEdge
from tidemill.store import Tx


def requeue(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow:
    """Compute a failed or quarantined future again, and reset all its counts. Return the new row.

    Futures that failed because of this future are requeued too, page by page. The latest failure is kept.
    """
    row = edges.read(tx, keys, future_id)
    if row is None:
        raise FutureUnknown(f"future {future_id.hex()} does not exist or was deleted")
    if not isinstance(row, Failed | Quarantined):
        raise UsageError(
            f"future {future_id.hex()} is {row.state.value} and cannot be requeued",
            hint="requeue only failed and quarantined futures",
        )
    spec = edges.must_read_spec(tx, keys, future_id)
    if spec.actor:
        actor = actors.read(tx, keys, spec.actor)
        if actor is None or actor.state is ActorState.DEAD:
            raise UsageError(
                f"future {future_id.hex()} belongs to a dead actor and cannot be requeued",
                hint="create the actor again",
            )
    fresh = edges.bump(row.tally, exceptions=0, crashes=0, ooms=0, strange=0, reaps=0, rebuilds=0, ram=0)
    new = depend.recompute(tx, keys, spec, row, (FutureEdge.REQUEUE,), fresh)
    if isinstance(new, Failure):
        raise UsageError(
            f"an input of future {future_id.hex()} has failed: {new.message}", hint="requeue the input first"
        )
    if fresh.dependents:
        depend.reset_cursor(tx, keys, future_id)
    return new
