"""One row for each different row: sums added, what adds up to nothing left out, sorted by hash."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import WeightOverflow
from tidemill.views.trace.layout import HASH, Layout
from tidemill.views.trace.order import I64, ascending
from tidemill.views.trace.words import Zeros, code_rows, grouped

_LIMB = np.int64(2**32 - 1)
_MOST = 2**63


def consolidate(table: pa.Table, layout: Layout, zeros: Zeros = "differ") -> pa.Table:
    """The same Z-set in its one form: each row once, no sum all zero, ordered by hash and content.

    Args:
        table: with the columns of the layout, in any order, in any number of chunks.
        layout: says which columns are compared and which are added.
        zeros: whether 0.0 and -0.0 are one value; stored rows keep them apart.
    """
    table = layout.conform(table)
    if table.num_rows == 0:
        return table
    order, starts = _grouped_rows(table, layout, zeros)
    sums = {name: add_up(column(table, name)[order], starts) for name in layout.sums}
    for limbs in layout.limbs:
        carry(sums, limbs)
    alive = np.zeros(len(starts), bool)
    for values in sums.values():
        alive |= values != 0
    rows = order[starts[alive]]
    if len(rows) == table.num_rows and bool(np.all(rows == np.arange(len(rows)))):
        kept = table  # it was in that form already
    else:
        kept = table.take(pa.array(rows)).combine_chunks()
    fresh = [pa.array(sums[name][alive]) for name in layout.sums]
    return pa.table([*(kept[name] for name in (HASH, *layout.names)), *fresh], schema=layout.schema)


SAMPLE = 4_096


def lightened(table: pa.Table, layout: Layout) -> pa.Table:
    """The same Z-set with fewer rows, if that is likely to pay: for what is added up again where it arrives.

    Few rows are, and many if those of a sample become fewer by a quarter.
    """
    table = layout.conform(table)
    some = table.slice(0, SAMPLE)
    if len(table) > SAMPLE and 4 * consolidate(some, layout).num_rows > 3 * len(some):
        return table
    return consolidate(table, layout)


def _grouped_rows(table: pa.Table, layout: Layout, zeros: Zeros) -> tuple[I64, I64]:
    """Equal rows together, by hash; rows are only compared with those that share their hash."""
    hashes = column(table, HASH)
    order = ascending(hashes)
    ordered = hashes[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    shared = ~fresh
    shared[:-1] |= shared[1:]  # the first of those with the same hash is one of them
    places = np.flatnonzero(shared)
    if len(places):
        rows = order[places]
        some = table if len(rows) == len(order) else table.take(pa.array(rows)).combine_chunks()
        if some is table:
            rows = np.arange(len(rows))
        coded = code_rows([chunk(some, name) for name in layout.names], len(rows), zeros)
        within, starts = grouped(coded, hashes[rows])
        order[places] = rows[within]
        fresh[places] = False
        fresh[places[starts]] = True
    return order, np.flatnonzero(fresh)


def add_up(values: I64, starts: I64) -> I64:
    """The sum of each group of neighbours, which begin at `starts`; refuses what 64 bits cannot hold."""
    if len(starts) == len(values):
        return values
    largest = max(int(values.max()), -int(values.min()))
    if largest * len(values) >= _MOST:
        about = np.add.reduceat(values.astype(np.float64), starts)
        if float(np.abs(about).max()) >= _MOST * 0.999:
            raise WeightOverflow("a weight or an accumulator would not fit 64 bits")
    total: I64 = np.add.reduceat(values, starts)
    return total


def carry(sums: dict[str, I64], limbs: tuple[str, ...]) -> None:
    """Bring limbs into their one form, in place: all but the highest from 0 to 2^32 - 1."""
    for low, high in pairwise(limbs):
        sums[high] = sums[high] + (sums[low] >> 32)
        sums[low] = sums[low] & _LIMB


def chunk(table: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    found = table[name]
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def column(table: pa.Table, name: str) -> Any:
    """A column without NULLs as a numpy array; not to be written to."""
    return chunk(table, name).to_numpy(zero_copy_only=False)
