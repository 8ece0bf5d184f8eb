"""Rows of a view on their way into files: few in memory, many on the disk of the machine.

Equal rows meet before they are written, so a file may only be written when all rows of its part of identity
space are there. When they take much memory, they are put aside by their identity, and come back part by part.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.views.trace.batches import split_rows
from tidemill.views.trace.consolidation import column

HELD_BYTES = 64 * 1024**2
"""What one view's rows may take in a task before they are put aside."""

_PARTS = 32


class RowSink:
    """Collects the rows of one view in one range.

    Args:
        place: the column by whose value rows meet; empty where they need not.
        held_bytes: what they may take in memory.
    """

    def __init__(self, place: str, held_bytes: int = HELD_BYTES) -> None:
        self._place = place
        self._limit = held_bytes
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._aside: _Aside | None = None
        self._turn = 0

    def add(self, rows: pa.Table) -> None:
        """Take some rows."""
        self._tables.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._limit:
            self._put_aside()

    def parts(self) -> Iterator[pa.Table]:
        """All rows, in tables that have no equal rows in common; to be read once."""
        if self._aside is None:
            if self._tables:
                yield pa.concat_tables(self._tables)
            return
        self._put_aside()
        with contextlib.closing(self._aside) as aside:
            yield from aside.parts()

    def _put_aside(self) -> None:
        if not self._tables:
            return
        whole = pa.concat_tables(self._tables)
        if self._aside is None:
            self._aside = _Aside(whole.schema)
        if self._place:
            numbers = column(whole, self._place).view(np.uint64) % _PARTS
            for number in range(_PARTS):
                self._aside.write(number, whole.filter(pa.array(numbers == number)))
        else:
            self._aside.write(self._turn % _PARTS, whole)
            self._turn += 1
        self._tables, self._bytes = [], 0


class _Aside:
    """Tables on the disk, one file for each part."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._folder = tempfile.TemporaryDirectory(prefix="tidemill-sink-")
        self._files: dict[int, pa.ipc.RecordBatchFileWriter] = {}

    def write(self, number: int, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        if number not in self._files:
            self._files[number] = pa.ipc.new_file(str(self._path(number)), self._schema)
        for portion in split_rows(rows):
            self._files[number].write_table(portion)

    def parts(self) -> Iterator[pa.Table]:
        for number, file in sorted(self._files.items()):
            file.close()
            with pa.OSFile(str(self._path(number))) as source:
                yield pa.ipc.open_file(source).read_all()

    def close(self) -> None:
        self._folder.cleanup()

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number:02}.arrow"
