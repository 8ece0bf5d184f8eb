"""The states of the lots room. Nothing else assigns one of them.

A lot's row is of one generation and never changes its state: what happens to a lot is a new generation. An
interval of a dataset that takes appends is open, then sealed (no append lands in it any more, so that what it
holds can be listed), then closed by the publication of its lot (LOT-42).
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class LotState(StrEnum):
    """What a published generation of a lot is; a partial manifest is never published."""

    COMPLETE = "complete"
    EMPTY = "empty"  # there was nothing, and that is an answer (LOT-6)
    REMOVED = "removed"  # it was there, and is taken back


class IntervalState(StrEnum):
    """An interval takes appends until it is sealed."""

    OPEN = "open"
    SEALED = "sealed"
    CLOSED = "closed"


class IntervalEdge(StrEnum):
    """What may happen to an interval."""

    SEAL = "seal"
    CLOSE = "close"


INTERVAL: dict[IntervalState, dict[IntervalEdge, IntervalState]] = {
    IntervalState.OPEN: {IntervalEdge.SEAL: IntervalState.SEALED},
    IntervalState.SEALED: {IntervalEdge.CLOSE: IntervalState.CLOSED},
    IntervalState.CLOSED: {},
}


def step(state: IntervalState, edge: IntervalEdge) -> IntervalState:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return INTERVAL[state][edge]
    except KeyError:
        raise IllegalTransition(f"an interval that is {state.value} has no edge {edge.value!r}") from None
