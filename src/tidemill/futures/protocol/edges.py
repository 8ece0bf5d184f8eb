"""Moving a future from one state to the next: the one place that writes state rows and their indices.

`move` checks the edge against the table, takes the row out of the indices of its old state and puts it
into those of its new one, in one transaction; so that no protocol step can forget an index (FUT-15,
FUT-16):

- unclaimed: in its lane's `ready` index, or in its node's `assigned` index, never in both;
- claimed: in neither, and in its holder's `own`;
- blocked and ended ones: in none of them.

Every read of a state row that decides something is a locked one, because claims and completions run in
`take` transactions (STO-3).
"""

from typing import TypeAlias

import msgspec

from tidemill.errors import FutureUnknown, IllegalTransition
from tidemill.futures.protocol import lanes, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import (
    AnyRow,
    AttemptCounts,
    Claimed,
    Failure,
    LaneEntry,
    Needs,
    Spec,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.futures.protocol.states import ENDED, FutureEdge, step
from tidemill.store import Tx

Path: TypeAlias = FutureEdge | tuple[FutureEdge, ...]
"""One edge, or several followed in one transaction (`lose`, then `block`)."""


HARD, SOFT = 0, 1
"""Where a node's assignments lie: what can run nowhere else comes first."""


def read(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow | None:
    """A future's state row, protected until the commit."""
    raw = tx.get(keys.future[future_id], lock=True)
    return None if raw is None else rows.decode_row(raw)


def read_many(tx: Tx, keys: FutureKeys, ids: list[bytes]) -> list[AnyRow | None]:
    """Several state rows, protected until the commit."""
    found = tx.get_many([keys.future[one] for one in ids], lock=True)
    return [None if raw is None else rows.decode_row(raw) for raw in found]


def read_spec(tx: Tx, keys: FutureKeys, future_id: bytes) -> Spec | None:
    """What was submitted; never changes, so that reading it needs no protection."""
    raw = tx.get(keys.spec[future_id], lock=tx.mode == "take")
    return None if raw is None else rows.decode_spec(raw)


def read_specs(tx: Tx, keys: FutureKeys, ids: list[bytes]) -> dict[bytes, Spec]:
    """The specs of several futures, by id."""
    found = tx.get_many([keys.spec[one] for one in ids], lock=tx.mode == "take") if ids else []
    return {one: rows.decode_spec(raw) for one, raw in zip(ids, found, strict=True) if raw is not None}


def must_read_spec(tx: Tx, keys: FutureKeys, future_id: bytes) -> Spec:
    """The spec of a future whose state row is there: both are written and deleted together."""
    spec = read_spec(tx, keys, future_id)
    if spec is None:
        raise FutureUnknown(f"future {future_id.hex()} has no spec")
    return spec


def needs_of(spec: Spec, tally: AttemptCounts) -> Needs:
    """What the future asks for now."""
    return lanes.with_ram(spec.needs, tally.ram)


def ready_key(keys: FutureKeys, spec: Spec, row: Unclaimed) -> bytes:
    """Where an unclaimed future stands: in its lane, or in its node's assignments."""
    if row.assigned:
        return keys.assigned[row.assigned, SOFT - row.hard, -spec.priority, row.ready_at, spec.id]
    lane = lanes.lane_of(spec.queue, spec.priority, needs_of(spec, row.tally))
    return keys.ready[(*lane.key, row.ready_at, spec.id)]


def ready_value(spec: Spec, tally: AttemptCounts) -> bytes:
    """What a worker must know to choose without reading more: the exact needs, and the queue."""
    return rows.encode(LaneEntry(needs_of(spec, tally), spec.queue))


def enter(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Write a row and put it into the indices of its state. Whoever watches a future is told of its end."""
    tx.set(keys.future[spec.id], rows.encode(row), quiet=row.state not in ENDED)
    match row:
        case Unclaimed():
            tx.set(ready_key(keys, spec, row), ready_value(spec, row.tally), quiet=True)
            if row.assigned:
                tx.hint(keys.assigned[row.assigned])
            else:
                _open_lane(tx, keys, lanes.lane_of(spec.queue, spec.priority, needs_of(spec, row.tally)))
            tx.hint(keys.bell)
        case Claimed():
            tx.set(keys.own[row.holder, spec.id], b"", quiet=True)
        case Unsatisfiable():
            tx.set(keys.stranded[spec.id], b"", quiet=True)


def _open_lane(tx: Tx, keys: FutureKeys, lane: lanes.Lane) -> None:
    """List a lane. It is read first: blind writes of one row by every submit would queue up behind it."""
    key = keys.lane[lane.key]
    if key not in tx.touched and tx.get(key) is None:
        tx.set(key, b"")
    tx.hint(key)  # a batch looks once


def withdraw(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Take a row out of the indices of its state."""
    match row:
        case Unclaimed():
            tx.clear(ready_key(keys, spec, row), quiet=True)
        case Claimed():
            tx.clear(keys.own[row.holder, spec.id], quiet=True)
            if row.limited:
                tx.add(keys.running[spec.queue], -1)
        case Unsatisfiable():
            tx.clear(keys.stranded[spec.id], quiet=True)


def move(tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: Path, new: AnyRow) -> None:
    """Follow an edge, or several at once: out of the old indices, into the new ones."""
    expected = old.state
    for one in (edge,) if isinstance(edge, FutureEdge) else edge:
        expected = step(expected, one)
    if new.state is not expected:
        raise IllegalTransition(f"{edge} leads to {expected.value}, not to {new.state.value}")
    withdraw(tx, keys, spec, old)
    enter(tx, keys, spec, new)


def rewrite(tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, new: AnyRow) -> None:
    """Change a row without leaving its state; an unclaimed one may change its place in the indices."""
    if new.state is not old.state:
        raise IllegalTransition(f"{old.state.value} cannot be rewritten as {new.state.value}")
    if isinstance(old, Unclaimed):
        withdraw(tx, keys, spec, old)
        enter(tx, keys, spec, new)
    else:
        tx.set(keys.future[spec.id], rows.encode(new))


def bump(tally: AttemptCounts, **changes: object) -> AttemptCounts:
    """The tally with the next epoch: whoever acted under the old one is refused from now on (FUT-13)."""
    return msgspec.structs.replace(tally, epoch=tally.epoch + 1, **changes)


def set_failure(tx: Tx, keys: FutureKeys, future_id: bytes, failure: Failure) -> None:
    """Keep the latest failure beside the future; it stays after a later success (FUT-19)."""
    tx.set(keys.error[future_id], rows.encode(clipped(failure)))


def clipped(failure: Failure, most: int = 40_000) -> Failure:
    """A failure that fits a value: the pickled exception goes first, then the middle of the texts."""
    room = most - len(failure.pickled)
    if room < most // 2:
        failure = msgspec.structs.replace(failure, pickled=b"", signature=b"")
        room = most
    chain: list[str] = []
    for name in failure.upstream:
        chain.append(shortened(name, 500))
        room -= 512
        if room < most // 4:
            break
    message = shortened(failure.message, min(4_000, room // 3))
    traceback = shortened(failure.traceback, room - len(message.encode()) - 1_000)
    return msgspec.structs.replace(
        failure,
        type=shortened(failure.type, 500),
        message=message,
        traceback=traceback,
        upstream=tuple(chain),
    )


def shortened(text: str, most: int) -> str:
    """A text of at most so many bytes, with its middle left out."""
    raw = text.encode(errors="replace")
    if len(raw) <= most:
        return raw.decode()
    half = max(0, most - 60) // 2
    head, tail = raw[:half].decode(errors="ignore"), raw[len(raw) - half :].decode(errors="ignore")
    return f"{head}\n… {len(raw) - 2 * half} bytes left out …\n{tail}"
