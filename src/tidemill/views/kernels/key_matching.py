"""Match rows by key: rows match if their hashes and their keys are equal."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.trace.batches import row_bytes
from tidemill.views.trace.consolidation import chunk, column
from tidemill.views.trace.layout import HASH
from tidemill.views.trace.order import I64, ascending, take
from tidemill.views.trace.row_equality import Zeros, code_rows, equal_rows, group_equal
from tidemill.views.trace.trace import expand

_MANY_ROWS = 4_096  # from this many rows on, neighbours with an equal key are grouped before matching
_ROWS_PER_KEY = 4  # group neighbours if, on average, this many have an equal key
_PAIRS = 262_144  # pairs to compare and gather at once
_PAIRS_BYTES = 64 * 1024**2  # fewer pairs if the rows are wide
_MUCH_FEWER = 16  # if one side has 1/16 of the hashes, search these in the other side


def distinct_keys(tables: Sequence[pa.Table], keys: list[str]) -> pa.Table:
    """Return the distinct keys of the tables with their hashes, sorted by hash and content."""
    parts = []
    for table in tables:
        part = table.select([HASH, *keys]).combine_chunks()
        firsts = _key_starts(part, keys, "equal")
        parts.append(part if firsts is None else pc.take(part, pa.array(firsts), boundscheck=False))
    together = pa.concat_tables(parts).combine_chunks()
    order, starts = group_equal(_code(together, keys), column(together, HASH))
    return together.take(pa.array(order[starts])).combine_chunks()


def positions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros = "equal") -> I64:
    """Return for each row the place of its key in `targets`; -1 if `targets` does not contain it.

    Args:
        targets: distinct keys, sorted by hash.
        rows: the rows to match.
        keys: the key columns, which targets and rows both have.
        zeros: whether 0.0 and -0.0 are equal.
    """
    if rows.num_rows == 0 or targets.num_rows == 0:
        return np.full(rows.num_rows, -1, np.int64)
    firsts = _key_starts(rows, keys, zeros)
    if firsts is None:
        return _positions(targets, rows, keys, zeros)
    first_rows = pc.take(rows.select([HASH, *keys]), pa.array(firsts), boundscheck=False).combine_chunks()
    repeats = np.diff(np.append(firsts, rows.num_rows))
    return np.repeat(_positions(targets, first_rows, keys, zeros), repeats)


def _key_starts(rows: pa.Table, keys: list[str], zeros: Zeros) -> I64 | None:
    """Return where each stretch of rows with equal keys starts; None if most neighbouring keys differ.

    The values of groups have long stretches, so each key is matched once instead of once per row.
    """
    hashes = column(rows, HASH)
    if len(hashes) < _MANY_ROWS:
        return None
    change = hashes[1:] != hashes[:-1]
    if _ROWS_PER_KEY * np.count_nonzero(change) > len(hashes):
        return None
    if keys:
        columns = [chunk(rows, name) for name in keys]
        previous = [values.slice(0, len(values) - 1) for values in columns]
        change |= ~equal_rows([values.slice(1) for values in columns], previous, zeros)
    return np.flatnonzero(np.append(True, change))


def _positions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros) -> I64:
    target_hashes, hashes = column(targets, HASH), column(rows, HASH)
    if np.any(target_hashes[1:] <= target_hashes[:-1]):
        return _positions_among_collisions(targets, rows, keys, zeros)
    place = np.minimum(np.searchsorted(target_hashes, hashes), len(target_hashes) - 1)
    agree = target_hashes[place] == hashes
    if keys:
        target_keys = [pc.take(chunk(targets, name), pa.array(place), boundscheck=False) for name in keys]
        agree &= equal_rows([chunk(rows, name) for name in keys], target_keys, zeros)
    matched: I64 = np.where(agree, place, -1)
    return matched


def _positions_among_collisions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros) -> I64:
    """Match rows if some keys of `targets` share a hash."""
    first = targets.num_rows
    together = pa.concat_tables([targets.select([HASH, *keys]), rows.select([HASH, *keys])]).combine_chunks()
    order, starts = group_equal(_code(together, keys, zeros), column(together, HASH))
    group = np.empty(together.num_rows, np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    place = np.full(len(starts), -1, np.int64)
    place[group[:first]] = np.arange(first)
    matched: I64 = place[group[first:]]
    return matched


def sums_at(places: I64, values: I64, count: int) -> I64:
    """Return for each place, 0 to `count` - 1, the sum of its values; ignore values with the place -1."""
    total = np.zeros(count, np.int64)
    matched = places >= 0
    np.add.at(total, places[matched], values[matched])
    return total


def matching_pairs(
    left: pa.Table, right: pa.Table, left_keys: list[str], right_keys: list[str]
) -> Iterator[tuple[I64, I64]]:
    """Yield all pairs of rows with equal keys, a bounded number at a time.

    Args:
        left: sorted by hash, in one chunk.
        right: in any order.
        left_keys: the key columns of the left side.
        right_keys: the key columns of the right side, with the same types.
    """
    if left.num_rows == 0 or right.num_rows == 0:
        return
    partners = _partners(column(left, HASH), column(right, HASH))
    most = min(_PAIRS, max(1, _PAIRS_BYTES // (row_bytes(left) + row_bytes(right))))
    for left_rows, places in _pairs(partners, most):
        right_rows = places if partners.order is None else take(partners.order, places)
        agree = _keys_agree(left, left_rows, left_keys, right, right_rows, right_keys)
        yield (left_rows, right_rows) if agree.all() else (left_rows[agree], right_rows[agree])


class _Partners(NamedTuple):
    """The rows of the left side that have partners: rows of the right side with the same hash.

    Args:
        rows: the rows of the left side that have partners, in their order.
        begin: where the partners of each row start in the right side, if it is sorted by hash.
        counts: how many partners each row has; None if each has one.
        order: the sort order of the right side by hash; None if it is already sorted.
    """

    rows: I64
    begin: I64
    counts: I64 | None
    order: I64 | None


def _partners(hashes: I64, right_hashes: I64) -> _Partners:
    """Find the partners by searching each distinct hash of one side in the other.

    If the right side has far fewer hashes, its hashes are searched in the left side. Otherwise the hashes of
    the left side are searched in the right side.
    """
    order, ordered = None, right_hashes
    if not (right_hashes[1:] >= right_hashes[:-1]).all():
        order = ascending(right_hashes)
        ordered = take(right_hashes, order)
    starts = _starts(ordered)
    right_distinct = take(ordered, starts)
    counts = np.diff(np.append(starts, len(ordered)))
    if _MUCH_FEWER * len(right_distinct) < len(hashes):
        firsts = np.searchsorted(hashes, right_distinct)
        repeats = np.searchsorted(hashes, right_distinct, "right") - firsts
        at = np.arange(len(right_distinct))
        matched = repeats > 0
    else:
        firsts = _starts(hashes)
        left_distinct = take(hashes, firsts)
        repeats = np.diff(np.append(firsts, len(hashes)))
        at = np.minimum(np.searchsorted(right_distinct, left_distinct), len(right_distinct) - 1)
        matched = take(right_distinct, at) == left_distinct
    if not matched.all():
        firsts, repeats, at = firsts[matched], repeats[matched], at[matched]
    matched_counts = take(counts, at)
    row_counts = None if (matched_counts == 1).all() else np.repeat(matched_counts, repeats)
    total = int(repeats.sum())
    rows = np.arange(total) if total == len(hashes) else expand(firsts, firsts + repeats)
    return _Partners(rows, np.repeat(take(starts, at), repeats), row_counts, order)


def _pairs(partners: _Partners, most: int) -> Iterator[tuple[I64, I64]]:
    """Yield at most `most` pairs at a time: rows of the left side, and places in the sorted right side."""
    rows, begin, counts, _ = partners
    if counts is None:
        for first in range(0, len(rows), most):
            yield rows[first : first + most], begin[first : first + most]
        return
    total = np.cumsum(counts)
    for first in range(0, int(total[-1]), most):
        last = min(first + most, int(total[-1]))
        low, high = np.searchsorted(total, [first, last - 1], "right")  # the rows that have these pairs
        pair_counts = counts[low : high + 1].copy()
        pair_counts[-1] -= total[high] - last
        skipped = first - int(total[low] - counts[low])  # pairs of the first row that were yielded before
        pair_counts[0] -= skipped
        at = begin[low : high + 1].copy()
        at[0] += skipped
        yield np.repeat(rows[low : high + 1], pair_counts), expand(at, at + pair_counts)


def _starts(hashes: I64) -> I64:
    """Return where each distinct hash starts in sorted hashes."""
    return np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))


class PickedRows:
    """Picked rows of a table. Consecutive rows, which are common, are a slice and are not copied.

    Args:
        table: in one chunk.
        rows: the row numbers, in any order, possibly with repetitions.
    """

    def __init__(self, table: pa.Table, rows: I64) -> None:
        self._table = table
        self._rows = rows
        count = len(rows)
        self.is_slice = (
            count > 0 and int(rows[-1] - rows[0]) == count - 1 and bool((rows[1:] > rows[:-1]).all())
        )
        self._first = int(rows[0]) if self.is_slice else 0
        self._places = None if self.is_slice else pa.array(rows)

    def column(self, name: str) -> pa.Array:
        """Return the values of a column."""
        values = chunk(self._table, name)
        if self._places is None:
            return values.slice(self._first, len(self._rows))
        return pc.take(values, self._places, boundscheck=False)

    def numbers(self, name: str) -> I64:
        """Return a column of numbers without NULLs, which must not be modified."""
        values: I64 = column(self._table, name)
        if self._places is None:
            return values[self._first : self._first + len(self._rows)]
        picked: I64 = take(values, self._rows)
        return picked


def _keys_agree(
    left: pa.Table,
    left_rows: I64,
    left_keys: list[str],
    right: pa.Table,
    right_rows: I64,
    right_keys: list[str],
) -> Any:
    if not left_keys:
        return np.ones(len(left_rows), bool)
    from_left, from_right = PickedRows(left, left_rows), PickedRows(right, right_rows)
    left_columns = [from_left.column(name) for name in left_keys]
    return equal_rows(left_columns, [from_right.column(name) for name in right_keys])


def _code(table: pa.Table, keys: list[str], zeros: Zeros = "equal") -> Any:
    return code_rows([chunk(table, name) for name in keys], table.num_rows, zeros)
