"""Collect the rows of a view in a task, and write them to files.

Equal rows are combined before they are written: their weights are added up. So a file is written only when
all rows have arrived that may be equal to one of its rows. If the rows need too much memory, they are divided
by identity into parts, spilled to the local disk, and read back one part at a time. Every file has a unique
name, because a task may run twice.
"""

import contextlib
import functools
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.objects import Objects
from tidemill.spark.lot_writer import packed
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.kernels.zsets import digest, net_rows
from tidemill.views.trace.batches import split_rows
from tidemill.views.trace.consolidation import column
from tidemill.views.trace.layout import WEIGHT

HELD_BYTES = 64 * 1024**2
LEAST_HELD_BYTES = 4 * 1024**2
"""How much memory the rows of all views together may use in a task before they are spilled to disk, and how
much each view may use at least."""

Write = Callable[[Callable[[], object]], object]
"""Writes an object, now or in the background."""

_PARTS = 32
_RANDOM = random.SystemRandom()


class RowSink:
    """Collects the rows of one view in one range.

    Args:
        identity: the name of a column that has the same value in equal rows; an empty string if equal rows
            may end up in different parts.
        held_bytes: how much memory the rows may use.
    """

    def __init__(self, identity: str, held_bytes: int = HELD_BYTES) -> None:
        self._identity = identity
        self._limit = held_bytes
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._spill: _Spill | None = None
        self._next_part = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._tables.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._limit:
            self._spill_tables()

    def parts(self) -> Iterator[pa.Table]:
        """Yield all rows in tables; with an identity, equal rows are in the same table.

        Call this only once.
        """
        if self._spill is None:
            if self._tables:
                yield pa.concat_tables(self._tables)
            return
        self._spill_tables()
        with contextlib.closing(self._spill) as spill:
            yield from spill.parts()

    def _spill_tables(self) -> None:
        if not self._tables:
            return
        rows = pa.concat_tables(self._tables)
        if self._spill is None:
            self._spill = _Spill(rows.schema)
        if self._identity:
            numbers = column(rows, self._identity).view(np.uint64) % _PARTS
            for number in range(_PARTS):
                self._spill.write(number, rows.filter(pa.array(numbers == number)))
        else:
            self._spill.write(self._next_part % _PARTS, rows)
            self._next_part += 1
        self._tables, self._bytes = [], 0


class _Spill:
    """Tables on disk, one file for each part."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._folder = tempfile.TemporaryDirectory(prefix="tidemill-sink-")
        self._files: dict[int, pa.ipc.RecordBatchFileWriter] = {}

    def write(self, number: int, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        if number not in self._files:
            self._files[number] = pa.ipc.new_file(str(self._path(number)), self._schema)
        for piece in split_rows(rows):
            self._files[number].write_table(piece)

    def parts(self) -> Iterator[pa.Table]:
        for number, file in sorted(self._files.items()):
            file.close()
            with pa.OSFile(str(self._path(number))) as source:
                yield pa.ipc.open_file(source).read_all()

    def close(self) -> None:
        self._folder.cleanup()

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number:02}.arrow"


# --- files


def unique_name() -> str:
    """Return a name that no other task, attempt or machine uses."""
    return f"{os.getpid():x}-{_RANDOM.getrandbits(96):024x}"


def write_now(write: Callable[[], object]) -> None:
    """Write an object before the task continues (a `Write`)."""
    write()


def write_rows(
    objects: Objects, sink: OutputSink, folder: str, rows: pa.Table, range_number: int, write: Write
) -> tuple[str, str, int, int, str] | None:
    """Write rows of a sink to a file; return the entry for `TaskReport.files`, or None if no rows remain."""
    width = len(sink.types)
    total = "0"
    if sink.identified:
        rows = net_rows(rows.select([*(f"c{i}" for i in range(width + 2)), WEIGHT]))
        if rows.num_rows == 0:
            return None
        total = f"{digest(rows, f'c{width}', f'c{width + 1}', WEIGHT):032x}"
        rows = rows.rename_columns([*sink.names, "_h1", "_h2", "_weight"])
    key = f"{folder}part-{range_number:05}-{unique_name()}.parquet"
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer, store_schema=False, coerce_timestamps="us", **packed(rows.schema))
    body = buffer.getvalue()
    write(functools.partial(objects.put, key, memoryview(body)))
    return sink.view, key, rows.num_rows, int(body.size), total
