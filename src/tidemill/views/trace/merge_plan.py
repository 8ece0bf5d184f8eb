"""Which runs to merge in a step, and how much of them: never more rows than the step's budget.

For a piece of hash space, the runs that cover it are a stack. A stack of fewer than `FAN` runs is left alone.
Of a higher one, runs are taken from the thinnest on, up to the thickest that is no thicker than all those
below it together. So whenever a row is rewritten, the run it lies in at least doubles; and a stack of which
nothing is taken has runs that double from one to the next, so it is no higher than their number allows. What
does not fit the budget is merged in part: the first grains only, and the rest in later steps (DBSP-47). Since
rows add up in any order, it does not matter which pieces are merged when.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill.views.trace.version import RunEntry

FAN = 12
FLOOR_ROWS = 65_536
CEILING_ROWS = 1_048_576


class MergePiece(NamedTuple):
    """Merge these entries for the grains `low` to `high`."""

    low: int
    high: int
    entries: tuple[RunEntry, ...]


def merge_budget(delta_rows: int, state_rows: int) -> int:
    """The rows that merges may rewrite in a step.

    At least so many that merges keep up with steps of this size; beyond that a 256th of the state, so that
    the pieces of a large trace stay few, up to a limit that bounds the step.
    """
    return max(FLOOR_ROWS, 12 * delta_rows, min(CEILING_ROWS, state_rows // 256))


def plan_merges(entries: Sequence[RunEntry], budget_rows: int) -> list[MergePiece]:
    """The pieces to merge, the highest stacks first; by the entries alone, as every replay does."""
    if len(entries) < FAN:
        return []
    found: list[tuple[int, MergePiece]] = []
    for low, high, stack in _stacks(entries):
        chosen = _thin(stack)
        if not chosen:
            continue
        last = found[-1] if found else None
        if last is not None and last[1].high == low - 1 and set(last[1].entries) == set(chosen):
            found[-1] = (max(last[0], len(stack)), MergePiece(last[1].low, high, last[1].entries))
        else:
            found.append((len(stack), MergePiece(low, high, chosen)))
    pieces: list[MergePiece] = []
    for _, piece in sorted(found, key=lambda each: (-each[0], each[1].low)):
        width = piece.high - piece.low + 1
        thickness = sum(_thickness(entry) for entry in piece.entries)
        affordable = int(budget_rows / thickness) if thickness else width
        if affordable < 1:
            continue
        fitting = piece._replace(high=min(piece.high, piece.low + affordable - 1))
        pieces.append(fitting)
        budget_rows -= int(thickness * (fitting.high - fitting.low + 1))
        if budget_rows <= 0 or fitting != piece:
            break
    return pieces


def fitted(piece: MergePiece, budget_rows: int, count: Callable[[RunEntry, int, int], int]) -> MergePiece:
    """The piece, made narrower while a count of its rows says that hashes are not spread evenly."""
    while piece.high > piece.low:
        rows = sum(count(entry, piece.low, piece.high) for entry in piece.entries)
        if rows <= 2 * budget_rows:
            break
        piece = piece._replace(high=piece.low + (piece.high - piece.low) // 2)
    return piece


def _thickness(entry: RunEntry) -> float:
    return entry.rows / (entry.high - entry.low + 1)


def _stacks(entries: Sequence[RunEntry]) -> list[tuple[int, int, list[RunEntry]]]:
    """Hash space in pieces, with the entries that cover each; pieces that nothing covers are left out."""
    waiting = sorted(entries, key=lambda entry: (-entry.low, entry))  # the last one begins first
    cuts = sorted({entry.low for entry in entries} | {entry.high + 1 for entry in entries})
    covering: list[RunEntry] = []
    stacks: list[tuple[int, int, list[RunEntry]]] = []
    for low, after in pairwise(cuts):
        covering = [entry for entry in covering if entry.high >= low]
        while waiting and waiting[-1].low == low:
            covering.append(waiting.pop())
        if covering:
            stacks.append((low, after - 1, list(covering)))
    return stacks


def _thin(stack: list[RunEntry]) -> tuple[RunEntry, ...]:
    """The runs of a stack that are worth merging now; none if it is low, or each is thicker than those below.

    A few thin runs below many thick ones do not keep these apart: it is the last run that counts of which
    there is as much below it.
    """
    if len(stack) < FAN:
        return ()
    ordered = sorted(stack, key=lambda entry: (_thickness(entry), entry))
    below, worth = _thickness(ordered[0]), 1
    for place, entry in enumerate(ordered[1:], start=1):
        if _thickness(entry) <= below:
            worth = place + 1
        elif worth >= FAN // 2:
            break  # these first: they are many, and quickly merged
        below += _thickness(entry)
    return tuple(ordered[:worth]) if worth > 1 else ()
