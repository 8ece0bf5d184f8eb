"""Consolidation: add up equal rows, drop rows whose sums are all zero, and sort by hash."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import WeightOverflow
from tidemill.views.trace.key_hash import UPPER
from tidemill.views.trace.layout import HASH, Layout
from tidemill.views.trace.order import I64, ascending, take
from tidemill.views.trace.row_equality import Zeros, code_rows, equal_rows, group_equal, is_plain

_LIMB = np.int64(2**32 - 1)
_OVERFLOW = 2**63


def consolidate(table: pa.Table, layout: Layout, zeros: Zeros = "differ") -> pa.Table:
    """Return the Z-set in its canonical form: no equal rows, no row with only zero sums, sorted by hash.

    Args:
        table: has the columns of the layout, in any order and any number of chunks.
        layout: defines which columns are compared and which are added.
        zeros: whether 0.0 and -0.0 are equal; in stored rows they differ.
    """
    table = layout.conform(table)
    if table.num_rows == 0:
        return table
    if layout.key == len(layout.names) and _has_many_duplicates(table):
        table = _consolidate_by_hash_table(table, layout)
    table, starts = _sort_and_group(table, layout, zeros)
    sums = {name: group_sums(column(table, name), starts) for name in layout.sums}
    for limbs in layout.limbs:
        carry(sums, limbs)
    alive = np.zeros(len(starts), bool)
    for values in sums.values():
        alive |= values != 0
    rows = table.select([HASH, *layout.names])
    if len(starts) < table.num_rows or not alive.all():
        rows = pc.take(rows, pa.array(starts[alive]), boundscheck=False).combine_chunks()
        sums = {name: values[alive] for name, values in sums.items()}
    return pa.table([*rows.columns, *map(pa.array, sums.values())], schema=layout.schema)


SAMPLE = 4_096


def reduce_rows(table: pa.Table, layout: Layout) -> pa.Table:
    """Consolidate a Z-set if that is likely to leave fewer rows; the receiver consolidates it anyway.

    Small tables are always consolidated, and large ones if a sample of their rows shrinks by a quarter.
    """
    table = layout.conform(table)
    sample = table.slice(0, SAMPLE)
    if len(table) > SAMPLE and 4 * consolidate(sample, layout).num_rows > 3 * len(sample):
        return table
    return consolidate(table, layout)


_MANY_ROWS = 16 * SAMPLE


def _has_many_duplicates(table: pa.Table) -> bool:
    """Estimate from a sample whether each hash occurs more than four times on average."""
    count = table.num_rows
    if count < _MANY_ROWS:
        return False
    sample = column(table, HASH)[:: count // SAMPLE]
    duplicates = len(sample) - len(np.unique(sample))
    # there are about len(sample)**2 / 2 / duplicates groups
    return bool(duplicates * count > 2 * len(sample) ** 2)


def _consolidate_by_hash_table(table: pa.Table, layout: Layout) -> pa.Table:
    """Add up equal rows with Arrow's hash table, which is faster than sorting, if Arrow can compare them."""
    if not all(is_plain(each.type) for each in layout.columns):
        return table
    constants: dict[str, int] = {}  # sums with one value in all rows: the number of rows gives their total
    varying = []
    for name in layout.sums:
        values = column(table, name)
        least, most = int(values.min()), int(values.max())
        if max(most, -least) * len(values) >= _OVERFLOW:
            return table
        if least == most:
            constants[name] = least
        else:
            varying.append(name)
    names = [HASH, *layout.names]
    groups = table.select([*names, *varying]).group_by(names, use_threads=False)
    *columns, counts = groups.aggregate([*((name, "sum") for name in varying), ([], "count_all")]).columns
    totals = dict(zip([*names, *varying], columns, strict=True))
    for name, number in constants.items():
        totals[name] = pa.chunked_array([pa.array(counts.to_numpy() * np.int64(number))])
    return layout.conform(pa.table(totals))


def _sort_and_group(table: pa.Table, layout: Layout, zeros: Zeros) -> tuple[pa.Table, I64]:
    """Sort rows by hash and content, and return where each group of equal rows starts.

    Rows are sorted by one number: its upper half comes from the hash, its lower half from a hash of the other
    columns. In a fine trace, `_h` already is such a number. Then neighbours are compared. If different rows
    share the number, they may separate equal rows; then the rows are sorted by their complete content.
    """
    payload = [] if layout.fine else layout.rest_names
    number = column(table, HASH)
    if payload:
        mix = code_rows([chunk(table, name) for name in payload], table.num_rows, zeros).mix
        number = (number & UPPER) | (mix >> np.uint64(32)).view(np.int64)
    if not (number[1:] >= number[:-1]).all():
        order = ascending(number)
        number = take(number, order)
        table = _take_rows(table, order, layout, None if payload else number)
    hashes = column(table, HASH)
    if payload and not (hashes[1:] >= hashes[:-1]).all():
        order = np.argsort(hashes, kind="stable")  # some hashes differ only in their lower half
        table, number = table.take(pa.array(order)).combine_chunks(), number[order]
        hashes = column(table, HASH)
    same = (hashes[1:] == hashes[:-1]) & (number[1:] == number[:-1])
    repeated = np.flatnonzero(same)
    if len(repeated) == 0:
        return table, np.arange(table.num_rows)
    if layout.names:
        rows, next_rows = pa.array(repeated), pa.array(repeated + 1)
        columns = [chunk(table, name) for name in layout.names]
        equal = equal_rows(
            [values.take(rows) for values in columns], [values.take(next_rows) for values in columns], zeros
        )
        if not equal.all():
            return _sort_by_content(table, layout, zeros)
    return table, np.flatnonzero(np.append(True, ~same))


def _take_rows(table: pa.Table, order: I64, layout: Layout, hashes: I64 | None) -> pa.Table:
    """Reorder all rows. Constant columns are not moved, nor hashes that the caller has already sorted."""
    rows = pa.array(order)
    arrays = []
    for name in layout.schema.names:
        if name == HASH and hashes is not None:
            arrays.append(pa.array(hashes))
        elif name in layout.sums and (values := column(table, name)).min() == values.max():
            arrays.append(chunk(table, name))
        else:
            arrays.append(pc.take(chunk(table, name), rows, boundscheck=False))
    return pa.Table.from_arrays(arrays, schema=layout.schema)


def _sort_by_content(table: pa.Table, layout: Layout, zeros: Zeros) -> tuple[pa.Table, I64]:
    coded = code_rows([chunk(table, name) for name in layout.names], table.num_rows, zeros)
    order, starts = group_equal(coded, column(table, HASH))
    return table.take(pa.array(order)).combine_chunks(), starts


def group_sums(values: I64, starts: I64) -> I64:
    """Return the sum of each group of consecutive values; raise `WeightOverflow` beyond 64 bits.

    Args:
        values: the values of all groups.
        starts: where each group starts.
    """
    if len(starts) == len(values):
        return values
    largest = max(int(values.max()), -int(values.min()))
    if largest * len(values) >= _OVERFLOW:
        estimates = np.add.reduceat(values.astype(np.float64), starts)
        if float(np.abs(estimates).max()) >= _OVERFLOW * 0.999:
            raise WeightOverflow("a weight or an accumulator does not fit into 64 bits")
    total: I64 = np.add.reduceat(values, starts)
    return total


def carry(sums: dict[str, I64], limbs: tuple[str, ...]) -> None:
    """Carry between limbs, in place, so that all limbs except the highest are between 0 and 2^32 - 1."""
    for low, high in pairwise(limbs):
        sums[high] = sums[high] + (sums[low] >> 32)
        sums[low] = sums[low] & _LIMB


def chunk(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one Arrow array."""
    chunks = table[name]
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()


def column(table: pa.Table, name: str) -> Any:
    """Return a column without NULLs as a numpy array, which must not be modified."""
    return chunk(table, name).to_numpy(zero_copy_only=False)
