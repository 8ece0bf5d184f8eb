"""Durable steps on a file system: a new file nobody sees, folders that survive, a lock per key.

A write is durable only when the file's data, the entry in its folder and the entries of all folders above
are on the disk: three different fsyncs. Where the file system has one journal, in which everything that was
done before is on the disk with what was done last (`ONE_JOURNAL`), the last of them brings all folders along.
Everything here raises `OSError`; `local` says what it means.
"""

import contextlib
import fcntl
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from tidemill.clock import Clock, backoff
from tidemill.errors import ObjectUnavailable

STRIPES = 64
ONE_JOURNAL = frozenset({"ext3", "ext4", "xfs"})
"""File systems that force their journal up to a change in the order of all changes: an fsync of a folder
brings the folders above it along, whoever made them."""

_REMEMBERED = 10_000


class NewFile:
    """A file in the scratch folder, being written; under no key yet.

    Its owner holds an flock on it for as long as it is open, and the kernel drops that with the process. So
    a scratch file without a lock has no owner, whatever its age or the owner's process id, and may be swept.
    """

    def __init__(self, scratch: Path, chance: random.Random) -> None:
        self.path, self._fd = _claim(scratch, chance)

    def __enter__(self) -> "NewFile":
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)

    def write(self, body: bytes | bytearray | memoryview, modified_ns: int) -> None:
        """Write the whole body and wait until it is on the disk."""
        rest = memoryview(body).cast("B")
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self.stamp(modified_ns)

    def stamp(self, modified_ns: int) -> None:
        """Set the time of modification, which is part of the etag, and wait until it is on the disk."""
        os.utime(self._fd, ns=(modified_ns, modified_ns))
        os.fsync(self._fd)

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


def _claim(scratch: Path, chance: random.Random) -> tuple[Path, int]:
    while True:
        path = scratch / f"{os.getpid()}-{chance.getrandbits(64):016x}"
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return path, fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # a sweeper came between the two lines above and took it for an orphan


def sweep(scratch: Path) -> int:
    """Remove scratch files whose owner is gone; returns how many. Safe beside living writers (`NewFile`)."""
    swept = 0
    for path in list(scratch.iterdir()):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                swept += 1
            finally:
                os.close(fd)
    return swept


class Folders:
    """Makes folders and their entries durable, and remembers which are.

    A folder that another process has just made may not be on the disk yet, so the first use of any folder
    syncs the folder above it. What is remembered is the inode, so that a folder which another process removed
    and made again counts as new.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: dict[Path, tuple[int, int]] = {}
        self._file_system = ""

    def sync(self, folder: Path) -> None:
        """Return when the entries of this folder, and every folder above it, are on the disk."""
        sync_folder(folder)
        if not self._file_system:
            self._file_system = file_system(self._root)
        if self._file_system in ONE_JOURNAL and folder != self._root:
            return
        for below in (folder, *folder.parents):
            found = below.stat()
            if self._durable.get(below) == (found.st_dev, found.st_ino):
                return
            try:
                sync_folder(below.parent)
            except PermissionError:
                # The folders above the root may be as new as the root, but they may not be ours to open.
                if not self._root.is_relative_to(below):
                    raise
            if len(self._durable) >= _REMEMBERED:
                self._durable.clear()
            self._durable[below] = found.st_dev, found.st_ino

    def prune(self, folder: Path) -> Path:
        """Remove empty folders from here upwards; returns the first that stays. The root always does."""
        while folder != self._root:
            self._durable.pop(folder, None)
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break  # not empty
            folder = folder.parent
        return folder


def file_system(folder: Path) -> str:
    """The kind of file system a folder is on; `unknown` where that cannot be told."""
    try:
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                return after.split()[0]
    except (OSError, IndexError):
        return "unknown"
    return "unknown"


def sync_file(path: Path) -> None:
    """Return when the body of one file, whoever wrote it, is on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Return when the entries of one folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class KeyLocks:
    """One lock per key across processes: 64 files, keys spread over them by hash.

    The kernel frees a lock with its process. A holder that is merely stopped keeps it, so waiting has an end.
    """

    def __init__(self, folder: Path, clock: Clock, chance: random.Random, *, patience_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._chance = chance
        self._patience_s = patience_s

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Wait for the key's lock, hold it for the block."""
        path = self._folder / f"{zlib.crc32(key.encode()) % STRIPES:02x}"
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            self._wait(fd, key)
            yield
        finally:
            os.close(fd)

    def _wait(self, fd: int, key: str) -> None:
        end = self._clock.monotonic() + self._patience_s
        attempt = 0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic() >= end:
                    raise ObjectUnavailable(
                        f"the lock of {key!r} was not free within {self._patience_s:g} s",
                        hint="another process holds it: is one stopped? The call may be repeated",
                    ) from None
            else:
                return
            attempt += 1
            self._clock.sleep(backoff(attempt, self._chance, first_s=0.0002, most_s=0.02))
