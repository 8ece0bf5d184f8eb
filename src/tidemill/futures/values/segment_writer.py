"""Writing segments: a draft is allocated, filled and sealed, in any process of a node.

A segment is seen by nobody before it is whole: it is written under the name of a draft and then renamed,
read-only. Its bytes go straight from the value's memory into the file: allocating first and `pwritev` are
twice as fast as copying into a mapping, whose pages are cleared first, and want of memory is an error here
instead of a signal there.

The *ledger* counts the node's bytes without a lock, because a process may be stopped or hang at any point
and must not stop the others with it: each process writes a counter of its own and reads those of all. A
reservation is counted first and then compared with the quota, so that two at once may both be refused, but
never both be granted too much.
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

_NAME = re.compile(r"(?P<what>[0-9a-z-]{1,80})\.(?P<version>[0-9]{1,20})\.(?P<pid>[0-9]{1,10})\.[0-9]{1,20}")
_VECTOR = 512  # pieces per system call; the kernel takes 1,024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


def is_name(name: str) -> bool:
    """Whether a sealed segment can be called so: never a path, never a draft."""
    return _NAME.fullmatch(name) is not None


def pid_of(name: str) -> int:
    """The process that wrote a segment or a draft; 0 if this is neither."""
    found = _NAME.fullmatch(name.removesuffix(DRAFT))
    return int(found["pid"]) if found else 0


class ByteCounters:
    """Counters of the bytes in a node's segments: files of eight bytes, each with one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # between threads of this process

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
        """Bytes reserved by everyone, living or gone, and not freed."""
        pids = [path.name for path in self._folder.iterdir() if path.name.isdigit()]
        return sum(map(self.read, pids)) + self.read(GONE) - self.read(FREED)

    def reserve(self, size: int) -> bool:
        """Count bytes as ours; False, and nothing counted, if the quota has not that much left."""
        own = str(os.getpid())
        with self._lock:
            before = self.read(own)
            self.write(own, before + size)
            if self.used() <= self.read(QUOTA):
                return True
            self.write(own, before)
            return False

    def give_back(self, size: int) -> None:
        """Take back a reservation of this process."""
        own = str(os.getpid())
        with self._lock:
            self.write(own, self.read(own) - size)


class SegmentDraft:
    """A segment being written; abandoned unless it is sealed."""

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
        """Append these; more than was announced is refused."""
        if self._at + sum(map(len, pieces)) > self.total:
            raise CopyCorrupt(f"more than the {self.total:,} bytes that were announced")
        for some in _batches(pieces):
            self._write_all(some)

    def _write_all(self, pieces: list[memoryview]) -> None:
        while pieces:
            done = os.pwritev(self._fd, pieces, self._at)
            self._at += done
            while pieces and done >= len(pieces[0]):
                done -= len(pieces.pop(0))
            if done:
                pieces[0] = pieces[0][done:]

    def view(self) -> memoryview:
        """What was written so far, read-only."""
        return map_descriptor(self._fd, self.total)

    def seal(self) -> str:
        """Make it a segment, read-only from now on; returns its name. Refused unless it is whole."""
        if self._at != self.total:
            raise CopyCorrupt(f"{self._at:,} of {self.total:,} bytes came")
        os.fchmod(self._fd, 0o400)
        crash.point("segments.before_seal")
        self._path.rename(self._final)
        self._open = False
        os.close(self._fd)
        crash.point("segments.after_seal")
        return self.name

    def abandon(self) -> None:
        """Remove it, as if it had never been."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)
        if self._ledger is not None:
            self._ledger.give_back(self.total)

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
    while some := list(itertools.islice(rest, _VECTOR)):
        yield some


class SegmentWriter:
    """Writes segments into a node's folder, from any of its processes. Safe to share between threads.

    Args:
        folder: the node's, from `Segments.folder`.
    """

    _numbers = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ledger = ByteCounters(folder / LEDGER)

    @property
    def boot(self) -> str:
        return self.folder.name

    def begin(self, what: str, version: int, total: int) -> SegmentDraft:
        """A draft with room for `total` bytes: in memory, or on disk when memory is spent.

        `SegmentsFull` when there is no room in either.
        """
        name = f"{what}.{version}.{os.getpid()}.{next(self._numbers)}"
        try:
            return self._in_memory(name, total) or self._on_disk(name, total)
        except FileNotFoundError:
            raise SegmentsFull(
                f"the folder {self.folder} is gone", hint="its node has ended, and this process should too"
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
            raise SegmentsFull(f"no room for {total:,} bytes: {self._ledger.used():,} are in use")
        try:
            return SegmentDraft(spill, name, total, None)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise SegmentsFull(f"no room for {total:,} bytes in memory or on disk") from None
            raise

    def write(self, what: str, version: int, image: ValueLayout) -> str:
        """Write and seal a whole image; returns the segment's name."""
        with self.begin(what, version, image.total) as draft:
            draft.write(image.pieces)
            return draft.seal()
