"""Rows in portions that are neither tiny nor huge: by their number, and by the bytes they take.

What travels between layers, what a task holds at once and what one value may be are limited by both: a row of
a million bytes is as much as a hundred thousand narrow ones.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

BATCH_ROWS = 262_144
BATCH_BYTES = 16 * 1024**2
"""Of a packet at most, unless it is a single row: Spark moves each as one value."""

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def split_rows(table: pa.Table, rows: int = BATCH_ROWS, size: int = BATCH_BYTES) -> Iterator[pa.Table]:
    """A table in pieces of at most so many rows and about so many bytes; a row is never cut.

    >>> [piece.num_rows for piece in split_rows(pa.table({"a": ["x" * 100] * 10}), size=400)]
    [3, 3, 3, 1]
    """
    count = table.num_rows
    if count == 0:
        return
    taken = table.nbytes
    if count <= rows and (taken <= size or count == 1):
        yield table
        return
    fitting = min(rows, max(1, count * size // taken)) if taken else rows
    # Rows differ in size: a piece that came out too large is cut again, into fewer rows than it has.
    fitting = min(fitting, count - 1)
    for first in range(0, count, fitting):
        yield from split_rows(table.slice(first, fitting), rows, size)


def batched(parts: Iterable[Rows], rows: int, size: int) -> Iterator[list[Rows]]:
    """Parts in lists that are closed as soon as they have so many rows or bytes; empty parts are left out."""
    waiting: list[Rows] = []
    count = taken = 0
    for part in parts:
        if part.num_rows == 0:
            continue
        waiting.append(part)
        count += part.num_rows
        taken += part.nbytes
        if count >= rows or taken >= size:
            yield waiting
            waiting, count, taken = [], 0, 0
    if waiting:
        yield waiting


def row_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """About how many bytes a row takes in memory; at least one."""
    return max(1, int(rows.nbytes) // max(1, int(rows.num_rows)))
