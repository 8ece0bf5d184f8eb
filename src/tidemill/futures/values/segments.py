"""The node's shared memory: results that other processes of this host map instead of copying (FUT-29).

A segment is a file in /dev/shm (elsewhere a folder for temporary files). Those of one supervisor lie in a
folder named by its boot id:

    <root>/<boot>/lock              held (flock) by the supervisor for as long as it lives
    <root>/<boot>/ledger/…          how much is in use, see `drafts`
    <root>/<boot>/<name>            a sealed segment, mode 0400
    <root>/<boot>/<name>.draft      one that is being written
    <root>/<boot>/spill             a link to a folder like this on disk, for what memory has no room for

They belong to the supervisor and not to the child that wrote them: a child may end, its results stay. Only
the supervisor unlinks them; who has one mapped keeps it. The kernel drops the flock with the supervisor,
however it dies, so a folder whose lock is free has no owner and the next start on this host removes it.
Python's own shared memory is unlinked with its maker and is not used.
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

_held: set[int] = set()
"""Descriptors of locks of this process. A fork would share them, and a child would outlive its supervisor."""


def _after_fork() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def host_id() -> str:
    """This machine since it was started: processes with the same one can map each other's segments.

    Containers on one machine share it without sharing memory, so a mapping that fails proves nothing.
    """
    try:
        return _HOST.read_text().strip()
    except OSError:
        return os.uname().nodename


def default_root() -> Path:
    """Where this user's segments are on this host."""
    base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return base / f"tidemill-{os.geteuid()}"


def map_segment(name: str, root: Path | None = None) -> memoryview:
    """A read-only view of a segment of this host; `CopyGone` if there is none (here).

    Args:
        name: as in a `Location`: boot id and segment.
        root: where the segments of this host are.
    """
    boot, _, file = name.partition("/")
    if not _BOOT.fullmatch(boot) or not is_name(file):
        raise CopyGone(f"no segment has the name {name!a:.200}")
    folder = (root or default_root()) / boot
    for place in (folder, folder / SPILL):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            return map_file(place / file)
    raise CopyGone(f"the segment {name} is not on this host any more")


class Segments:
    """The segments of one supervisor, from its start to its end. Not for several threads at once.

    Args of `open`:
        boot: the node's id, which is new with every start (FUT-37).
        quota_bytes: what its segments may take of the memory.
        root: where segments are on this host; every process of the host must say the same.
        spill: a folder on disk for what is more; without it, more is refused.
    """

    def __init__(self, folder: Path, lock: int, spill: Path | None, spill_lock: int | None) -> None:
        self.folder = folder
        self._locks = [fd for fd in (lock, spill_lock) if fd is not None]
        self._spill = spill
        self._ledger = ByteCounters(folder / LEDGER)
        self._kept: set[str] = set()
        self._freed: dict[int, int] = {}  # bytes, by the living process that wrote them
        self._orphans: set[str] = set()  # segments in memory whose process is gone
        self._pid = os.getpid()

    @classmethod
    def open(
        cls, boot: str, *, quota_bytes: int, root: Path | None = None, spill: Path | None = None
    ) -> "Segments":
        """Remove what dead supervisors of this host left, then make a folder of our own."""
        if not _BOOT.fullmatch(boot):
            raise UsageError(f"not a boot id: {boot!a:.100}", hint="letters, digits, '-' and '_', at most 64")
        root = root or default_root()
        folder, lock = _claim(root, boot)
        disk, disk_lock = _claim(spill, boot) if spill is not None else (None, None)
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
        """What the segments take of the memory; what was spilled to disk does not count."""
        return self._ledger.used()

    def set_quota(self, quota_bytes: int) -> None:
        """Allow more or less from now on; what is there stays."""
        self._ledger.write(QUOTA, quota_bytes)

    def writer(self) -> SegmentWriter:
        """Writes segments here; another process makes its own, from `folder`."""
        return SegmentWriter(self.folder)

    def names(self) -> set[str]:
        """The sealed segments."""
        return {name for place in self._places() for name in _names(place) if is_name(name)}

    def map(self, name: str) -> memoryview:
        """A read-only view of one of ours, by its name as in a `Location`; `CopyGone` if it is not there."""
        boot, _, _ = name.partition("/")
        if boot != self.boot:
            raise CopyGone(f"{name} is of an earlier start of this node or of another node")
        return map_segment(name, self.folder.parent)

    def keep(self, name: str) -> None:
        """A child told us of this segment: it stays when the child ends."""
        self._kept.add(self._file(name))

    def delete(self, name: str) -> bool:
        """Unlink a segment; who has it mapped keeps it. False when it is not there."""
        file = self._file(name)
        self._kept.discard(file)
        for place in self._places():
            try:
                size = (place / file).stat().st_size
                (place / file).unlink()
            except FileNotFoundError:
                continue
            if place == self.folder:
                self._freed_now(file, size)
            return True
        return False

    def _freed_now(self, file: str, size: int) -> None:
        if file in self._orphans:
            self._orphans.discard(file)
            self._ledger.write(GONE, self._ledger.read(GONE) - size)
        else:
            pid = pid_of(file)
            self._freed[pid] = self._freed.get(pid, 0) + size
            self._ledger.write(FREED, self._ledger.read(FREED) + size)

    def child_gone(self, pid: int) -> int:
        """Remove what a dead child left: drafts, and segments that it told nobody of. Returns how many.

        What stays is counted anew from what is really there, as it may have died between reserving and
        writing, and its counter goes: the next child may have the same number. What is counted meanwhile is
        too much and never too little.
        """
        removed = 0
        left = 0
        for place in self._places():
            for name in _names(place):
                if pid_of(name) != pid or name in self._orphans:
                    continue
                if name not in self._kept:
                    (place / name).unlink(missing_ok=True)
                    removed += 1
                elif place == self.folder:
                    left += (place / name).stat().st_size
                    self._orphans.add(name)
        self._ledger.write(GONE, self._ledger.read(GONE) + left)
        self._ledger.write(FREED, self._ledger.read(FREED) - self._freed.pop(pid, 0))
        self._ledger.remove(str(pid))
        return removed

    def close(self) -> None:
        """Remove everything: the end of this node. In a forked child it does nothing."""
        if os.getpid() != self._pid:
            return
        for place in self._places():
            _remove(place)
        while self._locks:
            fd = self._locks.pop()
            _held.discard(fd)
            os.close(fd)

    def __enter__(self) -> "Segments":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _places(self) -> list[Path]:
        return [self.folder] if self._spill is None else [self.folder, self._spill]

    def _file(self, name: str) -> str:
        file = name.removeprefix(self.boot + "/")
        if not is_name(file):
            raise CopyGone(f"{name!a:.200} is no segment of this node")
        return file


def sweep(root: Path) -> int:
    """Remove the folders whose supervisor is dead; returns how many. Safe beside living ones.

    A folder gets its name together with its lock (`_claim`), so one without a lock has been removed, up to
    what a process of its dead supervisor was still writing.
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
                continue  # it lives
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


def _claim(root: Path, boot: str) -> tuple[Path, int]:
    """Make a folder and hold its lock.

    It is made under a name of its own and renamed with the lock held. A sweep that comes upon it before that
    may take it for a dead one: then we begin again under the next name.
    """
    _own_folder(root)
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
        _held.add(fd)
        return root / boot, fd
    raise UsageError(f"{root / boot} is in use", hint="a boot id is new with every start: draw another one")


def _lock(folder: Path, flags: int) -> int:
    """The descriptor of a folder's lock, held by us; `BlockingIOError` if somebody else holds it."""
    fd = os.open(folder / LOCK, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:  # who held it before us has removed it
            raise FileNotFoundError(folder / LOCK)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove(folder: Path) -> None:
    """Remove a folder whose lock we hold; the lock goes last, so that a crash half-way is swept again."""
    _empty(folder)
    (folder / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a process of the dead supervisor is still writing: swept next time
        folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove what is in a folder but for its lock."""
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


def _own_folder(root: Path) -> None:
    """Make the root, or make sure that it is ours: others can write to the folder it lies in."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{root} is not a folder of this user alone",
            hint="remove it if it is not in use, or let the segments lie elsewhere",
        )
