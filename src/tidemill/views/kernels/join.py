"""Inner equi-joins: join the changed rows of each side with the stored rows of the other side.

A step reads only the stored rows that have the hash of a changed key. Two rows match only if their keys are
equal, so different keys with the same hash cost only a comparison. Every row in the output was in the result
before the step, or is in it after the step (ADR 21).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError, WeightOverflow
from tidemill.views.kernels.key_matching import PickedRows, matching_pairs, positions
from tidemill.views.trace.consolidation import chunk, column, consolidate
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import I64, ascending
from tidemill.views.trace.row_equality import is_plain

_KEYS = 131_072
"""How many keys to look up at once."""


class RowLookup(Protocol):
    """The stored rows of a side: the join's own trace, or the trace of a source."""

    def lookups(self, hashes: I64, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all rows with these hashes, in tables of one chunk; the hashes are sorted and distinct."""
        ...


@dataclass(frozen=True)
class JoinKernel:
    """An inner equi-join.

    Args:
        left: the layout of the left side's trace; its key is the left side of the condition.
        right: the layout of the right side; its key columns have the same types in the same order.
        null_safe: for each key column, whether it is compared by `<=>`; with `=`, NULL matches nothing.
        left_out: pairs of a column of the left side and its name in the output.
        right_out: the same for the right side.
    """

    left: Layout
    right: Layout
    null_safe: tuple[bool, ...]
    left_out: tuple[tuple[str, str], ...]
    right_out: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        left_types = [self.left.columns.field(name).type for name in self.left.key_names]
        right_types = [self.right.columns.field(name).type for name in self.right.key_names]
        if left_types != right_types or len(left_types) != len(self.null_safe):
            raise UsageError(
                f"the key types of a join differ: {left_types} and {right_types}",
                hint="cast both to their common type",
            )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output."""
        left = [pa.field(name, self.left.schema.field(source).type) for source, name in self.left_out]
        right = [pa.field(name, self.right.schema.field(source).type) for source, name in self.right_out]
        return pa.schema([*left, *right, pa.field(WEIGHT, pa.int64())])

    def consolidate_side(self, delta: pa.Table, layout: Layout) -> pa.Table:
        """Consolidate the change in a side, without rows that can never match; these are not stored."""
        table = layout.conform(delta)
        for name, safe in zip(layout.key_names, self.null_safe, strict=True):
            if not safe and table[name].null_count:
                table = table.filter(pc.is_valid(table[name]))
        return consolidate(table, layout)

    def step(
        self, left_change: pa.Table, right_change: pa.Table, left: RowLookup, right: RowLookup
    ) -> Iterator[pa.Table]:
        """Yield the change in the result, in tables whose rows may cancel each other out.

        Every row was in the result before the step, or is in it after the step, because an expression above
        the join may raise an error for any other row. So the kernel joins inserted left rows with the right
        side as it is after the step, deleted left rows with the right side as it was before the step, and
        changed right rows with the left rows that stay.

        Args:
            left_change: the change in the left side, in this range, sorted by hash, as `consolidate_side`
                returns it.
            right_change: the change in the right side.
            left: the stored rows of the left side, before the step.
            right: the stored rows of the right side, before the step.
        """
        deleted = left_change.filter(pa.array(column(left_change, WEIGHT) < 0)).combine_chunks()
        right_columns = [source for source, _ in self.right_out]
        for rows, before, after in before_and_after(
            right, left_change, right_change, self.right, right_columns
        ):
            if before is after or deleted.num_rows == 0:
                yield from self._join(rows, after)
            else:
                is_deletion = column(rows, WEIGHT) < 0
                yield from self._join(rows.filter(pa.array(~is_deletion)).combine_chunks(), after)
                yield from self._join(rows.filter(pa.array(is_deletion)).combine_chunks(), before)
        read = [source for source, _ in self.left_out]
        for rows, _, staying in before_and_after(left, right_change, deleted, self.left, read):
            pairs = matching_pairs(rows, staying, self.right.key_names, self.left.key_names)
            for right_rows, left_rows in pairs:
                yield self._output(staying, left_rows, rows, right_rows)

    def _join(self, left: pa.Table, right: pa.Table) -> Iterator[pa.Table]:
        for left_rows, right_rows in matching_pairs(left, right, self.left.key_names, self.right.key_names):
            yield self._output(left, left_rows, right, right_rows)

    def _output(self, left: pa.Table, left_rows: I64, right: pa.Table, right_rows: I64) -> pa.Table:
        from_left, from_right = PickedRows(left, left_rows), PickedRows(right, right_rows)
        keys = dict(zip(self.right.key_names, self.left.key_names, strict=True))
        columns = {name: from_left.column(source) for source, name in self.left_out}
        for source, name in self.right_out:
            left_key = keys.get(source)  # equal keys: reuse the left one if that is free and exact
            if left_key is not None and from_left.is_slice and is_plain(chunk(left, left_key).type):
                columns[name] = from_left.column(left_key)
            else:
                columns[name] = from_right.column(source)
        weights = _product(from_left.numbers(WEIGHT), from_right.numbers(WEIGHT))
        return pa.table([*columns.values(), pa.array(weights)], schema=self.schema)


def before_and_after(
    side: RowLookup, changed: pa.Table, change: pa.Table, layout: Layout, columns: list[str]
) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """Yield changed rows, with the rows of their keys on the other side before and after the step.

    The rows of the other side are consolidated, so that inserted and deleted rows cancel out before they are
    joined. Each lookup is for so few keys that their rows fit into one table. If the rows of a single key do
    not fit, only those that a deletion equals are consolidated (`_frequent_key`).

    Args:
        side: the stored rows of the other side.
        changed: the changed rows, sorted by hash.
        change: the change in the other side, sorted by hash.
        layout: the layout of the other side.
        columns: the columns to read from the other side.
    """
    narrow = Layout(layout.columns_of(columns), layout.key)
    nothing, change = narrow.empty(), narrow.conform(change)
    hashes = column(changed, HASH)
    starts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else hashes
    first, count = 0, _KEYS
    while first < len(starts):
        key_starts = starts[first : first + count]
        last = first + len(key_starts)
        keys = hashes[key_starts]
        tables = side.lookups(keys, columns)
        stored = list(itertools.islice(tables, 2))
        if len(stored) > 1 and len(keys) > 1:
            count = len(keys) // 2
            continue
        end = starts[last] if last < len(starts) else len(hashes)
        rows = changed.slice(key_starts[0], end - key_starts[0])
        added = _rows_with(change, keys)
        if len(stored) > 1:
            lookup = partial(side.lookups, keys, columns)
            yield from ((rows, before, after) for before, after in _frequent_key(lookup, added, narrow))
        elif stored:
            before = stored[0] if _are_distinct(column(stored[0], HASH)) else consolidate(stored[0], narrow)
            after = consolidate(pa.concat_tables([before, added]), narrow) if added.num_rows else before
            yield rows, before, after
        elif added.num_rows:
            yield rows, nothing, added
        first, count = last, min(_KEYS, 2 * count)


def _frequent_key(
    lookup: Callable[[], Iterator[pa.Table]], added: pa.Table, layout: Layout
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the rows of one key before and after the step, in several tables.

    The rows of the key do not fit into one table. They are read twice: the first time to find the deletions,
    which are few, because merges of runs remove them. Then the rows that equal a deletion are consolidated
    with it; the other rows are joined as they are stored.

    Args:
        lookup: reads the stored rows of the key.
        added: the change in the rows of the key.
        layout: the layout of both.
    """
    parts = [_deletions(layout.conform(part)) for part in itertools.chain(lookup(), [added])]
    deleted = consolidate(pa.concat_tables(parts), layout)
    equal = [layout.empty()]
    for table in lookup():
        part = layout.conform(table)
        matched = positions(deleted, part, layout.names, zeros="differ") >= 0
        if matched.any():
            equal.append(part.filter(pa.array(matched)))
            part = part.filter(pa.array(~matched)).combine_chunks()
        yield part, part
    before = consolidate(pa.concat_tables(equal), layout)
    yield before, consolidate(pa.concat_tables([before, added]), layout)


def _deletions(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(column(rows, WEIGHT) < 0))


def _rows_with(rows: pa.Table, targets: I64) -> pa.Table:
    """Return the rows with these hashes; rows and hashes are sorted."""
    hashes = column(rows, HASH)
    first, last = np.searchsorted(hashes, targets[0]), np.searchsorted(hashes, targets[-1], "right")
    hashes, rows = hashes[first:last], rows.slice(first, last - first)
    hit = targets[np.minimum(np.searchsorted(targets, hashes), len(targets) - 1)] == hashes
    return rows if hit.all() else rows.filter(pa.array(hit)).combine_chunks()


def _are_distinct(hashes: I64) -> bool:
    """Return whether the hashes strictly increase, so that there is nothing to add up."""
    return bool((hashes[1:] > hashes[:-1]).all())


def sorted_by_hash(rows: pa.Table) -> pa.Table:
    """Return rows sorted by hash, in one chunk."""
    rows = rows.combine_chunks()
    hashes = column(rows, HASH)
    if (hashes[1:] >= hashes[:-1]).all():
        return rows
    return rows.take(pa.array(ascending(hashes))).combine_chunks()


def _product(left: I64, right: I64) -> I64:
    if len(left) == 0:
        return left
    left_most, right_most = _largest(left), _largest(right)
    if left_most * right_most >= 2**63:
        raise WeightOverflow("the weight of a joined row does not fit into 64 bits")
    if right_most == 1 and right.min() == 1:
        return left
    return right if left_most == 1 and left.min() == 1 else left * right


def _largest(numbers: I64) -> int:
    return max(int(numbers.max()), -int(numbers.min()))
