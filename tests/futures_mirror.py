"""Decode and join the stored rows of futures, and follow their changes.

A mirror that receives every commit also sees the steps between them: the transitions, and that epochs only
grow (FUT-13). `tests.futures_invariants` checks its content.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tidemill.futures.protocol import actors, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Claimed, Failed, Quarantined, Realized, Result, Spec
from tidemill.futures.protocol.states import ENDED, FUTURE, FutureEdge, FutureState
from tidemill.store import Space
from tidemill.store.port import read_counter

Parts = tuple[Any, ...]
Value = bytes | None


class Mirror:
    """The rows of the futures of one cluster, decoded."""

    def __init__(self, keys: FutureKeys) -> None:
        self.keys = keys
        self.futures: dict[bytes, AnyRow] = {}
        self.specs: dict[bytes, Spec] = {}
        self.ready: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)  # id -> its rows in the pool
        self.assigned: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        self.own: dict[bytes, set[str]] = defaultdict(set)
        self.inputs: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)  # id -> upstream -> mark
        self.dependents: dict[bytes, set[bytes]] = defaultdict(set)
        self.cursors: dict[bytes, bytes] = {}
        self.errors: dict[bytes, str] = {}  # id -> kind of its latest failure
        self.copies: dict[bytes, dict[str, Result]] = defaultdict(dict)
        self.stranded: set[bytes] = set()
        self.loose: set[bytes] = set()
        self.deadlines: set[bytes] = set()
        self.lanes: set[bytes] = set()
        self.running: dict[str, int] = {}
        self.names: dict[str, bytes] = {}  # idempotency key -> id
        self.actors: dict[bytes, actors.ActorRow] = {}
        self.hosted: set[tuple[str, bytes]] = set()
        self.steps: list[str] = []  # violations of the transitions since the last call
        self._followed: dict[bytes, tuple[Space, Callable[[bytes, Parts, Value], set[bytes]]]] = {
            space.prefix: (space, follow)
            for space, follow in (
                (keys.future, self._future),
                (keys.spec, self._spec),
                (keys.ready, self._ready),
                (keys.assigned, self._assigned),
                (keys.own, self._own),
                (keys.dep, self._dep),
                (keys.cursor, self._cursor),
                (keys.error, self._error),
                (keys.copy, self._copy),
                (keys.stranded, self._stranded),
                (keys.loose, self._loose),
                (keys.deadline, self._deadline),
                (keys.lane, self._lane),
                (keys.running, self._running),
                (keys.key, self._key),
                (keys.actor, self._actor),
                (keys.hosted, self._hosted),
            )
        }
        self._lengths = sorted({len(prefix) for prefix in self._followed}, reverse=True)

    def apply(self, changes: Iterable[tuple[bytes, Value]]) -> set[bytes]:
        """Apply changed rows (None: removed); return the ids of their futures, and of the neighbours."""
        touched: set[bytes] = set()
        for key, value in changes:
            for length in self._lengths:
                follower = self._followed.get(key[:length])
                if follower is not None:
                    touched |= follower[1](key, follower[0].unpack(key), value)
                    break
        around = set(touched)
        for future_id in touched:
            around |= self.dependents.get(future_id, set()) | self.inputs.get(future_id, {}).keys()
        return around

    def _future(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        old = self.futures.pop(parts[0], None)
        if value is not None:
            new = self.futures[parts[0]] = rows.decode_row(value)
            self._judge_step(parts[0].hex(), old, new)
        return {parts[0]}

    def _spec(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        old = self.specs.pop(parts[0], None)
        if value is not None:
            new = self.specs[parts[0]] = rows.decode_spec(value)
            if old is not None and old != new:
                self.steps.append(f"{parts[0].hex()}: its spec was changed (FUT-14)")
        return {parts[0]}

    def _ready(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.ready[parts[-1]], key, value)
        return {parts[-1]}

    def _assigned(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.assigned[parts[-1]], key, value)
        return {parts[-1]}

    def _own(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _keep(self.own[parts[1]], parts[0], value)
        return {parts[1]}

    def _dep(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        upstream, future_id = parts
        _put(self.inputs[future_id], upstream, value)
        _keep(self.dependents[upstream], future_id, value)
        return {upstream, future_id}

    def _cursor(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.cursors, parts[0], value)
        return {parts[0]}

    def _error(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.errors, parts[0], None if value is None else rows.decode_failure(value).kind)
        return {parts[0]}

    def _copy(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.copies[parts[0]], parts[1], None if value is None else rows.decode_result(value))
        return {parts[0]}

    def _stranded(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _keep(self.stranded, parts[0], value)
        return {parts[0]}

    def _loose(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _keep(self.loose, parts[0], value)
        return {parts[0]}

    def _deadline(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _keep(self.deadlines, parts[1], value)
        return {parts[1]}

    def _lane(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _keep(self.lanes, key, value)
        return set()

    def _running(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        self.running[parts[0]] = read_counter(value)
        return set()

    def _key(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.names, parts[0], value)
        return set() if value is None else {value}

    def _actor(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _put(self.actors, parts[0], None if value is None else actors.decode(value))
        return {parts[0]}

    def _hosted(self, key: bytes, parts: Parts, value: Value) -> set[bytes]:
        _keep(self.hosted, parts, value)
        return {parts[1]}

    def _judge_step(self, name: str, old: AnyRow | None, new: AnyRow) -> None:
        if old is None:
            return  # either a new one, or the beginning of what we follow
        before, after = old.tally.epoch, new.tally.epoch
        if after < before:
            self.steps.append(f"{name}: its epoch fell from {before} to {after} (FUT-13)")
        if isinstance(old, Claimed) and isinstance(new, Claimed):
            if (old.holder, before) != (new.holder, after):
                self.steps.append(f"{name}: it went from one claim to another (FUT-13)")
            return
        if new.state is old.state:
            return
        if not _reaches(old.state, new.state):
            self.steps.append(f"{name}: {old.state.value} became {new.state.value}, which no edge does")
        again = isinstance(old, Claimed | Realized | Failed | Quarantined) and new.state not in ENDED
        if after == before and (isinstance(new, Claimed) or again):
            self.steps.append(f"{name}: {old.state.value} became {new.state.value} in one epoch (FUT-13)")


def _put(into: dict[Any, Any], key: object, value: object) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _keep(into: set[Any], item: object, value: Value) -> None:
    if value is None:
        into.discard(item)
    else:
        into.add(item)


def _reaches(old: FutureState, new: FutureState) -> bool:
    """Is there an edge, or one with the block or the failure that may follow it in the same transaction?"""
    after = set(FUTURE[old].values())
    then = {
        FUTURE[middle][edge]
        for middle in after
        for edge in (FutureEdge.BLOCK, FutureEdge.FAIL)
        if edge in FUTURE[middle]
    }
    return new in after | then
