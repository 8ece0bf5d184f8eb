"""MIN and MAX: the best few values of each group, and whether these are all it has.

What is kept of a group is exactly its values up to the worst one kept, so a change that is better or equal is
applied, and a worse one concerns what is not kept. When all that was kept is gone and there is more, the
group is exhausted: its values have to be read again, once for all such groups of the step (DBSP-13).

The trace has a row for each value with its weight, and for a group with more values a row whose value is
NULL: a value that is NULL never counts. Order is Spark's: NaN is greater than all else, texts go by their
bytes. -0.0 is less than 0.0, so that of the two the same one is always chosen.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, WeightNegative
from tidemill.views.aggregates.registry import Accumulator
from tidemill.views.trace.layout import WEIGHT, Layout
from tidemill.views.trace.order import I64, lexical, taken
from tidemill.views.trace.row_equality import fixed_width_values

Mask = np.ndarray[Any, np.dtype[np.bool_]]

VALUE = "_v"
BEST = 16
_QUIET = 4  # one part in so many of what is kept has to be left out for that to pay
_BLOCKS = 2  # times as many blocks as values are kept: few more than these pass


class Ranked(NamedTuple):
    """The best value of each group before and after a step, the trace's change, and who is exhausted."""

    before: pa.Array
    after: pa.Array
    state: pa.Table
    exhausted: Mask


@dataclass(frozen=True)
class ExtremeKernel:
    """MIN or MAX of one column.

    Args:
        kind: the lowest or the highest value.
        keys: the columns of the group's key.
        value: the type of the column.
        best: how many different values to keep; 1 is enough where nothing is ever taken away.
    """

    kind: Accumulator
    keys: pa.Schema
    value: pa.DataType
    best: int = BEST

    def __post_init__(self) -> None:
        order_of(pa.array([], self.value))

    @property
    def layout(self) -> Layout:
        return Layout(pa.schema([*self.keys, pa.field(VALUE, self.value)]), len(self.keys))

    def rank(
        self,
        groups: pa.Table,
        kept: "GroupValues",
        changed: "GroupValues",
        empty: Mask,
        *,
        refill: bool = False,
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
        every, still = _Every.of(
            kept, changed, more, greatest_first=self.kind is Accumulator.GREATEST, refill=refill
        )
        near = every.near(self.best)
        listed = every.listed(near)
        if (listed.old < 0).any():
            raise WeightNegative("a value that is kept for MIN or MAX is there fewer than no times")
        there = listed.some(listed.old > 0)
        new = listed.old + listed.change
        # what is worse than the worst value kept concerns what is not kept, where there is more
        if not refill and more.any():
            worst = np.full(count, -1, np.int64)
            worst[there.group[there.ends]] = there.place[there.ends]
            worst[~more] = len(new)
            new[np.arange(len(new)) > taken(worst, listed.group)] = 0
        if (new < 0).any():
            raise WeightNegative("a value of MIN or MAX would be there fewer than no times")
        live = listed.some(new > 0)
        beyond = live.nth >= self.best
        left_out = np.zeros(count, bool)
        left_out[live.group[beyond]] = True
        if near is not None:
            left_out[every.group[~near]] = True
        new[live.place[beyond]] = 0
        more_after = left_out if refill else (more & ~empty) | left_out
        before, after = listed.firsts(there, still), listed.firsts(live, still)
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


class GroupValues(NamedTuple):
    """Values of groups: which group, the value, its weight."""

    group: I64
    value: pa.Array
    weight: I64

    def chosen(self, mask: Mask) -> "GroupValues":
        return self.taken(np.flatnonzero(mask))

    def taken(self, rows: I64) -> "GroupValues":
        value = pc.take(self.value, pa.array(rows), boundscheck=False)
        return GroupValues(taken(self.group, rows), value, taken(self.weight, rows))


def order_of(array: pa.Array) -> I64:
    """Numbers in the order of the values, equal for equal values; NULL is anywhere.

    Not to be written to. Those of two arrays can be compared unless `_is_ranked`.
    """
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
        order = fixed_width_values(array, np.dtype(f"<i{kind.bit_width // 8}")).astype(np.int64, copy=False)
        return order
    if pat.is_decimal128(kind) and kind.precision <= 18:
        return np.ascontiguousarray(
            fixed_width_values(array, np.dtype((np.int64, (2,))))[:, 0]
        )  # the rest is its sign
    if _is_ranked(kind):
        order = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
        return order
    raise TypeRefused(f"no native MIN or MAX over values of type {kind}", hint="the operator can run keyed")


def _orders(kept: pa.Array, changed: pa.Array) -> tuple[I64, I64]:
    """The order of both, as that of one array."""
    if len(kept) == 0 or not _is_ranked(kept.type):
        return order_of(kept), order_of(changed)
    both = order_of(pa.concat_arrays([kept, changed]))
    return both[: len(kept)], both[len(kept) :]


def _is_ranked(kind: pa.DataType) -> bool:
    """Whether the order of a value is its place among those it is given with."""
    numbers = pat.is_signed_integer(kind) or (pat.is_decimal128(kind) and kind.precision <= 18)
    return _is_sortable(kind) and not (numbers or pat.is_temporal(kind))


def _is_sortable(kind: pa.DataType) -> bool:
    if pat.is_interval(kind):
        return False
    tests = (pat.is_integer, pat.is_decimal, pat.is_temporal, pat.is_string, pat.is_large_string)
    return any(test(kind) for test in (*tests, pat.is_binary, pat.is_large_binary))


class _Some(NamedTuple):
    """Some values of a list that is sorted by group.

    Args:
        place: where each is in the list.
        group: whose value it is.
        starts: where each group begins among these.
    """

    place: I64
    group: I64
    starts: I64

    @property
    def ends(self) -> I64:
        """Where the last value of each group is among these."""
        return np.append(self.starts, len(self.group))[1:] - 1

    @property
    def nth(self) -> I64:
        """The place of each within its own group."""
        sizes = np.diff(np.append(self.starts, len(self.group)))
        place: I64 = np.arange(len(self.group)) - np.repeat(self.starts, sizes)
        return place


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

    def some(self, mask: Mask) -> _Some:
        place = np.flatnonzero(mask)
        group = taken(self.group, place)
        fresh = np.append(len(group) > 0, group[1:] != group[:-1])
        return _Some(place, group, np.flatnonzero(fresh))

    def firsts(self, some: _Some, otherwise: I64) -> I64:
        """Where the first of these values of each group stands; for a group without any what is given."""
        first = otherwise.copy()
        first[some.group[some.starts]] = self.row[some.place[some.starts]]
        return first


class _Every(NamedTuple):
    """The values that have to be looked at, first those that are kept, then those that change.

    Args:
        value: these, and maybe more.
        row: where each stands there.
        group: whose it is.
        order: the best first.
        weight: how often it is there; of those that change, the change.
        kept: how many of them are kept.
    """

    value: pa.Array
    row: I64
    group: I64
    order: I64
    weight: I64
    kept: int

    @classmethod
    def of(
        cls, kept: GroupValues, changed: GroupValues, more: Mask, *, greatest_first: bool, refill: bool
    ) -> tuple["_Every", I64]:
        """What has to be looked at; and where the best value stands of groups of which nothing is, else -1.

        Args:
            kept: the values that are kept.
            changed: the change.
            more: which groups have values that are not kept.
            greatest_first: the best is the greatest one.
            refill: all of the change has to be looked at.
        """
        before, order = _orders(kept.value, changed.value)
        if greatest_first:
            before, order = ~before, ~order  # turned over by the bits, which never overflows
        if refill or len(kept.group) == 0:
            every = cls(changed.value, np.arange(len(order)), changed.group, order, changed.weight, 0)
            return every, np.full(len(more), -1, np.int64)
        still, mine, theirs = _concerned(kept, before, changed, order, more)
        chosen = changed.taken(theirs)
        value = pa.concat_arrays([kept.value, chosen.value])
        row = np.arange(len(value))
        group, weight = kept.group, kept.weight
        if mine is not None:
            row = np.concatenate([mine, row[len(group) :]])
            group, before, weight = taken(group, mine), taken(before, mine), taken(weight, mine)
        every = cls(
            value,
            row,
            np.concatenate([group, chosen.group]),
            np.concatenate([before, taken(order, theirs)]),
            np.concatenate([weight, chosen.weight]),
            len(group),
        )
        return every, still

    def near(self, best: int) -> Mask | None:
        """The values that may be among the best of their group; of many that come to a group at once, few.
        None is all.

        It is asked only where nothing is kept and nothing is taken away, as in a load. The rows of a group
        are cut into blocks. The best of each block are there, so what is worse than the last of the best
        few of these is left out: the values up to that one are complete.
        """
        blocks = _BLOCKS * best
        count = len(self.group)
        if self.kept or count < 2 * blocks or not (self.weight > 0).all():
            return None
        fresh = self.group[1:] != self.group[:-1]
        if not (self.group[1:] >= self.group[:-1]).all() or np.count_nonzero(fresh) * blocks > count:
            return None
        starts = np.flatnonzero(np.append(True, fresh))
        sizes = np.diff(np.append(starts, count))
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

    def listed(self, near: Mask | None) -> _Listed:
        """The values by group, weights of equal ones added up.

        Args:
            near: which of them; None is all.
        """
        if near is None:
            places, starts = lexical(self.order, self.group)
        else:
            rows = np.flatnonzero(near)
            sequence, starts = lexical(taken(self.order, rows), taken(self.group, rows))
            places = taken(rows, sequence)
        weight = taken(self.weight, places)
        old = np.where(places < self.kept, weight, 0)
        first = taken(places, starts)
        both, before = _added_up(weight, starts), _added_up(old, starts)
        return _Listed(taken(self.group, first), taken(self.row, first), before, both - before)


def _added_up(weights: I64, starts: I64) -> I64:
    """The sums of neighbours that begin at `starts`: differences of running sums, which may wrap around."""
    if len(starts) == len(weights):
        return weights
    running: I64 = taken(np.cumsum(weights), np.append(starts[1:], len(weights)) - 1)
    return np.diff(running, prepend=0)


def _concerned(
    kept: GroupValues, before: I64, changed: GroupValues, order: I64, more: Mask
) -> tuple[I64, I64 | None, I64]:
    """Where the best value stands of groups whose change concerns nothing that is kept, else -1; and what has
    to be looked at: what other groups keep, and the changes that are no worse than all that is kept.

    Most changes of large groups need not be sorted. A group of which some run takes values back is not
    taken for quiet, and its worst value may be one that is gone: then more is looked at than needed. So it
    is with what quiet groups keep, if that is little: then it is all (None).

    Args:
        kept: the values that are kept.
        before: their order.
        changed: the change.
        order: the order of that.
        more: which groups have values that are not kept: of others all of the change is looked at.
    """
    count = len(more)
    worst = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(worst, kept.group, before)
    worst[~more] = np.iinfo(np.int64).max
    theirs = np.flatnonzero(order <= taken(worst, changed.group))
    quiet = more.copy()
    quiet[kept.group[kept.weight < 0]] = False
    quiet[changed.group[theirs]] = False
    still = np.full(count, -1, np.int64)
    of_quiet = taken(quiet, kept.group) if quiet.any() else quiet[:0]
    if _QUIET * np.count_nonzero(of_quiet) < len(before):
        return still, None, theirs
    rows = np.flatnonzero(of_quiet)
    group, mine = kept.group[rows], before[rows]
    best = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(best, group, mine)
    firsts = mine == best[group]
    still[group[firsts]] = rows[firsts]
    return still, np.flatnonzero(~of_quiet), theirs
