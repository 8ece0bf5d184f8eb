"""The twelve states of a subscription, its item and its template, and the 144 moves between them (HEAP-3 to
6).

A state is (template or none) x (row absent, scheduled or waiting) x (on the heap or not). One operation
changes the rows or the heap, never both, so a move goes along one axis. `FIRST` is the design's table, cell
by cell. It has contradictions: `AMENDED` lists the cells that differ, what holds instead, and why. `check`
checks every move that a test sees.

**Which items count.** An id is a name with the epoch in which it was created, so a name that is used again is
a new id (INV1). An id is on the heap while any of its items is there. For a scheduled row, the item of its
own epoch is the signal, and it never leaves the heap (INV4). The pruner removes older items.
"""

from enum import StrEnum
from typing import NamedTuple

from tidemill.errors import IllegalTransition
from tidemill.triggers.states import SubscriptionState


class HeapState(StrEnum):
    """A to C without a template, D to F with one; absent, scheduled, waiting; 1 on the heap, 2 not."""

    A_1 = "A_1"
    A_2 = "A_2"
    B_1 = "B_1"
    B_2 = "B_2"
    C_1 = "C_1"
    C_2 = "C_2"
    D_1 = "D_1"
    D_2 = "D_2"
    E_1 = "E_1"
    E_2 = "E_2"
    F_1 = "F_1"
    F_2 = "F_2"


class CellCode(StrEnum):
    """The code of a cell: a move that is allowed, or the invariant that forbids it."""

    SAME = "="  # no change
    X = "X"  # a change of more than one of the three, or one that no operation makes
    STOP = "STOP"  # a dead item is removed
    TT1 = "TT1"  # a template is added
    TT2 = "TT2"  # a template is deleted
    TT3 = "TT3"  # a template is instantiated
    ADD1 = "ADD1"  # a subscription is attached
    DEL1 = "DEL1"  # a subscription is deleted
    DO1 = "DO1"  # it ran, has processed everything, and waits
    DO2 = "DO2"  # the same without an item on the heap
    WT1 = "WT1"  # a write makes a waiting row scheduled
    GC = "GC"  # a row that never became ready is deleted
    R1 = "R1"  # a pending item is pushed
    PRUNE = "PRUNE"  # a stale item is removed
    LATE = "LATE"  # a push arrives after its row has changed
    INV1 = "INV1"
    INV2 = "INV2"
    INV3 = "INV3"
    INV4 = "INV4"
    INV5 = "INV5"
    INV6 = "INV6"
    HOLE2 = "HOLE2"  # the design did not say what instantiates a template here
    T2 = "T2"  # not explained by the design


FORBIDDING = frozenset(
    {
        CellCode.X,
        CellCode.INV1,
        CellCode.INV2,
        CellCode.INV3,
        CellCode.INV4,
        CellCode.INV5,
        CellCode.INV6,
        CellCode.HOLE2,
        CellCode.T2,
    }
)

INVARIANTS = {
    CellCode.INV1: "An id is used once: it is unused, then used, then gone.",
    CellCode.INV2: "An item is pushed only after its row or its template was read.",
    CellCode.INV3: "A subscription begins as scheduled, never as waiting.",
    CellCode.INV4: "The item of a scheduled row stays on the heap.",
    CellCode.INV5: "An item without a row under a template is dead: it can only be removed.",
    CellCode.INV6: "A subscription that a template created cannot be deleted while the template exists.",
}

_ROWS = {
    "A_1": "=    STOP INV1 X    INV1 X    TT1  X    X    X    X    X",
    "A_2": "INV2 =    X    ADD1 X    INV3 X    TT1  X    X    X    X",
    "B_1": "DEL1 X    =    INV4 DO1  X    X    X    TT1  X    X    X",
    "B_2": "X    GC   R1   =    X    DO2  X    X    X    TT1  X    X",
    "C_1": "DEL1 X    R1   X    =    INV4 X    X    X    X    TT1  X",
    "C_2": "X    DEL1 X    WT1  INV4 =    X    X    X    X    X    TT1",
    "D_1": "TT2  X    X    X    X    X    =    INV5 X    X    TT3  X",
    "D_2": "X    TT2  X    X    X    X    INV2 =    X    TT3  X    HOLE2",
    "E_1": "X    X    T2   X    X    X    INV6 X    =    INV4 DO1  X",
    "E_2": "X    X    X    T2   X    X    X    INV6 R1   =    X    DO2",
    "F_1": "X    X    X    X    T2   X    INV6 X    WT1  X    =    INV4",
    "F_2": "X    X    X    X    X    T2   X    INV6 X    WT1  X    =",
}
"""From the state on the left to A_1, A_2, … F_2."""

Move = tuple[HeapState, HeapState]

FIRST: dict[Move, CellCode] = {
    (HeapState(before), after): CellCode(code)
    for before, cells in _ROWS.items()
    for after, code in zip(HeapState, cells.split(), strict=True)
}


class Amendment(NamedTuple):
    """What holds in a cell instead: the codes it is allowed as, or the one that forbids it, and why."""

    codes: tuple[CellCode, ...]
    reason: str


S = HeapState
_TWO_SCHEDULERS = (
    "a scheduler read the row as scheduled and paused; then another one pushed the item, the run ended "
    "and the item was pruned. The late item has an old epoch: it starts nothing, and PRUNE follows"
)
_STALE = (
    "only for an item of an older epoch: a pruner read the row while it waited, and deletes the item "
    "after a write has scheduled the row again. INV4 holds for the item of the row's own epoch, which is "
    "pending until it is pushed"
)

AMENDED: dict[Move, Amendment] = {
    (S.E_1, S.B_1): Amendment((CellCode.TT2,), "T2 is TT2: the template is deleted, its children stay"),
    (S.E_2, S.B_2): Amendment((CellCode.TT2,), "T2 is TT2"),
    (S.F_1, S.C_1): Amendment((CellCode.TT2,), "T2 is TT2"),
    (S.F_2, S.C_2): Amendment((CellCode.TT2,), "T2 is TT2"),
    (S.C_1, S.B_1): Amendment(
        (CellCode.WT1,), "a write, like F_1 to E_1; R1 pushes an item and changes no row"
    ),
    (S.C_1, S.C_2): Amendment(
        (CellCode.PRUNE,), "INV4 protects only scheduled rows; otherwise C_2 could not be reached"
    ),
    (S.F_1, S.F_2): Amendment((CellCode.PRUNE,), "like C_1 to C_2; otherwise F_2 could not be reached"),
    (S.B_1, S.B_2): Amendment((CellCode.PRUNE,), _STALE),
    (S.E_1, S.E_2): Amendment((CellCode.PRUNE,), _STALE),
    (S.B_2, S.C_2): Amendment(
        (CellCode.X,), "DO2 cannot happen, because a run is found on the heap; asserted"
    ),
    (S.E_2, S.F_2): Amendment((CellCode.X,), "DO2 cannot happen; asserted"),
    (S.A_2, S.A_1): Amendment(
        (CellCode.LATE,), "a push that was prepared before a delete may arrive after it; STOP follows"
    ),
    (S.D_2, S.D_1): Amendment((CellCode.LATE,), "like A_2 to A_1"),
    (S.C_2, S.C_1): Amendment((CellCode.LATE,), _TWO_SCHEDULERS),
    (S.F_2, S.F_1): Amendment((CellCode.LATE,), _TWO_SCHEDULERS),
    (S.D_1, S.D_2): Amendment(
        (CellCode.STOP,), "it must be possible to prune a dead item under a template too"
    ),
    (S.D_1, S.E_1): Amendment((CellCode.INV1,), "an instantiation creates a new id"),
    (S.D_1, S.F_1): Amendment(
        (CellCode.INV1,), "an instantiation creates a new id, which by INV3 is scheduled"
    ),
    (S.B_2, S.A_2): Amendment(
        (CellCode.GC, CellCode.DEL1), "GC for a row that never became ready; DEL1 when the user deletes it"
    ),
    (S.B_1, S.A_1): Amendment(
        (CellCode.DEL1, CellCode.GC), "also GC, when the attaching process died between push and ready"
    ),
    (S.D_2, S.F_2): Amendment(
        (CellCode.INV3,),
        "HOLE2 is closed: the wake row of a publication makes the scheduler instantiate it as scheduled",
    ),
}


def codes(before: HeapState, after: HeapState) -> tuple[CellCode, ...]:
    """Return the codes of a cell, after amendments."""
    amended = AMENDED.get((before, after))
    return (FIRST[before, after],) if amended is None else amended.codes


def allowed(before: HeapState, after: HeapState) -> bool:
    """Return whether one operation may lead from one state to the other."""
    return not FORBIDDING & set(codes(before, after))


def check(before: HeapState, after: HeapState, detail: str = "") -> None:
    """Raise `IllegalTransition` for a move that the table does not allow."""
    if not allowed(before, after):
        cell = ", ".join(codes(before, after))
        raise IllegalTransition(f"{before} to {after} is forbidden ({cell}){': ' + detail if detail else ''}")


def state_of(row: SubscriptionState, *, template: bool, on_heap: bool) -> HeapState:
    """Return the state, one of twelve."""
    letter = "ABCDEF"[list(SubscriptionState).index(row) + 3 * template]
    return HeapState(f"{letter}_{1 if on_heap else 2}")
