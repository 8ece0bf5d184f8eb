"""Hash space: how it is divided into 256 slices, into ranges of slices for tasks, and into smaller grains.

A key hash is a signed 64-bit number, and runs are sorted by it. The highest 8 bits of a hash are its slice,
so every run contains the slices in order, and slice 0 starts at -2^63. In Spark SQL, the slice of a hash is
`shiftright(_h, 56) + 128`.

A *grain* is 1/256 of a slice: the highest 16 bits of a hash. Tasks divide the work by slice, and merges
divide it by grain. So a merge can rewrite few rows in one step even if a slice is large. The pieces of runs
are listed by grain, because a merge may end in the middle of a slice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import UsageError

SLICES = 256
GRAINS = SLICES * 256
_GRAIN_BITS = 48
_LOWEST = -(2**63)
_FEW_RANGES = 4  # up to this many ranges, comparing all hashes with each range is faster than sorting

Hashes = np.ndarray[Any, np.dtype[np.int64]]


def slice_of(hashes: Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the slice of each hash, 0 to 255."""
    return (hashes >> 56) + SLICES // 2


@dataclass(frozen=True, slots=True)
class HashRange:
    """Consecutive slices from `first` to `last`, both included, which one task computes."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < SLICES:
            raise UsageError(
                f"invalid range of slices: {self.first} to {self.last}", hint="use 0 <= first <= last < 256"
            )

    @property
    def grains(self) -> tuple[int, int]:
        """The first and the last grain of these slices."""
        return self.first * 256, self.last * 256 + 255


ALL = HashRange(0, SLICES - 1)


def ranges(count: int) -> tuple[HashRange, ...]:
    """Divide hash space into `count` ranges (1 to 256) of nearly equal size."""
    if not 1 <= count <= SLICES:
        raise UsageError(f"cannot divide hash space into {count} ranges", hint="use 1 to 256 ranges")
    cuts = [SLICES * n // count for n in range(count + 1)]
    return tuple(HashRange(low, high - 1) for low, high in pairwise(cuts))


def hash_bounds(low: int, high: int) -> tuple[int, int]:
    """Return the lowest and the highest hash of the grains `low` to `high`."""
    return _LOWEST + (low << _GRAIN_BITS), _LOWEST + ((high + 1) << _GRAIN_BITS) - 1


def split(table: pa.Table, among: tuple[HashRange, ...], hashes: Hashes | None = None) -> list[pa.Table]:
    """Split rows by range, and keep their order. An exchange sends one table to each task.

    Args:
        table: the rows.
        among: the ranges.
        hashes: the hashes of the rows; None uses the column `_h`.
    """
    if len(among) == 1:
        return [table]
    row_hashes = table["_h"].to_numpy() if hashes is None else hashes
    return [_take(table, rows) for rows in _rows_by_range(row_hashes, among)]


def _rows_by_range(hashes: Hashes, among: tuple[HashRange, ...]) -> Iterator[Hashes]:
    """Yield the row numbers of each range: by comparing if there are few ranges, otherwise by sorting."""
    if len(among) <= _FEW_RANGES:
        for each in among:
            low, high = hash_bounds(*each.grains)
            yield np.flatnonzero((hashes >= low) & (hashes <= high))
        return
    of_slice = np.repeat(
        np.arange(len(among), dtype=np.uint8), [each.last - each.first + 1 for each in among]
    )
    target = of_slice[slice_of(hashes)]
    order = np.argsort(target, kind="stable")
    cuts = np.append(0, np.cumsum(np.bincount(target, minlength=len(among))))
    for low, high in pairwise(cuts):
        yield order[low:high]


def _take(table: pa.Table, rows: Hashes) -> pa.Table:
    if len(rows) == table.num_rows:  # all rows, in order
        return table
    return pc.take(table, pa.array(rows), boundscheck=False)
