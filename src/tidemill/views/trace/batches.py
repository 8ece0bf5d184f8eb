"""Split rows into batches of bounded size, by the number of rows and by their bytes.

Both limits apply to packets between layers and to the memory of a task, because one row of a million bytes
takes as much memory as thousands of narrow rows.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

BATCH_ROWS = 262_144
BATCH_BYTES = 16 * 1024**2
"""Maximum size of a packet with more than one row: Spark moves each packet as one value."""

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def split_rows(table: pa.Table, rows: int = BATCH_ROWS, size: int = BATCH_BYTES) -> Iterator[pa.Table]:
    """Split a table into pieces of at most `rows` rows and about `size` bytes; rows are never cut.

    >>> [piece.num_rows for piece in split_rows(pa.table({"a": ["x" * 100] * 10}), size=400)]
    [3, 3, 3, 1]
    """
    count = table.num_rows
    if count == 0:
        return
    total_bytes = table.nbytes
    if count <= rows and (total_bytes <= size or count == 1):
        yield table
        return
    fitting = min(rows, max(1, count * size // total_bytes)) if total_bytes else rows
    # Rows differ in size, so a piece may be too large: it is split again, into fewer rows than it has.
    fitting = min(fitting, count - 1)
    for first in range(0, count, fitting):
        yield from split_rows(table.slice(first, fitting), rows, size)


def batched(parts: Iterable[Rows], rows: int, size: int) -> Iterator[list[Rows]]:
    """Collect parts into lists of at least `rows` rows or `size` bytes; empty parts are skipped."""
    waiting: list[Rows] = []
    count = waiting_bytes = 0
    for part in parts:
        if part.num_rows == 0:
            continue
        waiting.append(part)
        count += part.num_rows
        waiting_bytes += part.nbytes
        if count >= rows or waiting_bytes >= size:
            yield waiting
            waiting, count, waiting_bytes = [], 0, 0
    if waiting:
        yield waiting


def row_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """Return about how many bytes a row takes in memory, at least 1."""
    return max(1, int(rows.nbytes) // max(1, int(rows.num_rows)))
