"""The store of a simulation, and the record of what happened in it.

The world sees every commit, and a lost commit may take effect later. The timeline records events in order, as
plain tuples that are formatted only when they are printed.
"""

import hashlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from tidemill.clock import Clock
from tidemill.store import unpack
from tidemill.store.memory import MemoryStore, MemoryTx, StoreFaults
from tidemill.store.port import SYSTEM_PREFIX
from tidemill.store.retry import Conflict, RetriedCall, Unknown

if TYPE_CHECKING:
    from tests.simulation.scheduler import SimNode
    from tests.simulation.world import World


Describe = Callable[[bytes, bytes | None], str | None]


class TimelineEntry(NamedTuple):
    """One line: true time, source, event, and details (strings, numbers, or the rows of a commit)."""

    at_us: int
    source: str
    event: str
    detail: tuple[Any, ...] = ()


class Timeline:
    """The record of one run. Equal seeds give equal timelines, entry by entry."""

    def __init__(self) -> None:
        self.entries: list[TimelineEntry] = []
        self.describers: list[Describe] = []

    def add(self, at_us: int, source: str, event: str, *detail: object) -> None:
        self.entries.append(TimelineEntry(at_us, source, event, detail))

    def digest(self) -> str:
        """Return a hash of the whole run."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr(tuple(entry)).encode())
        return digest.hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        """Return readable lines, or only the last ones."""
        entries = self.entries if last is None else self.entries[-last:]
        return [self._line(entry) for entry in entries]

    def _line(self, entry: TimelineEntry) -> str:
        if entry.event == "commits":
            detail = "; ".join(filter(None, (self._row(key, value) for key, value in entry.detail)))
        else:
            detail = " ".join(map(str, entry.detail))
        return f"{entry.at_us / 1_000_000:11.6f}  {entry.source:<8} {entry.event} {detail}".rstrip()

    def _row(self, key: bytes, value: bytes | None) -> str:
        for describe in self.describers:
            text = describe(key, value)
            if text is not None:
                return text
        name = "/".join(str(part) for part in unpack(key))
        if value is None:
            return f"-{name}"
        try:
            return f"{name}={msgspec.msgpack.decode(value)}"
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"{name}=0x{value.hex()}"


T = TypeVar("T")


class Change(NamedTuple):
    """A row before and after; None means no row."""

    key: bytes
    old: bytes | None
    new: bytes | None


class RecordedCommit(NamedTuple):
    """One committed transaction, as the store saw it."""

    version: int
    node: "SimNode | None"  # None: the world itself
    now_us: int  # store time at the start of the transaction, by which it judged leases
    changes: tuple[Change, ...]
    rows: dict[bytes, bytes]  # the whole store after it

    def before(self, key: bytes) -> bytes | None:
        """Return a row as it was just before this commit."""
        for change in self.changes:
            if change.key == key:
                return change.old
        return self.rows.get(key)


class SimStore(MemoryStore):
    """One store for all nodes of a world; `rows` has the committed rows without the store's own."""

    def __init__(
        self, world: "World", clock: Clock, chance: random.Random, faults: StoreFaults, patience_s: float
    ):
        super().__init__(clock=clock, chance=chance, patience_s=patience_s, faults=faults)
        self.rows: dict[bytes, bytes] = {}
        self._world = world
        self._changes: list[Change] = []

    def _write(self, key: bytes, value: bytes | None) -> None:
        super()._write(key, value)
        if key < SYSTEM_PREFIX:
            old = self.rows.get(key)
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
            if old != value:
                self._changes.append(Change(key, old, value))

    def _commit(self, tx: MemoryTx, operation: RetriedCall[T]) -> None:
        late_us = self._world.faults.late_us()
        if late_us is not None:
            self._commit_later(tx, operation, late_us)
            raise Unknown("the commit is on its way")
        self._commit_now(tx, operation)

    def _commit_now(self, tx: MemoryTx, operation: RetriedCall[T]) -> None:
        super()._commit(tx, operation)
        changes, self._changes = tuple(self._changes), []
        node = self._world.current_node if not isinstance(operation, _Late) else operation.node
        self._world.committed(RecordedCommit(self._version, node, tx._now_us, changes, self.rows))

    def _commit_later(self, tx: MemoryTx, operation: RetriedCall[T], late_us: int) -> None:
        """Let a commit arrive after its connection broke; it may be fenced by then."""
        late = _Late(operation, tx, self._world.current_node)
        self._open[id(late)] = tx.version  # its snapshot must stay readable

        def arrive() -> None:
            try:
                self._commit_now(tx, late)
                self._world.record("store", "late commit arrives")
            except Conflict as conflict:
                self._world.record("store", "late commit refused", str(conflict))
            finally:
                del self._open[id(late)]
                self._forget()

        self._world.scheduler.spawn("late commit", arrive, late_us)

    def _wake(self, keys: set[bytes]) -> None:
        super()._wake(keys)
        self._world.scheduler.poke()


class _Late(RetriedCall[T]):
    """An attempt that its caller has given up; it keeps the id and number with which it was sent."""

    def __init__(self, operation: RetriedCall[T], tx: MemoryTx, node: "SimNode | None") -> None:
        self.node = node
        self.attempt = operation.attempt
        self._sent_as = operation.key(tx._now_us), operation.row()

    def key(self, now_us: int) -> bytes:
        return self._sent_as[0]

    def row(self) -> bytes:
        return self._sent_as[1]
