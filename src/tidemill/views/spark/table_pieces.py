"""What a view's table consists of: runs of rows, of each of them those of some grains of hash space.

A step's changes are a run, and so is what a merge wrote. The rows of a table are the sum of its pieces: a
piece is a run, as far as it counts. A merge rewrites a *window* of hash space: it takes the rows of some runs
there, adds them up into one new run, and the others count outside of the window only. So each row of each run
is in exactly one place whatever was merged, in which order and how far (DBSP-47).

- The *tail* are runs over all of hash space: changes of steps. Those of like size are merged with each other.
- The *base* are runs that lie behind each other in hash space, or one run. When the tail has grown to a part
  of it, base and tail are rewritten together, window by window from the lower end up, each step as far as its
  budget goes. What arrives meanwhile is a new tail, for the next time. Where this has come to is seen by the
  runs of the old tail: they count above that place.

So a row is rewritten a few times while a table doubles, no step rewrites more than its budget, and a table is
some windows and a tail that is short.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill.lots.manifest import Manifest
from tidemill.views.trace.hash_space import GRAINS

FAN = 8
"""Fewer runs than these are left alone."""

RATIO = 4
"""A run is merged with smaller ones that have a fourth of its rows together."""

MOST_TAIL = 40
"""A tail of so many runs is merged into the base however small it is."""

FLOOR_ROWS = 65_536
SLICE_ROWS = 200_000
"""Of what a merge of a large table rewrites, however small the change was."""

SHARE = 64
"""A large table is merged in about so many windows."""

EVERY = (0, GRAINS - 1)
"""All of hash space."""


class TablePiece(NamedTuple):
    """The rows of a run whose hash is in the grains `low` to `high`; how many is an estimate after a cut."""

    part: str  # the key of the run's manifest
    low: int
    high: int
    rows: float
    whole: bool = True  # all rows of the run: nothing was cut from it
    sliced: bool = False  # the run lies in a part of hash space

    @property
    def thickness(self) -> float:
        """Rows of a grain."""
        return self.rows / (self.high - self.low + 1)

    def within(self, low: int, high: int) -> "TablePiece | None":
        """What of it lies in these grains."""
        first, last = max(self.low, low), min(self.high, high)
        if first > last:
            return None
        rows = self.thickness * (last - first + 1)
        whole = self.whole and (first, last) == (self.low, self.high)
        return TablePiece(self.part, first, last, rows, whole, self.sliced)


class MergeWindow(NamedTuple):
    """Grains to be rewritten, and of which pieces; these are cut to the window."""

    low: int
    high: int
    pieces: tuple[TablePiece, ...]

    @property
    def rows(self) -> float:
        """How many rows are read and, if none cancel out, written."""
        return sum(piece.rows for piece in self.pieces)


def run_of(part: str, grains: tuple[int, int], rows: int) -> TablePiece:
    """All of a run that lies in these grains."""
    return TablePiece(part, *grains, float(rows), sliced=grains != EVERY)


def span(leaf: Manifest) -> tuple[int, int]:
    """The grains that a run's rows lie in."""
    return leaf.within[0][0] if leaf.within and leaf.within[0] else EVERY


def pieces_of(root: Manifest, leaves: Sequence[Manifest]) -> list[TablePiece]:
    """The pieces that a table's manifest lists, whose parts these are."""
    found = []
    for number, (part, leaf) in enumerate(zip(root.parts, leaves, strict=True)):
        run = run_of(part, span(leaf), leaf.rows)
        kept = root.within[number] if root.within else []
        found += [piece for cut in kept or [span(leaf)] if (piece := run.within(*cut)) is not None]
    return found


def listing(pieces: Iterable[TablePiece]) -> tuple[list[str], list[list[tuple[int, int]]]]:
    """Pieces as a table's manifest has them: its parts, and what counts of each; nothing where all does."""
    cuts: dict[str, list[tuple[int, int]]] = {}
    for piece in pieces:
        kept = cuts.setdefault(piece.part, [])
        if not piece.whole:
            kept.append((piece.low, piece.high))
    within = [sorted(kept) for kept in cuts.values()]
    return list(cuts), within if any(within) else []


def overlap(pieces: Iterable[TablePiece]) -> bool:
    """May a row be in two of these?"""
    ordered = sorted(pieces, key=lambda piece: piece.low)
    return any(one.high >= other.low for one, other in pairwise(ordered))


def window_budget(changed_rows: int, pieces: Sequence[TablePiece]) -> int:
    """The rows that a step may rewrite.

    Enough that merges keep up with steps of this size; of a large table a share, so that its windows stay
    few, up to what is rewritten without Spark.
    """
    total = sum(piece.rows for piece in pieces)
    return max(FLOOR_ROWS, 6 * changed_rows, min(SLICE_ROWS, int(total / SHARE)))


def pieces_after_merge(
    pieces: Iterable[TablePiece], window: MergeWindow, made: Iterable[TablePiece]
) -> list[TablePiece]:
    """The pieces after a merge: what was taken counts outside of the window only."""
    taken = frozenset(window.pieces)
    left = []
    for piece in pieces:
        inside = piece.within(window.low, window.high)
        if inside is None or inside not in taken:
            left.append(piece)
            continue
        below = piece.within(piece.low, window.low - 1) if piece.low < window.low else None
        above = piece.within(window.high + 1, piece.high) if piece.high > window.high else None
        left += [rest for rest in (below, above) if rest is not None]
    return [*left, *made]


def plan_windows(pieces: Sequence[TablePiece], budget_rows: int) -> list[MergeWindow]:
    """The windows to rewrite in a step; decided by the pieces alone."""
    base = [piece for piece in pieces if piece.sliced]
    going = [piece for piece in pieces if not piece.sliced and not piece.whole]
    tail = [piece for piece in pieces if not piece.sliced and piece.whole]
    if going:  # a merge of the base is under way: it goes on where it was
        alike = _alike(tail, budget_rows / 2)
        start = min(piece.low for piece in going)
        left = budget_rows - sum(piece.rows for piece in alike)
        return [*_window(alike), _slice([*going, *base], start, left)]
    if not base and tail:
        base = [max(tail, key=lambda piece: (piece.rows, piece.part))]
        tail = [piece for piece in tail if piece is not base[0]]
    grown = RATIO * sum(piece.rows for piece in tail) >= sum(piece.rows for piece in base)
    if (len(tail) + 1 >= FAN and grown) or len(tail) >= MOST_TAIL:
        return [_slice([*base, *tail], 0, budget_rows)]
    return _window(_alike(tail, budget_rows))


def _alike(tail: Sequence[TablePiece], budget_rows: float) -> list[TablePiece]:
    """The small runs of a tail that are worth merging with each other; none if they are few, or far apart."""
    if len(tail) + 1 < FAN:
        return []
    ordered = sorted(tail, key=lambda piece: (piece.rows, piece.part))
    below, worth = 0.0, 0
    for number, piece in enumerate(ordered):
        if below + piece.rows > budget_rows:
            break
        if piece.rows <= RATIO * below:
            worth = number + 1  # what is smaller goes along
        below += piece.rows
    return ordered[:worth]


def _window(runs: Sequence[TablePiece]) -> list[MergeWindow]:
    return [MergeWindow(*EVERY, tuple(sorted(runs)))] if runs else []


def _slice(pieces: Sequence[TablePiece], start: int, budget_rows: float) -> MergeWindow:
    """All of these pieces from a grain on, as far up as the budget goes, and by one grain at least."""
    above = [piece for piece in pieces if piece.high >= start]
    cuts = sorted({start, *(max(start, piece.low) for piece in above), *(piece.high + 1 for piece in above)})
    high, left = start - 1, budget_rows
    for low, after in pairwise(cuts):
        thickness = sum(piece.thickness for piece in above if piece.low <= low and piece.high >= after - 1)
        if thickness * (after - low) > left:
            high = max(start, low - 1 + int(left / thickness))
            break
        high, left = after - 1, left - thickness * (after - low)
    cut = (piece.within(start, high) for piece in above)
    return MergeWindow(start, high, tuple(sorted(piece for piece in cut if piece is not None)))
