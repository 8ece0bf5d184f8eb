"""Keep the store in one SQLite file, shared by the processes of one machine.

The file has one table of byte keys and byte values. It uses a write-ahead log, and every commit is forced to
disk. Each module describes its part:

- `group_commit`: many calls share one COMMIT; what happens when the outcome of a commit is unknown;
- `transaction`: one transaction; functions that only read never wait for a writer;
- `header`: format, owner and clock of the file; `location`: where the file may be;
- `file`: connections, fair waiting for the write lock, errors, forks;
- `watch` and `wakeups`: notification of changes.

The files next to the main file (`-wal`, `-shm`, `-turn`) belong to the store: a copy of the main file alone
is not a backup.
"""

import errno
import functools
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.errors import StoreBusy, StoreFull, StoreUnavailable, TransactionTooLong, UsageError
from tidemill.store import port
from tidemill.store.port import SLOW_ATTEMPTS, SYSTEM_PREFIX, Mode, Row, Store, Tx, Watch
from tidemill.store.sqlite.file import StoreFile
from tidemill.store.sqlite.group_commit import CommitRequest, GroupCommit, Stats
from tidemill.store.sqlite.header import Header, admit, is_admitted
from tidemill.store.sqlite.location import MachineId, make_folder, refuse_network
from tidemill.store.sqlite.transaction import SqliteTx
from tidemill.store.sqlite.wakeups import WakeupSender
from tidemill.store.sqlite.watch import SqliteWatch, Watches

T = TypeVar("T")

KINDS_REMEMBERED = 4096


class SqliteStore(Store):
    """A store in one file on a local disk.

    Args:
        path: the file; it is created, with its folders, if it does not exist.
        clock: the source of time.
        chance: the source of random numbers.
        patience_s: how long to wait for another process or a failing disk.
        adopt: take over a file that was moved here from another machine.
        machine: the identity of this machine, for tests.
        commit_delay_s: makes every commit slower, for benchmarks.

    >>> import tempfile
    >>> with SqliteStore(tempfile.mkdtemp() + "/store.db") as store:
    ...     store.run(lambda tx: tx.set(b"greeting", b"hello"))
    ...     store.run(lambda tx: tx.get(b"greeting"))
    b'hello'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        patience_s: float = 30.0,
        adopt: bool = False,
        machine: MachineId | None = None,
        commit_delay_s: float = 0.0,
    ) -> None:
        super().__init__(clock=clock, chance=chance)
        self.path = Path(path).resolve()
        self._machine = machine if machine is not None else MachineId.here()
        self._inside = threading.local()  # set in a thread that runs fn on a reading connection
        self._writes: dict[object, bool] = {}  # whether each function wrote in its last run
        self._file = StoreFile(self.path, patience_s=patience_s)
        self._watches = Watches(
            self._last_commit,
            self._file.check_process,
            clock,
            random.Random(),
            WakeupSender(self.path.with_name(self.path.name + "-bells")),
        )
        connection = None
        try:
            refuse_network(self.path)
            make_folder(self.path.parent)
            self._check_writable()
            connection = self._open(adopt=adopt)
            self._writer = GroupCommit(
                self._file,
                connection,
                self._watches,
                clock=clock,
                chance=self.chance,
                boot=self._machine.boot,
                commit_delay_s=commit_delay_s,
            )
        except BaseException as error:
            if connection is not None:
                self._file.disconnect(connection)
            self._file.close()
            if isinstance(error, OSError):
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                kind = StoreFull if full else StoreUnavailable
                raise kind(f"{self.path} cannot be opened: {error.strerror}") from error
            raise

    @property
    def url(self) -> str:
        return f"sqlite://{self.path}"

    @property
    def stats(self) -> Stats:
        return self._writer.stats

    # --- running

    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        self._check_usable()
        for _ in range(SLOW_ATTEMPTS - 1):
            try:
                return self._run(fn, mode)
            except TransactionTooLong:
                continue
        return self._run(fn, mode)

    def _run(self, fn: Callable[[Tx], T], mode: Mode) -> T:
        # Whether a function writes is guessed from its last run. A wrong guess costs one run up to its first
        # write, or one call of the writer.
        kind = _kind(fn)
        if not self._writes.get(kind, False):
            read, value = self._read(fn, mode)
            if read:
                return value  # type: ignore[return-value]
        call = CommitRequest(fn, mode)
        try:
            return self._writer.call(call)
        finally:
            if len(self._writes) > KINDS_REMEMBERED:
                self._writes.clear()
            self._writes[kind] = call.wrote

    def _read(self, fn: Callable[[Tx], T], mode: Mode) -> tuple[bool, T | None]:
        """Run fn on a snapshot; return (False, None) if it needs the writer."""
        with self._file.reader() as connection:
            tx = SqliteTx(connection, self._file, mode, self.clock, self._machine.boot)
            try:
                self._inside.active = True
                connection.execute("BEGIN")
                value = port.call(fn, tx)
                tx._check_age()
            except BaseException as error:
                if tx.needs_writer:
                    return False, None
                if isinstance(error, sqlite3.Error):
                    raise self._file.translated(error) from error
                raise
            finally:
                self._inside.active = False
                tx._end()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if tx.needs_writer:
                return False, None
            if tx.broken is not None:
                raise tx.broken
            self.stats.reads += 1
            return True, value

    def snapshot(self) -> Iterator[Row]:
        self._check_usable()
        with self._file.reader() as connection:
            try:
                connection.execute("BEGIN")  # the write-ahead log keeps the state that this reads
                rows = connection.execute("SELECT k, v FROM kv WHERE k < ? ORDER BY k", (SYSTEM_PREFIX,))
                for key, value in rows:
                    yield Row(key, value)
            except sqlite3.Error as error:
                raise self._file.translated(error) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _check_usable(self) -> None:
        self._file.check_process()
        if getattr(self._inside, "active", False) or self._writer.is_inside:
            raise UsageError(
                "store.run was called inside a transaction", hint="pass tx to the inner function"
            )

    # --- watching

    def watch(self, keys: Iterable[bytes]) -> Watch:
        return SqliteWatch(self._watches, frozenset(keys))

    def _last_commit(self) -> int:
        with self._file.reader() as connection:
            try:
                return Header.read(connection, self._machine.boot).commit
            except sqlite3.Error as error:
                raise self._file.translated(error) from error

    # --- opening and closing

    def _open(self, *, adopt: bool) -> sqlite3.Connection:
        """Open the writing connection and create the store if needed, even if other processes do so too."""
        give_up = self.clock.monotonic() + self._file.patience_s
        tries = 0
        while True:
            tries += 1
            connection = None
            try:
                connection = self._file.connect(writing=True, create=True)
                self._admit(connection, adopt=adopt)
                self._file.remember()
                return connection
            except BaseException as error:
                if connection is not None:
                    self._file.disconnect(connection)
                if not isinstance(error, StoreBusy) or self.clock.monotonic() > give_up:
                    raise
            self.clock.sleep(backoff(tries, self.chance, most_s=0.05))

    def _admit(self, connection: sqlite3.Connection, *, adopt: bool) -> None:
        try:
            connection.execute("BEGIN")
            admitted = is_admitted(connection, self._file, self.clock, self._machine)
            connection.execute("ROLLBACK")
            if not admitted:
                connection.execute("BEGIN IMMEDIATE")
                admit(connection, self._file, self.clock, self._machine, adopt=adopt)
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._file.translated(error) from error

    def _check_writable(self) -> None:
        # SQLite would open a read-only file, and fail only at the first commit.
        for place in (self.path, self.path.parent):
            if place.exists() and not os.access(place, os.W_OK):
                raise StoreUnavailable(
                    f"{place} is not writable",
                    hint="check that this user can write to the file and its folder",
                )

    def close(self) -> None:
        if self._file.forked:
            return  # everything belongs to the parent process
        if self._writer.is_inside:
            raise UsageError(
                "close() was called inside a transaction of this store",
                hint="close the store after the transaction",
            )
        self._writer.close()
        self._watches.close()
        self._file.close()


def _kind(fn: Callable[..., object]) -> object:
    """Identify a function by its code object, which is the same each time a closure is created."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__code__", None) or type(fn)


__all__ = ["MachineId", "SqliteStore", "Stats"]
