"""The life of an attempt, as a table. Nothing else decides which state follows which."""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class AttemptState(StrEnum):
    """Open until it is the lot, or never will be."""

    OPEN = "open"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class AttemptEdge(StrEnum):
    """What may happen to an attempt."""

    ADOPT = "adopt"  # another node goes on with it
    PARK = "park"  # nobody works on it; a retry may go on with it
    PUBLISH = "publish"
    ABANDON = "abandon"


ATTEMPT: dict[AttemptState, dict[AttemptEdge, AttemptState]] = {
    AttemptState.OPEN: {
        AttemptEdge.ADOPT: AttemptState.OPEN,
        AttemptEdge.PARK: AttemptState.OPEN,
        AttemptEdge.PUBLISH: AttemptState.PUBLISHED,
        AttemptEdge.ABANDON: AttemptState.ABANDONED,
    },
    AttemptState.PUBLISHED: {},
    AttemptState.ABANDONED: {},
}


def step(state: AttemptState, edge: AttemptEdge) -> AttemptState:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return ATTEMPT[state][edge]
    except KeyError:
        raise IllegalTransition(f"an attempt that is {state.value} has no edge {edge.value!r}") from None
