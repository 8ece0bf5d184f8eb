"""The machines of the cluster room, as tables. Nothing else assigns one of these states.

A lease's state is not stored but follows from its row and the store's time (`lease_state`); a partition's
is stored, together with the lease of whoever works on it.
"""

from enum import StrEnum
from typing import TypeVar

from tidemill.errors import IllegalTransition

State = TypeVar("State", bound=StrEnum)
Edge = TypeVar("Edge", bound=StrEnum)


class LeaseState(StrEnum):
    """A lease is free or held; a held one whose time is over is free."""

    FREE = "free"
    HELD = "held"


class LeaseEdge(StrEnum):
    """What may happen to a lease."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    EXPIRE = "expire"


LEASE: dict[LeaseState, dict[LeaseEdge, LeaseState]] = {
    LeaseState.FREE: {LeaseEdge.ACQUIRE: LeaseState.HELD},
    LeaseState.HELD: {
        LeaseEdge.RENEW: LeaseState.HELD,
        LeaseEdge.RELEASE: LeaseState.FREE,
        LeaseEdge.EXPIRE: LeaseState.FREE,
    },
}


class PartitionState(StrEnum):
    """Work that nodes share: outstanding until one holds it, and again when that one dies; done for good."""

    OUTSTANDING = "outstanding"
    IN_PROGRESS = "in progress"
    DONE = "done"


class PartitionEdge(StrEnum):
    """What may happen to a partition."""

    TAKE = "take"
    HAND_BACK = "hand back"
    EXPIRE = "expire"
    COMPLETE = "complete"


PARTITION: dict[PartitionState, dict[PartitionEdge, PartitionState]] = {
    PartitionState.OUTSTANDING: {PartitionEdge.TAKE: PartitionState.IN_PROGRESS},
    PartitionState.IN_PROGRESS: {
        PartitionEdge.HAND_BACK: PartitionState.OUTSTANDING,
        PartitionEdge.EXPIRE: PartitionState.OUTSTANDING,
        PartitionEdge.COMPLETE: PartitionState.DONE,
    },
    PartitionState.DONE: {},
}


class MemberState(StrEnum):
    """A node's own life: one that lost its entry (it was paused for too long, say) is out and may join again
    under a new epoch; one that drains takes nothing new, and ends.
    """

    OUT = "out"
    ACTIVE = "active"
    DRAINING = "draining"
    GONE = "gone"


class MemberEdge(StrEnum):
    """What may happen to a node."""

    JOIN = "join"
    LOSE = "lose"
    DRAIN = "drain"
    LEAVE = "leave"


MEMBER: dict[MemberState, dict[MemberEdge, MemberState]] = {
    MemberState.OUT: {MemberEdge.JOIN: MemberState.ACTIVE, MemberEdge.LEAVE: MemberState.GONE},
    MemberState.ACTIVE: {
        MemberEdge.LOSE: MemberState.OUT,
        MemberEdge.DRAIN: MemberState.DRAINING,
        MemberEdge.LEAVE: MemberState.GONE,
    },
    MemberState.DRAINING: {MemberEdge.LOSE: MemberState.GONE, MemberEdge.LEAVE: MemberState.GONE},
    MemberState.GONE: {},
}


def step(table: dict[State, dict[Edge, State]], state: State, edge: Edge) -> State:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return table[state][edge]
    except KeyError:
        raise IllegalTransition(
            f"{type(state).__name__} {state.value!r} has no edge {edge.value!r}"
        ) from None
