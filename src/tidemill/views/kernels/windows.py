"""Window functions of groups: a step reads and rewrites the rows whose results it changes (DBSP-14).

The rows are in an ordered trace (`kernels.ordered_trace`). A step finds the blocks of the changed rows, and
the blocks with rows that these changes can affect. It computes the results of these rows before and after the
step, and returns the rows whose results differ. Results before the step are computed and not stored. They are
always the same, because the order is complete and sums are exact.

If only the first ranks are needed (`RankLimit`), blocks of rows with higher ranks are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.views.kernels.ordered_trace import Bools, OrderedChange, OrderedRows, OrderedTrace
from tidemill.views.kernels.window_functions import (
    PEERS,
    RANKS,
    RUNS,
    SESSIONS,
    Reach,
    RowSequence,
    WindowFunction,
    reach_of,
)
from tidemill.views.trace.consolidation import chunk
from tidemill.views.trace.layout import WEIGHT
from tidemill.views.trace.order import I64
from tidemill.views.trace.row_equality import equal_rows
from tidemill.views.trace.trace import Trace


class RankLimit(NamedTuple):
    """Only rows for which this function is at most `most` are needed."""

    function: int
    most: int


class WindowChange(NamedTuple):
    """The result of a step.

    Args:
        out: the changes in the output, in pieces: columns of a row, a column for each function, the weight.
        traces: the changes of the traces by name.
        rewritten: how many rows did not change, but their results did.
    """

    out: list[pa.Table]
    traces: dict[str, pa.Table]
    rewritten: int


@dataclass(frozen=True)
class WindowKernel:
    """Window functions with the same groups and the same order.

    Args:
        ordered: the ordered trace, without the sums that the functions need.
        functions: the functions.
        limit: which rows are needed; None for all.
    """

    ordered: OrderedTrace
    functions: tuple[WindowFunction, ...]
    limit: RankLimit | None = None

    @cached_property
    def trace(self) -> OrderedTrace:
        """The ordered trace with the sums that the functions need."""
        names = dict.fromkeys(name for function in self.functions for name in function.summed)
        ordered = self.ordered
        return OrderedTrace(ordered.columns, ordered.key, ordered.order, ordered.hashed, tuple(names))

    @cached_property
    def _runs(self) -> dict[str, WindowFunction]:
        """The functions that count runs of rows, by the name of their sum."""
        return {name: function for function in self.functions for name in function.summed if name in RUNS}

    def step(self, change: pa.Table, traces: Mapping[str, Trace]) -> WindowChange:
        """Apply a consolidated change."""
        opened = self.trace.open(change, traces)
        rows = opened.read(self._needed(opened))
        before = {name: opened.sums(name) for name in self.trace.sums}
        old = RowSequence(opened, rows, rows.old, opened.old, before)
        added = self._added(rows)
        after = {name: before[name] + _by_block(opened, rows, *pair) for name, pair in added.items()}
        new = RowSequence(opened, rows, rows.new, opened.new, after)
        for run, function in self._runs.items():
            starts = [function.run_starts(sequence) for sequence in (old, new)]
            old.continued[run] = new.continued[run] = old.continuations(starts[0], before[run])
            added[run] = old.first_of_runs(run, starts[0]), new.first_of_runs(run, starts[1])
            after[run] = before[run] + _by_block(opened, rows, *added[run])
        out, rewritten = self._differences(rows, old, new)
        return WindowChange(out, opened.changes(rows, added), rewritten)

    # --- which blocks

    def _needed(self, opened: OrderedChange) -> Bools:
        """Return the blocks with rows whose results can change, and with rows that these depend on."""
        reach = reach_of(self.functions)
        touched = opened.peers if reach.peers else (opened.block, opened.block)
        changed = _marked(len(opened.group), *touched)
        needed = changed | _marked(len(opened.group), *_extended(opened, reach, *touched))
        if reach.shifted:
            needed |= opened.before(opened.old) != opened.before(opened.new)
        if self.limit is not None and all(function.name in RANKS for function in self.functions):
            beyond = self._is_beyond(opened, self.limit)
            needed &= (~beyond | changed) if self.trace.sums else ~beyond
        return needed

    def _is_beyond(self, opened: OrderedChange, limit: RankLimit) -> Bools:
        """Return the blocks that had and have no row with so low a rank."""
        beyond: Bools
        name = self.functions[limit.function].name
        if name == "dense_rank":
            gone = np.zeros(len(opened.first), np.int64)
            np.add.at(gone, opened.group, np.maximum(opened.old - opened.new, 0))
            beyond = opened.before(opened.sums(PEERS)) - gone[opened.group] > limit.most
            return beyond
        ranks = np.minimum(opened.before(opened.old), opened.before(opened.new))
        beyond = (ranks[opened.bound_peers] if name == "rank" else ranks) >= limit.most
        return beyond

    # --- sums and results

    def _added(self, rows: OrderedRows) -> dict[str, tuple[I64, I64]]:
        """Return what each row adds to the sums of its block, before and after the step."""
        added: dict[str, tuple[I64, I64]] = {}
        for function in self.functions:
            if function.summed and not RUNS & {*function.summed}:
                pairs = zip(
                    function.adds(rows.rows, rows.old), function.adds(rows.rows, rows.new), strict=True
                )
                added |= dict(zip(function.summed, pairs, strict=True))
        return added

    def _differences(
        self, rows: OrderedRows, old: RowSequence, new: RowSequence
    ) -> tuple[list[pa.Table], int]:
        """Return the results that are no longer right, and those that replace them."""
        same = (rows.old == rows.new) & (rows.old > 0)
        stays = [same[sequence.row] for sequence in (old, new)]
        results = [[function.values(sequence) for function in self.functions] for sequence in (old, new)]
        kept = [
            [values.filter(pa.array(stay)) for values in each]
            for each, stay in zip(results, stays, strict=True)
        ]
        differs = ~equal_rows(kept[0], kept[1], "differ")
        pieces = []
        for sequence, values, stay, weight in zip((old, new), results, stays, (-1, 1), strict=True):
            chosen = ~stay
            chosen[stay] = differs
            if self.limit is not None:
                chosen &= values[self.limit.function].to_numpy() <= self.limit.most
            places = pa.array(np.flatnonzero(chosen))
            columns = [chunk(sequence.table, name).take(places) for name in self.ordered.columns.names]
            columns += [array.take(places) for array in values]
            weights = pa.array(np.full(len(places), weight, np.int64))
            names = [*self.ordered.columns.names, *(f"r{n}" for n in range(len(values))), WEIGHT]
            pieces.append(pa.table([*columns, weights], names=names))
        return pieces, int(np.count_nonzero(differs))


def _marked(count: int, low: I64, high: I64) -> Bools:
    """Return which of so many blocks are in one of the ranges from `low` to `high`, both included."""
    steps = np.zeros(count + 1, np.int64)
    np.add.at(steps, low, 1)
    np.add.at(steps, high + 1, -1)
    marked: Bools = np.cumsum(steps[:-1]) > 0
    return marked


def _extended(opened: OrderedChange, reach: Reach, low: I64, high: I64) -> tuple[I64, I64]:
    """Extend ranges of blocks by the rows that a change can affect, and by those that they depend on."""
    group = opened.group[low]
    first, last = opened.first[group], opened.last[group]
    margin = reach.before + reach.after
    if margin:
        rows = np.minimum(opened.old, opened.new)
        total = np.append(0, np.cumsum(rows))
        low = np.maximum(np.searchsorted(total, total[low] - margin, "right") - 1, first)
        high = np.minimum(np.searchsorted(total, total[high + 1] + margin) - 1, last)
    if reach.sessions:
        # The first block before, and the first one after, in which a session begins that does not change.
        begins = np.flatnonzero(opened.sums(SESSIONS) > 0)
        before = np.append(-1, begins)[np.searchsorted(begins, low)]
        after = np.append(begins, len(opened.group))[np.searchsorted(begins, high, "right")]
        low, high = np.maximum(before, first), np.minimum(after, last)
    return first if reach.start else low, last if reach.end else high


def _by_block(opened: OrderedChange, rows: OrderedRows, old: I64, new: I64) -> I64:
    """Return by how much a sum of each block changes."""
    total = np.zeros(len(opened.group), np.int64)
    np.add.at(total, rows.block, new - old)
    return total
