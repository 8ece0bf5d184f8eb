"""MIN and MAX: store the best few values of each group, and whether the group has more values.

A group with more values than it stores is *truncated*. Its stored values have no holes: every value that is
better than the worst stored value is stored too. So a step applies changes to the trace only down to the
worst stored value; it ignores changes to worse values, which are not stored. When a truncated group has no
stored value left, it is *exhausted*. The step then reads the values of all exhausted groups again, together
(DBSP-13).

The trace has one row per stored value, with its weight. A truncated group has an additional row with the
value NULL, which cannot be a stored value, because MIN and MAX ignore NULL. Values are ordered as in Spark:
NaN is the greatest value, and strings are ordered by their bytes. -0.0 is less than 0.0, so that the choice
between them is always the same.

MIN_BY, MAX_BY, FIRST and LAST are the MIN and MAX of structs: the first field orders the rows, the second one
is the value that the aggregate returns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, WeightNegative
from tidemill.views.aggregates.registry import Accumulator
from tidemill.views.kernels.sort_codes import sort_codes, sortable
from tidemill.views.trace.layout import WEIGHT, Layout
from tidemill.views.trace.order import I64, lexical, take
from tidemill.views.trace.row_equality import code_rows, fixed_width_values

Mask = np.ndarray[Any, np.dtype[np.bool_]]

VALUE = "_v"
BEST = 16
_UNAFFECTED = 4  # skip the values of unaffected groups if they are at least 1/4 of all stored values
_BLOCKS = 2  # blocks per stored value: with more blocks, fewer values pass the preselection


class RankedGroups(NamedTuple):
    """Each group's best value before and after a step, the change in the trace, and the exhausted groups."""

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
        best: how many different values to store; 1 is enough if rows are never deleted.
        of_rows: whether the values are structs of an order and a value (`order_of_rows`).
    """

    kind: Accumulator
    keys: pa.Schema
    value: pa.DataType
    best: int = BEST
    of_rows: bool = False

    def __post_init__(self) -> None:
        (order_of_rows if self.of_rows else order_of)(pa.array([], self.value))

    @property
    def layout(self) -> Layout:
        return Layout(pa.schema([*self.keys, pa.field(VALUE, self.value)]), len(self.keys))

    def rank(
        self,
        groups: pa.Table,
        stored: "GroupValues",
        changed: "GroupValues",
        empty: Mask,
        *,
        refill: bool = False,
    ) -> RankedGroups:
        """Apply a change to the groups.

        Args:
            groups: hash and key of each group.
            stored: the trace's rows of these groups.
            changed: the changed values, which are not NULL, with the changes in their weights.
            empty: which groups have no values after the change; these are not truncated.
            refill: whether the groups were exhausted. Then the change contains all their values.
        """
        count = groups.num_rows
        marks = pc.is_null(stored.value).to_numpy(zero_copy_only=False)
        truncated = np.full(count, refill)
        if marks.any():
            marked = np.zeros(count, np.int64)
            np.add.at(marked, stored.group[marks], stored.weight[marks])
            truncated |= marked > 0
            stored = stored.filter(~marks)
        candidates, unaffected_best = _Candidates.of(
            stored, changed, truncated, greatest_first=self.kind is Accumulator.GREATEST, refill=refill
        )
        plausible = candidates.plausible(self.best)
        distinct = candidates.distinct(plausible)
        if (distinct.old < 0).any():
            raise WeightNegative("a stored value of MIN or MAX has a negative weight")
        present = distinct.select(distinct.old > 0)
        new = distinct.old + distinct.change
        # in a truncated group, a value worse than the worst stored one is not stored
        if not refill and truncated.any():
            worst = np.full(count, -1, np.int64)
            worst[present.group[present.ends]] = present.place[present.ends]
            worst[~truncated] = len(new)
            new[np.arange(len(new)) > take(worst, distinct.group)] = 0
        if (new < 0).any():
            raise WeightNegative("the change deletes a value that is not in the input of MIN or MAX")
        remaining = distinct.select(new > 0)
        surplus = remaining.nth >= self.best
        dropped = np.zeros(count, bool)
        dropped[remaining.group[surplus]] = True
        if plausible is not None:
            dropped[candidates.group[~plausible]] = True
        new[remaining.place[surplus]] = 0
        truncated_after = dropped if refill else (truncated & ~empty) | dropped
        before, after = distinct.firsts(present, unaffected_best), distinct.firsts(remaining, unaffected_best)
        return RankedGroups(
            candidates.value.take(pa.array(before, mask=before < 0)),
            candidates.value.take(pa.array(after, mask=after < 0)),
            self._state(groups, candidates.value, distinct, new - distinct.old, truncated, truncated_after),
            truncated & (after < 0) & ~empty & (not refill),
        )

    def _state(
        self,
        groups: pa.Table,
        value: pa.Array,
        distinct: "_DistinctValues",
        change: I64,
        truncated: Mask,
        truncated_after: Mask,
    ) -> pa.Table:
        """Return the change in the trace: stored values, and the rows that mark truncated groups."""
        rows, toggled = np.flatnonzero(change), np.flatnonzero(truncated != truncated_after)
        values = pa.concat_arrays(
            [value.take(pa.array(distinct.row[rows])), pa.nulls(len(toggled), self.value)]
        )
        weights = np.concatenate([change[rows], np.where(truncated_after[toggled], 1, -1)]).astype(np.int64)
        table = groups.take(pa.array(np.concatenate([distinct.group[rows], toggled])))
        return table.append_column(VALUE, values).append_column(WEIGHT, pa.array(weights))


class GroupValues(NamedTuple):
    """Values of groups: the group's number, the value, its weight."""

    group: I64
    value: pa.Array
    weight: I64

    def filter(self, mask: Mask) -> "GroupValues":
        return self.take(np.flatnonzero(mask))

    def take(self, rows: I64) -> "GroupValues":
        value = pc.take(self.value, pa.array(rows), boundscheck=False)
        return GroupValues(take(self.group, rows), value, take(self.weight, rows))


def order_of(array: pa.Array) -> I64:
    """Return numbers that sort like the values, and are equal for equal values; undefined for NULL.

    The result must not be modified. Results for two arrays are comparable, except for types with
    `_is_ranked`.
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
        )  # the upper half only repeats the sign
    if _is_ranked(kind):
        order = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
        return order
    raise TypeRefused(
        f"MIN and MAX of {kind} values cannot be updated natively",
        hint="no action is needed: Spark recomputes the changed groups, or the whole view",
    )


def order_of_rows(array: pa.StructArray) -> I64:
    """Rank structs by their first field, which may be a struct again; their other fields only break ties.

    Structs are equal only if all their fields are: -0.0 and 0.0 differ.
    """
    keys = [code for leaf in _leaves(pc.struct_field(array, [0])) for code in sort_codes(leaf)]
    coded = code_rows([array], len(array), "differ")
    keys.append(coded.mix.view(np.int64))
    places = np.lexsort(keys[::-1])
    changes = np.zeros(len(array), bool)
    for key in keys:
        in_order = take(key, places)
        changes[1:] |= in_order[1:] != in_order[:-1]
    order = np.empty(len(array), np.int64)
    order[places] = np.cumsum(changes)
    return order


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the fields of a struct and of the structs in it; raise `TypeRefused` for other nested values."""
    if pat.is_struct(array.type):
        for place in range(array.type.num_fields):
            yield from _leaves(pc.struct_field(array, [place]))
    elif sortable(array.type):
        yield array
    else:
        raise TypeRefused(
            f"rows cannot be ordered by {array.type} values",
            hint="no action is needed: Spark recomputes the changed groups, or the whole view",
        )


def _orders(stored: pa.Array, changed: pa.Array) -> tuple[I64, I64]:
    """Return comparable orders of both arrays."""
    order = order_of_rows if pat.is_struct(stored.type) else order_of
    if len(stored) == 0 or not (_is_ranked(stored.type) or pat.is_struct(stored.type)):
        return order(stored), order(changed)
    both = order(pa.concat_arrays([stored, changed]))
    return both[: len(stored)], both[len(stored) :]


def _is_ranked(kind: pa.DataType) -> bool:
    """Return whether `order_of` ranks values of this type within one array."""
    numbers = pat.is_signed_integer(kind) or (pat.is_decimal128(kind) and kind.precision <= 18)
    return _is_sortable(kind) and not (numbers or pat.is_temporal(kind))


def _is_sortable(kind: pa.DataType) -> bool:
    if pat.is_interval(kind):
        return False
    tests = (pat.is_integer, pat.is_decimal, pat.is_temporal, pat.is_string, pat.is_large_string)
    return any(test(kind) for test in (*tests, pat.is_binary, pat.is_large_binary))


class _Selection(NamedTuple):
    """Selected values of a list that is sorted by group.

    Args:
        place: the place of each value in the list.
        group: the group of each value.
        starts: where each group starts in the selection.
    """

    place: I64
    group: I64
    starts: I64

    @property
    def ends(self) -> I64:
        """The place of each group's last value in the selection."""
        return np.append(self.starts, len(self.group))[1:] - 1

    @property
    def nth(self) -> I64:
        """The number of each value within its group."""
        sizes = np.diff(np.append(self.starts, len(self.group)))
        place: I64 = np.arange(len(self.group)) - np.repeat(self.starts, sizes)
        return place


class _DistinctValues(NamedTuple):
    """The distinct values of groups, sorted by group, best first.

    Args:
        group: the group of each value.
        row: the row of the value in the candidates' array.
        old: its weight in the trace.
        change: the change in its weight.
    """

    group: I64
    row: I64
    old: I64
    change: I64

    def select(self, mask: Mask) -> _Selection:
        place = np.flatnonzero(mask)
        group = take(self.group, place)
        fresh = np.append(len(group) > 0, group[1:] != group[:-1])
        return _Selection(place, group, np.flatnonzero(fresh))

    def firsts(self, selection: _Selection, default: I64) -> I64:
        """Return the row of each group's first selected value; `default` for groups without one."""
        first = default.copy()
        first[selection.group[selection.starts]] = self.row[selection.place[selection.starts]]
        return first


class _Candidates(NamedTuple):
    """The values that decide the result: first stored ones, then changed ones.

    Args:
        value: an array that contains these values, and maybe others.
        row: the row of each candidate in that array.
        group: its group.
        order: its order, best first.
        weight: its weight; for a changed value, the change in its weight.
        stored: how many of the candidates are stored values.
    """

    value: pa.Array
    row: I64
    group: I64
    order: I64
    weight: I64
    stored: int

    @classmethod
    def of(
        cls, stored: GroupValues, changed: GroupValues, truncated: Mask, *, greatest_first: bool, refill: bool
    ) -> tuple["_Candidates", I64]:
        """Return the candidates, and for each group without candidates its best stored row (otherwise -1).

        Args:
            stored: the stored values.
            changed: the change.
            truncated: which groups have more values than they store.
            greatest_first: whether the greatest value is the best.
            refill: whether all changed values are candidates.
        """
        stored_order, changed_order = _orders(stored.value, changed.value)
        if greatest_first:
            stored_order, changed_order = ~stored_order, ~changed_order  # inverts the order without overflow
        if refill or len(stored.group) == 0:
            candidates = cls(
                changed.value, np.arange(len(changed_order)), changed.group, changed_order, changed.weight, 0
            )
            return candidates, np.full(len(truncated), -1, np.int64)
        unaffected_best, stored_rows, changed_rows = _affected(
            stored, stored_order, changed, changed_order, truncated
        )
        chosen = changed.take(changed_rows)
        value = pa.concat_arrays([stored.value, chosen.value])
        row = np.arange(len(value))
        group, weight = stored.group, stored.weight
        if stored_rows is not None:
            row = np.concatenate([stored_rows, row[len(group) :]])
            group, stored_order, weight = (
                take(group, stored_rows),
                take(stored_order, stored_rows),
                take(weight, stored_rows),
            )
        candidates = cls(
            value,
            row,
            np.concatenate([group, chosen.group]),
            np.concatenate([stored_order, take(changed_order, changed_rows)]),
            np.concatenate([weight, chosen.weight]),
            len(group),
        )
        return candidates, unaffected_best

    def plausible(self, best: int) -> Mask | None:
        """Preselect the values that can be among the best of their group; None selects all.

        This applies only if nothing is stored and nothing is deleted, as in an initial load. The rows of a
        large group are divided into blocks, and the best value of each block is found. At least `best` values
        are as good as the `best`-th of these block values, so worse values are not needed.
        """
        block_count = _BLOCKS * best
        count = len(self.group)
        if self.stored or count < 2 * block_count or not (self.weight > 0).all():
            return None
        fresh = self.group[1:] != self.group[:-1]
        if not (self.group[1:] >= self.group[:-1]).all() or np.count_nonzero(fresh) * block_count > count:
            return None
        starts = np.flatnonzero(np.append(True, fresh))
        sizes = np.diff(np.append(starts, count))
        large = sizes >= 2 * block_count
        cut = np.where(large, block_count, 1)
        nth = np.arange(int(cut.sum())) - np.repeat(np.cumsum(cut) - cut, cut)
        firsts = np.minimum.reduceat(
            self.order, np.repeat(starts, cut) + np.repeat(sizes, cut) * nth // np.repeat(cut, cut)
        )
        of_large = firsts[np.repeat(large, cut)].reshape(-1, block_count)
        worst = np.full(len(starts), np.iinfo(np.int64).max)
        worst[large] = np.partition(of_large, best - 1, axis=1)[:, best - 1]
        return np.asarray(self.order <= np.repeat(worst, sizes))

    def distinct(self, plausible: Mask | None) -> _DistinctValues:
        """Return the distinct values by group, with the weights of equal ones added up.

        Args:
            plausible: which candidates to use; None uses all.
        """
        if plausible is None:
            places, starts = lexical(self.order, self.group)
        else:
            rows = np.flatnonzero(plausible)
            sequence, starts = lexical(take(self.order, rows), take(self.group, rows))
            places = take(rows, sequence)
        weight = take(self.weight, places)
        old = np.where(places < self.stored, weight, 0)
        first = take(places, starts)
        both, before = _sums(weight, starts), _sums(old, starts)
        return _DistinctValues(take(self.group, first), take(self.row, first), before, both - before)


def _sums(weights: I64, starts: I64) -> I64:
    """Return the sum of each group's weights.

    It subtracts running sums, so that an overflow of these sums cancels out.

    Args:
        weights: the weights of all groups.
        starts: where each group starts.
    """
    if len(starts) == len(weights):
        return weights
    running: I64 = take(np.cumsum(weights), np.append(starts[1:], len(weights)) - 1)
    return np.diff(running, prepend=0)


def _affected(
    stored: GroupValues, stored_order: I64, changed: GroupValues, changed_order: I64, truncated: Mask
) -> tuple[I64, I64 | None, I64]:
    """Find the values that a change can affect, so that most values of large groups are not sorted.

    A changed value worse than all stored ones has no effect on a truncated group. A truncated group without
    other changes is *unaffected*. Returns three arrays: for each unaffected group, the row of its best stored
    value (-1 for other groups); the rows of stored values in the other groups (None for all rows); and the
    rows of changed values that have an effect.

    The test is conservative. A group with negative weights in its runs always counts as affected, and its
    worst stored value may be one that was deleted. If unaffected groups store few values, no values are
    skipped.

    Args:
        stored: the stored values.
        stored_order: their order.
        changed: the changed values.
        changed_order: their order.
        truncated: which groups have more values than they store; in other groups, all changes have an effect.
    """
    count = len(truncated)
    worst = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(worst, stored.group, stored_order)
    worst[~truncated] = np.iinfo(np.int64).max
    changed_rows = np.flatnonzero(changed_order <= take(worst, changed.group))
    unaffected = truncated.copy()
    unaffected[stored.group[stored.weight < 0]] = False
    unaffected[changed.group[changed_rows]] = False
    unaffected_best = np.full(count, -1, np.int64)
    is_unaffected = take(unaffected, stored.group) if unaffected.any() else unaffected[:0]
    if _UNAFFECTED * np.count_nonzero(is_unaffected) < len(stored_order):
        return unaffected_best, None, changed_rows
    rows = np.flatnonzero(is_unaffected)
    group, values_order = stored.group[rows], stored_order[rows]
    best = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(best, group, values_order)
    firsts = values_order == best[group]
    unaffected_best[group[firsts]] = rows[firsts]
    return unaffected_best, np.flatnonzero(~is_unaffected), changed_rows
