"""Run a function once, as one attempt, on a SQLite connection.

On a reading connection (`head` is None) the transaction is a snapshot, which is serialisable as long as
nothing is written. The first write ends the attempt with `NeedsWriter`, and the writer runs the function
again from the start. A `take` that finds no rows writes nothing, and neither does a `swap` whose
expected value does not match. So a worker that polls an empty queue never needs the write lock.

On the writing connection, writes are buffered and sent to SQLite together when the function has returned. If
a function raises, only its own writes are undone (STO-5), usually by dropping the buffer. Writes that must
reach SQLite earlier, before a range read, go into a savepoint. A savepoint is not free: SQLite saves the old
state of every page that changes inside the savepoint.

Each statement writes many rows, because Python's `executemany` costs more per row than SQLite itself.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NoReturn

from tidemill.clock import Clock
from tidemill.errors import StoreError
from tidemill.store.keys import Versionstamp, pack
from tidemill.store.port import Mode, Row, Swap, Tx, read_counter, write_counter
from tidemill.store.sqlite.file import StoreFile
from tidemill.store.sqlite.header import GET, Header, micros

DELETE_RANGE = "DELETE FROM kv WHERE k >= ? AND k < ?"
DELETE_TAKEN = "DELETE FROM kv WHERE k >= ? AND k <= ?"
RANGE = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
RANGE_REVERSE = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k DESC LIMIT ?"

# How many rows one statement handles. Any number of rows can be divided into a few of these sizes, and all
# statements stay prepared (a connection keeps 128).
_SIZES = (128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
_PUTS, _DELETES, _SELECTS = (
    {size: begin + ",".join([each] * size) + end for size in _SIZES}
    for begin, each, end in (
        ("INSERT INTO kv (k, v) VALUES ", "(?, ?)", " ON CONFLICT (k) DO UPDATE SET v = excluded.v"),
        ("DELETE FROM kv WHERE k IN (", "?", ")"),
        ("SELECT k, v FROM kv WHERE k IN (", "?", ")"),
    )
)
_as_row = partial(tuple.__new__, Row)  # takes half the time of Row(key, value), and ranges are long


def _portions(rows: int) -> Iterator[tuple[int, int]]:
    """Divide rows into portions of sizes that have a statement; yield the start and size of each portion."""
    at = 0
    for size in _SIZES:
        while rows - at >= size:
            yield at, size
            at += size


def _bound(values: Iterable[bytes]) -> list[bytearray]:
    """Copy values for a statement: Python looks up an adapter for `bytes`, which is slower than a copy."""
    return list(map(bytearray, values))


class NeedsWriter(BaseException):
    """The function began to write on a reading connection. `except Exception` in fn does not catch it."""


class SqliteTx(Tx):
    """Reads and writes of one function; `head` is None on a reading connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        file: StoreFile,
        mode: Mode,
        clock: Clock,
        boot: str,
        head: Header | None = None,
    ) -> None:
        super().__init__(mode, clock)
        self.dirty = False  # something reached SQLite
        self.needs_writer = False
        self.broken: StoreError | None = None  # SQLite failed in fn, which may have caught the error
        self._saved = False  # this function has a savepoint
        self._connection = connection
        self._file = file
        self._boot = boot
        self._head = head
        self._writing = head is not None
        self._now_us: int | None = None
        # Sent to SQLite later, in this order: rows taken, rows cleared, rows set.
        self._taken: list[tuple[bytes, bytes]] = []  # first and last key
        self._gone: set[bytes] = set()  # taken or cleared; a value in _set_rows takes precedence
        self._cleared: list[bytes] = []
        self._set_rows: dict[bytes, bytes] = {}
        self._versioned: list[tuple[bytes, bytes]] = []

    # --- time

    def now(self) -> int:
        self._check_alive()
        if self._now_us is None:
            head = self._head
            if head is None:
                try:
                    head = Header.read(self._connection, self._boot)
                except sqlite3.Error as error:
                    self._fail(error)
            now_us = head.now_us(micros(self._clock))  # read after the snapshot, so no row in it is newer
            if now_us > head.ceiling_us and not self._writing:
                self._want_writer()  # the writer raises the ceiling before any time beyond it is returned
            self._now_us = now_us
        return self._now_us

    def wall(self) -> int:
        return int(self._clock.wall() * 1_000_000)

    # --- reading

    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]:
        # Only one process writes at a time, and a reader that writes starts again. So every read is locked.
        if len(keys) == 1:
            return [self._get(keys[0])]
        values = self._fetch(keys)
        if self._gone or self._set_rows:
            return [self._with_pending(key, values.get(key)) for key in keys]
        return [values.get(key) for key in keys]

    def _get(self, key: bytes) -> bytes | None:
        rows = self._query(GET, (key,))
        return self._with_pending(key, rows[0][0] if rows else None)

    def _with_pending(self, key: bytes, value: bytes | None) -> bytes | None:
        """Return the value of a row after the buffered writes."""
        return self._set_rows.get(key, None if key in self._gone else value)

    def _fetch(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        values: dict[bytes, bytes | None] = {}
        for at, size in _portions(len(keys)):
            values.update(self._query(_SELECTS[size], _bound(keys[at : at + size])))
        return values

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        if self._gone or self._set_rows:
            self._flush(save=True)
        rows = self._query(RANGE_REVERSE if reverse else RANGE, (lo, hi, -1 if limit is None else limit))
        return list(map(_as_row, rows))

    # --- writing

    def _set(self, key: bytes, value: bytes) -> None:
        if not self._writing:
            self._want_writer()
        self._set_rows[key] = value

    def _set_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        if not self._writing:
            self._want_writer()
        self._set_rows.update(rows)

    def _clear(self, key: bytes) -> None:
        if not self._writing:
            self._want_writer()
        self._set_rows.pop(key, None)
        self._gone.add(key)
        self._cleared.append(key)

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        if not self._writing:
            self._want_writer()
        if self._gone or self._set_rows:
            self._flush(save=True)
        self._save()
        self.dirty = True
        self._execute(DELETE_RANGE, (lo, hi))

    def _add(self, key: bytes, amount: int) -> None:
        if not self._writing:
            self._want_writer()
        self._set_rows[key] = write_counter(read_counter(self._get(key)) + amount)

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        if not self._writing:
            self._want_writer()
        self._versioned.append((prefix, value))

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        rows = self._range(lo, hi, limit, reverse=False, snapshot=False)
        if rows:
            if not self._writing:
                self._want_writer()
            keys = [row.key for row in rows]
            self._taken.append((keys[0], keys[-1]))
            self._gone.update(keys)
        return rows

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        current = self._fetch([swap.key for swap in swaps])
        if self._gone or self._set_rows:
            current = {swap.key: self._with_pending(swap.key, current.get(swap.key)) for swap in swaps}
        rows, cleared, results = self._set_rows, self._cleared, []
        for key, expected, new in swaps:
            holds = current.get(key) == expected
            results.append(holds)
            if holds:
                if not self._writing:
                    self._want_writer()
                current[key] = new  # the value for a second swap of this key
                if new is None:
                    rows.pop(key, None)
                    cleared.append(key)
                else:
                    rows[key] = new
        self._gone.update(cleared)
        return results

    # --- the end

    def finish(self, commit: int, ordinal: int) -> int:
        """Send all writes to SQLite; return the next free ordinal of this commit."""
        self._check_age()
        for prefix, value in self._versioned:
            self._set_rows[prefix + pack((Versionstamp(commit, ordinal),))] = value
            ordinal += 1
        self._versioned.clear()
        if self._gone or self._set_rows:
            self._flush(save=False)
        if self._saved:
            self._execute("RELEASE fn")
            self._saved = False
        return ordinal

    def take_back(self) -> None:
        """Undo the writes of this function that reached SQLite; `broken` is set if that fails."""
        if self._saved:
            with suppress(StoreError):
                self._execute("ROLLBACK TO fn")
                self._execute("RELEASE fn")

    def _flush(self, *, save: bool) -> None:
        """Send the buffered writes to SQLite, into a savepoint if fn has not returned and may still raise."""
        if save:
            self._save()
        self.dirty = True
        for bounds in self._taken:  # all rows in between were taken: there is no other writer
            self._execute(DELETE_TAKEN, bounds)
        for at, size in _portions(len(self._cleared)):
            self._execute(_DELETES[size], _bound(self._cleared[at : at + size]))
        parts = _bound(chain.from_iterable(self._set_rows.items()))
        for at, size in _portions(len(self._set_rows)):
            self._execute(_PUTS[size], parts[2 * at : 2 * (at + size)])
        self._taken.clear()
        self._gone.clear()
        self._cleared.clear()
        self._set_rows.clear()

    def _save(self) -> None:
        if not self._saved:
            self._execute("SAVEPOINT fn")
            self._saved = True

    def _query(self, statement: str, values: Sequence[bytes | bytearray | int]) -> list[tuple[bytes, bytes]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._fail(error)

    def _execute(self, statement: str, values: Sequence[bytes | bytearray] = ()) -> None:
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
