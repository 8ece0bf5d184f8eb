"""One attempt of one function on a SQLite connection.

On a reading connection (`head` is None) the transaction is a snapshot, which is serialisable as long as
nothing is written: the first write ends the attempt by `NeedsWriter`, and the writer runs the function again
from its beginning. A `take` that finds nothing and a `swap` that does not match write nothing, so a worker
that polls an empty queue never asks for the write lock.

On the writing connection writes are kept in a dictionary and go to SQLite together when the function has
returned. A function that raises takes back its own writes and nobody else's (STO-5): mostly by forgetting
the dictionary. Only what has to reach SQLite earlier (before a range read, and what is taken) goes into a
savepoint, which is not free: SQLite keeps the old state of every page it touches.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from tidemill.clock import Clock
from tidemill.errors import StoreError
from tidemill.store.keys import Version, pack
from tidemill.store.port import Mode, Row, Swap, Tx, read_counter, write_counter
from tidemill.store.sqlite_file import StoreFile
from tidemill.store.sqlite_head import GET, PUT, Head, micros

DELETE = "DELETE FROM kv WHERE k = ?"
DELETE_RANGE = "DELETE FROM kv WHERE k >= ? AND k < ?"
DELETE_TAKEN = "DELETE FROM kv WHERE k >= ? AND k <= ?"
RANGE = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
RANGE_REVERSE = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k DESC LIMIT ?"


_as_row = partial(tuple.__new__, Row)  # half the time of Row(key, value), and ranges are long


class NeedsWriter(BaseException):
    """The function began to write on a reading connection. Not an Exception: fn must not swallow it."""


class SqliteTx(Tx):
    """Reads and writes of one function; `head` is None on a reading connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        file: StoreFile,
        mode: Mode,
        clock: Clock,
        boot: str,
        head: Head | None = None,
    ) -> None:
        super().__init__(mode, clock)
        self.dirty = False  # something reached SQLite
        self.needs_writer = False
        self.broken: StoreError | None = None  # SQLite failed under fn, which may have hidden it
        self._saved = False  # there is a savepoint of this function
        self._connection = connection
        self._file = file
        self._boot = boot
        self._head = head
        self._writing = head is not None
        self._now_us: int | None = None
        self._pending: dict[bytes, bytes | None] = {}
        self._versioned: list[tuple[bytes, bytes]] = []

    # --- time

    def now(self) -> int:
        self._check_alive()
        if self._now_us is None:
            head = self._head
            if head is None:
                try:
                    head = Head.read(self._connection, self._boot)
                except sqlite3.Error as error:
                    self._fail(error)
            now_us = head.now_us(micros(self._clock))  # after the snapshot: no row in it is from later
            if now_us > head.ceiling_us and not self._writing:
                self._want_writer()  # which raises the ceiling: nothing beyond it is handed out before
            self._now_us = now_us
        return self._now_us

    def wall(self) -> int:
        return int(self._clock.wall() * 1_000_000)

    # --- reading

    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]:
        # One writer at a time, and a reader that writes starts again: every read is as good as locked.
        if len(keys) == 1:
            return [self._get(keys[0])]
        pending = self._pending
        asked = [key for key in keys if key not in pending] if pending else keys
        found: dict[bytes, bytes | None] = self._fetch(asked) if asked else {}
        if pending:
            return [pending[key] if key in pending else found.get(key) for key in keys]
        return [found.get(key) for key in keys]

    def _get(self, key: bytes) -> bytes | None:
        if key in self._pending:
            return self._pending[key]
        try:
            row = self._connection.execute(GET, (key,)).fetchone()
        except sqlite3.Error as error:
            self._fail(error)
        return None if row is None else row[0]

    def _fetch(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        # Filled up to a power of two with the last key, so that a few prepared statements serve all lengths.
        size = 1 << (len(keys) - 1).bit_length()
        marks = ",".join("?" * size)
        values = [*keys, *[keys[-1]] * (size - len(keys))]
        query = f"SELECT k, v FROM kv WHERE k IN ({marks})"  # noqa: S608  marks are question marks
        try:
            return dict(self._connection.execute(query, values).fetchall())
        except sqlite3.Error as error:
            self._fail(error)

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        if self._pending:
            self._save()
            self._flush()
        query = RANGE_REVERSE if reverse else RANGE
        try:
            found = self._connection.execute(query, (lo, hi, -1 if limit is None else limit)).fetchall()
        except sqlite3.Error as error:
            self._fail(error)
        return list(map(_as_row, found))

    # --- writing

    def _set(self, key: bytes, value: bytes) -> None:
        if not self._writing:
            self._want_writer()
        self._pending[key] = value

    def _clear(self, key: bytes) -> None:
        if not self._writing:
            self._want_writer()
        self._pending[key] = None

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        if not self._writing:
            self._want_writer()
        for key in [key for key in self._pending if lo <= key < hi]:
            del self._pending[key]
        self._change(DELETE_RANGE, (lo, hi))

    def _add(self, key: bytes, amount: int) -> None:
        if not self._writing:
            self._want_writer()
        self._pending[key] = write_counter(read_counter(self._get(key)) + amount)

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        if not self._writing:
            self._want_writer()
        self._versioned.append((prefix, value))

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        rows = self._range(lo, hi, limit, reverse=False, snapshot=False)
        if rows:
            if not self._writing:
                self._want_writer()
            # Under the write lock nothing lies between the first and the last but what was found.
            self._change(DELETE_TAKEN, (rows[0].key, rows[-1].key))
        return rows

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        keys = [swap.key for swap in swaps]
        current = dict(zip(keys, self._get_many(keys, lock=True), strict=True))
        done = []
        for key, expected, new in swaps:
            holds = current[key] == expected
            if holds:
                if not self._writing:
                    self._want_writer()
                self._pending[key] = current[key] = new
            done.append(holds)
        return done

    # --- the end

    def finish(self, commit: int, ordinal: int) -> int:
        """Bring every write to SQLite; returns the next free ordinal of this commit."""
        self._check_age()
        for prefix, value in self._versioned:
            self._pending[prefix + pack((Version(commit, ordinal),))] = value
            ordinal += 1
        self._versioned.clear()
        if self._pending:
            self._flush()
        if self._saved:
            self._execute("RELEASE fn")
            self._saved = False
        return ordinal

    def take_back(self) -> None:
        """Undo what reached SQLite, this function's part alone; `broken` when not even that works."""
        if self._saved:
            with suppress(StoreError):
                self._execute("ROLLBACK TO fn")
                self._execute("RELEASE fn")

    def _flush(self) -> None:
        self.dirty = True
        gone = [(key,) for key, value in self._pending.items() if value is None]
        try:
            if gone:
                self._connection.executemany(DELETE, gone)
            if not gone:
                self._connection.executemany(PUT, self._pending.items())
            elif len(gone) < len(self._pending):
                kept = [item for item in self._pending.items() if item[1] is not None]
                self._connection.executemany(PUT, kept)
        except sqlite3.Error as error:
            self._fail(error)
        self._pending.clear()

    def _change(self, statement: str, values: tuple[bytes, ...]) -> None:
        self.dirty = True
        self._save()
        self._execute(statement, values)

    def _save(self) -> None:
        if not self._saved:
            self._execute("SAVEPOINT fn")
            self._saved = True

    def _execute(self, statement: str, values: tuple[bytes, ...] = ()) -> None:
        try:
            self._connection.execute(statement, values)
        except sqlite3.Error as error:
            self._fail(error)

    def _want_writer(self) -> NoReturn:
        self.needs_writer = True
        raise NeedsWriter

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        self.broken = self._file.translated(error)
        raise self.broken from error
