"""The merge policy: which runs to merge in a step, within the step's budget of rows.

The runs that cover a piece of hash space form a stack, sorted by density (rows per grain), lowest first. A
stack of fewer than `FAN` runs is not merged. In a higher stack, the policy merges from the least dense run up
to the last run whose density is at most the total of the runs before it. Once it has chosen `FAN` / 2 runs,
it stops at the first run that is denser than that total. So each time a row is rewritten, its run becomes at
least twice as dense. In a stack that is not merged, each run is denser than all runs before it together, so
the stack stays low.

If a merge exceeds the budget, only its first grains are merged now, and the others in later steps (DBSP-47).
Rows add up in any order, so the order of merges does not matter.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill.views.trace.run_table import RunEntry

FAN = 12
FLOOR_ROWS = 65_536
CEILING_ROWS = 1_048_576


class MergePiece(NamedTuple):
    """A merge to do: these entries, for the grains `low` to `high`."""

    low: int
    high: int
    entries: tuple[RunEntry, ...]


def merge_budget(delta_rows: int, state_rows: int) -> int:
    """Return how many rows merges may rewrite in a step.

    This is at least enough for merges to keep up with steps of this size. It is also at least 1/256 of the
    state, up to a limit that bounds the step, so that a large trace has few pieces.
    """
    return max(FLOOR_ROWS, 12 * delta_rows, min(CEILING_ROWS, state_rows // 256))


def plan_merges(entries: Sequence[RunEntry], budget_rows: int) -> list[MergePiece]:
    """Return the merges of a step, highest stacks first.

    They depend only on the entries and the budget, so a replay of the step plans the same merges.
    """
    if len(entries) < FAN:
        return []
    candidates: list[tuple[int, MergePiece]] = []
    for low, high, stack in _stacks(entries):
        chosen = _runs_to_merge(stack)
        if not chosen:
            continue
        last = candidates[-1] if candidates else None
        if last is not None and last[1].high == low - 1 and set(last[1].entries) == set(chosen):
            candidates[-1] = (max(last[0], len(stack)), MergePiece(last[1].low, high, last[1].entries))
        else:
            candidates.append((len(stack), MergePiece(low, high, chosen)))
    pieces: list[MergePiece] = []
    for _, piece in sorted(candidates, key=lambda each: (-each[0], each[1].low)):
        width = piece.high - piece.low + 1
        density = sum(_density(entry) for entry in piece.entries)
        affordable = int(budget_rows / density) if density else width
        if affordable < 1:
            continue
        fitting = piece._replace(high=min(piece.high, piece.low + affordable - 1))
        pieces.append(fitting)
        budget_rows -= int(density * (fitting.high - fitting.low + 1))
        if budget_rows <= 0 or fitting != piece:
            break
    return pieces


def narrow(piece: MergePiece, budget_rows: int, count: Callable[[RunEntry, int, int], int]) -> MergePiece:
    """Halve a piece until its rows are at most twice the budget, as hashes may be spread unevenly."""
    while piece.high > piece.low:
        rows = sum(count(entry, piece.low, piece.high) for entry in piece.entries)
        if rows <= 2 * budget_rows:
            break
        piece = piece._replace(high=piece.low + (piece.high - piece.low) // 2)
    return piece


def _density(entry: RunEntry) -> float:
    return entry.rows / (entry.high - entry.low + 1)


def _stacks(entries: Sequence[RunEntry]) -> list[tuple[int, int, list[RunEntry]]]:
    """Divide hash space into pieces, each with the entries that cover it; skip pieces without entries."""
    waiting = sorted(entries, key=lambda entry: (-entry.low, entry))  # the last one starts first
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


def _runs_to_merge(stack: list[RunEntry]) -> tuple[RunEntry, ...]:
    """Return the runs of a stack to merge now.

    There are none if the stack is low, or if each run is denser than all runs below it together. Otherwise,
    the last run to merge is the last one that is not denser than all runs below it together. So a few small
    runs at the bottom do not prevent the merge of many large runs above. The search ends early at a denser
    run if `FAN` / 2 runs are already chosen.
    """
    if len(stack) < FAN:
        return ()
    ordered = sorted(stack, key=lambda entry: (_density(entry), entry))
    below, count = _density(ordered[0]), 1
    for place, entry in enumerate(ordered[1:], start=1):
        if _density(entry) <= below:
            count = place + 1
        elif count >= FAN // 2:
            break  # merge these first: they are many, and small
        below += _density(entry)
    return tuple(ordered[:count]) if count > 1 else ()
