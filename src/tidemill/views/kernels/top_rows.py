"""The first rows of each group in an order: ORDER BY with LIMIT and OFFSET (DBSP-13, DBSP-14).

Three traces have the group as their key. `best` has the first rows of each group, and some more than are
needed. `all` has all rows, and `count` their number. A group *has more* rows if it has more than `best`
contains. Then the last of the best rows is the *bound*: `best` contains all rows up to it. A change beyond
the bound only changes `all` and `count`. If deletions leave too few rows, the rows of the group are read from
`all` again. That needs as many deletions as there are spare rows, so it is rare.

The order must be complete: only rows that are equal in Spark may tie. The last key of every order is a hash
of the row (`tidemill.views.circuit.ties`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import WeightNegative
from tidemill.views.kernels.row_identity import row_identity
from tidemill.views.kernels.sort_codes import SortColumn, sort_codes
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import I64, distinct
from tidemill.views.trace.row_equality import code_rows
from tidemill.views.trace.trace import Trace

BEST, ALL, COUNT = "best", "all", "count"
SPARE = 64
"""How many rows more than needed `best` has at least after rows were read from `all`."""

_OLD, _NEW = "_o", "_d"

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class TopChange(NamedTuple):
    """The result of a step: the change in the output, and the changes in the traces by name."""

    out: pa.Table
    traces: dict[str, pa.Table]


@dataclass(frozen=True)
class TopKernel:
    """The first rows of each group.

    Args:
        columns: the columns of a row; the first one is the group.
        order: the sort keys; places count the columns after the group.
        hashed: how many of the columns after the group the row's hash covers, which is the last sort key; 0
            if the sort keys include it.
        limit: how many rows each group returns.
        offset: how many rows each group skips first.
    """

    columns: pa.Schema
    order: tuple[SortColumn, ...]
    hashed: int
    limit: int
    offset: int = 0

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.columns, 1)

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The layouts of the traces by name."""
        group = pa.schema([self.columns.field(0)])
        return {BEST: self.layout, ALL: self.layout, COUNT: Layout(group, 1)}

    @property
    def needed(self) -> int:
        """How many of the first rows decide the output."""
        return self.offset + self.limit

    @property
    def kept(self) -> int:
        """How many rows `best` has at least, if there are so many, after it was read from `all`."""
        return self.needed + max(self.needed, SPARE)

    def step(self, change: pa.Table, traces: Mapping[str, Trace]) -> TopChange:
        """Apply a change.

        Args:
            change: the consolidated change, with `_h`, the columns and `_w`.
            traces: the traces before the step.
        """
        if change.num_rows == 0:
            nothing = {name: layout.empty() for name, layout in self.layouts.items()}
            return TopChange(self.layout.empty(), nothing)
        group = self.columns.names[0]
        hashes = distinct(column(change, HASH))
        counted = consolidate(change.select([HASH, group, WEIGHT]), self.layouts[COUNT])
        old = consolidate(traces[BEST].lookup(hashes), self.layout)
        before = consolidate(traces[COUNT].lookup(hashes), self.layouts[COUNT])
        sorted_rows = self._sorted(old, change)
        total = _of_groups(before, sorted_rows.groups, group)
        has_more = total > sorted_rows.sums(sorted_rows.old)
        known = sorted_rows.until(has_more)
        new = np.where(known, sorted_rows.old + sorted_rows.new, 0)
        left = sorted_rows.sums(new)
        after = total + _of_groups(counted, sorted_rows.groups, group)
        exhausted = (left < self.needed) & (after > left)
        out, best = self._changes(sorted_rows, new, ~exhausted)
        if exhausted.any():
            refilled = self._refill(sorted_rows, exhausted, old, change, traces[ALL])
            out, best = (pa.concat_tables(pair) for pair in zip((out, best), refilled, strict=True))
        return TopChange(out, {BEST: best, ALL: change, COUNT: counted})

    def _refill(
        self, rows: "_SortedRows", exhausted: Bools, old: pa.Table, change: pa.Table, every: Trace
    ) -> tuple[pa.Table, pa.Table]:
        """Read all rows of these groups again; return the changes in the output and in `best`."""
        chosen = distinct(rows.hashes[exhausted])
        mine = [_with_hashes(table, chosen) for table in (old, change)]
        now = consolidate(pa.concat_tables([every.lookup(chosen), mine[1]]), self.layout)
        again = self._sorted(mine[0], now)
        return self._changes(again, again.new, np.ones(len(again.starts), bool))

    def _changes(self, rows: "_SortedRows", new: I64, groups: Bools) -> tuple[pa.Table, pa.Table]:
        """Return the changes in the output and in `best` if these are the known rows of some groups."""
        if bool((new < 0).any()):
            raise WeightNegative("the change deletes a row that is not in the input of ORDER BY with LIMIT")
        inside = rows.spread(groups)
        first = rows.cumulative(new)
        trimmed = rows.spread(rows.sums(new) > 2 * self.kept)
        best = np.where(trimmed & (first >= self.kept), 0, new)
        out = self._shown(first, new) - self._shown(rows.cumulative(rows.old), rows.old)
        return rows.weighted(np.where(inside, out, 0)), rows.weighted(np.where(inside, best - rows.old, 0))

    def _shown(self, first: I64, weights: I64) -> I64:
        """Return how many copies of each row are in the output.

        Args:
            first: how many rows of the group come before each row.
            weights: how many copies of each row there are.
        """
        ends: I64 = np.clip(first + weights, self.offset, self.needed)
        return ends - np.clip(first, self.offset, self.needed)

    def _sorted(self, old: pa.Table, new: pa.Table) -> "_SortedRows":
        """Combine known rows with other rows, and sort them by group and order."""
        layout = Layout(self.columns, 1, (_OLD, _NEW))
        zeros = [pa.array(np.zeros(table.num_rows, np.int64)) for table in (old, new)]
        names = [HASH, *self.columns.names]
        parts = [
            pa.table([*old.select(names).columns, old[WEIGHT], zeros[0]], schema=layout.schema),
            pa.table([*new.select(names).columns, zeros[1], new[WEIGHT]], schema=layout.schema),
        ]
        rows = consolidate(pa.concat_tables(parts), layout)
        rows = rows.take(pa.array(self._sort_order(rows))).combine_chunks()
        hashes = column(rows, HASH)
        groups = chunk(rows, self.columns.names[0]).to_numpy()
        starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
        weights = column(rows, _OLD), column(rows, _NEW)
        return _SortedRows(rows.select(names), *weights, hashes[starts], groups[starts], starts)

    def _sort_order(self, rows: pa.Table) -> I64:
        group, *names = self.columns.names
        keys: list[Any] = []
        for key in self.order:
            values = chunk(rows, names[key.place])
            keys += sort_codes(values, descending=key.descending, nulls_first=key.nulls_first)
        if self.hashed:
            keys += [half.to_numpy() for half in row_identity([rows[name] for name in names[: self.hashed]])]
        # Rows that are equal in Spark can differ in the sign of a zero.
        keys.append(code_rows([chunk(rows, name) for name in names], rows.num_rows, "differ").mix)
        order: I64 = np.lexsort((*reversed(keys), chunk(rows, group).to_numpy()))
        return order


class _SortedRows(NamedTuple):
    """Different rows, sorted by group and order, with two weights each.

    `hashes`, `groups` and `starts` have one entry for each group: its hash, its value, and its first row.
    """

    rows: pa.Table
    old: I64
    new: I64
    hashes: I64
    groups: I64
    starts: I64

    def sums(self, weights: I64) -> I64:
        """Return the sum of the weights in each group."""
        total: I64 = np.add.reduceat(weights, self.starts)
        return total

    def spread(self, values: Any) -> Any:
        """Return the value of its group for each row."""
        return np.repeat(values, np.diff(np.append(self.starts, self.rows.num_rows)))

    def cumulative(self, weights: I64) -> I64:
        """Return for each row the sum of the weights before it in its group."""
        before: I64 = np.cumsum(weights) - weights
        before -= self.spread(before[self.starts])
        return before

    def until(self, bounded: Bools) -> Bools:
        """Return which rows are not beyond the last old row of their group, for groups that are bounded."""
        number = np.arange(self.rows.num_rows)
        last = np.maximum.reduceat(np.where(self.old > 0, number, -1), self.starts)
        known: Bools = (number <= self.spread(last)) | ~self.spread(bounded)
        return known

    def weighted(self, weights: I64) -> pa.Table:
        """Return the rows whose weight is not zero."""
        kept = np.flatnonzero(weights)
        return self.rows.take(pa.array(kept)).append_column(WEIGHT, pa.array(weights[kept]))


def _of_groups(counts: pa.Table, groups: I64, name: str) -> I64:
    """Return the weight of each group."""
    totals = dict(zip(column(counts, name).tolist(), column(counts, WEIGHT).tolist(), strict=True))
    return np.array([totals.get(group, 0) for group in groups.tolist()], np.int64)


def _with_hashes(rows: pa.Table, hashes: I64) -> pa.Table:
    return rows.filter(pc.is_in(rows[HASH], pa.array(hashes)))
