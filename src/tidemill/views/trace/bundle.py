"""The one file that a task writes in a layer of a step: the new runs of all its traces, and its merges.

Its key is unique to the attempt of the task, so that a retry, a speculative twin or a killed worker leaves a
file that no version lists, and never half of one that a version does. It is written by one `put`, after all
runs were added; entries are good for a version only then.
"""

import pyarrow as pa

from tidemill import crash
from tidemill.objects.port import Objects
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run import encode
from tidemill.views.trace.version import Entry


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
        self._body = pa.BufferOutputStream()
        self._kept: list[tuple[Entry, bytes, Layout, pa.Table]] = []

    def add(self, layout: Layout, table: pa.Table, low: int, high: int) -> Entry | None:
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
        offset = self._body.tell()
        self._body.write(head)
        self._body.write(rest)
        entry = Entry(self.key, low, high, offset, len(head) + rest.size, len(head), table.num_rows)
        if self._cache is not None:
            self._kept.append((entry, head, layout, table))
        return entry

    def write(self) -> int:
        """Write the object, unless nothing was added; how many bytes it has."""
        body = self._body.getvalue()
        if body.size:
            crash.point("views.trace.before_bundle")
            self._objects.put(self.key, memoryview(body))
            crash.point("views.trace.after_bundle")
        if self._cache is not None:
            for entry, head, layout, table in self._kept:
                self._cache.keep(entry, head, layout, table)
        self._kept.clear()
        return int(body.size)
