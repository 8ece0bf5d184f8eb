"""Bundles: in each layer of a step, every task writes one file with all runs that it created or merged.

The key of the file is unique to the attempt of the task. So a retry, a speculative copy of the task or a
killed worker may leave an unused file, but no version ever lists an incomplete file.

One `put` writes the file, after all runs have been added; only then may a version list its entries. Runs are
cached when they are added. If the bundle is never written, no version lists them, so they are never read.

A large bundle is buffered on the local disk, not in memory.
"""

import mmap
import tempfile
from typing import IO

import pyarrow as pa

from tidemill import crash
from tidemill.errors import ObjectsFull
from tidemill.objects.port import Objects
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run_file import encode
from tidemill.views.trace.run_table import RunEntry

BUFFER_BYTES = 32 * 1024**2
"""How much a bundle buffers in memory."""


class Bundle:
    """Collects runs, and writes them as one object.

    Args:
        objects: where to write the object.
        key: the object's key, unique to this attempt.
        cache: caches the runs, so that the next step on this machine does not fetch them.
    """

    def __init__(self, objects: Objects, key: str, cache: Cache | None = None) -> None:
        self.key = key
        self._objects = objects
        self._cache = cache
        self._parts: list[bytes | pa.Buffer] = []
        self._file: IO[bytes] | None = None
        self._bytes = 0

    def add(self, layout: Layout, table: pa.Table, low: int, high: int) -> RunEntry | None:
        """Add a run and return its entry; if the run has no rows, add nothing and return None.

        Args:
            layout: the layout of the trace.
            table: the rows of the run, consolidated.
            low: the first grain of the hash space that the run covers.
            high: the last grain.
        """
        if table.num_rows == 0:
            return None
        table = layout.conform(table)
        head, rest = encode(table, layout)
        entry = RunEntry(self.key, low, high, self._bytes, len(head) + rest.size, len(head), table.num_rows)
        self._append(head, rest)
        if self._cache is not None:
            self._cache.keep(entry, head, layout, table)
        return entry

    def write(self) -> int:
        """Write the object, unless it is empty, and return its size in bytes."""
        if self._bytes:
            crash.point("views.trace.before_bundle")
            self._objects.put(self.key, self._body())
            crash.point("views.trace.after_bundle")
        self._parts.clear()
        if self._file is not None:
            self._file.close()
        return self._bytes

    def _append(self, *parts: bytes | pa.Buffer) -> None:
        self._parts += parts
        self._bytes += sum(len(memoryview(part)) for part in parts)
        if self._bytes <= BUFFER_BYTES:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tidemill-bundle-")  # noqa: SIM115  # closed by write
            for part in self._parts:
                self._file.write(memoryview(part))
            self._file.flush()
        except OSError as error:
            raise ObjectsFull(f"the local disk has no space left to buffer {self.key!r}: {error}") from error
        self._parts.clear()

    def _body(self) -> memoryview:
        if self._file is None:
            return memoryview(b"".join(bytes(memoryview(part)) for part in self._parts))
        return memoryview(mmap.mmap(self._file.fileno(), self._bytes, access=mmap.ACCESS_READ))
