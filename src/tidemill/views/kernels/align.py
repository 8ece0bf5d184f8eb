"""Rows that belong together by key: equal hash, and behind it equal keys."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.views.trace.consolidate import chunk, column
from tidemill.views.trace.layout import HASH
from tidemill.views.trace.order import I64, ascending
from tidemill.views.trace.portions import row_bytes
from tidemill.views.trace.spine import expand
from tidemill.views.trace.words import Zeros, code_rows, grouped, same

_MANY = 4_096  # rows among which stretches of one key are looked for
_EACH = 4  # rows of a stretch, on average, for that to pay
_PAIRS = 262_144  # pairs that are compared and gathered at once
_PAIRS_BYTES = 64 * 1024**2  # and fewer where both rows together are wide


def distinct_keys(tables: Sequence[pa.Table], keys: list[str]) -> pa.Table:
    """Each key of the tables once, with its hash, in the order of hash and content."""
    parts = []
    for table in tables:
        part = table.select([HASH, *keys]).combine_chunks()
        firsts = _stretches(part, keys, "equal")
        parts.append(part if firsts is None else part.take(pa.array(firsts)))
    together = pa.concat_tables(parts).combine_chunks()
    order, starts = grouped(_code(together, keys), column(together, HASH))
    return together.take(pa.array(order[starts])).combine_chunks()


def positions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros = "equal") -> I64:
    """For each row the place of its key in `targets`, sorted by hash and each once; -1 if it is not there."""
    if rows.num_rows == 0 or targets.num_rows == 0:
        return np.full(rows.num_rows, -1, np.int64)
    firsts = _stretches(rows, keys, zeros)
    if firsts is None:
        return _positions(targets, rows, keys, zeros)
    some = rows.select([HASH, *keys]).take(pa.array(firsts)).combine_chunks()
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
        change |= ~same([one.slice(1) for one in columns], others, zeros)
    return np.flatnonzero(np.append(True, change))


def _positions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros) -> I64:
    known, hashes = column(targets, HASH), column(rows, HASH)
    if np.any(known[1:] <= known[:-1]):
        return _positions_among_collisions(targets, rows, keys, zeros)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    agree = known[place] == hashes
    if keys:
        theirs = [chunk(targets, name).take(pa.array(place)) for name in keys]
        agree &= same([chunk(rows, name) for name in keys], theirs, zeros)
    found: I64 = np.where(agree, place, -1)
    return found


def _positions_among_collisions(targets: pa.Table, rows: pa.Table, keys: list[str], zeros: Zeros) -> I64:
    """The same where keys of `targets` share a hash."""
    first = targets.num_rows
    together = pa.concat_tables([targets.select([HASH, *keys]), rows.select([HASH, *keys])]).combine_chunks()
    order, starts = grouped(_code(together, keys, zeros), column(together, HASH))
    group = np.empty(together.num_rows, np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    place = np.full(len(starts), -1, np.int64)
    place[group[:first]] = np.arange(first)
    found: I64 = place[group[first:]]
    return found


def added_at(places: I64, values: I64, count: int) -> I64:
    """The sum of the values of each place; those without a place are left out."""
    total = np.zeros(count, np.int64)
    here = places >= 0
    np.add.at(total, places[here], values[here])
    return total


def pairs(
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
    right_hashes = column(right, HASH)
    order = ascending(right_hashes)
    ordered = right_hashes[order]
    hashes = column(left, HASH)
    firsts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))  # each hash is looked for once
    different = hashes[firsts]
    begin = np.searchsorted(ordered, different)
    again = np.diff(np.append(firsts, len(hashes)))
    counts = np.repeat(np.searchsorted(ordered, different, "right") - begin, again)
    begin = np.repeat(begin, again)
    total = np.cumsum(counts)
    most = min(_PAIRS, max(1, _PAIRS_BYTES // (row_bytes(left) + row_bytes(right))))
    for first in range(0, int(total[-1]), most):
        last = min(first + most, int(total[-1]))
        low, high = np.searchsorted(total, [first, last - 1], "right")  # the rows that have these pairs
        some = counts[low : high + 1].copy()
        some[-1] -= total[high] - last
        skipped = first - int(total[low] - counts[low])  # pairs of the first row that were given before
        some[0] -= skipped
        ones = np.repeat(np.arange(low, high + 1), some)
        at = begin[low : high + 1].copy()
        at[0] += skipped
        others = order[expand(at, at + some)]
        agree = _agree(left, ones, left_keys, right, others, right_keys)
        yield (ones, others) if agree.all() else (ones[agree], others[agree])


def _agree(
    left: pa.Table, ones: I64, left_keys: list[str], right: pa.Table, others: I64, right_keys: list[str]
) -> Any:
    if not left_keys:
        return np.ones(len(ones), bool)
    mine = [chunk(left, name).take(pa.array(ones)) for name in left_keys]
    theirs = [chunk(right, name).take(pa.array(others)) for name in right_keys]
    return same(mine, theirs)


def _code(table: pa.Table, keys: list[str], zeros: Zeros = "equal") -> Any:
    return code_rows([chunk(table, name) for name in keys], table.num_rows, zeros)
