"""Write files and folders that survive a crash of the machine, and lock one key at a time.

A write is durable only when the file's data, the entry in its folder and the entries of all parent folders
are on the disk. This takes three different fsyncs. Some file systems have one journal that is written in
order (`ONE_JOURNAL`). On those, one fsync of the last folder also writes all of its parents. The functions of
this module raise `OSError`; `local` translates it.
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
"""File systems that write their journal in order: an fsync of a folder also writes the folders above it."""

_REMEMBERED = 10_000


class NewFile:
    """A file in the scratch folder that is being written and has no key yet.

    Its owner holds an flock on it while it is open. The kernel releases the lock when the process ends. So a
    scratch file without a lock has no owner, no matter how old it is, and `sweep` may delete it.
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
        """Set the time of modification, which is part of the ETag, and wait until it is on the disk."""
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
        os.close(fd)  # `sweep` in another process deleted the file before we locked it


def sweep(scratch: Path) -> int:
    """Delete scratch files without an owner; return their number. Files of live writers stay (`NewFile`)."""
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
    """Makes folders and their entries durable, and remembers which folders are durable already.

    A folder that another process has just made may not be on the disk yet. So the first use of any folder
    syncs its parent folder. This class remembers inodes, so a folder that another process removed and created
    again counts as new.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: dict[Path, tuple[int, int]] = {}
        self._file_system = ""

    def sync(self, folder: Path) -> None:
        """Wait until the entries of this folder, and every folder above it, are on the disk."""
        sync_folder(folder)
        if not self._file_system:
            self._file_system = file_system(self._root)
        if self._file_system in ONE_JOURNAL and folder != self._root:
            return
        for below in (folder, *folder.parents):
            status = below.stat()
            if self._durable.get(below) == (status.st_dev, status.st_ino):
                return
            try:
                sync_folder(below.parent)
            except PermissionError:
                # The folders above the root may also be new, but we may not be allowed to open them.
                if not self._root.is_relative_to(below):
                    raise
            if len(self._durable) >= _REMEMBERED:
                self._durable.clear()
            self._durable[below] = status.st_dev, status.st_ino

    def prune(self, folder: Path) -> Path:
        """Remove this folder and its empty parents, up to the root. Return the first folder that stays."""
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
    """Return the type of the file system that a folder is on; `unknown` if that cannot be determined."""
    try:
        device = folder.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[0]
    except (OSError, IndexError):
        return "unknown"
    return "unknown"


def sync_file(path: Path) -> None:
    """Wait until the body of one file is on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Wait until the entries of one folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class KeyLocks:
    """Locks keys across processes. There are 64 lock files, and the hash of a key selects one of them.

    The kernel releases a lock when its process ends. A process that is only suspended keeps its locks, so
    waiting has a time limit.
    """

    def __init__(self, folder: Path, clock: Clock, chance: random.Random, *, patience_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._chance = chance
        self._patience_s = patience_s

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Wait for the lock of a key, and hold it inside the block."""
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
                        f"the lock of {key!r} did not become free within {self._patience_s:g} s",
                        hint="check whether a process that uses these objects is suspended, then retry",
                    ) from None
            else:
                return
            attempt += 1
            self._clock.sleep(backoff(attempt, self._chance, first_s=0.0002, most_s=0.02))
