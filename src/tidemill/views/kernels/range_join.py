"""Inner joins by comparisons: `l.at BETWEEN r.first AND r.last`, `l.x < r.y` (DBSP-11).

Both sides are ordered traces without a key, in the order of one compared column. A changed row of one side is
joined with the rows of the other side that are in its range. These are neighbours, so only their blocks are
read. Further comparisons, which do not use the ordered column, are applied to these pairs.

A comparison with NULL is never true, so rows with a NULL in a compared column are not stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.kernels.ordered_trace import BLOCK, BLOCKS, ROWS, OrderedTrace
from tidemill.views.kernels.sort_codes import sort_codes
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.key_hash import GLOBAL_HASH
from tidemill.views.trace.layout import WEIGHT
from tidemill.views.trace.order import I64, distinct
from tidemill.views.trace.trace import Trace, expand

_PAIRS = 262_144  # pairs at once


class Comparison(NamedTuple):
    """`left sign right`: a column of the left side and a column of the right side, each by its place."""

    left: int
    sign: str
    right: int


@dataclass(frozen=True)
class RangeJoin:
    """A join by comparisons.

    Args:
        left, right: the ordered traces of both sides; each has one sort key.
        comparisons: all must be true; places count the columns of a row.
    """

    left: OrderedTrace
    right: OrderedTrace
    comparisons: tuple[Comparison, ...]

    def pairs(
        self, left: pa.Table, right: pa.Table, traces: Mapping[str, Mapping[str, Trace]]
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the pairs that a change adds or removes, as rows of both sides with their weights.

        Args:
            left: the consolidated change of the left side.
            right: the consolidated change of the right side.
            traces: the traces of each side, before the step.
        """
        if left.num_rows:
            stored = self._in_range(self.right, traces["right"], left, self._turned())
            both = pa.concat_tables([stored, right.select(stored.column_names)])
            for places, others in self._matches(left, both, self.right, self._turned()):
                yield left.take(places), both.take(others)
        if right.num_rows:
            stored = self._in_range(self.left, traces["left"], right, self.comparisons)
            for places, others in self._matches(right, stored, self.left, self.comparisons):
                yield stored.take(others), right.take(places)

    def _turned(self) -> tuple[Comparison, ...]:
        """Return the comparisons with the sides exchanged."""
        mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        return tuple(Comparison(each.right, mirrored[each.sign], each.left) for each in self.comparisons)

    def _in_range(
        self, side: OrderedTrace, traces: Mapping[str, Trace], change: pa.Table, by: Sequence[Comparison]
    ) -> pa.Table:
        """Return the stored rows of the blocks that are in the range of a changed row of the other side."""
        layout = side.layouts[ROWS]
        names = [*side.columns.names, WEIGHT]
        bounds = consolidate(traces[BLOCKS].lookup(np.array([GLOBAL_HASH])), side.layouts[BLOCKS])
        numbers = np.zeros(1, np.int64)
        if bounds.num_rows:
            codes, low, high = _ranges(chunk(bounds, "o0"), side, change, by)
            order = np.argsort(codes, kind="stable")
            first = np.maximum(np.searchsorted(codes[order], low) - 1, 0)
            last = np.maximum(np.searchsorted(codes[order], high, "right") - 1, 0)
            steps = np.zeros(len(codes) + 1, np.int64)
            some = low <= high
            np.add.at(steps, first[some], 1)
            np.add.at(steps, last[some] + 1, -1)
            numbers = column(bounds, BLOCK)[order[np.cumsum(steps[:-1]) > 0]]
        return consolidate(traces[ROWS].lookup(distinct(GLOBAL_HASH | numbers)), layout).select(names)

    def _matches(
        self, change: pa.Table, rows: pa.Table, side: OrderedTrace, by: Sequence[Comparison]
    ) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield the numbers of changed rows and of rows that match them.

        Args:
            change: the changed rows.
            rows: rows of the other side.
            side: the ordered trace of the other side.
            by: the comparisons, from the other side to the changed one.
        """
        rows = rows.combine_chunks()
        codes, low, high = _ranges(chunk(rows, side.columns.names[side.order[0].place]), side, change, by)
        order = np.argsort(codes, kind="stable")
        begin = np.searchsorted(codes[order], low)
        end = np.maximum(np.searchsorted(codes[order], high, "right"), begin)
        others = [each for each in by if each.left != side.order[0].place]
        for first, last in _portions(end - begin):
            places = np.repeat(np.arange(first, last), (end - begin)[first:last])
            matched = order[expand(begin[first:last], end[first:last])]
            kept = np.ones(len(places), bool)
            for each in others:
                values = chunk(rows, side.columns.names[each.left]).take(pa.array(matched))
                kept &= _holds(values, each.sign, _compared(change, each.right).take(pa.array(places)))
            if kept.any():
                yield pa.array(places[kept]), pa.array(matched[kept])


def _compared(change: pa.Table, place: int) -> pa.Array:
    """Return a column of a change; the hash comes first."""
    return chunk(change, change.column_names[1 + place])


def _ranges(
    ordered: pa.Array, side: OrderedTrace, change: pa.Table, by: Sequence[Comparison]
) -> tuple[I64, I64, I64]:
    """Return the codes of ordered values, and the lowest and highest code that each changed row matches."""
    limits = [each for each in by if each.left == side.order[0].place]
    arrays = [ordered, *(_compared(change, each.right) for each in limits)]
    (codes,) = sort_codes(pa.concat_arrays(arrays), nulls_first=True)
    numbers = np.unique(codes, return_inverse=True)[1]  # so that the code before one can be given
    low = np.zeros(change.num_rows, np.int64)
    high = np.full(change.num_rows, len(codes))
    for place, each in enumerate(limits):
        start = len(ordered) + place * change.num_rows
        limit = numbers[start : start + change.num_rows]
        if each.sign in {">", ">="}:
            low = np.maximum(low, limit + (each.sign == ">"))
        else:
            high = np.minimum(high, limit - (each.sign == "<"))
    return numbers[: len(ordered)], low, high


def _holds(left: pa.Array, sign: str, right: pa.Array) -> Any:
    (codes,) = sort_codes(pa.concat_arrays([left, right]))
    first, second = codes[: len(left)], codes[len(left) :]
    return {"<": first < second, "<=": first <= second, ">": first > second, ">=": first >= second}[sign]


def _portions(counts: I64) -> Iterator[tuple[int, int]]:
    """Divide rows so that each portion has a bounded number of pairs, but at least one row."""
    total, first = np.cumsum(counts), 0
    while first < len(counts):
        done = int(total[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(total, done + _PAIRS, "right")))
        yield first, last
        first = last


def present(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows without NULL in these columns."""
    for name in names:
        if rows[name].null_count:
            rows = rows.filter(pc.is_valid(rows[name]))
    return rows
