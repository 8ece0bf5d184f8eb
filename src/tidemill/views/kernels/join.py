"""Inner equi-joins: the change of each side against what the other side remembers.

The rows of both traces that have the hash of a changed key are looked up, and nothing else is read. A hash
that two keys share only costs a comparison: pairs count when the keys themselves are the same. Every row that
is given was in the result before the step or is in it afterwards (ADR 21).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError, WeightOverflow
from tidemill.views.kernels.key_matching import PickedRows, matching_pairs
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import I64, ascending
from tidemill.views.trace.row_equality import is_plain

_KEYS = 131_072
"""Keys that are looked up at once."""


class RowLookup(Protocol):
    """What a side remembers of the steps before: a trace, or rows that somebody else keeps."""

    def lookups(self, hashes: I64, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows with these hashes, which are sorted, each once; in tables of one chunk."""
        ...


@dataclass(frozen=True)
class JoinKernel:
    """An inner equi-join.

    Args:
        left: the layout of the left side's trace; its key is the left side of the condition.
        right: that of the right side; its key columns have the same types in the same order.
        null_safe: for each part of the key whether it is compared by `<=>`; by `=`, NULL matches nothing.
        left_out: (column of the left side, its name in the output).
        right_out: the same of the right side.
    """

    left: Layout
    right: Layout
    null_safe: tuple[bool, ...]
    left_out: tuple[tuple[str, str], ...]
    right_out: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        mine = [self.left.columns.field(name).type for name in self.left.key_names]
        theirs = [self.right.columns.field(name).type for name in self.right.key_names]
        if mine != theirs or len(mine) != len(self.null_safe):
            raise UsageError(
                f"keys of a join differ: {mine} and {theirs}", hint="cast both to their common type"
            )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output."""
        mine = [pa.field(name, self.left.schema.field(source).type) for source, name in self.left_out]
        theirs = [pa.field(name, self.right.schema.field(source).type) for source, name in self.right_out]
        return pa.schema([*mine, *theirs, pa.field(WEIGHT, pa.int64())])

    def added_up(self, delta: pa.Table, layout: Layout) -> pa.Table:
        """A side's change, added up, without rows that can match nothing: those need not be remembered."""
        table = layout.conform(delta)
        for name, safe in zip(layout.key_names, self.null_safe, strict=True):
            if not safe and table[name].null_count:
                table = table.filter(pc.is_valid(table[name]))
        return consolidate(table, layout)

    def step(self, mine: pa.Table, theirs: pa.Table, left: RowLookup, right: RowLookup) -> Iterator[pa.Table]:
        """The change of the result, computed as it is read, with rows of either sign that may cancel.

        All rows of it were in the result before the step, or are in it afterwards: an expression above the
        join may raise for others. So what comes meets what is there then, what goes what was there, and what
        stays of the left side the change of the right one.

        Args:
            mine: the change of the left side in this range, in order of the hash; its keys may match.
            theirs: that of the right side.
            left: what the left side remembers of the steps before.
            right: what the right side remembers.
        """
        went = mine.filter(pa.array(column(mine, WEIGHT) < 0)).combine_chunks()
        wanted = [source for source, _ in self.right_out]
        for some, before, after in _known(right, mine, theirs, self.right, wanted):
            if before is after or went.num_rows == 0:
                yield from self._matched(some, after)
            else:
                goes = column(some, WEIGHT) < 0
                yield from self._matched(some.filter(pa.array(~goes)).combine_chunks(), after)
                yield from self._matched(some.filter(pa.array(goes)).combine_chunks(), before)
        wanted = [source for source, _ in self.left_out]
        for some, _, stays in _known(left, theirs, went, self.left, wanted):
            for ones, others in matching_pairs(some, stays, self.right.key_names, self.left.key_names):
                yield self._rows(stays, others, some, ones)

    def _matched(self, mine: pa.Table, theirs: pa.Table) -> Iterator[pa.Table]:
        for ones, others in matching_pairs(mine, theirs, self.left.key_names, self.right.key_names):
            yield self._rows(mine, ones, theirs, others)

    def _rows(self, left: pa.Table, ones: I64, right: pa.Table, others: I64) -> pa.Table:
        mine, theirs = PickedRows(left, ones), PickedRows(right, others)
        keys = dict(zip(self.right.key_names, self.left.key_names, strict=True))
        found = {name: mine.column(source) for source, name in self.left_out}
        for source, name in self.right_out:
            twin = keys.get(source)  # keys are equal: they need not be gathered twice, if equal is the same
            if twin is not None and mine.lies and is_plain(chunk(left, twin).type):
                found[name] = mine.column(twin)
            else:
                found[name] = theirs.column(source)
        weights = _product(mine.numbers(WEIGHT), theirs.numbers(WEIGHT))
        return pa.table([*found.values(), pa.array(weights)], schema=self.schema)


def _known(
    side: RowLookup, changed: pa.Table, change: pa.Table, layout: Layout, columns: list[str]
) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """Some of the rows that changed, and what there is of their keys at the other side: before, and then.

    Both are added up: what came and went would cancel, but it would be joined first. So few keys are looked
    up at once that their rows fit into one table; only those of a single key that do not are given as they
    are.

    Args:
        side: what the other side remembers.
        changed: the rows, in order of the hash.
        change: what is added to the other side, in order of the hash as well.
        layout: of the other side.
        columns: what is wanted of it.
    """
    narrow = Layout(layout.columns_of(columns), layout.key)
    nothing, change = narrow.empty(), narrow.conform(change)
    hashes = column(changed, HASH)
    begins = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else hashes
    first, count = 0, _KEYS
    while first < len(begins):
        here = begins[first : first + count]
        last = first + len(here)
        asked = hashes[here]
        tables = side.lookups(asked, columns)
        found = list(itertools.islice(tables, 2))
        if len(found) > 1 and len(here) > 1:
            count = len(here) // 2
            continue
        some = changed.slice(here[0], (begins[last] if last < len(begins) else len(hashes)) - here[0])
        more = _of_keys(change, asked)
        if len(found) > 1:
            yield from ((some, known, known) for known in itertools.chain(found, tables))
            yield some, nothing, more
        elif found:
            before = found[0] if _rises(column(found[0], HASH)) else consolidate(found[0], narrow)
            after = consolidate(pa.concat_tables([before, more]), narrow) if more.num_rows else before
            yield some, before, after
        elif more.num_rows:
            yield some, nothing, more
        first, count = last, min(_KEYS, 2 * count)


def _of_keys(rows: pa.Table, asked: I64) -> pa.Table:
    """The rows with these hashes, of which both are in order."""
    hashes = column(rows, HASH)
    first, last = np.searchsorted(hashes, asked[0]), np.searchsorted(hashes, asked[-1], "right")
    hashes, rows = hashes[first:last], rows.slice(first, last - first)
    there = asked[np.minimum(np.searchsorted(asked, hashes), len(asked) - 1)] == hashes
    return rows if there.all() else rows.filter(pa.array(there)).combine_chunks()


def _rises(hashes: I64) -> bool:
    """Whether no two rows are of one key, so that there is nothing to add up."""
    return bool((hashes[1:] > hashes[:-1]).all())


def sorted_by_hash(rows: pa.Table) -> pa.Table:
    """Rows in order of the hash, in one chunk."""
    rows = rows.combine_chunks()
    hashes = column(rows, HASH)
    if (hashes[1:] >= hashes[:-1]).all():
        return rows
    return rows.take(pa.array(ascending(hashes))).combine_chunks()


def _product(one: I64, other: I64) -> I64:
    if len(one) == 0:
        return one
    most, times = _largest(one), _largest(other)
    if most * times >= 2**63:
        raise WeightOverflow("the weight of a joined row would not fit 64 bits")
    if times == 1 and other.min() == 1:
        return one
    return other if most == 1 and one.min() == 1 else one * other


def _largest(numbers: I64) -> int:
    return max(int(numbers.max()), -int(numbers.min()))
