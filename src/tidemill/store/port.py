"""Define the interface of the store: transactions on an ordered map from byte keys to byte values.

The contract is the same on every backend, and `tidemill.testing.StoreConformance` tests it:

- `store.run(fn)` calls `fn(tx)`, commits what `fn` wrote, and returns what `fn` returned. After a conflict,
  it calls `fn` again. So `fn` must have no effects outside `tx`.
- After a transaction that took too long, `run` calls `fn` again, twice: the process may have been paused. If
  `fn` itself is slow, it is too slow each time, and `run` raises the error.
- A transaction with `mode="serial"` is serialisable. A transaction with `mode="take"` depends only on rows
  that it took, swapped or read under a row lock. It refuses plain reads, because on PostgreSQL such a
  transaction is READ COMMITTED. If a `take` transaction may write a row, other transactions must read that
  row with `get(key, lock=True)` (STO-3).
- A transaction reads its own writes. The only exception is rows of `set_versioned`, which get their keys at
  the commit.
- Each call of `run` has an id, and its commit stores this id. If the outcome of a commit is unknown, the
  store looks for the id. A commit never takes effect twice (STO-5).
- All backends have the same limits (STO-7), so code that works on one backend works on all of them.

All checks of arguments and limits are in this module. A backend implements the abstract methods.
"""

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Self, TypeVar

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import (
    KeyTooLarge,
    StoreCorrupt,
    TransactionTooLarge,
    TransactionTooLong,
    UsageError,
    ValueTooLarge,
)

T = TypeVar("T")
Mode = Literal["serial", "take"]

NOTIFY_EVERY_S = 0.5
SYSTEM_PREFIX = b"\xfe"  # begins the keys of the store's own rows: operation ids, format, clock


class Limits(msgspec.Struct, frozen=True):
    """The limits of keys, values and transactions, the same on every backend."""

    key_bytes: int = 2 * 1024
    value_bytes: int = 64 * 1024
    transaction_bytes: int = 1_000_000
    transaction_writes: int = 1_000
    transaction_s: float = 2.0


LIMITS = Limits()

SLOW_ATTEMPTS = 3
"""How many attempts of one call may take too long before `run` raises `TransactionTooLong`."""


class Row(NamedTuple):
    """A key and its value."""

    key: bytes
    value: bytes


class Swap(NamedTuple):
    """A conditional write: replace the value `expected` with `new`. None means that there is no row."""

    key: bytes
    expected: bytes | None
    new: bytes | None


class Tx(ABC):
    """One attempt at a transaction. `Store.run` creates it, and it ends when `fn` returns."""

    limits: Limits = LIMITS

    def __init__(self, mode: Mode, clock: Clock) -> None:
        self.mode: Mode = mode
        self.writes = 0
        self.bytes_written = 0
        self.touched: set[bytes] = set()  # keys whose watchers are notified after the commit
        self._clock = clock
        self._started = clock.monotonic()
        self._ended = False
        self._too_large: TransactionTooLarge | None = None

    # --- reading

    def get(self, key: bytes, *, lock: bool = False) -> bytes | None:
        """Return the value of a key; None if there is no row.

        With `lock=True`, a `take` transaction that writes the key conflicts with this one.
        """
        return self.get_many((key,), lock=lock)[0]

    def get_many(self, keys: Sequence[bytes], *, lock: bool = False) -> list[bytes | None]:
        """Return the values of several keys, in the same order."""
        if self.mode == "take" and not lock:
            raise UsageError(
                "a transaction in mode 'take' cannot read without a lock",
                hint="read with lock=True, or use swap",
            )
        self._check_keys(keys)
        self._check_alive()
        return self._get_many(keys, lock)

    def range(
        self, lo: bytes, hi: bytes, *, limit: int | None = None, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        """Return rows with lo <= key < hi in key order. `snapshot=True` reads without causing conflicts."""
        if self.mode == "take" and not snapshot:
            raise UsageError(
                "a transaction in mode 'take' cannot lock a range", hint="read with snapshot=True"
            )
        if limit is not None and limit < 0:
            raise UsageError(f"invalid limit={limit}", hint="use 0 or more, or omit it to read all rows")
        self._check_bounds(lo, hi)
        self._check_alive()
        if lo >= hi or limit == 0:
            return []
        return self._range(lo, hi, limit, reverse, snapshot)

    # --- writing

    # `quiet`: do not notify the watchers of this key. Use it for rows that have no watchers. Then even a
    # commit of many rows can list the few keys that have watchers.

    def set(self, key: bytes, value: bytes, *, quiet: bool = False) -> None:
        """Set the value of a key."""
        self._count(key, value, watched=not quiet)
        self._set(key, value)

    def set_many(self, rows: Sequence[tuple[bytes, bytes]], *, quiet: bool = False) -> None:
        """Set several rows. If a key occurs twice, its last value wins."""
        self._count_many([key for key, _ in rows], [value for _, value in rows], watched=not quiet)
        self._set_many(rows)

    def clear(self, key: bytes, *, quiet: bool = False) -> None:
        """Remove a row."""
        self._count(key, b"", watched=not quiet)
        self._clear(key)

    def clear_range(self, lo: bytes, hi: bytes) -> None:
        """Remove every row with lo <= key < hi; counts as one write."""
        self._check_bounds(lo, hi)
        self._count_writes(1, len(lo) + len(hi))
        if lo < hi:
            self._clear_range(lo, hi)

    def add(self, key: bytes, amount: int) -> None:
        """Add to a counter without reading it, which conflicts less often than a read and a write.

        A counter is a signed 64-bit integer; if there is no row, it is 0.
        """
        if not -(2**63) <= amount < 2**63:
            raise UsageError(
                f"cannot add {amount:,} to a counter: it does not fit into 64 bits",
                hint="use a signed 64-bit integer",
            )
        self._count(key, b"12345678")
        self._add(key, amount)

    def counter(self, key: bytes, *, lock: bool = False) -> int:
        """Return the value of a counter."""
        return read_counter(self.get(key, lock=lock))

    def set_versioned(self, prefix: bytes, value: bytes) -> None:
        """Append a row with the key `prefix + pack((Versionstamp,))`. Versionstamps sort in commit order."""
        self._count(prefix + b"\x33" + bytes(12), value, watched=False)
        self.touched.add(prefix)
        self._set_versioned(prefix, value)

    def hint(self, key: bytes) -> None:
        """Notify watchers of this key after the commit, without writing a row."""
        self._check_keys((key,))
        self._check_alive()
        self.touched.add(key)

    def take(self, lo: bytes, hi: bytes, limit: int, *, quiet: bool = False) -> list[Row]:
        """Remove and return up to `limit` rows, in key order, that no other transaction is taking now."""
        self._check_bounds(lo, hi)
        self._check_alive()
        if lo >= hi or limit <= 0:
            return []
        room = self.limits.transaction_writes - self.writes
        if room <= 0:  # an empty result would look like an empty queue
            raise self._overflow(f"has more than {self.limits.transaction_writes:,} writes")
        rows = self._take(lo, hi, min(limit, room))
        self._count_many([row.key for row in rows], (), watched=not quiet)
        return rows

    def swap(self, key: bytes, expected: bytes | None, new: bytes | None, *, quiet: bool = False) -> bool:
        """Write `new` and return True if the value is still `expected`; else write nothing, return False."""
        return self.swap_many((Swap(key, expected, new),), quiet=quiet)[0]

    def swap_many(self, swaps: Sequence[Swap], *, quiet: bool = False) -> list[bool]:
        """Make several independent conditional writes; return a list that says which of them took effect."""
        written = [new for _, _, new in swaps if new]
        self._count_many([key for key, _, _ in swaps], written, watched=not quiet)
        return self._swap_many(swaps)

    # --- time

    @abstractmethod
    def now(self) -> int:
        """Return lease time in microseconds: the store's own clock, which never runs backwards (STO-6)."""

    @abstractmethod
    def wall(self) -> int:
        """Return wall time in microseconds since 1970, for lot intervals and for display."""

    # --- checks; each handles many keys at once, so a claim of a hundred rows costs a few calls, not hundreds

    def _check_keys(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        if not all(keys) or max(keys) >= SYSTEM_PREFIX:
            raise UsageError(
                "the key is empty, or reserved for the store", hint="pack keys with tidemill.store.keys"
            )
        longest = max(map(len, keys))
        if longest > self.limits.key_bytes:
            raise KeyTooLarge(f"the key has {longest:,} bytes, more than {self.limits.key_bytes:,}")

    def _check_bounds(self, lo: bytes, hi: bytes) -> None:
        if not lo or lo >= SYSTEM_PREFIX or hi > SYSTEM_PREFIX:
            raise UsageError(
                "the range starts at an empty key, or covers rows reserved for the store",
                hint="use a key range made with tidemill.store.keys",
            )
        longest = max(len(lo), len(hi))
        # A bound may be one byte longer than a key: the next page begins at the last key + b"\x00".
        if longest > self.limits.key_bytes + 1:
            raise KeyTooLarge(
                f"the end of a range has {longest:,} bytes, more than {self.limits.key_bytes:,}"
            )

    def _check_age(self) -> None:
        """Check the size and the age of the transaction.

        A backend calls this again before the commit, because `fn` may have caught the error.
        """
        if self._too_large is not None:
            raise self._too_large
        if self._clock.monotonic() - self._started > self.limits.transaction_s:
            raise TransactionTooLong(f"the transaction took more than {self.limits.transaction_s:g} s")

    def _check_alive(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended", hint="use tx only inside the function that gets it")
        self._check_age()

    def _end(self) -> None:
        """Refuse all further calls. The store calls this when `fn` has returned."""
        self._ended = True

    def _count(self, key: bytes, value: bytes, *, watched: bool = True) -> None:
        self._check_keys((key,))
        if len(value) > self.limits.value_bytes:
            raise ValueTooLarge(f"the value has {len(value):,} bytes, more than {self.limits.value_bytes:,}")
        self._count_writes(1, len(key) + len(value))
        if watched:
            self.touched.add(key)

    def _count_many(self, keys: Sequence[bytes], values: Sequence[bytes], *, watched: bool = True) -> None:
        self._check_keys(keys)
        sizes = list(map(len, values))
        if sizes and max(sizes) > self.limits.value_bytes:
            raise ValueTooLarge(f"the value has {max(sizes):,} bytes, more than {self.limits.value_bytes:,}")
        self._count_writes(len(keys), sum(map(len, keys)) + sum(sizes))
        if watched:
            self.touched.update(keys)

    def _count_writes(self, writes: int, size: int) -> None:
        self._check_alive()
        self.writes += writes
        self.bytes_written += size
        if self.writes > self.limits.transaction_writes:
            raise self._overflow(f"has more than {self.limits.transaction_writes:,} writes")
        if self.bytes_written > self.limits.transaction_bytes:
            limit = self.limits.transaction_bytes
            raise self._overflow(f"writes {self.bytes_written:,} bytes, more than {limit:,}")

    def _overflow(self, problem: str) -> TransactionTooLarge:
        self._too_large = TransactionTooLarge(f"the transaction {problem}")
        return self._too_large

    # --- implemented by backends

    @abstractmethod
    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]: ...

    @abstractmethod
    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]: ...

    @abstractmethod
    def _set(self, key: bytes, value: bytes) -> None: ...

    def _set_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            self._set(key, value)

    @abstractmethod
    def _clear(self, key: bytes) -> None: ...

    @abstractmethod
    def _clear_range(self, lo: bytes, hi: bytes) -> None: ...

    @abstractmethod
    def _add(self, key: bytes, amount: int) -> None: ...

    @abstractmethod
    def _set_versioned(self, prefix: bytes, value: bytes) -> None: ...

    @abstractmethod
    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]: ...

    @abstractmethod
    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]: ...


def call(fn: Callable[[Tx], T], tx: Tx) -> T:
    """Call a function of a transaction. A row that it cannot decode means that the store is damaged."""
    try:
        return fn(tx)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(f"a row of the store cannot be decoded: {error}") from error


def read_counter(value: bytes | None) -> int:
    """Return the integer that `Tx.add` stores under a key."""
    return int.from_bytes(value, "little", signed=True) if value else 0


def write_counter(value: int) -> bytes:
    """Return a counter as 8 bytes, little-endian, two's complement. It wraps around, as in FoundationDB."""
    return (value & (2**64 - 1)).to_bytes(8, "little")


class Watch(ABC):
    """Watches several keys, and fires when one of them may have changed since the watch was created.

    First create the watch, then read the keys, then wait. That way, the wait also notices a change made after
    the read. A watch may fire without a reason, and may miss a change, so a caller must also poll (STO-8).
    """

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until a key may have changed, and reset the watch; return False after the timeout."""

    def notify(self, call: Callable[[], None]) -> Callable[[], None]:
        """Run the function `call` each time the watch fires; return a function that stops these calls.

        This is useful in a loop that waits for other things too. A thread of the store runs `call`, so `call`
        should be fast. A watch may miss a change, so the loop must also poll.
        """
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                if self.wait(NOTIFY_EVERY_S) and not over.is_set():
                    call()

        threading.Thread(target=listen, name="tidemill-store-notify", daemon=True).start()
        return over.set

    def close(self) -> None:
        """Remove the watch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store(ABC):
    """A store. The threads of a process share one object; processes share the data in the backend."""

    limits: Limits = LIMITS

    def __init__(self, *, clock: Clock = SYSTEM, chance: random.Random | None = None) -> None:
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()

    @abstractmethod
    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        """Call `fn(tx)`, commit its writes and return its result.

        After a conflict or a pause of the process, `fn` is called again, so it must have no effects outside
        `tx`.
        """

    def snapshot(self) -> Iterator[Row]:
        """Yield all rows as they are at one moment, in key order, while other transactions continue.

        There is no limit of time or size. The caller reads to the end, or closes the iterator.
        """
        raise UsageError(
            f"{self.url} cannot be read as of one moment",
            hint="use the backup tool of the database, such as fdbbackup",
        )

    @abstractmethod
    def watch(self, keys: Iterable[bytes]) -> Watch:
        """Watch these keys for changes. A prefix that is passed to `set_versioned` counts as a key."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. A second call does nothing."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the store, without secrets."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
