"""Consolidate Z-sets that have no hash column (the form that operators return), and compute their digests."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tidemill.views.trace.consolidation import chunk, column, group_sums
from tidemill.views.trace.layout import WEIGHT
from tidemill.views.trace.row_equality import code_rows, group_equal


def net_rows(table: pa.Table) -> pa.Table:
    """Consolidate a Z-set: merge equal rows, in an order that depends on the content alone.

    >>> net_rows(pa.table({"a": ["x", "y", "x"], "_w": [1, 1, -1]})).to_pylist()
    [{'a': 'y', '_w': 1}]
    """
    table = table.combine_chunks()
    if table.num_rows == 0:
        return table
    names = [name for name in table.column_names if name != WEIGHT]
    order, starts = group_equal(code_rows([chunk(table, name) for name in names], table.num_rows, "differ"))
    weights = group_sums(column(table, WEIGHT)[order], starts)
    alive = weights != 0
    rows = table.take(pa.array(order[starts[alive]]))
    place = table.column_names.index(WEIGHT)
    return rows.set_column(place, table.schema.field(place), pa.array(weights[alive].astype(np.int64)))


SPAN = 2**128


def digest(table: pa.Table, high: str, low: str, weight: str) -> int:
    """Return the digest of a table; the columns `high` and `low` are the halves of H128.

    >>> table = pa.table({"a": [1, 1], "b": [-1, -1], "_w": [1, -1]})
    >>> digest(table, "a", "b", "_w")
    0
    """
    weights = column(table, weight).astype(np.int64)
    total = 0
    for name, shift in ((high, 64), (low, 0)):
        hashes = column(table, name).astype(np.int64).view(np.uint64)
        for limb in range(2):
            part = ((hashes >> np.uint64(32 * limb)) & np.uint64(2**32 - 1)).astype(np.int64)
            total += _dot(part, weights) << (shift + 32 * limb)
    return total % SPAN


def total_digest(digests: Iterable[int]) -> int:
    """Return the digest of a table from the digests of its pieces."""
    return sum(digests) % SPAN


def _dot(limbs: np.ndarray, weights: np.ndarray) -> int:
    """Return the exact sum of limbs times weights; limbs have 32 bits."""
    if len(weights) == 0:
        return 0
    most = max(int(weights.max()), -int(weights.min()))
    if most * len(weights) < 2**31:
        return int(np.dot(limbs, weights))
    total = 0
    for shift in (0, 22, 44):  # 22 bits of the weights and 2^9 rows at a time: each sum fits 63 bits
        part = (weights >> shift) & (2**22 - 1) if shift < 44 else weights >> shift
        sums = np.add.reduceat(limbs * part, np.arange(0, len(limbs), 512))
        total += sum(map(int, sums.tolist())) << shift
    return total
