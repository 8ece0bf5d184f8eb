"""What FoundationDB's binding documents, in memory: enough of `fdb` for FoundationStore to run on.

It proves that our code calls the binding as it is documented and means what it should, and nothing about
a cluster: the backend stays marked *not run* until the conformance suite has met one.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

from tidemill.clock import SYSTEM


class FDBError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        self.description = {
            1020: "not_committed",
            1021: "commit_unknown_result",
            1036: "accessed_unreadable",
        }.get(code, "an error")


class Predicates:
    @staticmethod
    def maybe_committed(error: FDBError) -> bool:
        return error.code in (1021, 1039)

    @staticmethod
    def retryable(error: FDBError) -> bool:
        return error.code in (1007, 1009, 1020, 1021, 1037, 1039)


class KeyValue(NamedTuple):
    key: bytes
    value: bytes


class Done:
    """A future whose value is there."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def wait(self) -> Any:
        return self.value


class Rows(Done):
    def to_list(self) -> list[KeyValue]:
        return list(self.value)


class WatchFuture:
    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []
        self._ready = False
        self._lock = threading.Lock()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        with self._lock:
            if not self._ready:
                self._callbacks.append(callback)
                return
        callback(self)

    def fire(self) -> None:
        with self._lock:
            self._ready = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def cancel(self) -> None:
        with self._lock:
            self._callbacks = []


class Options:
    def set_timeout(self, milliseconds: int) -> None:
        assert milliseconds > 0


class Database:
    """The map now, and what was committed: a transaction is checked against what came after its beginning."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self.now: dict[bytes, bytes] = {}
        self.commits: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        self.watches: list[tuple[bytes, bytes | None, WatchFuture]] = []
        self.lose_next_commit: str | None = None  # "before" | "after": what commit_unknown_result hides

    def next_version(self) -> int:
        """Versions advance by about a million per second."""
        self.version = max(self.version + 1, int(SYSTEM.monotonic() * 1_000_000))
        return self.version

    def create_transaction(self) -> "Transaction":
        return Transaction(self)


class Reader:
    def __init__(self, tr: "Transaction", snapshot: bool) -> None:
        self._tr, self._snapshot = tr, snapshot

    def get(self, key: bytes) -> Done:
        if not self._snapshot:
            self._tr.reads.append((key, key + b"\x00"))
        if any(lo <= key < hi for lo, hi in self._tr.unreadable):
            raise FDBError(1036)
        return Done(self._tr.view().get(key))

    def get_range(self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False) -> Rows:
        if any(lo < end and begin < hi for lo, hi in self._tr.unreadable):
            raise FDBError(1036)
        view = self._tr.view()
        keys = sorted(view)
        keys = keys[bisect_left(keys, begin) : bisect_left(keys, end)]
        if reverse:
            keys.reverse()
        picked = keys[:limit] if limit else keys
        if not self._snapshot:
            cut = limit and len(picked) == limit
            lo = picked[-1] if cut and reverse else begin
            hi = picked[-1] + b"\x00" if cut and not reverse else end
            self._tr.reads.append((lo, hi))
        return Rows([KeyValue(key, view[key]) for key in picked])


class Transaction(Reader):
    def __init__(self, db: Database) -> None:
        super().__init__(self, snapshot=False)
        self.db = db
        self.snapshot = Reader(self, snapshot=True)
        self.options = Options()
        self.reads: list[tuple[bytes, bytes]] = []
        self.unreadable: list[tuple[bytes, bytes]] = []
        self._base: dict[bytes, bytes] | None = None
        self._read_version = 0
        self._steps: list[tuple[str, bytes, bytes]] = []
        self._watching: list[tuple[bytes, WatchFuture]] = []

    def get_read_version(self) -> Done:
        if self._base is None:
            with self.db.lock:
                self._base, self._read_version = dict(self.db.now), self.db.next_version()
        return Done(self._read_version)

    def view(self) -> dict[bytes, bytes]:
        self.get_read_version()
        assert self._base is not None
        view = dict(self._base)
        self._apply(view)
        return view

    def _apply(self, rows: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        written = []
        for kind, key, value in self._steps:
            written.append((key, value) if kind == "clear_range" else (key, key + b"\x00"))
            if kind == "set":
                rows[key] = value
            elif kind == "clear":
                rows.pop(key, None)
            elif kind == "clear_range":
                for each in [each for each in rows if key <= each < value]:
                    del rows[each]
            else:
                old = int.from_bytes(rows.get(key, b"")[: len(value)], "little")
                total = (old + int.from_bytes(value, "little")) % 256 ** len(value)
                rows[key] = total.to_bytes(len(value), "little")
        return written

    def set(self, key: bytes, value: bytes) -> None:
        self._steps.append(("set", key, value))

    def clear(self, key: bytes) -> None:
        self._steps.append(("clear", key, b""))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._steps.append(("clear_range", begin, end))

    def add(self, key: bytes, param: bytes) -> None:
        self._steps.append(("add", key, param))

    def set_versionstamped_key(self, key: bytes, param: bytes) -> None:
        at = int.from_bytes(key[-4:], "little")
        assert at + 10 <= len(key) - 4
        self._steps.append(("stamped", key, param))
        self.unreadable.append((key[:at], key[:at] + b"\xff" * 11))

    def add_read_conflict_key(self, key: bytes) -> None:
        self.get_read_version()
        self.reads.append((key, key + b"\x00"))

    def watch(self, key: bytes) -> WatchFuture:
        future = WatchFuture()
        self._watching.append((key, future))
        return future

    def commit(self) -> Done:
        with self.db.lock:
            before = self.view() if self._watching else {}
            self.db.watches += [(key, before.get(key), future) for key, future in self._watching]
            if self._steps:
                self._commit_writes()
            fired = [each for each in self.db.watches if self.db.now.get(each[0]) != each[1]]
            self.db.watches = [each for each in self.db.watches if each not in fired]
        for _, _, future in fired:
            future.fire()
        return Done(None)

    def _commit_writes(self) -> None:
        lose, self.db.lose_next_commit = self.db.lose_next_commit, None
        if lose == "before":
            raise FDBError(1021)
        for version, written in self.db.commits:
            if version > self._read_version > 0 and any(
                a < hi and lo < b for a, b in written for lo, hi in self.reads
            ):
                raise FDBError(1020)
        self.db.next_version()
        stamp = self.db.version.to_bytes(8, "big") + (7).to_bytes(2, "big")
        self._steps = [self._stamped(step, stamp) for step in self._steps]
        self.db.commits.append((self.db.version, self._apply(self.db.now)))
        if lose == "after":
            raise FDBError(1021)

    @staticmethod
    def _stamped(step: tuple[str, bytes, bytes], stamp: bytes) -> tuple[str, bytes, bytes]:
        kind, key, value = step
        if kind != "stamped":
            return step
        at = int.from_bytes(key[-4:], "little")
        return "set", key[:at] + stamp + key[at + 10 : -4], value


class Binding:
    """Stands where the module `fdb` would."""

    FDBError = FDBError
    predicates = Predicates

    def __init__(self) -> None:
        self._databases: dict[str | None, Database] = {}

    def open(self, cluster_file: str | None = None) -> Database:
        return self._databases.setdefault(cluster_file, Database())
