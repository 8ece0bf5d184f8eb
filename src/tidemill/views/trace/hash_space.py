"""Hash space: 256 fixed slices, the ranges that tasks compute, and the grains at which merges may cut.

A key hash is Spark's signed `xxhash64`. Runs are sorted by it as a signed number, so that slices, which are
its highest 8 bits, lie one behind the other in every run: slice 0 begins at -2^63. A *grain* is a 256th of a
slice; only merges know it, so that the rows they rewrite in one step stay few however large a slice has
grown. In Spark SQL the slice of a hash is `shiftright(_h, 56) + 128`.
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
_FEW = 4  # ranges: looking at all hashes for each is faster than sorting

Hashes = np.ndarray[Any, np.dtype[np.int64]]


def slice_of(hashes: Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The slice of each hash, 0 to 255."""
    return (hashes >> 56) + SLICES // 2


@dataclass(frozen=True, slots=True)
class HashRange:
    """Consecutive slices `first` to `last`, both included: what one task computes."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < SLICES:
            raise UsageError(
                f"not a range of slices: {self.first} to {self.last}", hint="0 <= first <= last < 256"
            )

    @property
    def grains(self) -> tuple[int, int]:
        """The grains of these slices, the last one included."""
        return self.first * 256, self.last * 256 + 255


ALL = HashRange(0, SLICES - 1)


def ranges(count: int) -> tuple[HashRange, ...]:
    """Hash space in `count` ranges of nearly equal size, 1 to 256."""
    if not 1 <= count <= SLICES:
        raise UsageError(f"not a number of ranges: {count}", hint="from 1 to 256")
    cuts = [SLICES * n // count for n in range(count + 1)]
    return tuple(HashRange(low, high - 1) for low, high in pairwise(cuts))


def hash_bounds(low: int, high: int) -> tuple[int, int]:
    """The least and the greatest hash of the grains `low` to `high`."""
    return _LOWEST + (low << _GRAIN_BITS), _LOWEST + ((high + 1) << _GRAIN_BITS) - 1


def grain_of(value: int) -> int:
    """The grain of one hash."""
    return (value - _LOWEST) >> _GRAIN_BITS


def split(table: pa.Table, among: tuple[HashRange, ...], hashes: Hashes | None = None) -> list[pa.Table]:
    """The rows of each range, in the order they came: what an exchange sends to each task.

    Args:
        table: the rows.
        among: the ranges.
        hashes: those of the rows, unless they have a column `_h`.
    """
    if len(among) == 1:
        return [table]
    found = table["_h"].to_numpy() if hashes is None else hashes
    return [_taken(table, rows) for rows in _places(found, among)]


def _places(hashes: Hashes, among: tuple[HashRange, ...]) -> Iterator[Hashes]:
    """The rows of each range: looked for one range after the other if these are few, else sorted by range."""
    if len(among) <= _FEW:
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


def _taken(table: pa.Table, rows: Hashes) -> pa.Table:
    if len(rows) == table.num_rows:  # ascending, and each once
        return table
    return pc.take(table, pa.array(rows), boundscheck=False)
