"""Digests of Z-sets: the sum over rows of weight times H128, modulo 2^128 (DBSP-42).

H128 of a row are two `xxhash64` of Spark with different salts, which come as columns. Since a sum does not
care for order, digests of pieces and of steps add up; a retraction takes away exactly what the row had added.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tidemill.views.trace.consolidate import column

SPAN = 2**128


def digest(table: pa.Table, high: str, low: str, weight: str) -> int:
    """The digest of a table whose columns `high` and `low` are the halves of H128.

    >>> table = pa.table({"a": [1, 1], "b": [-1, -1], "_w": [1, -1]})
    >>> digest(table, "a", "b", "_w")
    0
    """
    weights = column(table, weight).astype(np.int64)
    total = 0
    for name, shift in ((high, 64), (low, 0)):
        octets = column(table, name).astype(np.int64).view(np.uint64)
        for limb in range(2):
            part = ((octets >> np.uint64(32 * limb)) & np.uint64(2**32 - 1)).astype(np.int64)
            total += _dot(part, weights) << (shift + 32 * limb)
    return total % SPAN


def together(digests: Iterable[int]) -> int:
    """The digest of several pieces, from theirs."""
    return sum(digests) % SPAN


def _dot(limbs: np.ndarray, weights: np.ndarray) -> int:
    """The exact sum of limbs times weights; limbs have 32 bits."""
    if len(weights) == 0:
        return 0
    most = max(int(weights.max()), -int(weights.min()))
    if most * len(weights) < 2**31:
        return int(np.dot(limbs, weights))
    total = 0
    for shift in (0, 22, 44):  # of weights 22 bits at a time, of rows 2^9: each product sum fits 63 bits
        part = (weights >> shift) & (2**22 - 1) if shift < 44 else weights >> shift
        sums = np.add.reduceat(limbs * part, np.arange(0, len(limbs), 512))
        total += sum(map(int, sums.tolist())) << shift
    return total
