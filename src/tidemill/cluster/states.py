"""The state machines of the cluster, as tables. No other code assigns these states.

The state of a lease is not stored: it follows from its row and the store's time (`lease_state`). The state of
a partition is stored, together with the lease of its holder.
"""

from enum import StrEnum
from typing import TypeVar

from tidemill.errors import IllegalTransition

State = TypeVar("State", bound=StrEnum)
Edge = TypeVar("Edge", bound=StrEnum)


class LeaseState(StrEnum):
    """A lease is free or held. An expired lease is free."""

    FREE = "free"
    HELD = "held"


class LeaseEdge(StrEnum):
    """The transitions of a lease."""

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
    """A partition is outstanding until a node takes it, and after that node hands it back or dies."""

    OUTSTANDING = "outstanding"
    IN_PROGRESS = "in progress"
    DONE = "done"


class PartitionEdge(StrEnum):
    """The transitions of a partition."""

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
    """The state of a node as it sees itself.

    A node that lost its entry, for example because it was paused for too long, is out. It may join again
    under a new epoch. A draining node takes no new work, and then leaves.
    """

    OUT = "out"
    ACTIVE = "active"
    DRAINING = "draining"
    GONE = "gone"


class MemberEdge(StrEnum):
    """The transitions of a node."""

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
    """Return the next state; raise `IllegalTransition` if the table has no such transition."""
    try:
        return table[state][edge]
    except KeyError:
        machine = type(state).__name__.removesuffix("State").lower()
        raise IllegalTransition(
            f"a {machine} in state {state.value!r} has no transition {edge.value!r}"
        ) from None
