"""Run files near the kernels: memory-mapped files beside the object storage, which stays the truth.

Object storage has runs compressed; here they lie as they are read, and may be larger (DBSP-45). A run whose
rows are all here is one file, *whole*: one search finds a hash in it. Of a run that is elsewhere, only the
batches whose fences match are fetched, by ranged reads in one call, and kept a file each.

Files appear under their name by a rename, so that other processes see them whole or not at all, and say
their own size, so that one that a crash of the machine cut short is fetched again. Nothing is lost when a
file is removed, even one that is mapped. A disk without room is no error: then rows are read, and not kept.

The folder is for one start of the machine: what was renamed but not yet on the disk when the power went is
not told apart. Name it after the boot (`/proc/sys/kernel/random/boot_id`).
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
from tidemill.views.trace.version import RunEntry

_PREFACE = struct.Struct("<8sQQ")  # magic, bytes of the file, bytes of the head
_MAGIC = b"tm-cache"
_ALIGN = 64
_SMALL = 256 * 1024  # runs of fewer bytes are fetched at once
_AT_ONCE_BYTES = 16 * 1024**2  # of a larger one so much, compressed
_WHOLE_BYTES = 512 * 1024**2  # larger ones stay in batches: texts of more than 2 GiB do not fit one
_OPEN = 4096  # runs that stay mapped
_MEMORY_BYTES = 256 * 1024**2  # of rows that lie in this process' memory, because no folder keeps them
_MEMORY_SHARE = 4  # of the address space, where that is limited, one part in so many
_ALL = -1  # in the place of a batch's number: all of a run
_SCRATCH = itertools.count()  # of the process: several caches may share a folder


@dataclass
class _Run:
    """A run as far as it is known in this process."""

    head: RunHead
    whole: pa.RecordBatch | None = None
    held_bytes: int = 0  # of memory that `whole` takes
    batches: dict[int, pa.RecordBatch] = field(default_factory=dict)


class _Kept(NamedTuple):
    """A file of the folder, as it was when that was looked through."""

    used_ns: int
    size: int
    path: Path


class Cache:
    """Reads runs of run files, and keeps them in a folder of bounded size.

    Safe to share between threads, and the folder between processes.

    Args:
        objects: where the run files are.
        folder: where to keep them; None keeps what this process has read in its memory.
        limit_bytes: how large the folder may become.
        memory_bytes: how much this process may hold; what is mapped counts only if its address space is
            limited. Reading goes on beyond it: what was used longest ago is dropped, and read again.
        unique: what makes names of scratch files differ between writers, e.g. a task's attempt.
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
        self._known: OrderedDict[tuple[str, int], _Run] = OrderedDict()
        self._lock = threading.Lock()
        space, _ = resource.getrlimit(resource.RLIMIT_AS)
        self._counts_maps = space != resource.RLIM_INFINITY
        self._memory_bytes = min(memory_bytes, space // _MEMORY_SHARE) if self._counts_maps else memory_bytes
        self._held: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._held_bytes = 0
        self._room = threading.Lock()
        self._unchecked_bytes = limit_bytes  # look at the folder's size before the first write
        self._total_bytes = 0
        self._oldest: deque[_Kept] = deque()
        self.fetched_bytes = 0

    # --- reading

    def holding(
        self, entry: RunEntry, layout: Layout, hashes: np.ndarray[Any, Any], rest: np.int64
    ) -> Iterable[pa.RecordBatch]:
        """The batches of a run that may have one of the hashes (see `Head.holding`), a few at a time."""
        run = self._run(entry, layout)
        numbers = run.head.holding(hashes, rest)
        if run.whole is not None:
            return [run.whole] if len(numbers) else []
        return self._batches(entry, run, numbers)

    def between(self, entry: RunEntry, layout: Layout, low: int, high: int) -> Iterable[pa.RecordBatch]:
        """The batches of a run that may hold hashes from low to high, a few at a time."""
        run = self._run(entry, layout)
        if run.whole is not None:
            return [run.whole]
        return self._batches(entry, run, run.head.between(low, high))

    def head(self, entry: RunEntry, layout: Layout) -> RunHead:
        return self._run(entry, layout).head

    def fill(self, entries: Iterable[RunEntry], layout: Layout) -> None:
        """Bring runs here whole; a runner does so in the background."""
        for entry in entries:
            run = self._run(entry, layout)
            if run.whole is None and entry.length <= _WHOLE_BYTES:
                every = np.arange(len(run.head.batches))
                table = pa.Table.from_batches(self._batches(entry, run, every), run.head.schema)
                (head_body,) = self._fetch(entry, [(0, entry.head)])
                self._remember(entry, self._whole(entry, run.head, table, head_body))

    def keep(self, entry: RunEntry, head_body: bytes, layout: Layout, table: pa.Table) -> None:
        """Keep a run that was just written, so that nobody has to fetch it on this machine."""
        head = decode_head(head_body, layout, _where(entry))
        self._remember(entry, self._whole(entry, head, table, head_body))

    # --- finding

    def _run(self, entry: RunEntry, layout: Layout) -> _Run:
        key = (entry.file, entry.offset)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                if (*key, _ALL) in self._held:
                    self._held.move_to_end((*key, _ALL))
                return known
        run = self._kept_whole(entry, layout) or self._fetched(entry, layout)
        self._remember(entry, run)
        return run

    def _remember(self, entry: RunEntry, run: _Run) -> None:
        with self._lock:
            self._known[entry.file, entry.offset] = run
            if run.whole is not None:
                self._hold(entry, _ALL, run.held_bytes)
            while len(self._known) > _OPEN:
                self._known.popitem(last=False)

    def _hold(self, entry: RunEntry, number: int, size: int) -> None:
        """Count rows that take memory, and drop those that were used longest ago; the lock is held."""
        if not size:
            return
        key = (entry.file, entry.offset, number)
        self._held_bytes += size - self._held.pop(key, 0)
        self._held[key] = size
        while self._held_bytes > self._memory_bytes and self._held:
            (file, offset, which), less = self._held.popitem(last=False)
            self._held_bytes -= less
            run = self._known.get((file, offset))
            if which == _ALL:
                self._known.pop((file, offset), None)
            elif run is not None:
                run.batches.pop(which, None)

    def _kept_whole(self, entry: RunEntry, layout: Layout) -> _Run | None:
        body = self._mapped(entry, "whole")
        if body is None:
            return None
        head_bytes = _PREFACE.unpack_from(body)[2]
        head = decode_head(
            body[_PREFACE.size : _PREFACE.size + head_bytes].to_pybytes(), layout, _where(entry)
        )
        plain = body.slice(_aligned(_PREFACE.size + head_bytes))
        return _Run(head, _first(plain), self._cost(body.size))

    def _fetched(self, entry: RunEntry, layout: Layout) -> _Run:
        kept = self._mapped(entry, "head")
        if kept is not None:
            return _Run(decode_head(kept.slice(_PREFACE.size).to_pybytes(), layout, _where(entry)))
        small = entry.length <= _SMALL
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
        return self._whole(entry, head, pa.Table.from_batches(batches, head.schema), body[: entry.head])

    def _batches(self, entry: RunEntry, run: _Run, numbers: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        waiting: list[int] = []
        size = 0
        for number in map(int, numbers):
            waiting.append(number)
            size += int(run.head.batches["size"][number])
            if size >= _AT_ONCE_BYTES:
                yield from self._some(entry, run, waiting)
                waiting, size = [], 0
        yield from self._some(entry, run, waiting)

    def _some(self, entry: RunEntry, run: _Run, wanted: Sequence[int]) -> list[pa.RecordBatch]:
        found = {number: batch for number in wanted if (batch := run.batches.get(number)) is not None}
        for number in wanted:
            if number not in found and (kept := self._mapped(entry, f"{number}")) is not None:
                plain = kept.slice(_aligned(_PREFACE.size))
                batch = _first(plain)
                self._keep_in(entry, run, number, batch, self._cost(kept.size))
                found[number] = batch
        missing = [number for number in wanted if number not in found]
        if missing:
            told = run.head.batches
            spans = [(int(told["at"][number]), int(told["size"][number])) for number in missing]
            for number, body in zip(missing, self._fetch(entry, spans), strict=True):
                fetched = decode_batch(body, run.head, number, _where(entry))
                batch, held = self._keep_batch(entry, number, fetched)
                self._keep_in(entry, run, number, batch, held)
                found[number] = batch
        return [found[number] for number in wanted]

    def _keep_in(self, entry: RunEntry, run: _Run, number: int, batch: pa.RecordBatch, size: int) -> None:
        with self._lock:
            run.batches[number] = batch
            self._hold(entry, number, size)

    def _cost(self, mapped_bytes: int) -> int:
        """What a mapped file takes of this process' memory."""
        return mapped_bytes if self._counts_maps else 0

    def _fetch(self, entry: RunEntry, spans: list[tuple[int, int]]) -> list[bytes]:
        try:
            bodies = self.objects.get_ranges(entry.file, [(entry.offset + at, size) for at, size in spans])
        except ObjectMissing as error:
            raise TraceMissing(
                f"run file {entry.file!r} is listed, but it is not in {self.objects.url}"
            ) from error
        for (_, size), body in zip(spans, bodies, strict=True):
            if len(body) != size:
                raise TraceCorrupt(f"{_where(entry)} is cut short: {len(body)} bytes instead of {size}")
        self.fetched_bytes += sum(size for _, size in spans)
        return bodies

    # --- keeping

    def _whole(self, entry: RunEntry, head: RunHead, table: pa.Table, head_body: bytes) -> _Run:
        """A run whose rows are all known, kept as one file, or as its batches if that would be too large."""
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
        held = batch.nbytes
        if self._write(entry, "whole", head_body, batch):
            body = self._mapped(entry, "whole")
            if body is not None:  # the mapped one instead: memory that others share, and the kernel may drop
                plain = body.slice(_aligned(_PREFACE.size + len(head_body)))
                batch, held = _first(plain), self._cost(body.size)
        return _Run(head, batch, held)

    def _keep_batch(self, entry: RunEntry, number: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The batch out of a file that keeps it, if there can be one; and what it takes of memory."""
        if self._write(entry, f"{number}", b"", batch):
            body = self._mapped(entry, f"{number}")
            if body is not None:
                plain = body.slice(_aligned(_PREFACE.size))
                return _first(plain), self._cost(body.size)
        return batch, batch.nbytes

    def _write(self, entry: RunEntry, part: str, head: bytes, rows: pa.RecordBatch | None) -> bool:
        """Keep a file; False when there is no folder or no room."""
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
        except OSError:  # no room, or a folder that is not ours: object storage has it all
            with contextlib.suppress(OSError):
                scratch.unlink()
            return False
        return True

    def _mapped(self, entry: RunEntry, part: str) -> pa.Buffer | None:
        """A kept file, mapped; None unless it is there and whole."""
        if self.folder is None:
            return None
        path = self._path(entry, part)
        try:
            if self._counts_maps and path.stat().st_size > self._memory_bytes:
                return None  # there is no room for it: it is read batch by batch
            with pa.memory_map(str(path)) as source:
                body = source.read_buffer()
            os.utime(path)  # used now: the least used go first
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
        """Remove what was not used for longest, as much as is written: no step waits for more than its own.

        The folder is looked through each time a sixteenth of the limit was written: others write there too.
        """
        if self.folder is None:
            return
        with self._room:
            self._unchecked_bytes += size
            if self._unchecked_bytes >= self.limit_bytes // 16:
                self._look_through(self.folder)
            self._total_bytes += size
            while self._total_bytes > self.limit_bytes * 15 // 16 and self._oldest:
                kept = self._oldest.popleft()
                with contextlib.suppress(OSError):
                    if kept.path.stat().st_mtime_ns > kept.used_ns:
                        continue  # somebody has read it since
                    kept.path.unlink()
                self._total_bytes -= kept.size

    def _look_through(self, folder: Path) -> None:
        found: list[_Kept] = []
        with contextlib.suppress(OSError):  # no folder yet, or none to be had
            for each in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    facts = each.stat()
                    found.append(_Kept(facts.st_mtime_ns, facts.st_size, Path(each.path)))
        self._oldest = deque(sorted(found))
        self._total_bytes = sum(kept.size for kept in found)
        self._unchecked_bytes = 0


def _message_bytes(rows: pa.RecordBatch) -> int:
    """What a stream with these rows takes: a schema, the rows, and a mark behind them."""
    return int(rows.schema.serialize().size + pa.ipc.get_record_batch_size(rows) + 8)


def _first(stream: pa.Buffer) -> pa.RecordBatch:
    """The rows of a stream, where they lie."""
    return pa.ipc.open_stream(stream).read_next_batch()


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _where(entry: RunEntry) -> str:
    return f"run file {entry.file!r} at byte {entry.offset}"
