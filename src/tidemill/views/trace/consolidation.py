"""One row for each different row: sums added, what adds up to nothing left out, sorted by hash."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import WeightOverflow
from tidemill.views.trace.key_hash import UPPER
from tidemill.views.trace.layout import HASH, Layout
from tidemill.views.trace.order import I64, ascending, taken
from tidemill.views.trace.row_equality import Zeros, code_rows, equal_rows, group_equal, is_plain

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
    if layout.key == len(layout.names) and _repeats(table):
        table = _condensed(table, layout)
    table, starts = _grouped(table, layout, zeros)
    sums = {name: group_sums(column(table, name), starts) for name in layout.sums}
    for limbs in layout.limbs:
        carry(sums, limbs)
    alive = np.zeros(len(starts), bool)
    for values in sums.values():
        alive |= values != 0
    kept = table.select([HASH, *layout.names])
    if len(starts) < table.num_rows or not alive.all():
        kept = pc.take(kept, pa.array(starts[alive]), boundscheck=False).combine_chunks()
        sums = {name: values[alive] for name, values in sums.items()}
    return pa.table([*kept.columns, *map(pa.array, sums.values())], schema=layout.schema)


SAMPLE = 4_096


def reduced(table: pa.Table, layout: Layout) -> pa.Table:
    """The same Z-set with fewer rows, if that is likely to pay: for what is added up again where it arrives.

    Few rows are, and many if those of a sample become fewer by a quarter.
    """
    table = layout.conform(table)
    some = table.slice(0, SAMPLE)
    if len(table) > SAMPLE and 4 * consolidate(some, layout).num_rows > 3 * len(some):
        return table
    return consolidate(table, layout)


_MANY = 16 * SAMPLE


def _repeats(table: pa.Table) -> bool:
    """Whether many rows are of few groups: by how often two of a sample are of the same one."""
    count = table.num_rows
    if count < _MANY:
        return False
    some = column(table, HASH)[:: count // SAMPLE]
    twice = len(some) - len(np.unique(some))
    return bool(twice * count > 2 * len(some) ** 2)  # about len(some)**2 / 2 / twice groups: under a quarter


def _condensed(table: pa.Table, layout: Layout) -> pa.Table:
    """The same Z-set with far fewer rows, by a hash table instead of sorting, where Arrow can do that."""
    if not all(is_plain(each.type) for each in layout.columns):
        return table
    alike: dict[str, int] = {}  # sums that are the same number in all rows: how many these are says it all
    added = []
    for name in layout.sums:
        values = column(table, name)
        least, most = int(values.min()), int(values.max())
        if max(most, -least) * len(values) >= _MOST:
            return table
        if least == most:
            alike[name] = least
        else:
            added.append(name)
    names = [HASH, *layout.names]
    groups = table.select([*names, *added]).group_by(names, use_threads=False)
    *columns, counts = groups.aggregate([*((name, "sum") for name in added), ([], "count_all")]).columns
    found = dict(zip([*names, *added], columns, strict=True))
    for name, number in alike.items():
        found[name] = pa.chunked_array([pa.array(counts.to_numpy() * np.int64(number))])
    return layout.conform(pa.table(found))


def _grouped(table: pa.Table, layout: Layout, zeros: Zeros) -> tuple[pa.Table, I64]:
    """The rows by hash and content, and where each group of equal ones begins.

    They are sorted by one number, half of it of the hash and half of a mix of what is not in the key; in a
    trace that is fine the hash is such a number. Then neighbours are compared. Different ones that share all
    of that number may stand between equal ones: then all of their content decides.
    """
    payload = [] if layout.fine else layout.rest_names
    number = column(table, HASH)
    if payload:
        mix = code_rows([chunk(table, name) for name in payload], table.num_rows, zeros).mix
        number = (number & UPPER) | (mix >> np.uint64(32)).view(np.int64)
    if not (number[1:] >= number[:-1]).all():
        order = ascending(number)
        number = taken(number, order)
        table = _taken(table, order, layout, None if payload else number)
    hashes = column(table, HASH)
    if payload and not (hashes[1:] >= hashes[:-1]).all():
        order = np.argsort(hashes, kind="stable")  # they differ in their lower half
        table, number = table.take(pa.array(order)).combine_chunks(), number[order]
        hashes = column(table, HASH)
    alike = (hashes[1:] == hashes[:-1]) & (number[1:] == number[:-1])
    near = np.flatnonzero(alike)
    if len(near) == 0:
        return table, np.arange(table.num_rows)
    if layout.names:
        ones, others = pa.array(near), pa.array(near + 1)
        columns = [chunk(table, name) for name in layout.names]
        equal = equal_rows([one.take(ones) for one in columns], [one.take(others) for one in columns], zeros)
        if not equal.all():
            return _grouped_by_content(table, layout, zeros)
    return table, np.flatnonzero(np.append(True, ~alike))


def _taken(table: pa.Table, order: I64, layout: Layout, hashes: I64 | None) -> pa.Table:
    """All rows in another order. What is the same in all of them need not be moved, nor hashes that were."""
    rows = pa.array(order)
    found = []
    for name in layout.schema.names:
        if name == HASH and hashes is not None:
            found.append(pa.array(hashes))
        elif name in layout.sums and (values := column(table, name)).min() == values.max():
            found.append(chunk(table, name))
        else:
            found.append(pc.take(chunk(table, name), rows, boundscheck=False))
    return pa.Table.from_arrays(found, schema=layout.schema)


def _grouped_by_content(table: pa.Table, layout: Layout, zeros: Zeros) -> tuple[pa.Table, I64]:
    coded = code_rows([chunk(table, name) for name in layout.names], table.num_rows, zeros)
    order, starts = group_equal(coded, column(table, HASH))
    return table.take(pa.array(order)).combine_chunks(), starts


def group_sums(values: I64, starts: I64) -> I64:
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
