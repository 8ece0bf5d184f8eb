"""The segment writer: allocates, fills and seals segments, in any process of a node.

A segment is invisible until it is complete: the writer writes a draft, makes it read-only and renames it. The
bytes go directly from the value's memory into the file. The writer allocates the file and then calls
`pwritev`. This is twice as fast as copying into a mapping, because the system clears the pages of a mapping
first. Also, if memory runs out, allocating the file returns an error, whereas writing to a mapping would kill
the process with a signal.

The *ledger* counts the node's bytes without a lock, because a process may stop or hang at any point and must
not block the others. Each process writes only its own counter, and reads the counters of all processes. A
process first adds a reservation to its counter, and then compares the sum with the quota. So two simultaneous
reservations may both be refused, but together they never exceed the quota.
"""

import contextlib
import errno
import itertools
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from tidemill import crash
from tidemill.errors import CopyCorrupt, SegmentsFull
from tidemill.futures.values.layout import ValueLayout
from tidemill.futures.values.mapped_file import map_descriptor

LEDGER, SPILL = "ledger", "spill"
QUOTA, FREED, GONE = "quota", "freed", "gone"
DRAFT = ".draft"

_NAME = re.compile(r"(?P<owner>[0-9a-z-]{1,80})\.(?P<version>[0-9]{1,20})\.(?P<pid>[0-9]{1,10})\.[0-9]{1,20}")
_VECTOR = 512  # pieces per system call; the kernel accepts at most 1,024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


def is_name(name: str) -> bool:
    """Return whether this is a valid name of a sealed segment, not a path or a draft."""
    return _NAME.fullmatch(name) is not None


def pid_of(name: str) -> int:
    """Return the id of the process that wrote a segment or a draft; 0 for any other name."""
    match = _NAME.fullmatch(name.removesuffix(DRAFT))
    return int(match["pid"]) if match else 0


class ByteCounters:
    """The ledger of a node: counters of the bytes in its segments. Each counter is a file with one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # for threads of this process

    def read(self, name: str) -> int:
        try:
            return int.from_bytes((self._folder / name).read_bytes()[:8], "little", signed=True)
        except FileNotFoundError:
            return 0

    def write(self, name: str, value: int) -> None:
        fd = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, value.to_bytes(8, "little", signed=True), 0)
        finally:
            os.close(fd)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def used(self) -> int:
        """Return how many bytes all processes, alive or dead, have reserved and not freed."""
        pids = [path.name for path in self._folder.iterdir() if path.name.isdigit()]
        return sum(map(self.read, pids)) + self.read(GONE) - self.read(FREED)

    def reserve(self, size: int) -> bool:
        """Reserve bytes for this process. If they would exceed the quota, reserve nothing; return False."""
        own = str(os.getpid())
        with self._lock:
            before = self.read(own)
            self.write(own, before + size)
            if self.used() <= self.read(QUOTA):
                return True
            self.write(own, before)
            return False

    def release(self, size: int) -> None:
        """Release a reservation of this process."""
        own = str(os.getpid())
        with self._lock:
            self.write(own, self.read(own) - size)


class SegmentDraft:
    """A segment that is being written. It is deleted unless it is sealed."""

    def __init__(self, folder: Path, name: str, total: int, ledger: ByteCounters | None) -> None:
        self.name = name
        self.total = total
        self._path = folder / (name + DRAFT)
        self._final = folder / name
        self._ledger = ledger
        self._at = 0
        self._open = True
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, max(total, 1))
        except BaseException:
            self.abandon()
            raise

    def write(self, pieces: Sequence[memoryview]) -> None:
        """Append these pieces. Raise `CopyCorrupt` if they exceed the announced size."""
        if self._at + sum(map(len, pieces)) > self.total:
            raise CopyCorrupt(f"the value has more than the announced {self.total:,} bytes")
        for batch in _batches(pieces):
            self._write_all(batch)

    def _write_all(self, pieces: list[memoryview]) -> None:
        while pieces:
            written = os.pwritev(self._fd, pieces, self._at)
            self._at += written
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if written:
                pieces[0] = pieces[0][written:]

    def view(self) -> memoryview:
        """Return a read-only view of the draft."""
        return map_descriptor(self._fd, self.total)

    def seal(self) -> str:
        """Turn the draft into a read-only segment and return its name. Raise if it is incomplete."""
        if self._at != self.total:
            raise CopyCorrupt(f"only {self._at:,} of {self.total:,} bytes were written")
        os.fchmod(self._fd, 0o400)
        crash.point("segments.before_seal")
        self._path.rename(self._final)
        self._open = False
        os.close(self._fd)
        crash.point("segments.after_seal")
        return self.name

    def abandon(self) -> None:
        """Delete the draft and release its reservation. Does nothing after `seal`."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)
        if self._ledger is not None:
            self._ledger.release(self.total)

    def __enter__(self) -> "SegmentDraft":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()


def _batches(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    rest = iter(pieces)
    while batch := list(itertools.islice(rest, _VECTOR)):
        yield batch


class SegmentWriter:
    """Writes segments into a node's folder, from any of its processes. Safe to share between threads.

    Args:
        folder: the node's folder, from `Segments.folder`.
    """

    _numbers = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ledger = ByteCounters(folder / LEDGER)

    @property
    def boot(self) -> str:
        return self.folder.name

    def begin(self, owner: str, version: int, total: int) -> SegmentDraft:
        """Start a draft of `total` bytes: in memory, or on disk if memory is full.

        Raise `SegmentsFull` if neither has room.
        """
        name = f"{owner}.{version}.{os.getpid()}.{next(self._numbers)}"
        try:
            return self._in_memory(name, total) or self._on_disk(name, total)
        except FileNotFoundError:
            raise SegmentsFull(
                f"the folder {self.folder} does not exist any more: its worker has ended",
                hint="restart this process",
            ) from None

    def _in_memory(self, name: str, total: int) -> SegmentDraft | None:
        if not self._ledger.reserve(total):
            return None
        try:
            return SegmentDraft(self.folder, name, total, self._ledger)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return None
            raise

    def _on_disk(self, name: str, total: int) -> SegmentDraft:
        spill = self.folder / SPILL
        if not spill.is_dir():
            raise SegmentsFull(
                f"no memory for a result of {total:,} bytes: {self._ledger.used():,} bytes are in use"
            )
        try:
            return SegmentDraft(spill, name, total, None)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise SegmentsFull(f"no memory and no disk space for a result of {total:,} bytes") from None
            raise

    def write(self, owner: str, version: int, image: ValueLayout) -> str:
        """Write and seal a complete image. Return the segment's name."""
        with self.begin(owner, version, image.total) as draft:
            draft.write(image.pieces)
            return draft.seal()
