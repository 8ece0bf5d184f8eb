"""Manage the file of a SQLite store: connections, the write lock, errors, and protection against forks.

SQLite protects the file with POSIX locks, which belong to a process and not to a handle. If other code in
this process opened and closed the file, the process would lose all its locks on the file. A forked child
inherits SQLite's records of locks that the child does not hold. So only SQLite opens the file, and a forked
child can use neither the inherited connections nor the file (`_after_fork`).

`WriteLock` waits for the write lock in such a way that no process starves. SQLite's own wait sleeps for up to
100 ms at a time, while a busy process releases the lock for a fraction of a millisecond between two commits.
Here a waiting process tries about every millisecond. To show that it is waiting, it holds a shared lock on a
file next to the store. A process that has been committing for a few milliseconds checks that file and lets
waiting processes go first. The shared lock is only a hint: SQLite's own lock decides, and when a process is
killed, its hint disappears.
"""

import ctypes
import fcntl
import os
import random
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemill.clock import Clock
from tidemill.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocation,
    StoreUnavailable,
    UsageError,
)

TURN_S = 0.005  # enough for several commits on a fast disk; letting others go first costs about one commit
GIVE_WAY_S = 0.001
TRY_S = 0.001
TRY_LATER_S = 0.010
LATER_S = 0.5  # after this time a process tries less often


class WriteLock:
    """Waits for the write lock, and shares it fairly among the processes of one machine."""

    def __init__(self, path: Path, clock: Clock, chance: random.Random, patience_s: float) -> None:
        self._hint = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._clock = clock
        self._chance = chance
        self._patience_s = patience_s
        self._turn_began = 0.0

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction; raise SQLite's busy error if the lock was not free in time."""
        since = self._clock.monotonic()
        if since - self._turn_began > TURN_S:
            if self._others_wait():
                self._clock.sleep(GIVE_WAY_S)
            self._turn_began = since
        if self._try(connection):
            return
        self._lock(fcntl.LOCK_SH)
        try:
            while True:
                waited_s = self._clock.monotonic() - since
                self._clock.sleep(
                    (TRY_S if waited_s < LATER_S else TRY_LATER_S) * (0.5 + self._chance.random())
                )
                if self._try(connection, last=waited_s > self._patience_s):
                    self._turn_began = self._clock.monotonic()
                    return
        finally:
            self._lock(fcntl.LOCK_UN)

    def _try(self, connection: sqlite3.Connection, *, last: bool = False) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if last or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _others_wait(self) -> bool:
        if not self._lock(fcntl.LOCK_EX):
            return True
        self._lock(fcntl.LOCK_UN)
        return False

    def _lock(self, how: int) -> bool:
        try:
            fcntl.flock(self._hint, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._hint)


CACHE_KIB = 16 * 1024
WAL_PAGES = 4_000  # 16 MB; the commit that exceeds it copies the log into the file
WAL_BYTES_KEPT = 64 * 1024 * 1024
IDLE_READERS = 8
NO_SPACE_BYTES = 64 * 1024  # a file system with less free space counts as full, for any error of SQLite

FORKED_HINT = "start processes with spawn or forkserver, or open the store after the fork"


class StoreFile:
    """One SQLite file: one connection for writing, a few for reading."""

    def __init__(self, path: Path, *, patience_s: float) -> None:
        self.path = path
        self._name = str(path)
        self.patience_s = patience_s
        self.forked = False
        self._lock = threading.Lock()
        self._open: set[sqlite3.Connection] = set()
        self._idle: list[sqlite3.Connection] = []
        self._room = IDLE_READERS  # 0 when the store is closed
        if _inode(path) in _inherited:  # None, for a file that does not exist yet, is never in the set
            raise UsageError(f"{path} was already open when this process was forked", hint=FORKED_HINT)
        _files.add(self)
        self.inode: tuple[int, int] | None = None  # set once the file exists

    # --- connections

    def connect(self, *, writing: bool, create: bool = False) -> sqlite3.Connection:
        """Open a new connection; the caller closes it with `disconnect`."""
        try:
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode={'rwc' if create else 'rw'}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=self.patience_s,
            )
        except sqlite3.Error as error:
            raise self.translated(error) from error
        with self._lock:
            self._open.add(connection)
        try:
            self._configure(connection, writing=writing)
        except sqlite3.Error as error:
            self.disconnect(connection)
            raise self.translated(error) from error
        except BaseException:
            self.disconnect(connection)
            raise
        return connection

    def _configure(self, connection: sqlite3.Connection, *, writing: bool) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA mmap_size = 0")  # an I/O error in mapped memory would kill the process
        connection.execute("PRAGMA temp_store = MEMORY")
        if not writing:
            connection.execute("PRAGMA query_only = ON")
            return
        connection.execute("PRAGMA auto_vacuum = NONE")  # free pages are reused; moving them has no benefit
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreLocation(f"the file system that holds {self.path} does not support shared memory")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        connection.execute(
            "PRAGMA secure_delete = OFF"
        )  # some builds overwrite deleted rows: twice the writes
        # `WriteLock` waits for the write lock: it is fairer than SQLite's growing sleeps.
        connection.execute("PRAGMA busy_timeout = 0")

    def disconnect(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        with suppress(sqlite3.Error):
            connection.close()

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Lend a reading connection from the pool."""
        self.check_in_place()
        with self._lock:
            if not self._room:
                raise UsageError("the store is closed", hint="open it again")
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self.connect(writing=False)
        try:
            yield connection
        finally:
            # An interrupt may come between any two lines, so a connection that is still in a transaction is
            # not reused.
            with self._lock:
                keep = len(self._idle) < self._room and not connection.in_transaction
                if keep:
                    self._idle.append(connection)
            if not keep:
                self.disconnect(connection)

    def close(self) -> None:
        with self._lock:
            self._room = 0
            idle, self._idle = self._idle, []
        for connection in idle:
            self.disconnect(connection)
        _files.discard(self)

    # --- the file itself

    def remember(self) -> None:
        """Remember this file by its inode, because the path may name another file later."""
        self.inode = _inode(self.path)

    def check_in_place(self) -> None:
        """Refuse a file that was deleted or replaced while open: commits to it would be lost."""
        if _inode(self._name) != self.inode:
            raise StoreUnavailable(
                f"{self.path} was moved, deleted or replaced while it was open",
                hint="put the file back, or close the store and open it again",
            )

    def check_process(self) -> None:
        if self.forked:
            raise UsageError("the store was opened before this process was forked", hint=FORKED_HINT)

    # --- errors

    def translated(self, error: sqlite3.Error) -> StoreError:
        """Translate an error of SQLite into one of the store."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        text = f"{self.path}: {error}"
        if code == sqlite3.SQLITE_FULL or (code in _BY_FULL_DISK and self._is_full()):
            return StoreFull(f"no space left for {text}")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreCorrupt(text)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusy(f"another process kept {self.path} locked for {self.patience_s:g} s")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return StoreUnavailable(text, hint="check that this user can write to the file and its folder")
        if code == sqlite3.SQLITE_IOERR:
            return StoreUnavailable(text, hint="check the disk, then try again")
        return StoreError(text)

    def _is_full(self) -> bool:
        try:
            disk = os.statvfs(self.path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < NO_SPACE_BYTES


# SQLite may report a full disk with these codes, when the shared index of its log cannot grow.
_BY_FULL_DISK = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _inode(path: Path | str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  called before every transaction: half the time of Path.stat
    except OSError:
        return None
    return status.st_dev, status.st_ino


# --- forks

_files: "weakref.WeakSet[StoreFile]" = weakref.WeakSet()
_inherited: set[tuple[int, int]] = set()


def _after_fork() -> None:
    """Protect the parent's connections in a forked child: never use them, and never close them.

    Closing an inherited connection could remove the log that the parent uses. So each connection gets an
    extra reference and is never closed. The child cannot open the file again either: according to SQLite's
    inherited records, this process holds the parent's locks.
    """
    for file in list(_files):
        file.forked = True
        inode = file.inode or _inode(file.path)
        if inode is not None:
            _inherited.add(inode)
        for connection in list(file._open):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_after_fork)
