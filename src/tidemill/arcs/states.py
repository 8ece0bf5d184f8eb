"""How an arc stands with a lot, as a table, and how that follows from the manifests of its parts.

There is one such machine for each (arc, lot, generation). That it runs is held by a lease: `take over` is the
edge of a node that goes on where another one, which is gone, has left it (LOT-9, LOT-12).
"""

from collections.abc import Iterable
from enum import StrEnum

from tidemill.errors import IllegalTransition
from tidemill.lots.manifest import ManifestState


class ArcState(StrEnum):
    """One that never began has no row. Complete blocks duplicates; partial and missing allow a retry."""

    NONE = "none"
    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"  # it failed; what its other parts made is kept for a retry
    MISSING = "missing"  # there is nothing of it: it was cleaned up, or nothing was written


class ArcEdge(StrEnum):
    """What may happen to an arc's lot."""

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
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return ARC[state][edge]
    except KeyError:
        raise IllegalTransition(f"an arc's lot that is {state.value} has no edge {edge.value!r}") from None


class PartState(StrEnum):
    """What there is of one part for one sink: the state of its manifest, or none."""

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
"""An arc's lot is what the first row says that has all the states of its parts' manifests (LOT-13)."""


def rollup(parts: Iterable[PartState]) -> ArcState:
    """What the manifests of all listed parts make of the lot; without any part it is complete, and empty."""
    found = frozenset(parts)
    return next(state for states, state in ROLLUP if found <= states)


def part_state(state: ManifestState | None) -> PartState:
    """A manifest's state as a part's; None when there is no manifest."""
    return PartState.ABSENT if state is None else PartState(state.value)
