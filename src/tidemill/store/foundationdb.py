"""Keep the store in FoundationDB. The store's interface follows FoundationDB's model.

This backend follows the documented binding (API version 730) but has *not run* against a cluster yet.
`tests/conformance/test_store_foundationdb.py` runs the conformance suite wherever a cluster file works.

- A key is the prefix of the store followed by the packed tuple, so other layers can decode our keys.
- Plain reads add conflict ranges; snapshot reads do not. Blind writes never conflict. `add` uses the atomic
  ADD, and `set_versioned` a versionstamped key. Writing such a key makes its range unreadable until the
  commit, so these writes are buffered until then.
- `take` reads a window as a snapshot, and then adds conflict ranges only for the rows it picks. So two
  transactions that take rows conflict only if they pick the same row. After a conflict, `take` picks at
  random from a wider window.
- Lease time is the read version, which advances by about a million per second and never goes back (STO-6). It
  is not exact, and a recovery of the cluster makes it jump forward by up to about 100 s. Leases then expire
  early, which is safe because every write is fenced. The cluster has no wall clock, so `wall` returns this
  machine's clock.
- If the outcome of a commit is unknown, the operation's row decides (`store.retry`). Each attempt adds a read
  conflict on this row without reading it. So if another transaction has written a fence there, a late commit
  fails.
"""

import os
import random
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import (
    BadUrl,
    MissingDriver,
    StoreCorrupt,
    StoreError,
    StoreFormat,
    StoreUnavailable,
    TransactionTooLarge,
    UsageError,
)
from tidemill.store.keys import pack, unpack
from tidemill.store.port import SYSTEM_PREFIX, Mode, Row, Swap, Tx, Watch, write_counter
from tidemill.store.retry import (
    Conflict,
    RetriedCall,
    RetryingStore,
    Unknown,
    Unreached,
    expired_operations,
)

T = TypeVar("T")

API_VERSION = 730
FORMAT = 1
TIMEOUT_MS = 5_000  # a transaction lasts at most 2 s, so a call that takes this long gets no response
CLEAN_EVERY_US = 60_000_000
POLL_S = 1.0

_FORMAT_KEY = SYSTEM_PREFIX + b"format"
_TOUCHED = SYSTEM_PREFIX + b"touched"  # counts commits that notify watchers of a key without writing it
_NOT_COMMITTED, _TOO_OLD, _TIMED_OUT, _TOO_LARGE = 1020, 1007, 1031, 2101


def load_binding() -> Any:
    """Import fdb and select its API version; raise MissingDriver if fdb or its library is missing."""
    hint = "run pip install 'tidemill[foundationdb]', and install FoundationDB's client library (libfdb_c)"
    try:
        import fdb

        if not fdb.is_api_version_selected():
            fdb.api_version(API_VERSION)
    except ImportError:
        problem = "the Python binding of FoundationDB is not installed"
    except Exception as error:  # noqa: BLE001 - the binding raises Exception itself when its library is missing
        problem = f"the Python binding of FoundationDB cannot be used: {error}"
    else:
        return fdb
    raise MissingDriver(problem, hint=hint)


class Mapping:
    """Adds the store's prefix to keys that are sent to the cluster, and removes it from returned keys."""

    def __init__(self, prefix: bytes) -> None:
        if not prefix or prefix[:1] == b"\xff":
            raise BadUrl(
                "the FoundationDB prefix is empty or reserved for the cluster",
                hint="set another prefix in the URL: ?prefix=tidemill",
            )
        self.prefix = prefix

    def raw(self, key: bytes) -> bytes:
        return self.prefix + key

    def own(self, raw: bytes) -> bytes:
        return raw[len(self.prefix) :]

    def versionstamped(self, prefix: bytes, ordinal: int) -> bytes:
        """Return the parameter of SET_VERSIONSTAMPED_KEY: a key with space for the stamp, and its offset."""
        head = self.raw(prefix) + b"\x33"
        return head + bytes(10) + ordinal.to_bytes(2, "big") + struct.pack("<I", len(head))


class FoundationTx(Tx):
    """One attempt at a transaction: one transaction of FoundationDB."""

    def __init__(self, store: "FoundationStore", mode: Mode, attempt: int) -> None:
        super().__init__(mode, store.clock)
        self._store = store
        self._map = store.mapping
        self._attempt = attempt
        self._versioned: list[tuple[bytes, bytes]] = []
        self.hinted: set[bytes] = set()  # keys that are not written, but whose watchers are notified
        self._now: int | None = None
        self._wall = int(store.clock.wall() * 1_000_000)
        self.tr = store.begin()

    def now(self) -> int:
        if self._now is None:
            self._now = int(self._store.call(lambda: self.tr.get_read_version().wait()))
        return self._now

    def wall(self) -> int:
        return self._wall

    # --- reading

    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]:
        del lock  # every read here conflicts with every writer
        return self._store.call(lambda: self._values(keys))

    def _values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        futures = [
            self.tr.get(self._map.raw(key)) for key in keys
        ]  # all requests are sent before the first wait
        return [future.value for future in futures]

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        reader = self.tr.snapshot if snapshot else self.tr
        return self._rows(reader, lo, hi, limit or 0, reverse)

    def _rows(self, reader: Any, lo: bytes, hi: bytes, limit: int, reverse: bool) -> list[Row]:
        def read() -> list[Row]:
            rows = reader.get_range(self._map.raw(lo), self._map.raw(hi), limit, reverse).to_list()
            return [Row(self._map.own(row.key), row.value) for row in rows]

        return self._store.call(read)

    # --- writing

    def _set(self, key: bytes, value: bytes) -> None:
        self.tr.set(self._map.raw(key), value)

    def _clear(self, key: bytes) -> None:
        self.tr.clear(self._map.raw(key))

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        self.tr.clear_range(self._map.raw(lo), self._map.raw(hi))

    def _add(self, key: bytes, amount: int) -> None:
        self.tr.add(self._map.raw(key), write_counter(amount))

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        self._versioned.append((prefix, value))

    def hint(self, key: bytes) -> None:
        super().hint(key)
        self.hinted.add(key)

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        wider = min(self._attempt, 8)  # 1 in the first attempt: without competition, rows come in order
        window = self._rows(self.tr.snapshot, lo, hi, limit * wider, reverse=False)
        at = self._store.chance.randrange(max(1, len(window) - limit + 1)) if wider > 1 else 0
        picked = window[at : at + limit]
        for row in picked:
            self.tr.add_read_conflict_key(self._map.raw(row.key))
            self._clear(row.key)
        return picked

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        keys = [*{swap.key: None for swap in swaps}]
        current = dict(zip(keys, self._get_many(keys, lock=True), strict=True))
        results = []
        for swap in swaps:
            holds = current[swap.key] == swap.expected
            if holds:
                current[swap.key] = swap.new
                self._clear(swap.key) if swap.new is None else self._set(swap.key, swap.new)
            results.append(holds)
        return results

    # --- the end

    def commit(self, operation: RetriedCall[T]) -> None:
        """Commit the writes, with the operation's row."""
        for ordinal, (prefix, value) in enumerate(self._versioned):
            self.tr.set_versionstamped_key(self._map.versionstamped(prefix, ordinal), value)
        for touched in self.hinted | {prefix for prefix, _ in self._versioned}:
            self.tr.add(self._map.raw(_TOUCHED + touched), write_counter(1))
        key = self._map.raw(operation.key(self.now()))
        self.tr.add_read_conflict_key(key)
        self.tr.set(key, operation.row())
        crash.point("store.foundationdb.before_commit")
        self._store.call(lambda: self.tr.commit().wait(), committing=True)
        crash.point("store.foundationdb.after_commit")


class FoundationStore(RetryingStore):
    """A store under one prefix of a FoundationDB cluster.

    Args:
        cluster_file: path of the cluster file; None for the platform's default.
        prefix: the bytes that every key begins with.
    """

    def __init__(
        self,
        cluster_file: str | None = None,
        *,
        prefix: bytes | None = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        patience_s: float = 30.0,
        binding: Any = None,
    ) -> None:
        super().__init__(clock=clock, chance=chance, patience_s=patience_s)
        self.ids = random.SystemRandom()  # never from a seed: processes with the same seed would share ids
        self.mapping = Mapping(pack(("tidemill",)) if prefix is None else prefix)
        self._cluster_file = cluster_file
        self._fdb = load_binding() if binding is None else binding
        self._pid = os.getpid()
        self._active = threading.local()
        self._cleaned_at = 0
        self._closed = False
        try:
            self._db = self._fdb.open(cluster_file)
        except self._fdb.FDBError as error:
            problem = f"cannot open {self.url}: {error}"
        else:
            problem = ""
        if problem:
            raise StoreUnavailable(problem, hint="check the path of the cluster file")
        self._check_format()

    @property
    def url(self) -> str:
        return f"foundationdb://{self._cluster_file or ''}"

    def close(self) -> None:
        self._closed = True  # the connection stays: the process has only one per cluster file

    def watch(self, keys: Iterable[bytes]) -> Watch:
        return FoundationWatch(self, keys)

    # --- running

    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        if getattr(self._active, "busy", False):
            raise UsageError(
                "store.run was called inside a transaction", hint="pass tx to the inner function"
            )
        return super().run(fn, mode=mode)

    def _attempt(self, operation: RetriedCall[T]) -> T:
        tx = FoundationTx(self, operation.mode, operation.attempt)
        self._active.busy = True
        try:
            result = operation.results[operation.attempt] = operation.fn(tx)
        finally:
            self._active.busy = False
            tx._end()
        tx._check_age()
        if tx.writes or tx.hinted:
            tx.commit(operation)
            self._clean(tx.now())
        return result

    def _fence(self, operation: RetriedCall[T]) -> int:
        key = self.mapping.raw(operation.key(0))
        tr = self.begin()
        row = self.call(lambda: tr.get(key).value)
        if row is None:
            tr.set(key, pack((0,)))
            self.call(lambda: tr.commit().wait(), committing=True)
            return 0
        (number,) = unpack(row)
        assert isinstance(number, int)
        return number

    def begin(self) -> Any:
        """Begin a transaction of the cluster."""
        if self._closed:
            raise UsageError("the store is closed", hint="open it again")
        if os.getpid() != self._pid:
            raise UsageError(
                "the FoundationDB client does not work after a fork",
                hint="open the store in the child process, or start the child process with spawn",
            )
        tr = self._db.create_transaction()
        tr.options.set_timeout(TIMEOUT_MS)
        return tr

    def call(self, request: Callable[[], T], *, committing: bool = False) -> T:
        """Send a request to the cluster. Its errors become Conflict, Unknown, Unreached or a `StoreError`."""
        try:
            return request()
        except self._fdb.FDBError as error:
            meaning = self._meaning(error, committing=committing)
        raise meaning

    def _meaning(self, error: Any, *, committing: bool) -> Exception:
        text = f"{error.description} ({error.code})" if hasattr(error, "description") else str(error)
        predicates = self._fdb.predicates
        if committing and (error.code == _TIMED_OUT or predicates.maybe_committed(error)):
            return Unknown(text)
        if error.code in (_NOT_COMMITTED, _TOO_OLD):
            return Conflict(text)
        if error.code == _TIMED_OUT or predicates.retryable(error):
            return Unreached(text)
        if error.code == _TOO_LARGE:
            return TransactionTooLarge(f"FoundationDB refused a transaction: {text}")
        return StoreError(f"FoundationDB refused a request: {text}")

    # --- housekeeping

    def _check_format(self) -> None:
        def check(tx: Tx) -> bytes | None:
            assert isinstance(tx, FoundationTx)
            key = self.mapping.raw(_FORMAT_KEY)
            stored: bytes | None = self.call(lambda: tx.tr.get(key).value)
            if stored is None:
                tx.tr.set(key, pack((FORMAT,)))
                self.call(lambda: tx.tr.commit().wait(), committing=True)
            return stored

        stored = self.run(check)  # the format may be written twice, so an unknown commit does no harm
        if stored is None:
            return
        try:
            (number,) = unpack(stored)
        except ValueError:
            number = None
        if not isinstance(number, int):
            raise StoreCorrupt(f"the store under {self.mapping.prefix!r} has no format number")
        if number != FORMAT:
            newer = number > FORMAT
            raise StoreFormat(
                f"the store has format {number}, but this release supports {FORMAT}",
                hint=None if newer else "open it with the release that wrote it",
            )

    def _clean(self, now_us: int) -> None:
        """Remove expired operation rows from time to time, with one range clear."""
        if now_us - self._cleaned_at < CLEAN_EVERY_US:
            return
        self._cleaned_at = now_us
        lo, hi = expired_operations(now_us)
        tr = self.begin()
        tr.clear_range(self.mapping.raw(lo), self.mapping.raw(hi))
        with suppress(Conflict, Unreached, Unknown):  # retried in the next minute
            self.call(lambda: tr.commit().wait(), committing=True)


class FoundationWatch(Watch):
    """Uses FoundationDB's watches. They are set again before `wait` returns True: no change is missed."""

    def __init__(self, store: FoundationStore, keys: Iterable[bytes]) -> None:
        self._store = store
        self._keys = [each for key in keys for each in (key, _TOUCHED + key)]
        self._event = threading.Event()
        self._futures: list[Any] = []
        self._closed = False
        self._arm()

    def _arm(self) -> None:
        store = self._store
        self._forget()

        def watch() -> None:
            tr = store.begin()
            self._futures = [tr.watch(store.mapping.raw(key)) for key in self._keys]
            tr.commit().wait()

        try:
            store.call(watch)
        except (Conflict, Unreached, StoreError):
            self._forget()  # too many watches, or no response: callers poll
            return
        for future in self._futures:
            future.on_ready(self._fired)

    def _fired(self, _: object) -> None:
        self._event.set()

    def _forget(self) -> None:
        for future in self._futures:
            future.cancel()
        self._futures = []

    def wait(self, timeout_s: float) -> bool:
        if self._closed:
            return self._store.clock.wait(threading.Event(), timeout_s)
        polls = not self._futures
        limit_s = min(timeout_s, POLL_S) if polls else timeout_s
        fired = self._store.clock.wait(self._event, limit_s)
        if fired or polls:
            self._event.clear()
            self._arm()
        return fired or (polls and limit_s < timeout_s)

    def close(self) -> None:
        self._closed = True
        self._forget()
