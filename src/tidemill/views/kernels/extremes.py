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
from tidemill.views.trace.words import I64

Mask = np.ndarray[Any, np.dtype[np.bool_]]

VALUE = "_v"
BEST = 16


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
            kept: the trace's rows of these groups, added up.
            changed: the change: values that are not NULL, with weights.
            empty: which groups have no value any more; those are complete.
            refill: the change is all that these groups have, and they were exhausted.
        """
        count = groups.num_rows
        marks = pc.is_null(kept.value).to_numpy(zero_copy_only=False)
        more = np.full(count, refill)
        more[kept.group[marks]] = True
        kept = kept.chosen(~marks)
        value = pa.concat_arrays([kept.value, changed.value])
        group = np.concatenate([kept.group, changed.group])
        order = order_of(value) if self.kind == "min" else -order_of(value)
        known = order[: len(kept.group)]
        bound = np.full(count, np.iinfo(np.int64).max)
        if not refill:
            bound[more] = np.iinfo(np.int64).min
            np.maximum.at(bound, *_of(kept.group, known, more))
        counts = np.flatnonzero(order <= bound[group])
        weight = np.concatenate([kept.weight, changed.weight])
        live, nth = _added(group[counts], order[counts], weight[counts])
        rows = counts[live.row]
        keep = nth < self.best
        none = np.bincount(live.group, minlength=count) == 0
        left_out = np.bincount(live.group[~keep], minlength=count) > 0
        more_after = left_out if refill else (more & ~empty) | left_out
        now = Rows(live.group[keep], value.take(pa.array(rows[keep])), live.weight[keep])
        return Ranked(
            _firsts(count, kept.group, known, np.arange(len(known)), value),
            _firsts(count, live.group, order[rows], rows, value),
            self._state(groups, kept, now, more, more_after),
            more & none & ~empty & (not refill),
        )

    def _state(self, groups: pa.Table, kept: "Rows", now: "Rows", more: Mask, more_after: Mask) -> pa.Table:
        """The trace's change: what is kept now less what was kept, and the marks of groups with more."""
        turned = np.flatnonzero(more != more_after)
        values = pa.concat_arrays([kept.value, now.value, pa.nulls(len(turned), self.value)])
        weights = np.concatenate([-kept.weight, now.weight, np.where(more_after[turned], 1, -1)])
        table = groups.take(pa.array(np.concatenate([kept.group, now.group, turned])))
        return table.append_column(VALUE, values).append_column(WEIGHT, pa.array(weights.astype(np.int64)))


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
    if pat.is_integer(kind) and kind.bit_width < 64:
        order = pc.fill_null(array, pa.scalar(0, kind)).to_numpy().astype(np.int64)
        return order
    if _is_sortable(kind):
        order = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
        return order
    raise TypeRefused(f"no native MIN or MAX over values of type {kind}", hint="the operator can run keyed")


def _is_sortable(kind: pa.DataType) -> bool:
    if pat.is_interval(kind):
        return False
    tests = (pat.is_integer, pat.is_decimal, pat.is_temporal, pat.is_string, pat.is_large_string)
    return any(test(kind) for test in (*tests, pat.is_binary, pat.is_large_binary))


class _Live(NamedTuple):
    """Values that are there, by group and order: group, weight, and a row that has the value."""

    group: I64
    weight: I64
    row: I64


def _added(group: I64, order: I64, weight: I64) -> tuple[_Live, I64]:
    """Weights of equal values added up; and the place of each value that is left in its group."""
    sequence = np.lexsort((order, group))
    group, order, weight = group[sequence], order[sequence], weight[sequence]
    fresh = np.ones(len(group), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (order[1:] != order[:-1])
    starts = np.flatnonzero(fresh)
    total = np.add.reduceat(weight, starts) if len(starts) else weight
    if (total < 0).any():
        raise WeightNegative("a value of MIN or MAX would be there fewer than no times")
    alive = starts[total > 0]
    live = _Live(group[alive], total[total > 0], sequence[alive])
    return live, np.arange(len(alive)) - np.searchsorted(live.group, live.group)


def _of(group: I64, order: I64, more: Any) -> tuple[I64, I64]:
    """The values of groups that have more than is kept."""
    mine = more[group]
    return group[mine], order[mine]


def _firsts(count: int, group: I64, order: I64, row: I64, value: pa.Array) -> pa.Array:
    """The first value of each group in the order; NULL for a group without any."""
    sequence = np.lexsort((order, group))
    first = np.full(count, -1, np.int64)
    backwards = sequence[::-1]
    first[group[backwards]] = row[backwards]
    return value.take(pa.array(first, mask=first < 0))
