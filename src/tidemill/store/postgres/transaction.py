"""One transaction on PostgreSQL. Writes are buffered and sent with the next query or the COMMIT.

`serial` is SERIALIZABLE, `take` is READ COMMITTED (STO-3). Effects happen in the order of the calls:

- `set`, `clear` and `add` are buffered, the last one per key; reads of those keys use the buffer. A range, a
  take or a swap that touches one of them sends the buffer first, in the same round trip;
- `clear_range` is queued, and removes what it covers from the buffer;
- rows of `set_versioned` get their keys at the end. Transactions that append to one prefix take turns under
  an advisory lock from the moment they get a number until they commit. So numbers sort like commits, and a
  reader that continues after the last number it saw misses nothing.

A locked read of a missing row must keep others from inserting it, and PostgreSQL cannot lock a row that does
not exist. So the transaction inserts the row and deletes it again: until it ends, another transaction that
inserts the same key waits, in either isolation level.
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

MANY = 16  # so many rows are taken to be new ones, see tidemill_set

_as_row = partial(tuple.__new__, Row)  # half the time of Row(key, value), and ranges are long


class PostgresTx(Tx):
    """One attempt on one connection."""

    def __init__(self, store: "PostgresStore", link: PostgresConnection, mode: Mode) -> None:
        super().__init__(mode, store.clock)
        self._sql = store.sql
        self._lease = store.lease
        self._link = link
        self._kept: dict[bytes, bytes | None] = {}  # set and clear, not yet sent
        self._adds: dict[bytes, int] = {}  # not yet sent
        self._versioned: list[tuple[bytes, bytes]] = []
        self._queue: list[BoundStatement] = []  # to be sent in front of the next question
        self._time: Time | None = None
        self._time_was_asked = False
        self._trouble: Exception | None = None  # said again to a function that did not want to hear it
        self._waited_s = 0.0
        self.begun = False

    # --- time

    def now(self) -> int:
        self._time_was_asked = True
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
        asked = sorted({key for key in keys if key not in self._kept})
        found = dict.fromkeys(asked) | self._read(asked, lock) if asked else {}
        for key in asked:
            if key in self._adds:
                found[key] = write_counter(read_counter(found[key]) + self._adds[key])
        return [self._kept[key] if key in self._kept else found[key] for key in keys]

    def _read(self, keys: Sequence[bytes], lock: bool) -> dict[bytes, bytes | None]:
        """What the database has under these sorted keys."""
        if not lock:
            (result,) = self._ask(BoundStatement(self._sql.get, (byte_strings(keys),)))
            return dict(_rows(result))
        found: dict[bytes, bytes | None] = {}
        while True:
            (result,) = self._ask(BoundStatement(self._sql.get_locked, (byte_strings(keys),)))
            found |= _rows(result)
            absent = [key for key in keys if key not in found]
            if not absent:
                return found
            (result,) = self._ask(BoundStatement(self._sql.hold_absent, (byte_strings(absent),)))
            held = _keys(result)
            if held:
                self._queue.append(BoundStatement(self._sql.clear, (byte_strings(sorted(held)),)))
            found |= dict.fromkeys(held)
            keys = [
                key for key in absent if key not in held
            ]  # another transaction has just inserted these: read again
            if not keys:
                return found

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        self._send_what_is_in(lo, hi)
        statement = self._sql.range_reverse if reverse else self._sql.range
        (result,) = self._ask(BoundStatement(statement, (lo, hi, None if limit is None else integer(limit))))
        return _rows(result)

    # --- writing

    def _set(self, key: bytes, value: bytes) -> None:
        self._adds.pop(key, None)
        self._kept[key] = value

    def _set_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for key in self._adds.keys() & {key for key, _ in rows}:
            del self._adds[key]
        self._kept.update(rows)

    def _clear(self, key: bytes) -> None:
        self._adds.pop(key, None)
        self._kept[key] = None

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        for kept in (self._kept, self._adds):
            for key in [key for key in kept if lo <= key < hi]:
                del kept[key]
        self._queue.append(BoundStatement(self._sql.clear_range, (lo, hi)))

    def _add(self, key: bytes, amount: int) -> None:
        if key in self._kept:
            self._kept[key] = write_counter(read_counter(self._kept[key]) + amount)
        else:
            self._adds[key] = self._adds.get(key, 0) + amount

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        self._versioned.append((prefix, value))

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        self._send_what_is_in(lo, hi)
        (result,) = self._ask(BoundStatement(self._sql.take, (lo, hi, integer(limit))))
        return sorted(_rows(result))

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        if len({key for key, _, _ in swaps}) == len(swaps):
            return self._swap_batch(swaps)
        done: list[bool] = []
        batch: dict[bytes, Swap] = {}
        for swap in swaps:
            if swap.key in batch:  # a second swap of a key sees what the first one did
                done += self._swap_batch([*batch.values()])
                batch = {}
            batch[swap.key] = swap
        return done + self._swap_batch([*batch.values()])

    def _swap_batch(self, swaps: Sequence[Swap]) -> list[bool]:
        """Swaps of different keys."""
        if self._adds and any(swap.key in self._adds for swap in swaps):
            self._send_kept()
        own = [swap for swap in swaps if swap.key in self._kept] if self._kept else []
        others = [swap for swap in swaps if swap.key not in self._kept] if own else swaps
        made = self._swap_in_place(sorted(others)) if others else set()
        for key, expected, new in own:
            if self._kept[key] == expected:
                self._kept[key] = new
                made.add(key)
        return [key in made for key, _, _ in swaps]

    def _swap_in_place(self, swaps: Sequence[Swap]) -> set[bytes]:
        """Write where the row is as expected; read the others under a lock, so that a False holds too.

        Rows to remove are removed whatever their value, which is a third faster than comparing on the
        server; one that held something else is ours now, and put back with our other writes.
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
        made: set[bytes] = set()
        found: dict[bytes, bytes | None] = {}
        if gone:
            for key, value in _rows(results.pop()):
                if value == gone[key]:
                    made.add(key)
                else:
                    found[key] = self._kept[key] = value
        for result in results:
            made |= _keys(result)
        if len(made) < len(swaps):
            doubted = [swap for swap in swaps if swap.key not in made and swap.key not in found]
            found |= self._read([swap.key for swap in doubted], lock=True) if doubted else {}
            for swap in doubted:
                if found.get(swap.key) == swap.expected:  # it has become so in between, and is ours now
                    self._kept[swap.key] = swap.new
                    made.add(swap.key)
        return made

    # --- sending

    def _send_what_is_in(self, lo: bytes, hi: bytes) -> None:
        if any(lo <= key < hi for kept in (self._kept, self._adds) for key in kept):
            self._send_kept()

    def _send_kept(self) -> None:
        """Queue what was kept back, sorted by key."""
        kept = self._kept
        written = sorted(kept)
        cleared = [key for key in written if kept[key] is None]
        if cleared:
            self._queue.append(BoundStatement(self._sql.clear, (byte_strings(cleared),)))
            written = [key for key in written if kept[key] is not None]
        if written:
            statement = self._sql.set if len(written) < MANY else self._sql.set_many
            values: list[bytes] = [kept[key] for key in written]  # type: ignore[misc]
            self._queue.append(BoundStatement(statement, (byte_strings(written), byte_strings(values))))
        if self._adds:
            amounts = [(key, write_counter(amount)) for key, amount in sorted(self._adds.items())]
            self._queue.append(BoundStatement(self._sql.add, _columns(amounts)))
        self._kept, self._adds = {}, {}

    def _opening(self) -> list[BoundStatement]:
        if self.begun:
            return []
        return self._sql.beginning(self.mode, pooled=self._link.pooled)

    def _ask(self, *calls: BoundStatement) -> list[PGresult]:
        """One round trip: BEGIN and the time if need be, what is queued, and these questions."""
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
        asked_at = self._clock.monotonic()
        try:
            return self._link.exchange(calls)
        except (ConnectionLost, StatementFailed) as error:
            self._trouble = verdict(error)
        finally:
            self._waited_s += self._clock.monotonic() - asked_at
        if not isinstance(self._trouble, Conflict):
            self._link.close()  # a new session does not have the problem
        raise self._trouble

    def check_patience(self) -> None:
        """Raise Conflict when it was the store and not the function that took too long."""
        if self._clock.monotonic() - self._started - self._waited_s <= self.limits.transaction_s:
            raise Conflict("rows were locked by others for too long")

    # --- the end

    def commit(self, operation: RetriedCall[T]) -> None:
        """Send what is left, with the operation's row, and COMMIT; raises Conflict, Unreached or Unknown."""
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
        self._send_kept()
        calls = [*self._opening(), *self._queue]
        calls.append(BoundStatement(self._sql.operation, (operation.key(about), operation.row())))
        reached = self._time.reached if self._time is not None and self._time_was_asked else None
        if reached is not None:
            calls.append(BoundStatement(self._sql.raise_mark, (integer(reached),)))
        calls += self._appended()  # last: a transaction that holds a prefix lock waits for no other
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
                self._link.close()  # it may have stopped while it held the clock's lock
        if trouble is not None:
            raise trouble
        crash.point("store.postgres.after_commit")

    def _appended(self) -> list[BoundStatement]:
        if not self._versioned:
            return []
        turns = sorted({lock_id(self._sql.schema, "order", prefix) for prefix, _ in self._versioned})
        rows = [  # between head and tail come the eight bytes of the number
            (prefix + b"\x33\x00\x00", ordinal.to_bytes(2, "big"), value)
            for ordinal, (prefix, value) in enumerate(self._versioned)
        ]
        return [
            BoundStatement(self._sql.keep_order, (integers(turns),)),
            BoundStatement(self._sql.set_versioned, _columns(rows)),
        ]


def _columns(rows: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Rows as one array per column."""
    return tuple(byte_strings(column) for column in zip(*rows, strict=True))


def _column(result: PGresult, number: int) -> Iterator[bytes]:
    """A column of a result; none of ours is ever NULL."""
    return map(result.get_value, range(result.ntuples), repeat(number))  # type: ignore[arg-type]


def _keys(result: PGresult) -> set[bytes]:
    return set(_column(result, 0))


def _rows(result: PGresult) -> list[Row]:
    return list(map(_as_row, zip(_column(result, 0), _column(result, 1), strict=True)))
