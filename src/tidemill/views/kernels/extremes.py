"""MIN and MAX: the best few values of each group, and whether these are all it has.

What is kept of a group is exactly its values up to the worst one kept, so a change that is better or equal is
applied, and a worse one concerns what is not kept. When all that was kept is gone and there is more, the
group is exhausted: its values have to be read again, once for all such groups of the step (DBSP-13).

The trace has a row for each value with its weight, and for a group with more values a row whose value is
NULL: a value that is NULL never counts. Order is Spark's: NaN is greater than all else, texts go by their
bytes. -0.0 is less than 0.0, so that of the two the same one is always chosen.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, WeightNegative
from tidemill.views.trace.layout import WEIGHT, Layout
from tidemill.views.trace.order import I64, lexical
from tidemill.views.trace.words import fixed

Mask = np.ndarray[Any, np.dtype[np.bool_]]

VALUE = "_v"
BEST = 16
_BLOCKS = 2  # times as many blocks as values are kept: few more than these pass


class Ranked(NamedTuple):
    """The best value of each group before and after a step, the trace's change, and who is exhausted."""

    before: pa.Array
    after: pa.Array
    state: pa.Table
    exhausted: Mask


@dataclass(frozen=True)
class Extreme:
    """MIN or MAX of one column.

    Args:
        kind: which.
        keys: the columns of the group's key.
        value: the type of the column.
        best: how many different values to keep; 1 is enough where nothing is ever taken away.
    """

    kind: Literal["min", "max"]
    keys: pa.Schema
    value: pa.DataType
    best: int = BEST

    def __post_init__(self) -> None:
        order_of(pa.array([], self.value))

    @property
    def layout(self) -> Layout:
        return Layout(pa.schema([*self.keys, pa.field(VALUE, self.value)]), len(self.keys))

    def rank(
        self, groups: pa.Table, kept: "Rows", changed: "Rows", empty: Mask, *, refill: bool = False
    ) -> Ranked:
        """Apply a change to the groups.

        Args:
            groups: hash and key of each.
            kept: the trace's rows of these groups.
            changed: the change: values that are not NULL, with weights.
            empty: which groups have no value any more; those are complete.
            refill: the change is all that these groups have, and they were exhausted.
        """
        count = groups.num_rows
        marks = pc.is_null(kept.value).to_numpy(zero_copy_only=False)
        more = np.full(count, refill)
        if marks.any():
            marked = np.zeros(count, np.int64)
            np.add.at(marked, kept.group[marks], kept.weight[marks])
            more |= marked > 0
            kept = kept.chosen(~marks)
        every = _Every.of(kept, changed, greatest_first=self.kind == "max")
        if refill:
            still, wanted = np.full(count, -1), np.ones(len(every.group), bool)
        else:
            still, wanted = every.concerned(more)
        near = every.near(self.best)
        listed = every.listed(wanted & near)
        here = listed.old > 0
        if (listed.old < 0).any():
            raise WeightNegative("a value that is kept for MIN or MAX is there fewer than no times")
        # what is worse than the worst value kept concerns what is not kept, where there is more
        beyond = np.zeros(len(here), bool)
        if not refill and more.any():
            worst = np.full(count, -1, np.int64)
            worst[listed.group[here]] = np.flatnonzero(here)  # the last one wins
            beyond = more[listed.group] & (np.arange(len(here)) > worst[listed.group])
        new = np.where(beyond, 0, listed.old + listed.change)
        if (new < 0).any():
            raise WeightNegative("a value of MIN or MAX would be there fewer than no times")
        live = np.flatnonzero(new > 0)
        nth = _nth(listed.group[live])
        left_out = np.zeros(count, bool)
        left_out[listed.group[live[nth >= self.best]]] = True
        left_out[every.group[~near]] = True
        new[live[nth >= self.best]] = 0
        more_after = left_out if refill else (more & ~empty) | left_out
        before, after = listed.firsts(np.flatnonzero(here), still), listed.firsts(live, still)
        return Ranked(
            every.value.take(pa.array(before, mask=before < 0)),
            every.value.take(pa.array(after, mask=after < 0)),
            self._state(groups, every.value, listed, new - listed.old, more, more_after),
            more & (after < 0) & ~empty & (not refill),
        )

    def _state(
        self, groups: pa.Table, value: pa.Array, listed: "_Listed", change: I64, more: Mask, more_after: Mask
    ) -> pa.Table:
        """The trace's change: of values that are kept, and of the marks of groups with more."""
        rows, turned = np.flatnonzero(change), np.flatnonzero(more != more_after)
        values = pa.concat_arrays([value.take(pa.array(listed.row[rows])), pa.nulls(len(turned), self.value)])
        weights = np.concatenate([change[rows], np.where(more_after[turned], 1, -1)]).astype(np.int64)
        table = groups.take(pa.array(np.concatenate([listed.group[rows], turned])))
        return table.append_column(VALUE, values).append_column(WEIGHT, pa.array(weights))


def _nth(group: I64) -> I64:
    """Of rows that are sorted by group, the place of each within its own."""
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else group
    place: I64 = np.arange(len(group)) - np.repeat(starts, np.diff(np.append(starts, len(group))))
    return place


class Rows(NamedTuple):
    """Values of groups: which group, the value, its weight."""

    group: I64
    value: pa.Array
    weight: I64

    def chosen(self, mask: Mask) -> "Rows":
        return Rows(self.group[mask], self.value.filter(pa.array(mask)), self.weight[mask])


def order_of(array: pa.Array) -> I64:
    """Numbers in the order of the values, equal for equal values; NULL is anywhere."""
    kind = array.type
    order: I64
    if pat.is_floating(kind):
        values = pc.fill_null(array, pa.scalar(0.0, kind)).to_numpy(zero_copy_only=False).astype(np.float64)
        bits = values.view(np.int64)
        order = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
        return np.where(np.isnan(values), np.iinfo(np.int64).max - 1, order)
    if pat.is_boolean(kind):
        order = pc.fill_null(array, fill_value=False).cast(pa.int8()).to_numpy().astype(np.int64)
        return order
    if pat.is_signed_integer(kind) or (_is_sortable(kind) and pat.is_temporal(kind)):
        order = fixed(array, np.dtype(f"<i{kind.bit_width // 8}")).astype(np.int64)
        return order
    if pat.is_decimal128(kind) and kind.precision <= 18:
        return np.ascontiguousarray(fixed(array, np.dtype((np.int64, (2,))))[:, 0])  # the rest is its sign
    if _is_sortable(kind):
        order = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
        return order
    raise TypeRefused(f"no native MIN or MAX over values of type {kind}", hint="the operator can run keyed")


def _is_sortable(kind: pa.DataType) -> bool:
    if pat.is_interval(kind):
        return False
    tests = (pat.is_integer, pat.is_decimal, pat.is_temporal, pat.is_string, pat.is_large_string)
    return any(test(kind) for test in (*tests, pat.is_binary, pat.is_large_binary))


class _Listed(NamedTuple):
    """The different values of some groups, each group's best first.

    Args:
        group: whose value it is.
        row: where it stands among all values.
        old: its weight in the trace.
        change: what the step adds to that.
    """

    group: I64
    row: I64
    old: I64
    change: I64

    def firsts(self, rows: I64, otherwise: I64) -> I64:
        """Where the first of these rows of each group stands; for a group without any what is given."""
        first = otherwise.copy()
        backwards = rows[::-1]
        first[self.group[backwards]] = self.row[backwards]
        return first


class _Every(NamedTuple):
    """All values, first those that are kept, then those that change; `order` has the best first."""

    value: pa.Array
    group: I64
    order: I64
    old: I64
    change: I64
    kept: int

    @classmethod
    def of(cls, kept: Rows, changed: Rows, *, greatest_first: bool) -> "_Every":
        alone = len(kept.group) == 0
        value = changed.value if alone else pa.concat_arrays([kept.value, changed.value])
        order = order_of(value)
        group = changed.group if alone else np.concatenate([kept.group, changed.group])
        old = np.concatenate([kept.weight, np.zeros_like(changed.weight)])
        change = np.concatenate([np.zeros_like(kept.weight), changed.weight])
        # turned over by its bits, which never overflows
        return cls(value, group, ~order if greatest_first else order, old, change, len(kept.group))

    def concerned(self, more: Mask) -> tuple[I64, Mask]:
        """Where the best value stands of groups whose change concerns nothing that is kept, else -1; and the
        rows that have to be looked at: of other groups, and of these no changes worse than all that is kept.

        Most changes of large groups need not be sorted. A group of which some run takes values back is not
        taken for quiet, and its worst value may be one that is gone: then more is looked at than needed.
        """
        count, kept = len(more), self.kept
        quiet = more.copy()
        quiet[self.group[:kept][self.old[:kept] < 0]] = False
        group, order = self.group[:kept], self.order[:kept]
        best = np.full(count, np.iinfo(np.int64).max)
        worst = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(best, group, order)
        np.maximum.at(worst, group, order)
        where = np.full(count, -1, np.int64)
        firsts = np.flatnonzero(order == best[group])
        where[group[firsts]] = firsts
        quiet &= where >= 0
        changed = self.group[kept:]
        near = self.order[kept:] <= worst[changed]
        quiet[changed[near]] = False
        wanted = ~quiet[self.group]
        wanted[kept:] &= near | ~more[changed]
        return np.where(quiet, where, -1), wanted

    def near(self, best: int) -> Mask:
        """The values that may be among the best of their group; of many that come to a group at once, few.

        It is asked only where nothing is kept and nothing is taken away, as in a load. The rows of a group
        are cut into blocks. The best of each block are there, so what is worse than the last of the best
        few of these is left out: the values up to that one are complete.
        """
        blocks = _BLOCKS * best
        near = np.ones(len(self.group), bool)
        if self.kept or len(near) < 2 * blocks or not (self.change > 0).all():
            return near
        fresh = self.group[1:] != self.group[:-1]
        if not (self.group[1:] >= self.group[:-1]).all() or np.count_nonzero(fresh) * blocks > len(near):
            return near
        starts = np.flatnonzero(np.append(True, fresh))
        sizes = np.diff(np.append(starts, len(near)))
        large = sizes >= 2 * blocks
        cut = np.where(large, blocks, 1)
        nth = np.arange(int(cut.sum())) - np.repeat(np.cumsum(cut) - cut, cut)
        firsts = np.minimum.reduceat(
            self.order, np.repeat(starts, cut) + np.repeat(sizes, cut) * nth // np.repeat(cut, cut)
        )
        of_large = firsts[np.repeat(large, cut)].reshape(-1, blocks)
        worst = np.full(len(starts), np.iinfo(np.int64).max)
        worst[large] = np.partition(of_large, best - 1, axis=1)[:, best - 1]
        return np.asarray(self.order <= np.repeat(worst, sizes))

    def listed(self, wanted: Mask) -> _Listed:
        """The values that are wanted by group, weights of equal ones added up."""
        rows = np.flatnonzero(wanted)
        group, order = self.group[rows], self.order[rows]
        sequence = lexical(order, group)
        group, order, rows = group[sequence], order[sequence], rows[sequence]
        fresh = np.ones(len(rows), bool)
        fresh[1:] = (group[1:] != group[:-1]) | (order[1:] != order[:-1])
        starts = np.flatnonzero(fresh)
        if len(starts) == 0:
            return _Listed(group, rows, self.old[rows], self.change[rows])
        old, change = np.add.reduceat(self.old[rows], starts), np.add.reduceat(self.change[rows], starts)
        return _Listed(group[starts], rows[starts], old, change)
