"""The pieces of a view's table, and the plan of their merges.

The changes of a step are a run, and so is the result of a merge. A piece is the part of a run in some grains
of hash space. The rows of a table are the sum of its pieces. A merge rewrites a *window* of hash space: it
takes the rows that some runs have in this window and adds them up into one new run. After that, the old runs
count only outside the window. So each row of each run counts exactly once, regardless of the order and size
of merges (DBSP-47).

- The *tail* consists of the changes of steps: runs over all of hash space. Runs of similar size are merged.
- The *base* is one run, or several runs that follow each other in hash space. Once the tail reaches a certain
  fraction of the size of the base, both are rewritten together, window by window, from the lower end. Each
  step continues as far as its budget allows. Changes that arrive during the rewrite form a new tail for the
  next rewrite. The runs of the old tail show how far the rewrite has come: only their rows above the last
  rewritten grain still count.

So a row is rewritten only a few times while the table doubles in size, no step rewrites more rows than its
budget, and a table consists of some windows and a short tail.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill.lots.manifest import Manifest
from tidemill.views.trace.hash_space import GRAINS

FAN = 8
"""Runs are not merged if there are fewer than this."""

RATIO = 4
"""A run is merged with smaller runs if those together have at least a fourth of its rows."""

MOST_TAIL = 40
"""A tail with this many runs is merged into the base, even if it is small."""

FLOOR_ROWS = 65_536
SLICE_ROWS = 200_000
"""The budget of a step with a small change: at least `FLOOR_ROWS`, up to `SLICE_ROWS` for a large table."""

SHARE = 64
"""A large table is rewritten in about this many windows."""

EVERY = (0, GRAINS - 1)
"""All of hash space."""


class TablePiece(NamedTuple):
    """The rows of a run in the grains `low` to `high`. After a cut, the number of rows is an estimate."""

    part: str  # the key of the run's manifest
    low: int
    high: int
    rows: float
    complete: bool = True  # the complete run: nothing was cut off
    sliced: bool = False  # the run covers only a part of hash space

    @property
    def density(self) -> float:
        """Return the average number of rows per grain."""
        return self.rows / (self.high - self.low + 1)

    def within(self, low: int, high: int) -> "TablePiece | None":
        """Return the part of the piece within these grains; None if there is none."""
        first, last = max(self.low, low), min(self.high, high)
        if first > last:
            return None
        rows = self.density * (last - first + 1)
        complete = self.complete and (first, last) == (self.low, self.high)
        return TablePiece(self.part, first, last, rows, complete, self.sliced)


class MergeWindow(NamedTuple):
    """The grains to rewrite, and the pieces to read, cut to the window."""

    low: int
    high: int
    pieces: tuple[TablePiece, ...]

    @property
    def rows(self) -> float:
        """Return how many rows are read and, if none cancel out, written."""
        return sum(piece.rows for piece in self.pieces)


def run_of(part: str, grains: tuple[int, int], rows: int) -> TablePiece:
    """Return the piece for a complete run with these grains."""
    return TablePiece(part, *grains, float(rows), sliced=grains != EVERY)


def span(leaf: Manifest) -> tuple[int, int]:
    """Return the grains of a run's rows."""
    return leaf.within[0][0] if leaf.within and leaf.within[0] else EVERY


def pieces_of(root: Manifest, leaves: Sequence[Manifest]) -> list[TablePiece]:
    """Return the pieces in a table's manifest.

    Args:
        root: the manifest of the table.
        leaves: the manifests of its parts.
    """
    pieces = []
    for number, (part, leaf) in enumerate(zip(root.parts, leaves, strict=True)):
        run = run_of(part, span(leaf), leaf.rows)
        cuts = root.within[number] if root.within else []
        pieces += [piece for cut in cuts or [span(leaf)] if (piece := run.within(*cut)) is not None]
    return pieces


def listing(pieces: Iterable[TablePiece]) -> tuple[list[str], list[list[tuple[int, int]]]]:
    """Return the parts and the cuts for a table's manifest; a part has no cuts if all of its rows count."""
    cuts: dict[str, list[tuple[int, int]]] = {}
    for piece in pieces:
        part_cuts = cuts.setdefault(piece.part, [])
        if not piece.complete:
            part_cuts.append((piece.low, piece.high))
    within = [sorted(part_cuts) for part_cuts in cuts.values()]
    return list(cuts), within if any(within) else []


def overlap(pieces: Iterable[TablePiece]) -> bool:
    """Return whether a row may be in two of these pieces."""
    ordered = sorted(pieces, key=lambda piece: piece.low)
    return any(piece.high >= following.low for piece, following in pairwise(ordered))


def window_budget(changed_rows: int, pieces: Sequence[TablePiece]) -> int:
    """Return how many rows a step may rewrite.

    The budget is large enough for merges to keep up with steps of this size. It is also at least a fixed
    share of the table, so that there are few windows. That share is limited to `SLICE_ROWS` rows, which can
    be merged without Spark.
    """
    total = sum(piece.rows for piece in pieces)
    return max(FLOOR_ROWS, 6 * changed_rows, min(SLICE_ROWS, int(total / SHARE)))


def pieces_after_merge(
    pieces: Iterable[TablePiece], window: MergeWindow, written: Iterable[TablePiece]
) -> list[TablePiece]:
    """Return the pieces after a merge: merged pieces count only outside the window."""
    merged = frozenset(window.pieces)
    left = []
    for piece in pieces:
        inside = piece.within(window.low, window.high)
        if inside is None or inside not in merged:
            left.append(piece)
            continue
        below = piece.within(piece.low, window.low - 1) if piece.low < window.low else None
        above = piece.within(window.high + 1, piece.high) if piece.high > window.high else None
        left += [rest for rest in (below, above) if rest is not None]
    return [*left, *written]


def plan_windows(pieces: Sequence[TablePiece], budget_rows: int) -> list[MergeWindow]:
    """Return the windows to rewrite in a step. They depend only on the pieces and the budget."""
    base = [piece for piece in pieces if piece.sliced]
    unfinished = [piece for piece in pieces if not piece.sliced and not piece.complete]
    tail = [piece for piece in pieces if not piece.sliced and piece.complete]
    if unfinished:  # a rewrite of the base has begun: continue it
        similar = _similar_runs(tail, budget_rows / 2)
        start = min(piece.low for piece in unfinished)
        left = budget_rows - sum(piece.rows for piece in similar)
        return [*_window(similar), _slice([*unfinished, *base], start, left)]
    if not base and tail:
        base = [max(tail, key=lambda piece: (piece.rows, piece.part))]
        tail = [piece for piece in tail if piece is not base[0]]
    grown = RATIO * sum(piece.rows for piece in tail) >= sum(piece.rows for piece in base)
    if (len(tail) + 1 >= FAN and grown) or len(tail) >= MOST_TAIL:
        return [_slice([*base, *tail], 0, budget_rows)]
    return _window(_similar_runs(tail, budget_rows))


def _similar_runs(tail: Sequence[TablePiece], budget_rows: float) -> list[TablePiece]:
    """Return the small runs of a tail to merge; none if they are few or differ much in size."""
    if len(tail) + 1 < FAN:
        return []
    ordered = sorted(tail, key=lambda piece: (piece.rows, piece.part))
    smaller_rows, count = 0.0, 0
    for number, piece in enumerate(ordered):
        if smaller_rows + piece.rows > budget_rows:
            break
        if piece.rows <= RATIO * smaller_rows:
            count = number + 1  # with all smaller runs
        smaller_rows += piece.rows
    return ordered[:count]


def _window(runs: Sequence[TablePiece]) -> list[MergeWindow]:
    return [MergeWindow(*EVERY, tuple(sorted(runs)))] if runs else []


def _slice(pieces: Sequence[TablePiece], start: int, budget_rows: float) -> MergeWindow:
    """Return a window from a grain upwards, as far as the budget allows, with at least one grain."""
    above = [piece for piece in pieces if piece.high >= start]
    cuts = sorted({start, *(max(start, piece.low) for piece in above), *(piece.high + 1 for piece in above)})
    high, left = start - 1, budget_rows
    for low, after in pairwise(cuts):
        density = sum(piece.density for piece in above if piece.low <= low and piece.high >= after - 1)
        if density * (after - low) > left:
            high = max(start, low - 1 + int(left / density))
            break
        high, left = after - 1, left - density * (after - low)
    cut = (piece.within(start, high) for piece in above)
    return MergeWindow(start, high, tuple(sorted(piece for piece in cut if piece is not None)))
