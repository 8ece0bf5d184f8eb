"""The one file that a task writes in a layer of a step: the new runs of all its traces, and its merges.

Its key is unique to the attempt of the task, so that a retry, a speculative twin or a killed worker leaves a
file that no version lists, and never half of one that a version does. It is written by one `put`, after all
runs were added; entries are good for a version only then. Runs are kept near the kernels as they are added:
a run of a bundle that was never written is one that nobody asks for.

A large one waits on the disk of the machine, not in memory.
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
from tidemill.views.trace.version import RunEntry

HELD_BYTES = 32 * 1024**2
"""What may wait in memory."""


class Bundle:
    """Collects runs, and writes them as one object.

    Args:
        objects: where to write it.
        key: its name, which nobody else uses.
        cache: keeps what is written, so that the next step here need not fetch it.
    """

    def __init__(self, objects: Objects, key: str, cache: Cache | None = None) -> None:
        self.key = key
        self._objects = objects
        self._cache = cache
        self._parts: list[bytes | pa.Buffer] = []
        self._file: IO[bytes] | None = None
        self._bytes = 0

    def add(self, layout: Layout, table: pa.Table, low: int, high: int) -> RunEntry | None:
        """Add a run; None when it has no rows, and then nothing is added.

        Args:
            layout: the trace's.
            table: its rows, consolidated.
            low: the first grain of the piece of hash space it stands for.
            high: the last one.
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
        """Write the object, unless nothing was added; how many bytes it has."""
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
        if self._bytes <= HELD_BYTES:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tidemill-bundle-")  # noqa: SIM115  # closed by write
            for part in self._parts:
                self._file.write(memoryview(part))
            self._file.flush()
        except OSError as error:
            raise ObjectsFull(f"this machine has no room for {self.key!r} on its way: {error}") from error
        self._parts.clear()

    def _body(self) -> memoryview:
        if self._file is None:
            return memoryview(b"".join(bytes(memoryview(part)) for part in self._parts))
        return memoryview(mmap.mmap(self._file.fileno(), self._bytes, access=mmap.ACCESS_READ))
