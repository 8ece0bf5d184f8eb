"""The states of an attempt and their transitions, as a table. No other code decides the next state."""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class AttemptState(StrEnum):
    """The state of an attempt: open until it is published or abandoned."""

    OPEN = "open"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class AttemptEdge(StrEnum):
    """The transitions of an attempt."""

    ADOPT = "adopt"  # another node takes it over
    PARK = "park"  # no node works on it; a retry may continue it
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
    """Return the next state; raise `IllegalTransition` if the table has no such transition."""
    try:
        return ATTEMPT[state][edge]
    except KeyError:
        raise IllegalTransition(
            f"an attempt in state {state.value} has no transition {edge.value!r}"
        ) from None
