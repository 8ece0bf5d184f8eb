"""Rows that belong together by key: equal hash, and behind it equal keys."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.views.trace.batches import row_bytes
from tidemill.views.trace.consolidation import chunk, column
from tidemill.views.trace.layout import HASH
from tidemill.views.trace.order import I64, ascending, taken
from tidemill.views.trace.row_equality import Zeros, code_rows, equal_rows, group_equal
from tidemill.views.trace.trace import expand

_MANY = 4_096  # rows among which stretches of one key are looked for
_EACH = 4  # rows of a stretch, on average, for that to pay
_PAIRS = 262_144  # pairs that are compared and gathered at once
_FEWER = 16  # times: then the hashes of the side that has fewer are looked for in the other
_PAIRS_BYTES = 64 * 1024**2  # and fewer where both rows together are wide


def distinct_keys(tables: Sequence[pa.Table], keys: list[str]) -> pa.Table:
    """Each key of the tables once, with its hash, in the order of hash and content."""
    parts = []
    for table in tables:
        part = table.select([HASH, *keys]).combine_chunks()
        firsts = _stretches(part, keys, "equal")
        parts.append(part if firsts is None else pc.take(part, pa.array(firsts), boundscheck=False))
    together = pa.concat_tables(parts).combine_chunks()
    order, starts = group_equal(_code(together, keys), column(together, HASH))
    return together.take(pa.array(order[starts])).combine_chunks()


def positions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros = "equal") -> I64:
    """For each row the place of its key in `targets`, sorted by hash and each once; -1 if it is not there."""
    if rows.num_rows == 0 or targets.num_rows == 0:
        return np.full(rows.num_rows, -1, np.int64)
    firsts = _stretches(rows, keys, zeros)
    if firsts is None:
        return _positions(targets, rows, keys, zeros)
    some = pc.take(rows.select([HASH, *keys]), pa.array(firsts), boundscheck=False).combine_chunks()
    again = np.diff(np.append(firsts, rows.num_rows))
    return np.repeat(_positions(targets, some, keys, zeros), again)


def _stretches(rows: pa.Table, keys: list[str], zeros: Zeros) -> I64 | None:
    """Where neighbours with one key begin, if there are many of each; None if all rows are to be looked at.

    So it is with the values of groups: a key is then looked for once, and not for each of its rows.
    """
    hashes = column(rows, HASH)
    if len(hashes) < _MANY:
        return None
    change = hashes[1:] != hashes[:-1]
    if _EACH * np.count_nonzero(change) > len(hashes):
        return None
    if keys:
        columns = [chunk(rows, name) for name in keys]
        others = [one.slice(0, len(one) - 1) for one in columns]
        change |= ~equal_rows([one.slice(1) for one in columns], others, zeros)
    return np.flatnonzero(np.append(True, change))


def _positions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros) -> I64:
    known, hashes = column(targets, HASH), column(rows, HASH)
    if np.any(known[1:] <= known[:-1]):
        return _positions_among_collisions(targets, rows, keys, zeros)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    agree = known[place] == hashes
    if keys:
        theirs = [pc.take(chunk(targets, name), pa.array(place), boundscheck=False) for name in keys]
        agree &= equal_rows([chunk(rows, name) for name in keys], theirs, zeros)
    found: I64 = np.where(agree, place, -1)
    return found


def _positions_among_collisions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros) -> I64:
    """The same where keys of `targets` share a hash."""
    first = targets.num_rows
    together = pa.concat_tables([targets.select([HASH, *keys]), rows.select([HASH, *keys])]).combine_chunks()
    order, starts = group_equal(_code(together, keys, zeros), column(together, HASH))
    group = np.empty(together.num_rows, np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    place = np.full(len(starts), -1, np.int64)
    place[group[:first]] = np.arange(first)
    found: I64 = place[group[first:]]
    return found


def sums_at(places: I64, values: I64, count: int) -> I64:
    """The sum of the values of each place; those without a place are left out."""
    total = np.zeros(count, np.int64)
    here = places >= 0
    np.add.at(total, places[here], values[here])
    return total


def matching_pairs(
    left: pa.Table, right: pa.Table, left_keys: list[str], right_keys: list[str]
) -> Iterator[tuple[I64, I64]]:
    """All pairs of rows with equal keys, a bounded number at a time.

    Args:
        left: sorted by hash, in one chunk.
        right: in any order.
        left_keys: its key columns, of the same types as those of the other side.
        right_keys: those of the other side.
    """
    if left.num_rows == 0 or right.num_rows == 0:
        return
    partners = _partners(column(left, HASH), column(right, HASH))
    most = min(_PAIRS, max(1, _PAIRS_BYTES // (row_bytes(left) + row_bytes(right))))
    for ones, at in _at_once(partners, most):
        others = at if partners.order is None else taken(partners.order, at)
        agree = _agree(left, ones, left_keys, right, others, right_keys)
        yield (ones, others) if agree.all() else (ones[agree], others[agree])


class _Partners(NamedTuple):
    """Which rows of the left side have rows of the right one with the same hash.

    Args:
        rows: the rows of the left side that have any, in their order.
        begin: where those of each begin in the right side's order by hash.
        counts: how many they are; None if each has one.
        order: that order; None if it is as it lies.
    """

    rows: I64
    begin: I64
    counts: I64 | None
    order: I64 | None


def _partners(hashes: I64, right_hashes: I64) -> _Partners:
    """Each hash is looked for once, and where one side has far more of them, it is those of the other."""
    order, ordered = None, right_hashes
    if not (right_hashes[1:] >= right_hashes[:-1]).all():
        order = ascending(right_hashes)
        ordered = taken(right_hashes, order)
    starts = _starts(ordered)
    theirs = taken(ordered, starts)
    counts = np.diff(np.append(starts, len(ordered)))
    if _FEWER * len(theirs) < len(hashes):
        firsts = np.searchsorted(hashes, theirs)
        again = np.searchsorted(hashes, theirs, "right") - firsts
        at = np.arange(len(theirs))
        found = again > 0
    else:
        firsts = _starts(hashes)
        mine = taken(hashes, firsts)
        again = np.diff(np.append(firsts, len(hashes)))
        at = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
        found = taken(theirs, at) == mine
    if not found.all():
        firsts, again, at = firsts[found], again[found], at[found]
    here = taken(counts, at)
    each = None if (here == 1).all() else np.repeat(here, again)
    total = int(again.sum())
    rows = np.arange(total) if total == len(hashes) else expand(firsts, firsts + again)
    return _Partners(rows, np.repeat(taken(starts, at), again), each, order)


def _at_once(partners: _Partners, most: int) -> Iterator[tuple[I64, I64]]:
    """The pairs, at most so many at a time: a row of the left side, a place in the order of the right one."""
    rows, begin, counts, _ = partners
    if counts is None:
        for first in range(0, len(rows), most):
            yield rows[first : first + most], begin[first : first + most]
        return
    total = np.cumsum(counts)
    for first in range(0, int(total[-1]), most):
        last = min(first + most, int(total[-1]))
        low, high = np.searchsorted(total, [first, last - 1], "right")  # the rows that have these pairs
        some = counts[low : high + 1].copy()
        some[-1] -= total[high] - last
        skipped = first - int(total[low] - counts[low])  # pairs of the first row that were given before
        some[0] -= skipped
        at = begin[low : high + 1].copy()
        at[0] += skipped
        yield np.repeat(rows[low : high + 1], some), expand(at, at + some)


def _starts(hashes: I64) -> I64:
    """Where each hash begins among those that are sorted."""
    return np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))


class PickedRows:
    """Some rows of a table. Those that lie one behind the other, as most do that have one partner, are
    read where they are.

    Args:
        table: in one chunk.
        rows: which of its rows, in any order and any number of times.
    """

    def __init__(self, table: pa.Table, rows: I64) -> None:
        self._table = table
        self._rows = rows
        count = len(rows)
        self.lies = count > 0 and int(rows[-1] - rows[0]) == count - 1 and bool((rows[1:] > rows[:-1]).all())
        self._first = int(rows[0]) if self.lies else 0
        self._places = None if self.lies else pa.array(rows)

    def column(self, name: str) -> pa.Array:
        """The values of a column."""
        values = chunk(self._table, name)
        if self._places is None:
            return values.slice(self._first, len(self._rows))
        return pc.take(values, self._places, boundscheck=False)

    def numbers(self, name: str) -> I64:
        """Those of a column of numbers without NULLs; not to be written to."""
        values: I64 = column(self._table, name)
        if self._places is None:
            return values[self._first : self._first + len(self._rows)]
        found: I64 = taken(values, self._rows)
        return found


def _agree(
    left: pa.Table, ones: I64, left_keys: list[str], right: pa.Table, others: I64, right_keys: list[str]
) -> Any:
    if not left_keys:
        return np.ones(len(ones), bool)
    mine, theirs = PickedRows(left, ones), PickedRows(right, others)
    return equal_rows([mine.column(name) for name in left_keys], [theirs.column(name) for name in right_keys])


def _code(table: pa.Table, keys: list[str], zeros: Zeros = "equal") -> Any:
    return code_rows([chunk(table, name) for name in keys], table.num_rows, zeros)
