"""One transaction on PostgreSQL: it buffers writes, and sends them with a later query or with the COMMIT.

In mode `serial`, the isolation level is SERIALIZABLE; in mode `take`, READ COMMITTED (STO-3). Effects happen
in the order of the calls:

- `set`, `clear` and `add` are buffered by key; reads of those keys use the buffer. A range, a take or a swap
  that touches one of those keys sends the buffer first, in the same round trip;
- `clear_range` is queued, and removes the keys that it covers from the buffer;
- rows of `set_versioned` get their keys at the end. Transactions that append to the same prefix run one after
  another: each holds an advisory lock from when it gets its number until it commits. So numbers sort in
  commit order, and a reader that continues after the last number it saw misses nothing.

A locked read of a missing row must keep other transactions from inserting that row, but PostgreSQL cannot
lock a row that does not exist. So this transaction inserts the row and deletes it again. Until this
transaction ends, any other transaction that inserts the same key waits, in either isolation level.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

from psycopg.pq.abc import PGresult

from tidemill import crash
from tidemill.errors import TransactionTooLong
from tidemill.store.port import Mode, Row, Swap, Tx, read_counter, write_counter
from tidemill.store.postgres.connection import (
    BoundStatement,
    ConnectionLost,
    PostgresConnection,
    StatementFailed,
    byte_strings,
    integer,
    integers,
    number,
)
from tidemill.store.postgres.lease_clock import Time
from tidemill.store.postgres.pool import verdict
from tidemill.store.postgres.statements import lock_id
from tidemill.store.retry import Conflict, RetriedCall, Unknown

if TYPE_CHECKING:
    from tidemill.store.postgres import PostgresStore

T = TypeVar("T")

MANY = 16  # from this number on, rows are expected to be new: see tidemill_set

_as_row = partial(tuple.__new__, Row)  # takes half the time of Row(key, value), and ranges are long


class PostgresTx(Tx):
    """One attempt at a transaction, on one connection."""

    def __init__(self, store: "PostgresStore", link: PostgresConnection, mode: Mode) -> None:
        super().__init__(mode, store.clock)
        self._sql = store.sql
        self._lease = store.lease
        self._link = link
        self._buffer: dict[bytes, bytes | None] = {}  # set and clear, not yet sent
        self._adds: dict[bytes, int] = {}  # not yet sent
        self._versioned: list[tuple[bytes, bytes]] = []
        self._queue: list[BoundStatement] = []  # sent before the next request
        self._time: Time | None = None
        self._time_used = False
        self._trouble: Exception | None = None  # raised again if the function caught it
        self._waited_s = 0.0
        self.begun = False

    # --- time

    def now(self) -> int:
        self._time_used = True
        return self._look_at_the_clock().now

    def wall(self) -> int:
        return self._look_at_the_clock().wall

    def _look_at_the_clock(self) -> Time:
        if self._time is None:
            self._check_alive()
            self._ask()
        assert self._time is not None
        return self._time

    # --- reading

    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]:
        missing = sorted({key for key in keys if key not in self._buffer})
        values = dict.fromkeys(missing) | self._read(missing, lock) if missing else {}
        for key in missing:
            if key in self._adds:
                values[key] = write_counter(read_counter(values[key]) + self._adds[key])
        return [self._buffer[key] if key in self._buffer else values[key] for key in keys]

    def _read(self, keys: Sequence[bytes], lock: bool) -> dict[bytes, bytes | None]:
        """Read the rows with these keys, which are sorted, from the database."""
        if not lock:
            (result,) = self._ask(BoundStatement(self._sql.get, (byte_strings(keys),)))
            return dict(rows_of(result))
        rows: dict[bytes, bytes | None] = {}
        while True:
            (result,) = self._ask(BoundStatement(self._sql.get_locked, (byte_strings(keys),)))
            rows |= rows_of(result)
            absent = [key for key in keys if key not in rows]
            if not absent:
                return rows
            (result,) = self._ask(BoundStatement(self._sql.hold_absent, (byte_strings(absent),)))
            locked = _keys(result)
            if locked:
                self._queue.append(BoundStatement(self._sql.clear, (byte_strings(sorted(locked)),)))
            rows |= dict.fromkeys(locked)
            # Another transaction has just inserted the rest: read again.
            keys = [key for key in absent if key not in locked]
            if not keys:
                return rows

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        self._send_buffered_in(lo, hi)
        statement = self._sql.range_reverse if reverse else self._sql.range
        (result,) = self._ask(BoundStatement(statement, (lo, hi, None if limit is None else integer(limit))))
        return rows_of(result)

    # --- writing

    def _set(self, key: bytes, value: bytes) -> None:
        self._adds.pop(key, None)
        self._buffer[key] = value

    def _set_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for key in self._adds.keys() & {key for key, _ in rows}:
            del self._adds[key]
        self._buffer.update(rows)

    def _clear(self, key: bytes) -> None:
        self._adds.pop(key, None)
        self._buffer[key] = None

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        for buffer in (self._buffer, self._adds):
            for key in [key for key in buffer if lo <= key < hi]:
                del buffer[key]
        self._queue.append(BoundStatement(self._sql.clear_range, (lo, hi)))

    def _add(self, key: bytes, amount: int) -> None:
        if key in self._buffer:
            self._buffer[key] = write_counter(read_counter(self._buffer[key]) + amount)
        else:
            self._adds[key] = self._adds.get(key, 0) + amount

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        self._versioned.append((prefix, value))

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        self._send_buffered_in(lo, hi)
        (result,) = self._ask(BoundStatement(self._sql.take, (lo, hi, integer(limit))))
        return sorted(rows_of(result))

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        if len({key for key, _, _ in swaps}) == len(swaps):
            return self._swap_batch(swaps)
        results: list[bool] = []
        batch: dict[bytes, Swap] = {}
        for swap in swaps:
            if swap.key in batch:  # a second swap of a key must see the result of the first
                results += self._swap_batch([*batch.values()])
                batch = {}
            batch[swap.key] = swap
        return results + self._swap_batch([*batch.values()])

    def _swap_batch(self, swaps: Sequence[Swap]) -> list[bool]:
        """Make swaps whose keys are all different."""
        if self._adds and any(swap.key in self._adds for swap in swaps):
            self._send_buffer()
        own = [swap for swap in swaps if swap.key in self._buffer] if self._buffer else []
        stored = [swap for swap in swaps if swap.key not in self._buffer] if own else swaps
        written = self._swap_in_place(sorted(stored)) if stored else set()
        for key, expected, new in own:
            if self._buffer[key] == expected:
                self._buffer[key] = new
                written.add(key)
        return [key in written for key, _, _ in swaps]

    def _swap_in_place(self, swaps: Sequence[Swap]) -> set[bytes]:
        """Make the swaps whose rows have the expected value, and return their keys.

        The other rows are read under a lock, so that they cannot change before the commit. A swap that
        removes a row deletes it without comparing the value first, which is a third faster. If the row had
        another value, we hold its lock and write that value back with our other writes.
        """
        changed = [(key, old, new) for key, old, new in swaps if old is not None and new is not None]
        added = [(key, new) for key, old, new in swaps if old is None and new is not None]
        gone = {key: old for key, old, new in swaps if old is not None and new is None}
        calls = []
        if changed:
            calls.append(BoundStatement(self._sql.swap, _columns(changed)))
        if added:
            calls.append(BoundStatement(self._sql.swap_in, _columns(added)))
        if gone:
            calls.append(BoundStatement(self._sql.swap_out, (byte_strings([*gone]),)))
        results = self._ask(*calls) if calls else []
        written: set[bytes] = set()
        current: dict[bytes, bytes | None] = {}
        if gone:
            for key, value in rows_of(results.pop()):
                if value == gone[key]:
                    written.add(key)
                else:
                    current[key] = self._buffer[key] = value
        for result in results:
            written |= _keys(result)
        if len(written) < len(swaps):
            doubted = [swap for swap in swaps if swap.key not in written and swap.key not in current]
            current |= self._read([swap.key for swap in doubted], lock=True) if doubted else {}
            for swap in doubted:
                if current.get(swap.key) == swap.expected:  # the row changed in between; we hold its lock
                    self._buffer[swap.key] = swap.new
                    written.add(swap.key)
        return written

    # --- sending

    def _send_buffered_in(self, lo: bytes, hi: bytes) -> None:
        if any(lo <= key < hi for buffer in (self._buffer, self._adds) for key in buffer):
            self._send_buffer()

    def _send_buffer(self) -> None:
        """Queue the buffered writes, sorted by key."""
        buffer = self._buffer
        written = sorted(buffer)
        cleared = [key for key in written if buffer[key] is None]
        if cleared:
            self._queue.append(BoundStatement(self._sql.clear, (byte_strings(cleared),)))
            written = [key for key in written if buffer[key] is not None]
        if written:
            statement = self._sql.set if len(written) < MANY else self._sql.set_many
            values: list[bytes] = [buffer[key] for key in written]  # type: ignore[misc]
            self._queue.append(BoundStatement(statement, (byte_strings(written), byte_strings(values))))
        if self._adds:
            amounts = [(key, write_counter(amount)) for key, amount in sorted(self._adds.items())]
            self._queue.append(BoundStatement(self._sql.add, _columns(amounts)))
        self._buffer, self._adds = {}, {}

    def _opening(self) -> list[BoundStatement]:
        if self.begun:
            return []
        return self._sql.beginning(self.mode, pooled=self._link.pooled)

    def _ask(self, *calls: BoundStatement) -> list[PGresult]:
        """Send BEGIN and a time query if needed, the queue, and these statements, all in one round trip."""
        if self._trouble is not None:
            raise self._trouble
        opening = self._opening()
        if opening:
            opening.append(BoundStatement(self._sql.time))
        results = self._exchange([*opening, *self._queue, *calls])
        self._queue = []
        if opening:
            clock = results[len(opening) - 1]
            wall, mark, offset = (number(clock.get_value(0, column)) for column in range(3))
            self._time = self._lease.read(wall, mark, offset)
        return results[len(results) - len(calls) :]

    def _exchange(self, calls: Sequence[BoundStatement]) -> list[PGresult]:
        self.begun = True
        sent_at = self._clock.monotonic()
        try:
            return self._link.exchange(calls)
        except (ConnectionLost, StatementFailed) as error:
            self._trouble = verdict(error)
        finally:
            self._waited_s += self._clock.monotonic() - sent_at
        if not isinstance(self._trouble, Conflict):
            self._link.close()  # a new session does not have this problem
        raise self._trouble

    def check_patience(self) -> None:
        """Raise Conflict if the store, and not the function, took too long."""
        if self._clock.monotonic() - self._started - self._waited_s <= self.limits.transaction_s:
            raise Conflict("rows were locked by other transactions for too long")

    # --- the end

    def commit(self, operation: RetriedCall[T]) -> None:
        """Send the remaining writes, the operation's row and COMMIT.

        Raise Conflict, Unreached or Unknown if that fails.
        """
        if self._trouble is not None:
            raise self._trouble
        try:
            self._check_age()
        except TransactionTooLong:
            self.check_patience()
            raise
        if self.writes:
            self._commit_writes(operation)
        elif self.begun:
            self._exchange([*self._queue, BoundStatement(self._sql.commit)])

    def _commit_writes(self, operation: RetriedCall[T]) -> None:
        about = self._time.now if self._time is not None else self._lease.estimate()
        if about is None:
            self._ask()
            about = self._look_at_the_clock().now
        self._send_buffer()
        calls = [*self._opening(), *self._queue]
        calls.append(BoundStatement(self._sql.operation, (operation.key(about), operation.row())))
        reached = self._time.reached if self._time is not None and self._time_used else None
        if reached is not None:
            calls.append(BoundStatement(self._sql.raise_mark, (integer(reached),)))
        calls += self._appended()  # last: a transaction that holds a prefix lock waits for no other lock
        calls.append(BoundStatement(self._sql.commit))
        crash.point("store.postgres.before_commit")
        self.begun = True
        trouble: Exception | None = None
        try:
            self._link.exchange(calls)
        except ConnectionLost as lost:
            trouble = Unknown(str(lost)) if lost.sent else verdict(lost)
        except StatementFailed as refused:
            trouble = verdict(refused)
            if reached is not None or not isinstance(trouble, Conflict):
                self._link.close()  # its session may still hold the clock's lock
        if trouble is not None:
            raise trouble
        crash.point("store.postgres.after_commit")

    def _appended(self) -> list[BoundStatement]:
        if not self._versioned:
            return []
        turns = sorted({lock_id(self._sql.schema, "order", prefix) for prefix, _ in self._versioned})
        rows = [  # the statement puts the eight bytes of the number between head and tail
            (prefix + b"\x33\x00\x00", ordinal.to_bytes(2, "big"), value)
            for ordinal, (prefix, value) in enumerate(self._versioned)
        ]
        return [
            BoundStatement(self._sql.keep_order, (integers(turns),)),
            BoundStatement(self._sql.set_versioned, _columns(rows)),
        ]


def _columns(rows: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Return rows as one array per column."""
    return tuple(byte_strings(column) for column in zip(*rows, strict=True))


def _column(result: PGresult, number: int) -> Iterator[bytes]:
    """Return a column of a result; our columns are never NULL."""
    return map(result.get_value, range(result.ntuples), repeat(number))  # type: ignore[arg-type]


def _keys(result: PGresult) -> set[bytes]:
    return set(_column(result, 0))


def rows_of(result: PGresult) -> list[Row]:
    """Return the rows of a result with the columns k and v."""
    return list(map(_as_row, zip(_column(result, 0), _column(result, 1), strict=True)))
