"""Move a future from one state to the next, and update the indices of its state row.

`move` checks that the table has the transition. In one transaction it removes the row from the indices of its
old state and adds it to those of its new state. So a step that calls `move` cannot forget an index. Three
batched paths write the rows themselves, because that is faster: `claim.claim`, `finish.realize_many` and
`bulk.submit_many`. After every transaction (FUT-15, FUT-16):

- an unclaimed future is in the `ready` index of its lane or in the `assigned` index of its node, not in both;
- a claimed future is in neither of these, but in the `own` index of its holder;
- a blocked or ended future is in none of these indices.

If a decision depends on a state row, the read of the row takes a lock, because claims and completions run in
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
"""The two parts of a node's assignments. Futures that can run on no other node come first."""


def read(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow | None:
    """Read a future's state row and lock it until the commit."""
    raw = tx.get(keys.future[future_id], lock=True)
    return None if raw is None else rows.decode_row(raw)


def read_many(tx: Tx, keys: FutureKeys, ids: list[bytes]) -> list[AnyRow | None]:
    """Read several state rows and lock them until the commit."""
    raws = tx.get_many([keys.future[future_id] for future_id in ids], lock=True)
    return [None if raw is None else rows.decode_row(raw) for raw in raws]


def read_spec(tx: Tx, keys: FutureKeys, future_id: bytes) -> Spec | None:
    """Read the spec of a future. It never changes, so it needs no lock."""
    raw = tx.get(keys.spec[future_id], lock=tx.mode == "take")
    return None if raw is None else rows.decode_spec(raw)


def read_specs(tx: Tx, keys: FutureKeys, ids: list[bytes]) -> dict[bytes, Spec]:
    """Read the specs of several futures. Return them by id."""
    raws = tx.get_many([keys.spec[future_id] for future_id in ids], lock=tx.mode == "take") if ids else []
    pairs = zip(ids, raws, strict=True)
    return {future_id: rows.decode_spec(raw) for future_id, raw in pairs if raw is not None}


def must_read_spec(tx: Tx, keys: FutureKeys, future_id: bytes) -> Spec:
    """Read the spec of a future that has a state row. Both rows are written and deleted together."""
    spec = read_spec(tx, keys, future_id)
    if spec is None:
        raise FutureUnknown(
            f"the stored description of future {future_id.hex()} is missing",
            hint="submit the call again, and report this error",
        )
    return spec


def needs_of(spec: Spec, tally: AttemptCounts) -> Needs:
    """Return the current needs of a future."""
    return lanes.with_ram(spec.needs, tally.ram)


def ready_key(keys: FutureKeys, spec: Spec, row: Unclaimed) -> bytes:
    """Return the index key of an unclaimed future, in its lane or in its node's assignments."""
    if row.assigned:
        return keys.assigned[row.assigned, SOFT - row.hard, -spec.priority, row.ready_at, spec.id]
    lane = lanes.lane_of(spec.queue, spec.priority, needs_of(spec, row.tally))
    return keys.ready[(*lane.key, row.ready_at, spec.id)]


def ready_value(spec: Spec, tally: AttemptCounts) -> bytes:
    """Return the value of an index row: the exact needs and the queue."""
    return rows.encode(LaneEntry(needs_of(spec, tally), spec.queue))


def enter(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Write a row and add it to the indices of its state. If the future has ended, notify its watchers."""
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
    """Add a lane to the list, if it is not listed.

    A listed lane is not written again: submissions that all write the same row would block each other.
    """
    key = keys.lane[lane.key]
    if key not in tx.touched and tx.get(key) is None:
        tx.set(key, b"")
    tx.hint(key)  # adds the key to tx.touched, so that a batch reads the row only once


def withdraw(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Remove a row from the indices of its state."""
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
    """Follow a transition, or several in one transaction: write the row, and update the indices."""
    expected = old.state
    for single in (edge,) if isinstance(edge, FutureEdge) else edge:
        expected = step(expected, single)
    if new.state is not expected:
        raise IllegalTransition(
            f"the transition {edge} ends in state {expected.value}, but the new row is in state"
            f" {new.state.value}"
        )
    withdraw(tx, keys, spec, old)
    enter(tx, keys, spec, new)


def rewrite(tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, new: AnyRow) -> None:
    """Change a row but not its state. The index key of an unclaimed future may change."""
    if new.state is not old.state:
        raise IllegalTransition(
            f"a row in state {old.state.value} cannot be overwritten by a row in state {new.state.value}"
        )
    if isinstance(old, Unclaimed):
        withdraw(tx, keys, spec, old)
        enter(tx, keys, spec, new)
    else:
        tx.set(keys.future[spec.id], rows.encode(new))


def bump(tally: AttemptCounts, **changes: object) -> AttemptCounts:
    """Return the counts with the next epoch. Writes under the old epoch are refused from now on (FUT-13)."""
    return msgspec.structs.replace(tally, epoch=tally.epoch + 1, **changes)


def set_failure(tx: Tx, keys: FutureKeys, future_id: bytes, failure: Failure) -> None:
    """Store the latest failure of a future. It is kept after a later success (FUT-19)."""
    tx.set(keys.error[future_id], rows.encode(clipped(failure)))


def clipped(failure: Failure, most: int = 40_000) -> Failure:
    """Shorten a failure to fit a store value: drop the pickled exception first, then the middle of texts."""
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
    """Shorten text to at most this many bytes by omitting its middle."""
    raw = text.encode(errors="replace")
    if len(raw) <= most:
        return raw.decode()
    half = max(0, most - 60) // 2
    head, tail = raw[:half].decode(errors="ignore"), raw[len(raw) - half :].decode(errors="ignore")
    return f"{head}\n… {len(raw) - 2 * half} bytes omitted …\n{tail}"
