"""Segments: results in a node's shared memory, which other processes on the same host can map (FUT-29).

A segment is a file in /dev/shm, or in the folder for temporary files if there is no /dev/shm. Each supervisor
has a folder for its segments, named after the supervisor's boot id:

    <root>/<boot>/lock              the supervisor holds a flock on this file while it runs
    <root>/<boot>/ledger/…          how many bytes are in use, see `segment_writer`
    <root>/<boot>/<name>            a sealed segment, mode 0400
    <root>/<boot>/<name>.draft      a segment that is being written
    <root>/<boot>/spill             a link to a folder of the same form on disk, used if memory is full

Segments belong to the supervisor, not to the child that wrote them, so they remain after the child ends. Only
the supervisor unlinks segments. A process that has mapped a segment can still read it after that. The kernel
releases the flock when the supervisor dies. So a folder with a free lock has no owner, and the next
supervisor that starts on this host removes it. This module does not use Python's `shared_memory`, because
Python unlinks such memory when the process that created it ends.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from tidemill.errors import CopyGone, UsageError
from tidemill.futures.values.mapped_file import map_file
from tidemill.futures.values.segment_writer import (
    FREED,
    GONE,
    LEDGER,
    QUOTA,
    SPILL,
    ByteCounters,
    SegmentWriter,
    is_name,
    pid_of,
)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is ours alone, and checked
LOCK = "lock"

_BOOT = re.compile(r"[0-9A-Za-z_-]{1,64}")
_FOLDER = re.compile(r"[0-9A-Za-z_-]{1,64}|\.[0-9A-Za-z_-]{1,64}\.[0-9]{1,2}")
_HOST = Path("/proc/sys/kernel/random/boot_id")

_own_locks: set[int] = set()
"""Descriptors of this process's locks. A forked child closes them, because it may outlive its supervisor."""


def _after_fork() -> None:
    for fd in _own_locks:
        with contextlib.suppress(OSError):
            os.close(fd)
    _own_locks.clear()


os.register_at_fork(after_in_child=_after_fork)


def host_id() -> str:
    """Return the boot id of this machine. Processes with the same id can map each other's segments.

    Containers on one machine share the id but not the memory, so a mapping may still fail.
    """
    try:
        return _HOST.read_text().strip()
    except OSError:
        return os.uname().nodename


def default_root() -> Path:
    """Return the folder of this user's segments on this host."""
    base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return base / f"tidemill-{os.geteuid()}"


def map_segment(name: str, root: Path | None = None) -> memoryview:
    """Return a read-only view of a segment on this host. Raise `CopyGone` if this host does not have it.

    Args:
        name: boot id and segment name, as in a `Location`.
        root: the folder of this host's segments.
    """
    boot, _, file = name.partition("/")
    if not _BOOT.fullmatch(boot) or not is_name(file):
        raise CopyGone(f"{name!a:.200} is not a valid name for a stored result")
    main = (root or default_root()) / boot
    for folder in (main, main / SPILL):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            return map_file(folder / file)
    raise CopyGone(f"the stored result {name} is no longer on this host")


class Segments:
    """The segments of one supervisor, from its start to its end. Not thread-safe.

    Args of `open`:
        boot: the id of the node, which is new with every start (FUT-37).
        quota_bytes: how much memory its segments may use.
        root: the folder of segments on this host; it must be the same for every process on the host.
        spill: a folder on disk to use if memory is full; without it, new segments are refused.
    """

    def __init__(self, folder: Path, lock: int, spill: Path | None, spill_lock: int | None) -> None:
        self.folder = folder
        self._locks = [fd for fd in (lock, spill_lock) if fd is not None]
        self._spill = spill
        self._ledger = ByteCounters(folder / LEDGER)
        self._kept: set[str] = set()
        self._freed: dict[int, int] = {}  # bytes, by the live process that wrote them
        self._orphans: set[str] = set()  # segments in memory that a dead process wrote
        self._pid = os.getpid()

    @classmethod
    def open(
        cls, boot: str, *, quota_bytes: int, root: Path | None = None, spill: Path | None = None
    ) -> "Segments":
        """Create a folder for this supervisor, and remove those of dead supervisors on this host."""
        if not _BOOT.fullmatch(boot):
            raise UsageError(
                f"invalid node id: {boot!a:.100}", hint="use at most 64 letters, digits, '-' and '_'"
            )
        root = root or default_root()
        folder, lock = _create_folder(root, boot)
        disk, disk_lock = _create_folder(spill, boot) if spill is not None else (None, None)
        segments = cls(folder, lock, disk, disk_lock)
        (folder / LEDGER).mkdir(mode=0o700)
        segments._ledger.write(QUOTA, quota_bytes)
        if disk is not None:
            (folder / SPILL).symlink_to(disk.resolve())
        sweep(root)
        if spill is not None:
            sweep(spill)
        return segments

    @property
    def boot(self) -> str:
        return self.folder.name

    @property
    def used_bytes(self) -> int:
        """How much memory the segments use, not counting those on disk."""
        return self._ledger.used()

    def writer(self) -> SegmentWriter:
        """Return a writer for this folder. Other processes create their own, from `folder`."""
        return SegmentWriter(self.folder)

    def names(self) -> set[str]:
        """Return the names of the sealed segments."""
        return {name for folder in self._folders() for name in _names(folder) if is_name(name)}

    def map(self, name: str) -> memoryview:
        """Return a read-only view of the segment with this name. Raise `CopyGone` if there is none."""
        boot, _, _ = name.partition("/")
        if boot != self.boot:
            raise CopyGone(
                f"the stored result {name} was written by another node, or before this node was restarted"
            )
        return map_segment(name, self.folder.parent)

    def keep(self, name: str) -> None:
        """Do not delete this segment when the child that wrote it ends: the child has reported it."""
        self._kept.add(self._file(name))

    def delete(self, name: str) -> bool:
        """Unlink a segment.

        Processes that have mapped it can still read it. Return False if it does not exist.
        """
        file = self._file(name)
        self._kept.discard(file)
        for folder in self._folders():
            try:
                size = (folder / file).stat().st_size
                (folder / file).unlink()
            except FileNotFoundError:
                continue
            if folder == self.folder:
                self._count_freed(file, size)
            return True
        return False

    def _count_freed(self, file: str, size: int) -> None:
        if file in self._orphans:
            self._orphans.discard(file)
            self._ledger.write(GONE, self._ledger.read(GONE) - size)
        else:
            pid = pid_of(file)
            self._freed[pid] = self._freed.get(pid, 0) + size
            self._ledger.write(FREED, self._ledger.read(FREED) + size)

    def child_gone(self, pid: int) -> int:
        """Remove the drafts and unreported segments of a dead child. Return how many were removed.

        The remaining segments are counted again from the files, because the child may have died between
        reserving and writing. Its counter is removed, because the next child may have the same process id.
        Before this call, the count may be too high, but it is never too low.
        """
        removed = 0
        left = 0
        for folder in self._folders():
            for name in _names(folder):
                if pid_of(name) != pid or name in self._orphans:
                    continue
                if name not in self._kept:
                    (folder / name).unlink(missing_ok=True)
                    removed += 1
                elif folder == self.folder:
                    left += (folder / name).stat().st_size
                    self._orphans.add(name)
        self._ledger.write(GONE, self._ledger.read(GONE) + left)
        self._ledger.write(FREED, self._ledger.read(FREED) - self._freed.pop(pid, 0))
        self._ledger.remove(str(pid))
        return removed

    def close(self) -> None:
        """Remove all segments at the end of this node. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        for folder in self._folders():
            _remove(folder)
        while self._locks:
            fd = self._locks.pop()
            _own_locks.discard(fd)
            os.close(fd)

    def __enter__(self) -> "Segments":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _folders(self) -> list[Path]:
        return [self.folder] if self._spill is None else [self.folder, self._spill]

    def _file(self, name: str) -> str:
        file = name.removeprefix(self.boot + "/")
        if not is_name(file):
            raise CopyGone(f"{name!a:.200} is not a stored result of this node")
        return file


def sweep(root: Path) -> int:
    """Remove the folders of dead supervisors. Return how many were removed. Safe while other supervisors run.

    A folder gets its final name only after it is locked (`_create_folder`). So if a folder has no lock file,
    it was already removed, and a process of its dead supervisor has written to it again.
    """
    swept = 0
    for name in _names(root):
        folder = root / name
        if not _FOLDER.fullmatch(name) or folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):
            try:
                fd = _lock(folder, os.O_RDWR)
            except BlockingIOError:
                continue  # its supervisor is alive
            except FileNotFoundError:
                _empty(folder)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                continue
            try:
                _remove(folder)
                swept += 1
            finally:
                os.close(fd)
    return swept


def _create_folder(root: Path, boot: str) -> tuple[Path, int]:
    """Create a folder and hold its lock.

    The folder gets a temporary name first, and is renamed while the lock is held. If a sweep removes the
    folder before it is locked, this function tries the next temporary name.
    """
    _create_root(root)
    for number in range(100):
        draft = root / f".{boot}.{number}"
        try:
            draft.mkdir(mode=0o700)
            fd = _lock(draft, os.O_RDWR | os.O_CREAT)
        except (FileExistsError, FileNotFoundError, BlockingIOError):
            continue
        try:
            draft.rename(root / boot)
        except OSError:
            _remove(draft)
            os.close(fd)
            break
        _own_locks.add(fd)
        return root / boot, fd
    raise UsageError(
        f"the folder {root / boot} is already in use",
        hint="two workers use the same folder; stop one of them",
    )


def _lock(folder: Path, flags: int) -> int:
    """Lock a folder and return the descriptor. Raise `BlockingIOError` if another process holds the lock."""
    fd = os.open(folder / LOCK, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:  # the previous holder has removed it
            raise FileNotFoundError(folder / LOCK)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove(folder: Path) -> None:
    """Remove a folder that we have locked. The lock file is last, so a sweep can finish after a crash."""
    _empty(folder)
    (folder / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a process of the dead supervisor still writes: removed next time
        folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove everything in a folder except its lock."""
    for name in _names(folder):
        path = folder / name
        if name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _create_root(root: Path) -> None:
    """Create the root, or check that only this user can access it.

    The check is needed because other users can write to the parent folder.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(
            f"other users can access {root}, or it is not a folder",
            hint=f"if it is your folder, run chmod 700 {root}; otherwise check that no worker uses it,"
            " then remove it",
        )
