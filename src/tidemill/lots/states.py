"""States of lots and intervals, with their transitions. No other code assigns these states.

The row of a lot describes one generation and never changes its state: every change is a new generation. An
interval first accepts appends (open). Once sealed, the interval accepts no more appends, so its appends can
be listed. The publication of its lot closes the interval (LOT-42).
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class LotState(StrEnum):
    """The state of a published generation of a lot. A partial manifest is never published."""

    COMPLETE = "complete"
    EMPTY = "empty"  # it has no data (LOT-6)
    REMOVED = "removed"  # it was deleted


class IntervalState(StrEnum):
    """The state of an interval. It accepts appends until it is sealed."""

    OPEN = "open"
    SEALED = "sealed"
    CLOSED = "closed"


class IntervalEdge(StrEnum):
    """The transitions of an interval."""

    SEAL = "seal"
    CLOSE = "close"


INTERVAL: dict[IntervalState, dict[IntervalEdge, IntervalState]] = {
    IntervalState.OPEN: {IntervalEdge.SEAL: IntervalState.SEALED},
    IntervalState.SEALED: {IntervalEdge.CLOSE: IntervalState.CLOSED},
    IntervalState.CLOSED: {},
}


def step(state: IntervalState, edge: IntervalEdge) -> IntervalState:
    """Return the next state; raise `IllegalTransition` if the table has no such transition."""
    try:
        return INTERVAL[state][edge]
    except KeyError:
        raise IllegalTransition(
            f"an interval in state {state.value} has no transition {edge.value!r}"
        ) from None
