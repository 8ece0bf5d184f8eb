"""The state machine of an arc's lot, as a table, and the rule that derives the state from the lot's parts.

There is one state machine for each (arc, lot, generation). A running lot is leased to a node. When that node
is gone, another node takes over the lot (LOT-9, LOT-12).
"""

from collections.abc import Iterable
from enum import StrEnum

from tidemill.errors import IllegalTransition
from tidemill.lots.manifest import ManifestState


class ArcState(StrEnum):
    """The state of an arc's lot. A complete lot is final. A partial or missing lot can be retried."""

    NONE = "none"  # it never began, and has no row
    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"  # it failed; the results of its other parts are kept for a retry
    MISSING = "missing"  # nothing of it exists: nothing was written, or it was cleaned up


class ArcEdge(StrEnum):
    """The transitions of an arc's lot."""

    BEGIN = "begin"
    TAKE_OVER = "take over"
    COMPLETE = "complete"
    FAIL = "fail"
    MISS = "miss"  # it failed before anything was written
    RETRY = "retry"
    CLEAN = "clean"


S, E = ArcState, ArcEdge

ARC: dict[ArcState, dict[ArcEdge, ArcState]] = {
    S.NONE: {E.BEGIN: S.RUNNING},
    S.RUNNING: {
        E.TAKE_OVER: S.RUNNING,
        E.COMPLETE: S.COMPLETE,
        E.FAIL: S.PARTIAL,
        E.MISS: S.MISSING,
    },
    S.COMPLETE: {},
    S.PARTIAL: {E.RETRY: S.RUNNING, E.CLEAN: S.MISSING},
    S.MISSING: {E.RETRY: S.RUNNING},
}


def step(state: ArcState, edge: ArcEdge) -> ArcState:
    """Return the next state; raise `IllegalTransition` if the table has no such transition."""
    try:
        return ARC[state][edge]
    except KeyError:
        raise IllegalTransition(
            f"an arc's lot in state {state.value} has no transition {edge.value!r}"
        ) from None


class PartState(StrEnum):
    """The state of a part for one sink: the state of its manifest, or absent."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    EMPTY = "empty"
    REMOVED = "removed"
    ABSENT = "absent"


P = PartState

ROLLUP: tuple[tuple[frozenset[PartState], ArcState], ...] = (
    (frozenset({P.COMPLETE, P.EMPTY}), S.COMPLETE),
    (frozenset({P.REMOVED, P.ABSENT}), S.MISSING),
    (frozenset(P), S.PARTIAL),
)
"""The first row whose set contains the states of all parts gives the state of the arc's lot (LOT-13)."""


def rollup(parts: Iterable[PartState]) -> ArcState:
    """Return the state of a lot with these parts. A lot without parts is complete, and empty."""
    part_states = frozenset(parts)
    return next(state for states, state in ROLLUP if part_states <= states)


def part_state(state: ManifestState | None) -> PartState:
    """Convert the state of a part's manifest; None means that there is no manifest."""
    return PartState.ABSENT if state is None else PartState(state.value)
