"""Objects as plain files under one folder: the backend of the embedded mode.

The key is the path. Each write goes to a scratch file first (`.tidemill/scratch`), which is synced, then
linked (`put_if_absent`) or renamed (everything else) to its name, then its folders are synced. `link` fails
when the name is taken, so of many creators exactly one succeeds; with `rename` both would believe they had.
A crash leaves a scratch file that nobody sees, and the next process sweeps it.

**Replacing.** `rename` has no condition, so `put_if_match` compares and renames under the key's lock, and
every other way to change an existing object (`put`, `delete`) takes that lock too. `put_if_absent` needs no
lock: it can only act when there is nothing to compare.

**The etag** is inode, size and time of modification. Inodes come back and the kernel's time is as coarse as
4 ms, so we set that time ourselves: now, less up to a second of chance, and always later than that of the
object being replaced. Two writes of equal bytes thus differ, also after a delete, also under a clock that
stands still. A file system that cannot keep nanoseconds is found out, and has no `put_if_match`.

Symbolic links are not objects and no way to any: they would lead out of the root.
"""

import contextlib
import errno
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tidemill import crash
from tidemill.clock import Clock
from tidemill.errors import BadKey, ObjectConflict, ObjectMissing, ObjectsFull, ObjectUnavailable
from tidemill.objects.disk import Folders, KeyLocks, NewFile, sweep
from tidemill.objects.key import RESERVED, fault
from tidemill.objects.port import Bodies, Body, Info, Objects
from tidemill.objects.walk import Entry, walk

_NO_OBJECT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRIES = 100  # of making a folder that others remove because it is empty


class LocalObjects(Objects):
    """Files below one folder, which the first write makes.

    Args:
        root: the folder; on a file system of this machine.
        clock: says when an object was modified, and waits for locks.
        chance: draws scratch names and parts of etags.
        patience_s: how long to wait for the lock of a key.
    """

    def __init__(self, root: Path, clock: Clock, chance: random.Random, *, patience_s: float = 30.0) -> None:
        self.root = root.resolve()
        self._clock = clock
        self._chance = chance
        own = self.root / RESERVED
        self._scratch = own / "scratch"
        self._lock_files = own / "locks"
        self._locks = KeyLocks(self._lock_files, clock, chance, patience_s=patience_s)
        self._folders = Folders(self.root)
        self._preparing = threading.Lock()
        self._fine_times: bool | None = None

    @property
    def url(self) -> str:
        return self.root.as_uri()

    @property
    def supports_if_match(self) -> bool:
        if self._fine_times is None:
            with _meaning(".", self.url):
                self._prepare()
        return bool(self._fine_times)

    def path(self, key: str) -> Path:
        """Where an object's file is or would be, for those who read files themselves (never to write one)."""
        wrong = fault(key)
        if wrong or self._leads_away(key):
            raise BadKey(f"not a key: {key!a:.200}: {wrong or 'it leads through a symbolic link'}")
        return self.root / key

    def _leads_away(self, key: str) -> bool:
        """Is one of the folders of a key a symbolic link? Each is looked at, every time, as they may change;
        the root is resolved once. This is most of what an access costs beside the access itself, so it is a
        few system calls and nothing else.
        """
        folder, slash = f"{self.root}/{key}", len(str(self.root))
        while (slash := folder.find("/", slash + 1)) > 0:
            try:
                if stat.S_ISLNK(os.lstat(folder[:slash]).st_mode):
                    return True
            except OSError:
                return False  # nothing is there, or no folder: and so nothing is below
        return False

    # --- writing

    def _put(self, key: str, body: Body) -> Info:
        target = self.path(key)
        with self._writing(key, target, body) as new, self._locks.hold(key):
            self._replace(new, target, _lstat(target))
            return _info(key, new.stat())

    def _put_if_match(self, key: str, body: Body, etag: str) -> Info:
        target = self.path(key)
        with self._writing(key, target, body) as new, self._locks.hold(key):
            old = _lstat(target)
            if old is None or _etag(old) != etag:
                raise ObjectConflict(f"{key!r} is not the object with etag {etag}")
            self._replace(new, target, old)
            return _info(key, new.stat())

    def _create(self, key: str, body: Body) -> bool:
        target = self.path(key)
        with _meaning(key, self.url):
            if self._is_durably_there(target):
                return False
        with self._writing(key, target, body) as new:
            crash.point("objects.local.before_link")
            try:
                self._into(target, lambda: os.link(new.path, target))
            except FileExistsError:
                new.discard()
                self._is_durably_there(target)
                return False
            crash.point("objects.local.after_link")
            new.discard()
        return True

    def _replace(self, new: NewFile, target: Path, old: os.stat_result | None) -> None:
        if old is not None and new.stat().st_mtime_ns <= old.st_mtime_ns:
            new.stamp(old.st_mtime_ns + 1)  # somebody replaced it while we were writing
        crash.point("objects.local.before_rename")
        self._into(target, lambda: new.path.replace(target))
        crash.point("objects.local.after_rename")

    @contextlib.contextmanager
    def _writing(self, key: str, target: Path, body: Body) -> Iterator[NewFile]:
        """A scratch file with the body, on the disk; when the block has named it, its folders are synced."""
        with _meaning(key, self.url):
            with self._new_file() as new:
                try:
                    new.write(body, self._modified_ns(target))
                    yield new
                except Exception:
                    # not for a crash: what a dead process leaves behind is for the next one to sweep
                    new.discard()
                    self._folders.prune(target.parent)
                    raise
            with contextlib.suppress(FileNotFoundError):  # deleted again already, with its folder
                self._folders.sync(target.parent)

    def _modified_ns(self, target: Path) -> int:
        now_ns = int(self._clock.wall() * 1e9) - self._chance.getrandbits(30)
        old = _lstat(target)
        return max(now_ns, old.st_mtime_ns + 1) if old else now_ns

    def _new_file(self) -> NewFile:
        if self._fine_times is None:
            self._prepare()
        try:
            return NewFile(self._scratch, self._chance)
        except FileNotFoundError:  # somebody emptied the root under us
            self._prepare()
            return NewFile(self._scratch, self._chance)

    def _prepare(self) -> None:
        """Make what we keep for ourselves, sweep what dead writers left, and try the file system's times."""
        with self._preparing:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._lock_files.mkdir(exist_ok=True)
            sweep(self._scratch)
            with NewFile(self._scratch, self._chance) as new:
                wanted_ns = int(self._clock.wall()) * 10**9 + 123_456_789
                os.utime(new.path, ns=(wanted_ns, wanted_ns))
                self._fine_times = new.stat().st_mtime_ns == wanted_ns
                new.discard()

    def _into(self, target: Path, act: Callable[[], object]) -> None:
        """Do `act`, which names a file `target`, in a folder that exists when it does."""
        for _ in range(_TRIES):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                if self._is_inside_a_file(target):
                    raise BadKey(f"{self._key(target)!r} would lie inside another object") from None
                continue  # it was a folder that is gone again
            except FileNotFoundError:
                continue  # a folder above was removed as empty in this moment
            try:
                act()
            except FileNotFoundError:
                continue
            except (IsADirectoryError, NotADirectoryError):
                raise BadKey(f"{self._key(target)!r} is a folder of other objects") from None
            return
        raise ObjectUnavailable(f"the folder of {self._key(target)!r} is removed as fast as it is made")

    def _is_inside_a_file(self, target: Path) -> bool:
        above = (_lstat(folder) for folder in target.parents if folder.is_relative_to(self.root))
        return any(found is not None and not stat.S_ISDIR(found.st_mode) for found in above)

    def _is_durably_there(self, target: Path) -> bool:
        """Whether there is an object; if so it is on the disk, so that the answer outlives a crash."""
        found = _lstat(target)
        if found is None:
            return False
        if not stat.S_ISREG(found.st_mode):
            raise BadKey(f"{self._key(target)!r} is a folder of other objects, or no plain file")
        try:
            with _opened(target) as (fd, _):
                os.fsync(fd)
            self._folders.sync(target.parent)
        except FileNotFoundError:
            return False
        return True

    def _key(self, target: Path) -> str:
        return target.relative_to(self.root).as_posix()

    def _delete_many(self, keys: Sequence[str]) -> None:
        touched: set[Path] = set()
        for key in keys:
            target = self.path(key)
            with _meaning(key, self.url):
                found = _lstat(target)
                if found is not None and stat.S_ISREG(found.st_mode):
                    with self._locked(key):
                        target.unlink(missing_ok=True)
                    touched.add(target.parent)
        for folder in touched:
            with _meaning(self._key(folder), self.url):
                left = self._folders.prune(folder)
                with contextlib.suppress(FileNotFoundError):
                    self._folders.sync(left)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        if self._fine_times is None:
            self._prepare()
        with self._locks.hold(key):
            yield

    # --- reading

    def _get(self, key: str) -> tuple[bytes, Info]:
        # the bytes and the facts are of one file, even when another takes its name meanwhile
        with self._reading(key) as (fd, found), os.fdopen(os.dup(fd), "rb") as file:
            return file.read(), _info(key, found)

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        with self._reading(key) as (fd, found):
            return [_pread(fd, start, min(length, max(0, found.st_size - start))) for start, length in ranges]

    def _head(self, key: str) -> Info:
        with self._reading(key) as (_, found):
            return _info(key, found)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        target = self.path(key)
        with _meaning(key, self.url):
            try:
                file = _opened(target)
                with file as opened:
                    yield opened
            except OSError as error:
                if error.errno not in _NO_OBJECT:
                    raise
                raise ObjectMissing(f"no object {key!r} in {self.url}") from None

    def _list(self, prefix: str, after: str | None) -> Iterator[Info]:
        for key, entry in walk(self._entries, prefix, after):
            with _meaning(key, self.url):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted while we listed
            yield _info(key, found)

    def _entries(self, folder: str) -> Iterator[Entry[os.DirEntry[str]]]:
        with _meaning(folder, self.url):
            try:
                inside = os.scandir(self.path(folder[:-1]) if folder else self.root)
            except (FileNotFoundError, NotADirectoryError):
                return
            with inside:
                for entry in inside:
                    if fault(folder + entry.name):
                        continue  # not a key: it is our own, or was not written through this port
                    if entry.is_dir(follow_symlinks=False):
                        yield Entry(entry.name, None)
                    elif entry.is_file(follow_symlinks=False):
                        yield Entry(entry.name, entry)


@contextlib.contextmanager
def _meaning(key: str, url: str) -> Iterator[None]:
    """Say what an `OSError` means for the object."""
    try:
        yield
    except OSError as error:
        what = f"{key!r} in {url}: {error.strerror}"
        if error.errno in _NO_SPACE:
            raise ObjectsFull(f"no space for {what}") from error
        if error.errno == errno.ENAMETOOLONG:
            raise BadKey(f"too long a name: {what}") from error
        raise ObjectUnavailable(
            f"cannot reach {what}",
            hint="check the folder, its permissions and its disk; the call may be repeated",
        ) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    # O_NONBLOCK: a named pipe must not hang us; it is turned down below
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a plain file")
        yield fd, found
    finally:
        os.close(fd)


def _pread(fd: int, start: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(fd, length, start)):
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return b"".join(parts)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _etag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


def _info(key: str, found: os.stat_result) -> Info:
    return Info(key, found.st_size, _etag(found), found.st_mtime_ns / 1e9)
