"""The life of a future, as a table. Nothing else decides which state follows which.

The state is stored explicitly (FUT-8) as one frozen class per state (`rows`), and every
edge is a function of the transaction with the edge's name. `exceptions >= max_retries + 1` is the one and
only meaning of `failed` by retries.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class FutureState(StrEnum):
    """A durable call is in exactly one of these at a time (FUT-12).

    It begins blocked while an input is missing, unclaimed when it can run, and unsatisfiable when no live
    node could; what was `put` begins realized, and what depends on a failed future begins failed. A result
    whose copies are all lost is computed again (`lose`).
    """

    BLOCKED = "blocked"  # an input is not realised yet
    UNCLAIMED = "unclaimed"  # in the pool, or assigned to a node
    CLAIMED = "claimed"  # one node works on it
    REALIZED = "realized"  # it has a result
    FAILED = "failed"  # it will never have one
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"  # it killed its worker too often
    UNSATISFIABLE = "unsatisfiable"  # no live node can ever run it


class FutureEdge(StrEnum):
    """What may happen to a future."""

    CLAIM = "claim"
    RELINQUISH = "relinquish"  # given back without a verdict: drain, restart, recall, reap
    RETRY = "retry"  # an exception, a crash or an out-of-memory with tries left
    FAIL = "fail"  # no tries left, a deadline, an upstream that failed
    REALIZE = "realize"
    LOSE = "lose"  # every copy of the result is gone: computed again
    BLOCK = "block"  # an input is gone, or a waiting task is parked
    UNBLOCK = "unblock"  # the last missing input is there
    CANCEL = "cancel"
    QUARANTINE = "quarantine"
    REQUEUE = "requeue"  # by command
    STRAND = "strand"  # the last node that could run it is gone
    SATISFY = "satisfy"  # a node that can run it has joined


S, E = FutureState, FutureEdge

FUTURE: dict[FutureState, dict[FutureEdge, FutureState]] = {
    S.BLOCKED: {E.UNBLOCK: S.UNCLAIMED, E.FAIL: S.FAILED, E.CANCEL: S.CANCELLED},
    S.UNCLAIMED: {
        E.CLAIM: S.CLAIMED,
        E.BLOCK: S.BLOCKED,
        E.FAIL: S.FAILED,
        E.CANCEL: S.CANCELLED,
        E.STRAND: S.UNSATISFIABLE,
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
"""Where `submit` (and `put`) may begin."""

ENDED = frozenset({S.REALIZED, S.FAILED, S.CANCELLED, S.QUARANTINED})
"""Nothing more happens by itself."""


def step(state: FutureState, edge: FutureEdge) -> FutureState:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return FUTURE[state][edge]
    except KeyError:
        raise IllegalTransition(f"a future that is {state.value} has no edge {edge.value!r}") from None


class ActorState(StrEnum):
    """An object on one worker; it lives once and is never rebuilt silently (FUT-47)."""

    ALIVE = "alive"
    DEAD = "dead"


class ActorEdge(StrEnum):
    """What may happen to an actor."""

    DIE = "die"


ACTOR: dict[ActorState, dict[ActorEdge, ActorState]] = {
    ActorState.ALIVE: {ActorEdge.DIE: ActorState.DEAD},
    ActorState.DEAD: {},
}


def actor_step(state: ActorState, edge: ActorEdge) -> ActorState:
    """The state an actor's edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return ACTOR[state][edge]
    except KeyError:
        raise IllegalTransition(f"an actor that is {state.value} has no edge {edge.value!r}") from None
