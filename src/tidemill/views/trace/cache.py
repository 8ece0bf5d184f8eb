"""A local cache of run files: memory-mapped files on the machine that runs the kernels.

Object storage holds the runs compressed, and stays the source of truth. The cache holds them uncompressed,
ready to map, so they may be larger in the cache (DBSP-45). A run that is cached completely is one file, so
one search finds a hash in it. From other runs, the cache fetches only the batches whose fences (first and
last hash) match, with ranged reads in one call. Each of these batches is cached as one file.

A rename gives a file its final name, so other processes see a complete file or none. A file contains its own
size, so a file that was truncated by a machine crash is fetched again. Removing a file loses nothing, even
while it is mapped. A full disk is not an error: rows are then read without being cached.

A cache folder is valid for one boot of the machine. After a power failure, a renamed file may have the right
size but the wrong content. So the folder is named after the boot (`/proc/sys/kernel/random/boot_id`).
"""

import contextlib
import hashlib
import itertools
import os
import resource
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidemill.errors import ObjectMissing, TraceCorrupt, TraceMissing
from tidemill.objects.port import Objects
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.run_file import RunHead, decode_batch, decode_head
from tidemill.views.trace.run_table import RunEntry

_PREFACE = struct.Struct("<8sQQ")  # magic, bytes of the file, bytes of the head
_MAGIC = b"tm-cache"
_ALIGN = 64
_SMALL_BYTES = 256 * 1024  # smaller runs are fetched completely
_FETCH_BYTES = 16 * 1024**2  # compressed bytes of a larger run to fetch at once
_WHOLE_BYTES = 512 * 1024**2  # larger runs stay in batches: a text column cannot exceed 2 GiB
_OPEN_RUNS = 4096  # runs that stay mapped
_MEMORY_BYTES = 256 * 1024**2  # rows that this process keeps in memory when there is no folder
_MEMORY_SHARE = 4  # use at most 1/4 of the address space, if it is limited
_ALL = -1  # instead of the number of a batch: the complete run
_SCRATCH = itertools.count()  # one counter per process: several caches may share a folder


@dataclass
class _Run:
    """The parts of a run that this process has loaded.

    - whole: all rows, if the run is cached completely.
    - held_bytes: the memory that `whole` takes.
    """

    head: RunHead
    whole: pa.RecordBatch | None = None
    held_bytes: int = 0
    batches: dict[int, pa.RecordBatch] = field(default_factory=dict)


class _CachedFile(NamedTuple):
    """A file of the folder at the time of the last scan."""

    used_ns: int
    size: int
    path: Path


class Cache:
    """Reads runs, and caches them in a folder of bounded size.

    Threads may share a cache, and processes may share its folder.

    Args:
        objects: where the run files are.
        folder: where to cache them; None caches in the memory of this process only.
        limit_bytes: the maximum size of the folder.
        memory_bytes: how much memory this process may use. Mapped files count only if the address space is
            limited. Above the limit, the least recently used rows are dropped, and read again when needed.
        unique: makes the names of scratch files unique to a writer, e.g. to a task's attempt.
    """

    def __init__(
        self,
        objects: Objects,
        folder: Path | None,
        *,
        limit_bytes: int = 16 * 1024**3,
        memory_bytes: int = _MEMORY_BYTES,
        unique: str = "",
    ) -> None:
        self.objects = objects
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._unique = f"{os.getpid()}-{unique}"
        self._runs: OrderedDict[tuple[str, int], _Run] = OrderedDict()
        self._lock = threading.Lock()
        space, _ = resource.getrlimit(resource.RLIMIT_AS)
        self._counts_maps = space != resource.RLIM_INFINITY
        self._memory_bytes = min(memory_bytes, space // _MEMORY_SHARE) if self._counts_maps else memory_bytes
        self._held: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._held_bytes = 0
        self._room = threading.Lock()
        self._unchecked_bytes = limit_bytes  # scan the folder before the first write
        self._total_bytes = 0
        self._oldest: deque[_CachedFile] = deque()
        self.fetched_bytes = 0

    # --- reading

    def batches_with(
        self, entry: RunEntry, layout: Layout, hashes: np.ndarray[Any, Any], rest: np.int64
    ) -> Iterable[pa.RecordBatch]:
        """Read the batches of a run that may contain one of the hashes (see `RunHead.batches_with`)."""
        run = self._run(entry, layout)
        numbers = run.head.batches_with(hashes, rest)
        if run.whole is not None:
            return [run.whole] if len(numbers) else []
        return self._batches(entry, run, numbers)

    def between(self, entry: RunEntry, layout: Layout, low: int, high: int) -> Iterable[pa.RecordBatch]:
        """Read the batches of a run that may contain hashes from low to high."""
        run = self._run(entry, layout)
        if run.whole is not None:
            return [run.whole]
        return self._batches(entry, run, run.head.between(low, high))

    def head(self, entry: RunEntry, layout: Layout) -> RunHead:
        return self._run(entry, layout).head

    def keep(self, entry: RunEntry, head_body: bytes, layout: Layout, table: pa.Table) -> None:
        """Cache a run that was just written, so that later tasks on this machine do not fetch it."""
        head = decode_head(head_body, layout, _where(entry))
        self._add(entry, self._write_whole(entry, head, table, head_body))

    # --- finding

    def _run(self, entry: RunEntry, layout: Layout) -> _Run:
        key = (entry.file, entry.offset)
        with self._lock:
            loaded = self._runs.get(key)
            if loaded is not None:
                self._runs.move_to_end(key)
                if (*key, _ALL) in self._held:
                    self._held.move_to_end((*key, _ALL))
                return loaded
        run = self._map_whole(entry, layout) or self._fetch_run(entry, layout)
        self._add(entry, run)
        return run

    def _add(self, entry: RunEntry, run: _Run) -> None:
        with self._lock:
            self._runs[entry.file, entry.offset] = run
            if run.whole is not None:
                self._count_memory(entry, _ALL, run.held_bytes)
            while len(self._runs) > _OPEN_RUNS:
                self._runs.popitem(last=False)

    def _count_memory(self, entry: RunEntry, number: int, size: int) -> None:
        """Count the memory of a batch, and drop the batches used longest ago; the caller holds the lock."""
        if not size:
            return
        key = (entry.file, entry.offset, number)
        self._held_bytes += size - self._held.pop(key, 0)
        self._held[key] = size
        while self._held_bytes > self._memory_bytes and self._held:
            (file, offset, dropped), dropped_bytes = self._held.popitem(last=False)
            self._held_bytes -= dropped_bytes
            run = self._runs.get((file, offset))
            if dropped == _ALL:
                self._runs.pop((file, offset), None)
            elif run is not None:
                run.batches.pop(dropped, None)

    def _map_whole(self, entry: RunEntry, layout: Layout) -> _Run | None:
        body = self._map(entry, "whole")
        if body is None:
            return None
        head_bytes = _PREFACE.unpack_from(body)[2]
        head = decode_head(
            body[_PREFACE.size : _PREFACE.size + head_bytes].to_pybytes(), layout, _where(entry)
        )
        rows = body.slice(_aligned(_PREFACE.size + head_bytes))
        return _Run(head, _read_batch(rows), self._map_cost(body.size))

    def _fetch_run(self, entry: RunEntry, layout: Layout) -> _Run:
        cached = self._map(entry, "head")
        if cached is not None:
            return _Run(decode_head(cached.slice(_PREFACE.size).to_pybytes(), layout, _where(entry)))
        small = entry.length <= _SMALL_BYTES
        (body,) = self._fetch(entry, [(0, entry.length if small else entry.head)])
        head = decode_head(body[: entry.head], layout, _where(entry))
        if not small:
            self._write(entry, "head", body, None)
            return _Run(head)
        spans = [
            (int(at), int(at + size))
            for at, size in zip(head.batches["at"], head.batches["size"], strict=True)
        ]
        batches = [decode_batch(body[at:end], head, n, _where(entry)) for n, (at, end) in enumerate(spans)]
        return self._write_whole(entry, head, pa.Table.from_batches(batches, head.schema), body[: entry.head])

    def _batches(self, entry: RunEntry, run: _Run, numbers: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Read the batches with these numbers, a few at a time."""
        waiting: list[int] = []
        size = 0
        for number in map(int, numbers):
            waiting.append(number)
            size += int(run.head.batches["size"][number])
            if size >= _FETCH_BYTES:
                yield from self._load_batches(entry, run, waiting)
                waiting, size = [], 0
        yield from self._load_batches(entry, run, waiting)

    def _load_batches(self, entry: RunEntry, run: _Run, numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Return batches from the first place that has them: memory, the folder, or object storage."""
        loaded = {number: batch for number in numbers if (batch := run.batches.get(number)) is not None}
        for number in numbers:
            if number not in loaded and (cached := self._map(entry, f"{number}")) is not None:
                batch = _read_batch(cached.slice(_aligned(_PREFACE.size)))
                self._add_batch(entry, run, number, batch, self._map_cost(cached.size))
                loaded[number] = batch
        missing = [number for number in numbers if number not in loaded]
        if missing:
            directory = run.head.batches
            spans = [(int(directory["at"][number]), int(directory["size"][number])) for number in missing]
            for number, body in zip(missing, self._fetch(entry, spans), strict=True):
                fetched = decode_batch(body, run.head, number, _where(entry))
                batch, memory = self._write_batch(entry, number, fetched)
                self._add_batch(entry, run, number, batch, memory)
                loaded[number] = batch
        return [loaded[number] for number in numbers]

    def _add_batch(self, entry: RunEntry, run: _Run, number: int, batch: pa.RecordBatch, size: int) -> None:
        with self._lock:
            run.batches[number] = batch
            self._count_memory(entry, number, size)

    def _map_cost(self, mapped_bytes: int) -> int:
        """Return how much of this process' memory a mapped file takes."""
        return mapped_bytes if self._counts_maps else 0

    def _fetch(self, entry: RunEntry, spans: list[tuple[int, int]]) -> list[bytes]:
        try:
            bodies = self.objects.get_ranges(entry.file, [(entry.offset + at, size) for at, size in spans])
        except ObjectMissing as error:
            raise TraceMissing(
                f"run file {entry.file!r}, which a version file lists, is missing from {self.objects.url}"
            ) from error
        for (_, size), body in zip(spans, bodies, strict=True):
            if len(body) != size:
                raise TraceCorrupt(f"{_where(entry)} is truncated: {len(body)} bytes instead of {size}")
        self.fetched_bytes += sum(size for _, size in spans)
        return bodies

    # --- writing

    def _write_whole(self, entry: RunEntry, head: RunHead, table: pa.Table, head_body: bytes) -> _Run:
        """Cache a complete run as one file, or as separate batches if one file would be too large."""
        free = self.folder is not None and not self._counts_maps
        if table.nbytes > (_WHOLE_BYTES if free else min(_WHOLE_BYTES, self._memory_bytes)):
            self._write(entry, "head", head_body, None)
            at = 0
            for number, count in enumerate(head.batches["rows"].tolist()):
                (batch,) = table.slice(at, count).combine_chunks().to_batches()
                self._write(entry, f"{number}", b"", batch)
                at += count
            return _Run(head)
        (batch,) = table.combine_chunks().to_batches()
        memory = batch.nbytes
        if self._write(entry, "whole", head_body, batch):
            body = self._map(entry, "whole")
            if (
                body is not None
            ):  # use the mapped rows: processes share that memory, and the system can drop it
                rows = body.slice(_aligned(_PREFACE.size + len(head_body)))
                batch, memory = _read_batch(rows), self._map_cost(body.size)
        return _Run(head, batch, memory)

    def _write_batch(self, entry: RunEntry, number: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Cache a batch as a file, if possible; return the mapped batch and the memory it takes."""
        if self._write(entry, f"{number}", b"", batch):
            body = self._map(entry, f"{number}")
            if body is not None:
                return _read_batch(body.slice(_aligned(_PREFACE.size))), self._map_cost(body.size)
        return batch, batch.nbytes

    def _write(self, entry: RunEntry, part: str, head: bytes, rows: pa.RecordBatch | None) -> bool:
        """Write a file of the cache; return False if there is no folder or no space."""
        if self.folder is None:
            return False
        start = _PREFACE.size + len(head)
        padding = _aligned(start) - start if rows is not None else 0
        size = start + padding + (_message_bytes(rows) if rows is not None else 0)
        self._make_room(size)
        scratch = self.folder / f".{self._unique}-{next(_SCRATCH)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(scratch), "wb") as file:
                file.write(_PREFACE.pack(_MAGIC, size, len(head)) + head + b"\0" * padding)
                if rows is not None:
                    with pa.ipc.new_stream(file, rows.schema) as writer:
                        writer.write_batch(rows)
            scratch.replace(self._path(entry, part))
        except OSError:  # no space, or no permission: the rows are in object storage
            with contextlib.suppress(OSError):
                scratch.unlink()
            return False
        return True

    def _map(self, entry: RunEntry, part: str) -> pa.Buffer | None:
        """Map a cached file; None if it is missing or incomplete."""
        if self.folder is None:
            return None
        path = self._path(entry, part)
        try:
            if self._counts_maps and path.stat().st_size > self._memory_bytes:
                return None  # too large for the memory limit: the caller reads it batch by batch
            with pa.memory_map(str(path)) as source:
                body = source.read_buffer()
            os.utime(path)  # the file used longest ago is removed first
        except (OSError, pa.ArrowInvalid):
            return None
        if body.size < _PREFACE.size:
            return None
        magic, size, _ = _PREFACE.unpack_from(body)
        return body if magic == _MAGIC and size == body.size else None

    def _path(self, entry: RunEntry, part: str) -> Path:
        assert self.folder is not None
        name = hashlib.blake2b(f"{self.objects.url}\0{entry.file}".encode(), digest_size=12).hexdigest()
        return self.folder / f"{name}-{entry.offset:x}.{part}"

    def _make_room(self, size: int) -> None:
        """Remove the files used longest ago.

        Each call removes about as many bytes as are written, so that no step waits long.

        The folder is scanned each time a sixteenth of the limit was written, because other processes write
        there too.
        """
        if self.folder is None:
            return
        with self._room:
            self._unchecked_bytes += size
            if self._unchecked_bytes >= self.limit_bytes // 16:
                self._scan(self.folder)
            self._total_bytes += size
            while self._total_bytes > self.limit_bytes * 15 // 16 and self._oldest:
                oldest = self._oldest.popleft()
                with contextlib.suppress(OSError):
                    if oldest.path.stat().st_mtime_ns > oldest.used_ns:
                        continue  # it was used after the scan
                    oldest.path.unlink()
                self._total_bytes -= oldest.size

    def _scan(self, folder: Path) -> None:
        files: list[_CachedFile] = []
        with contextlib.suppress(OSError):  # the folder does not exist yet, or cannot be created
            for each in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    status = each.stat()
                    files.append(_CachedFile(status.st_mtime_ns, status.st_size, Path(each.path)))
        self._oldest = deque(sorted(files))
        self._total_bytes = sum(file.size for file in files)
        self._unchecked_bytes = 0


def _message_bytes(rows: pa.RecordBatch) -> int:
    """Return the size of a stream with these rows: the schema, the rows and the end marker."""
    return int(rows.schema.serialize().size + pa.ipc.get_record_batch_size(rows) + 8)


def _read_batch(stream: pa.Buffer) -> pa.RecordBatch:
    """Return the rows of a stream without copying them."""
    return pa.ipc.open_stream(stream).read_next_batch()


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _where(entry: RunEntry) -> str:
    return f"run file {entry.file!r} at byte {entry.offset}"
