"""Keep the store in memory. This store is the reference for the other backends, and simulations use it.

This store is optimistic, like FoundationDB: a transaction reads a snapshot and buffers its writes. The commit
checks the transaction against all commits since its snapshot. Wherever the contract allows several
behaviours, this store gives the *weakest* guarantee, so that code that works here works on every backend:

- a plain read conflicts only with commits of serial transactions. Only a locked read conflicts with a `take`
  transaction. PostgreSQL does the same, because SERIALIZABLE ignores READ COMMITTED (STO-3);
- blind writes never conflict;
- `faults`, if given, may delay, refuse or lose any commit (`tests.simulation`).
"""

import random
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import UsageError
from tidemill.store.keys import Versionstamp, pack, unpack
from tidemill.store.port import SYSTEM_PREFIX, Mode, Row, Store, Swap, Tx, Watch, read_counter, write_counter
from tidemill.store.retry import Conflict, RetriedCall, RetryingStore, expired_operations

T = TypeVar("T")


class StoreFaults(Protocol):
    """Hooks for simulated faults; each may raise Conflict, Unknown or Unreached."""

    def before(self, store: "MemoryStore") -> None: ...

    def between(self, store: "MemoryStore") -> None:
        """Called after fn has read and written, before the commit; other transactions may run here."""

    def after(self, store: "MemoryStore") -> None:
        """Called after the commit. An error raised here hides that the commit succeeded."""

    def now_us(self) -> int:
        """Return lease time."""
        ...

    def wall_us(self) -> int: ...

    def loses_wakeup(self) -> bool: ...


class MemoryCommit(NamedTuple):
    version: int
    mode: Mode
    keys: frozenset[bytes]
    ranges: tuple[tuple[bytes, bytes], ...]


class MemoryTx(Tx):
    def __init__(self, store: "MemoryStore", mode: Mode, now_us: int, wall_us: int) -> None:
        super().__init__(mode, store.clock)
        self._store = store
        self.version = store._version
        self.overlay: dict[bytes, bytes | None] = {}
        self.adds: dict[bytes, int] = {}
        self.cleared: list[tuple[bytes, bytes]] = []
        self.versioned: list[tuple[bytes, bytes]] = []
        self.reads: set[bytes] = set()
        self.locked: set[bytes] = set()
        self.read_ranges: list[tuple[bytes, bytes]] = []
        self._now_us, self._wall_us = now_us, wall_us

    def now(self) -> int:
        return self._now_us

    def wall(self) -> int:
        return self._wall_us

    # A read of the store's history takes the store's lock: a snapshot never changes, but the lists that hold
    # it do.

    def _peek(self, key: bytes) -> bytes | None:
        if key in self.overlay:
            value = self.overlay[key]
        elif any(lo <= key < hi for lo, hi in self.cleared):
            value = None
        else:
            value = self._store._at(key, self.version)
        if key in self.adds:
            value = write_counter(read_counter(value) + self.adds[key])
        return value

    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]:
        (self.locked if lock else self.reads).update(keys)
        with self._store._lock:
            return [self._peek(key) for key in keys]

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        with self._store._lock:
            rows, reached = self._scan(lo, hi, limit, reverse)
        if not snapshot:
            self.read_ranges.append(reached)
        return rows

    def _scan(
        self, lo: bytes, hi: bytes, limit: int | None, reverse: bool
    ) -> tuple[list[Row], tuple[bytes, bytes]]:
        """Return the rows, and the part of the range that was read to find them."""
        own = [key for key in self.overlay.keys() | self.adds.keys() if lo <= key < hi]
        keys = sorted({*self._store._keys_between(lo, hi), *own}, reverse=reverse)
        rows: list[Row] = []
        for key in keys:
            value = self._peek(key)
            if value is not None:
                rows.append(Row(key, value))
                if len(rows) == limit:
                    return rows, (key, hi) if reverse else (lo, key + b"\x00")
        return rows, (lo, hi)

    def _set(self, key: bytes, value: bytes) -> None:
        self.adds.pop(key, None)
        self.overlay[key] = value

    def _clear(self, key: bytes) -> None:
        self.adds.pop(key, None)
        self.overlay[key] = None

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        for key in [key for key in self.overlay if lo <= key < hi]:
            del self.overlay[key]
        for key in [key for key in self.adds if lo <= key < hi]:
            del self.adds[key]
        self.cleared.append((lo, hi))

    def _add(self, key: bytes, amount: int) -> None:
        if key in self.overlay:
            self.overlay[key] = write_counter(read_counter(self.overlay[key]) + amount)
        else:
            self.adds[key] = self.adds.get(key, 0) + amount

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        self.versioned.append((prefix, value))

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        with self._store._lock:
            rows, _ = self._scan(lo, hi, limit, reverse=False)
        for row in rows:  # lock only these rows, so that their neighbours do not conflict
            self.locked.add(row.key)
            self._clear(row.key)
        return rows

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        results = []
        for swap in swaps:
            self.locked.add(swap.key)
            with self._store._lock:
                holds = self._peek(swap.key) == swap.expected
            if holds:
                self._clear(swap.key) if swap.new is None else self._set(swap.key, swap.new)
            results.append(holds)
        return results

    def conflicts_with(self, commit: MemoryCommit) -> bool:
        """Return whether a commit changed what we read. Plain reads ignore `take` commits (STO-3)."""
        if not self.locked.isdisjoint(commit.keys):
            return True
        if any(lo <= key < hi for key in self.locked for lo, hi in commit.ranges):
            return True
        if commit.mode == "take":
            return False
        if not self.reads.isdisjoint(commit.keys):
            return True
        if any(lo <= key < hi for key in self.reads for lo, hi in commit.ranges):
            return True
        return any(
            any(lo <= key < hi for key in commit.keys) or any(a < hi and lo < b for a, b in commit.ranges)
            for lo, hi in self.read_ranges
        )


class MemoryStore(RetryingStore):
    """A store in the memory of one process; `faults` injects faults."""

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        patience_s: float = 30.0,
        faults: StoreFaults | None = None,
    ) -> None:
        super().__init__(clock=clock, chance=chance, patience_s=patience_s)
        self.faults = faults
        self._lock = threading.RLock()
        self._history: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._keys: list[bytes] = []
        self._version = 0
        self._open: dict[int, int] = {}  # transaction -> the version it reads
        self._commits: list[MemoryCommit] = []  # commits that an open transaction may conflict with
        self._watches: dict[MemoryWatch, None] = {}  # in creation order, so that the same seed repeats a run
        self._last_now = 0
        self._cleaned_at = 0
        self._active = threading.local()

    @property
    def url(self) -> str:
        return "memory://"

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    # --- running

    def _attempt(self, operation: RetriedCall[T]) -> T:
        if getattr(self._active, "depth", 0) and self.faults is None:
            raise UsageError(
                "store.run was called inside a transaction", hint="pass tx to the inner function"
            )
        if self.faults is not None:
            self.faults.before(self)
        with self._transaction(operation.mode) as tx:
            self._active.depth = getattr(self._active, "depth", 0) + 1
            try:
                result = operation.results[operation.attempt] = operation.fn(tx)
            finally:
                self._active.depth -= 1
            tx._check_age()
            if self.faults is not None:
                self.faults.between(self)
            if tx.writes:
                self._commit(tx, operation)
        if self.faults is not None and tx.writes:
            self.faults.after(self)
        return result

    @contextmanager
    def _transaction(self, mode: Mode) -> Iterator[MemoryTx]:
        with self._lock:
            tx = MemoryTx(self, mode, self._now_us(), self._wall_us())
            self._open[id(tx)] = tx.version
        try:
            yield tx
        finally:
            with self._lock:
                del self._open[id(tx)]
                self._forget()

    def _commit(self, tx: MemoryTx, operation: RetriedCall[T]) -> None:
        with self._lock:
            op_key = operation.key(tx.now())
            if self._at(op_key, self._version) is not None:
                raise Conflict("an earlier try has already committed or aborted this transaction")
            if any(tx.conflicts_with(commit) for commit in self._commits if commit.version > tx.version):
                raise Conflict("a row that was read has changed")
            self._version += 1
            removed = [key for lo, hi in tx.cleared for key in self._keys_between(lo, hi)]
            written: dict[bytes, bytes | None] = dict.fromkeys(removed)
            written.update(tx.overlay)
            for key, amount in tx.adds.items():
                base = written[key] if key in written else self._at(key, self._version)
                written[key] = write_counter(read_counter(base) + amount)
            for ordinal, (prefix, value) in enumerate(tx.versioned):
                written[prefix + pack((Versionstamp(self._version, ordinal),))] = value
            self._commits.append(MemoryCommit(self._version, tx.mode, frozenset(written), tuple(tx.cleared)))
            written[op_key] = operation.row()
            for key, final in written.items():
                self._write(key, final)
            self._clean(tx.now())
            self._forget()
        self._wake(tx.touched)

    def _fence(self, operation: RetriedCall[T]) -> int:
        if self.faults is not None:
            self.faults.before(self)
        with self._lock:
            key = operation.key(self._now_us())
            row = self._at(key, self._version)
            if row is None:
                self._version += 1
                self._write(key, pack((0,)))
                return 0
            number = unpack(row)[0]
            assert isinstance(number, int)
            return number

    def snapshot(self) -> Iterator[Row]:
        with self._lock:
            values = [(key, self._at(key, self._version)) for key in self._keys if key < SYSTEM_PREFIX]
        yield from (Row(key, value) for key, value in values if value is not None)

    # --- versions

    def _at(self, key: bytes, version: int) -> bytes | None:
        for written_at, value in reversed(self._history.get(key, ())):
            if written_at <= version:
                return value
        return None

    def _keys_between(self, lo: bytes, hi: bytes) -> list[bytes]:
        return self._keys[bisect_left(self._keys, lo) : bisect_left(self._keys, hi)]

    def _write(self, key: bytes, value: bytes | None) -> None:
        history = self._history.get(key)
        if history is None:
            if value is None:
                return
            insort(self._keys, key)
            history = self._history[key] = []
        if self._open:
            history.append((self._version, value))
        elif value is None:
            self._drop(key)
        else:
            history[:] = [(self._version, value)]

    def _drop(self, key: bytes) -> None:
        del self._history[key]
        del self._keys[bisect_left(self._keys, key)]

    def _forget(self) -> None:
        """Drop history that no open transaction can read."""
        oldest = min(self._open.values(), default=self._version)
        drop = 0
        for commit in self._commits:
            if commit.version > oldest:
                break
            drop += 1
            for key in commit.keys:
                history = self._history.get(key)
                if (history is not None and len(history) > 1) or (history and history[-1][1] is None):
                    while len(history) > 1 and history[1][0] <= oldest:
                        history.pop(0)
                    if len(history) == 1 and history[0][1] is None:
                        self._drop(key)
        del self._commits[:drop]

    def _clean(self, now_us: int) -> None:
        """Remove expired operation rows, at most once a minute."""
        if now_us - self._cleaned_at > 60_000_000:
            self._cleaned_at = now_us
            for key in self._keys_between(*expired_operations(now_us)):
                self._drop(key)

    # --- time and wake-ups

    def _now_us(self) -> int:
        now = self.faults.now_us() if self.faults is not None else int(self.clock.monotonic() * 1_000_000)
        self._last_now = max(self._last_now, now)
        return self._last_now

    def _wall_us(self) -> int:
        return self.faults.wall_us() if self.faults is not None else int(self.clock.wall() * 1_000_000)

    def watch(self, keys: Iterable[bytes]) -> Watch:
        return MemoryWatch(self, frozenset(keys))

    def _wake(self, keys: set[bytes]) -> None:
        with self._lock:
            woken = [watch for watch in self._watches if not watch.keys.isdisjoint(keys)]
        for watch in woken:
            if self.faults is None or not self.faults.loses_wakeup():
                watch.event.set()


class MemoryWatch(Watch):
    def __init__(self, store: MemoryStore, keys: frozenset[bytes]) -> None:
        self._store = store
        self.keys = keys
        self.event = threading.Event()
        with store._lock:
            store._watches[self] = None

    def wait(self, timeout_s: float) -> bool:
        fired = self._store.clock.wait(self.event, timeout_s)
        self.event.clear()
        return fired

    def close(self) -> None:
        with self._store._lock:
            self._store._watches.pop(self, None)


__all__ = ["MemoryStore", "Store", "StoreFaults"]
