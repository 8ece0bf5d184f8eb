"""The state machine of a future, as a table. No other code decides which state follows which.

The state is stored explicitly (FUT-8), as one frozen class per state (`rows`). Every transition is made in
one transaction, by a function of this package. Exceptions make a future fail if and only if
`exceptions >= max_retries + 1`.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class FutureState(StrEnum):
    """The states of a future. A future is always in exactly one state (FUT-12).

    A new future is blocked while an input is missing, and unclaimed when it can run. It is unsatisfiable if
    no live node can run it. A value stored with `put` starts realized, and a future that depends on a failed
    future starts failed. If all copies of a result are lost, the future is computed again (`lose`).
    """

    BLOCKED = "blocked"  # an input is not realized yet
    UNCLAIMED = "unclaimed"  # in the pool, or assigned to a node
    CLAIMED = "claimed"  # one node works on it
    REALIZED = "realized"  # it has a result
    FAILED = "failed"  # it has no result, and no attempt will follow
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"  # it crashed its worker too often
    UNSATISFIABLE = "unsatisfiable"  # no live node can ever run it


class FutureEdge(StrEnum):
    """The events that move a future to another state."""

    CLAIM = "claim"
    RELINQUISH = "relinquish"  # returned without an outcome: drain, restart, recall, reap
    RETRY = "retry"  # an exception, a crash or an out-of-memory error, with attempts left
    FAIL = "fail"  # no attempts left, a deadline, or a failed input
    REALIZE = "realize"
    LOSE = "lose"  # every copy of the result is lost: compute it again
    BLOCK = "block"  # an input is lost, or a waiting task is parked
    UNBLOCK = "unblock"  # the last missing input is realized
    CANCEL = "cancel"
    QUARANTINE = "quarantine"
    REQUEUE = "requeue"  # by command
    MARK_UNSATISFIABLE = "mark unsatisfiable"  # the last node that could run it has left
    SATISFY = "satisfy"  # a node that can run it has joined


S, E = FutureState, FutureEdge

FUTURE: dict[FutureState, dict[FutureEdge, FutureState]] = {
    S.BLOCKED: {E.UNBLOCK: S.UNCLAIMED, E.FAIL: S.FAILED, E.CANCEL: S.CANCELLED},
    S.UNCLAIMED: {
        E.CLAIM: S.CLAIMED,
        E.BLOCK: S.BLOCKED,
        E.FAIL: S.FAILED,
        E.CANCEL: S.CANCELLED,
        E.MARK_UNSATISFIABLE: S.UNSATISFIABLE,
    },
    S.CLAIMED: {
        E.RELINQUISH: S.UNCLAIMED,
        E.RETRY: S.UNCLAIMED,
        E.BLOCK: S.BLOCKED,
        E.REALIZE: S.REALIZED,
        E.FAIL: S.FAILED,
        E.CANCEL: S.CANCELLED,
        E.QUARANTINE: S.QUARANTINED,
    },
    S.REALIZED: {E.LOSE: S.UNCLAIMED, E.FAIL: S.FAILED},
    S.FAILED: {E.REQUEUE: S.UNCLAIMED},
    S.CANCELLED: {},
    S.QUARANTINED: {E.REQUEUE: S.UNCLAIMED},
    S.UNSATISFIABLE: {E.SATISFY: S.UNCLAIMED, E.FAIL: S.FAILED, E.CANCEL: S.CANCELLED},
}

INITIAL = frozenset({S.BLOCKED, S.UNCLAIMED, S.UNSATISFIABLE, S.REALIZED, S.FAILED})
"""The states in which `submit` and `put` may create a future."""

ENDED = frozenset({S.REALIZED, S.FAILED, S.CANCELLED, S.QUARANTINED})
"""The states without further automatic transitions."""


def step(state: FutureState, edge: FutureEdge) -> FutureState:
    """Return the next state. Raise `IllegalTransition` if the table has no such transition."""
    try:
        return FUTURE[state][edge]
    except KeyError:
        raise IllegalTransition(f"a future in state {state.value} has no transition {edge.value!r}") from None


class ActorState(StrEnum):
    """The states of an actor: an object on one worker that is never recreated silently (FUT-47)."""

    ALIVE = "alive"
    DEAD = "dead"


class ActorEdge(StrEnum):
    """The events that move an actor to another state."""

    DIE = "die"


ACTOR: dict[ActorState, dict[ActorEdge, ActorState]] = {
    ActorState.ALIVE: {ActorEdge.DIE: ActorState.DEAD},
    ActorState.DEAD: {},
}


def actor_step(state: ActorState, edge: ActorEdge) -> ActorState:
    """Return an actor's next state. Raise `IllegalTransition` if the table has no such transition."""
    try:
        return ACTOR[state][edge]
    except KeyError:
        raise IllegalTransition(f"an actor in state {state.value} has no transition {edge.value!r}") from None
