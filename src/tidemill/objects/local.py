"""Store objects as plain files in one folder: the backend of the embedded mode.

The key is the path. Each write goes to a scratch file first (`.tidemill/scratch`), which is synced. Then the
file is linked (`put_if_absent`) or renamed (all other writes) to its name, and its folders are synced. `link`
fails if the name is taken, so exactly one of several concurrent creators succeeds. With `rename`, all of them
would seem to succeed. A crash leaves a scratch file without a key, and the next process deletes it.

**Replacing.** `rename` has no condition, so `put_if_match` compares and renames under the lock of the key.
Every other change of an existing object (`put`, `delete`) takes that lock too. `put_if_absent` needs no lock,
because it never replaces an object.

**The ETag** is inode, size and time of modification. Inodes are reused, and the kernel's time can be as
coarse as 4 ms. So we set that time ourselves: the current time minus a random part of a second, but always
later than the time of the replaced object. As a result, two writes of equal bytes have different ETags, even
after a delete, and even if the clock stops. On a file system that does not keep nanoseconds, `put_if_match`
is not supported.

Symbolic links are not objects, and are not followed: they could point outside of the root.
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
from tidemill.objects.durable_files import Folders, KeyLocks, NewFile, sweep
from tidemill.objects.folder_walk import FolderEntry, walk
from tidemill.objects.key import RESERVED, fault
from tidemill.objects.port import Bodies, Body, ObjectInfo, Objects

_NO_OBJECT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRIES = 100  # how often to create a folder that other processes keep removing because it is empty


class LocalObjects(Objects):
    """Files in one folder, which the first write creates.

    Args:
        root: the folder, on a file system of this machine.
        clock: for times of modification, and to wait for locks.
        chance: for the names of scratch files and parts of ETags.
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
        """Return the path of an object's file, for callers that read files themselves. Never write to it."""
        reason = fault(key)
        if reason or self._leads_away(key):
            raise BadKey(f"invalid object key {key!a:.200}: {reason or 'it leads through a symbolic link'}")
        return self.root / key

    def _leads_away(self, key: str) -> bool:
        """Return whether one of the folders of a key is a symbolic link.

        Each folder is checked every time, because it can change; the root is resolved once. This check is
        most of the overhead of an access, so it makes only a few system calls.
        """
        folder, slash = f"{self.root}/{key}", len(str(self.root))
        while (slash := folder.find("/", slash + 1)) > 0:
            try:
                if stat.S_ISLNK(os.lstat(folder[:slash]).st_mode):
                    return True
            except OSError:
                return False  # it does not exist, or is not a folder: so nothing is below it
        return False

    # --- writing

    def _put(self, key: str, body: Body) -> ObjectInfo:
        target = self.path(key)
        with self._writing(key, target, body) as new, self._locks.hold(key):
            self._replace(new, target, _lstat(target))
            return _info(key, new.stat())

    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        target = self.path(key)
        with self._writing(key, target, body) as new, self._locks.hold(key):
            old = _lstat(target)
            if old is None or _etag(old) != etag:
                raise ObjectConflict(f"{key!r} was changed or deleted: its ETag is no longer {etag}")
            self._replace(new, target, old)
            return _info(key, new.stat())

    def _create(self, key: str, body: Body) -> bool:
        target = self.path(key)
        with _meaning(key, self.url):
            if self._exists_durably(target):
                return False
        with self._writing(key, target, body) as new:
            crash.point("objects.local.before_link")
            try:
                self._into(target, lambda: os.link(new.path, target))
            except FileExistsError:
                new.discard()
                self._exists_durably(target)
                return False
            crash.point("objects.local.after_link")
            new.discard()
        return True

    def _replace(self, new: NewFile, target: Path, old: os.stat_result | None) -> None:
        if old is not None and new.stat().st_mtime_ns <= old.st_mtime_ns:
            new.stamp(old.st_mtime_ns + 1)  # another writer has just replaced the object
        crash.point("objects.local.before_rename")
        self._into(target, lambda: new.path.replace(target))
        crash.point("objects.local.after_rename")

    @contextlib.contextmanager
    def _writing(self, key: str, target: Path, body: Body) -> Iterator[NewFile]:
        """Yield a durable scratch file with the body. When the block has given it a key, sync the folders."""
        with _meaning(key, self.url):
            with self._new_file() as new:
                try:
                    new.write(body, self._modified_ns(target))
                    yield new
                except Exception:
                    # A simulated crash is not an Exception. As after a real crash, the scratch file stays,
                    # and the next process deletes it.
                    new.discard()
                    self._folders.prune(target.parent)
                    raise
            with contextlib.suppress(FileNotFoundError):  # already deleted, with its folder
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
        except FileNotFoundError:  # another process emptied the root
            self._prepare()
            return NewFile(self._scratch, self._chance)

    def _prepare(self) -> None:
        """Make our own folders, delete scratch files of dead writers, and test the file system's times."""
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
        """Create the folder of `target`, then run `act`, which links or renames a file to `target`."""
        for _ in range(_TRIES):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                if self._is_inside_a_file(target):
                    raise BadKey(
                        f"{self._key(target)!r} is inside another object", hint="use a different key"
                    ) from None
                continue  # it was a folder, and another process has just removed it
            except FileNotFoundError:
                continue  # a folder above was just removed, because it was empty
            try:
                act()
            except FileNotFoundError:
                continue
            except (IsADirectoryError, NotADirectoryError):
                raise BadKey(
                    f"{self._key(target)!r} is a folder that contains other objects",
                    hint="use a different key",
                ) from None
            return
        raise ObjectUnavailable(
            f"other processes keep removing the folder of {self._key(target)!r}",
            hint="check which other program deletes folders under this path, then retry",
        )

    def _is_inside_a_file(self, target: Path) -> bool:
        above = (_lstat(folder) for folder in target.parents if folder.is_relative_to(self.root))
        return any(status is not None and not stat.S_ISDIR(status.st_mode) for status in above)

    def _exists_durably(self, target: Path) -> bool:
        """Return whether there is an object; if so, sync it, so that the result survives a crash."""
        status = _lstat(target)
        if status is None:
            return False
        if not stat.S_ISREG(status.st_mode):
            raise BadKey(
                f"{self._key(target)!r} is a folder that contains other objects, or it is not a regular file",
                hint="use a different key",
            )
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
                status = _lstat(target)
                if status is not None and stat.S_ISREG(status.st_mode):
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

    def _get(self, key: str) -> tuple[bytes, ObjectInfo]:
        # bytes and status come from one file, even if another file takes its name
        with self._reading(key) as (fd, status), os.fdopen(os.dup(fd), "rb") as file:
            return file.read(), _info(key, status)

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        with self._reading(key) as (fd, status):
            size = status.st_size
            return [_pread(fd, start, min(length, max(0, size - start))) for start, length in ranges]

    def _head(self, key: str) -> ObjectInfo:
        with self._reading(key) as (_, status):
            return _info(key, status)

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
                raise ObjectMissing(f"{self.url} has no object {key!r}") from None

    def _list(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        for key, entry in walk(self._entries, prefix, after):
            with _meaning(key, self.url):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted while we listed
            yield _info(key, status)

    def _entries(self, folder: str) -> Iterator[FolderEntry[os.DirEntry[str]]]:
        with _meaning(folder, self.url):
            try:
                inside = os.scandir(self.path(folder[:-1]) if folder else self.root)
            except (FileNotFoundError, NotADirectoryError):
                return
            with inside:
                for entry in inside:
                    if fault(folder + entry.name):
                        continue  # not a valid key: one of our own files, or a file of another program
                    if entry.is_dir(follow_symlinks=False):
                        yield FolderEntry(entry.name, None)
                    elif entry.is_file(follow_symlinks=False):
                        yield FolderEntry(entry.name, entry)


@contextlib.contextmanager
def _meaning(key: str, url: str) -> Iterator[None]:
    """Translate an `OSError` to an error about the object."""
    try:
        yield
    except OSError as error:
        place = f"{key!r} in {url}: {error.strerror}"
        if error.errno in _NO_SPACE:
            raise ObjectsFull(f"no space for {place}") from error
        if error.errno == errno.ENAMETOOLONG:
            raise BadKey(
                f"the object key is too long: {place}",
                hint="use shorter names; most file systems limit each name to 255 bytes",
            ) from error
        raise ObjectUnavailable(
            f"cannot access {place}",
            hint="check the folder, its permissions and its disk, then retry",
        ) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    # O_NONBLOCK: a named pipe must not block us; it is refused below
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a regular file")
        yield fd, status
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


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _etag(status), status.st_mtime_ns / 1e9)
