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

import msgspec

from tidemill.errors import IllegalTransition
from tidemill.futures import lanes, rows
from tidemill.futures.keys import FutureKeys
from tidemill.futures.rows import (
    AnyRow,
    Claimed,
    Failure,
    Needs,
    Spec,
    Tally,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.futures.states import FutureEdge, step
from tidemill.store import Tx


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


def needs_of(spec: Spec, tally: Tally) -> Needs:
    """What the future asks for now."""
    return lanes.scaled(spec.needs, tally.ram_factor)


def ready_key(keys: FutureKeys, spec: Spec, row: Unclaimed) -> bytes:
    """Where an unclaimed future stands: in its lane, or in its node's assignments."""
    if row.assigned:
        return keys.assigned[row.assigned, -spec.priority, row.ready_at, spec.id]
    lane = lanes.lane_of(spec.queue, spec.priority, spec.needs, row.tally.ram_factor)
    return keys.ready[(*lane.key, row.ready_at, spec.id)]


def ready_value(spec: Spec, tally: Tally) -> bytes:
    """What a worker must know to choose without reading more: the exact needs."""
    return rows.encode(needs_of(spec, tally))


def enter(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Write a row and put it into the indices of its state."""
    tx.set(keys.future[spec.id], rows.encode(row))
    match row:
        case Unclaimed():
            tx.set(ready_key(keys, spec, row), ready_value(spec, row.tally))
            tx.hint(keys.bell)
            if not row.assigned:
                lane = lanes.lane_of(spec.queue, spec.priority, spec.needs, row.tally.ram_factor)
                lane_key = keys.lane[lane.key]
                if lane_key not in tx.touched:  # a batch writes its lane once
                    tx.set(lane_key, b"")
        case Claimed():
            tx.set(keys.own[row.holder, spec.id], b"")
        case Unsatisfiable():
            tx.set(keys.stranded[spec.id], b"")


def withdraw(tx: Tx, keys: FutureKeys, spec: Spec, row: AnyRow) -> None:
    """Take a row out of the indices of its state."""
    match row:
        case Unclaimed():
            tx.clear(ready_key(keys, spec, row))
        case Claimed():
            tx.clear(keys.own[row.holder, spec.id])
            if row.limited:
                tx.add(keys.running[spec.queue], -1)
        case Unsatisfiable():
            tx.clear(keys.stranded[spec.id])


def move(tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: FutureEdge, new: AnyRow) -> None:
    """Follow one edge: out of the old indices, into the new ones."""
    expected = step(old.state, edge)
    if new.state is not expected:
        raise IllegalTransition(f"edge {edge.value!r} leads to {expected.value}, not to {new.state.value}")
    withdraw(tx, keys, spec, old)
    enter(tx, keys, spec, new)


def bump(tally: Tally, **changes: object) -> Tally:
    """The tally with the next epoch: whoever acted under the old one is refused from now on (FUT-13)."""
    return msgspec.structs.replace(tally, epoch=tally.epoch + 1, **changes)


def set_failure(tx: Tx, keys: FutureKeys, future_id: bytes, failure: Failure) -> None:
    """Keep the latest failure beside the future; it stays after a later success (FUT-19)."""
    tx.set(keys.error[future_id], rows.encode(clipped(failure)))


def clipped(failure: Failure, most: int = 48_000) -> Failure:
    """A failure that fits a value: the pickled exception goes first, then the middle of the traceback."""
    if len(failure.pickled) + len(failure.traceback) + len(failure.message) <= most:
        return failure
    if len(failure.pickled) > most // 2:
        failure = msgspec.structs.replace(failure, pickled=b"", signature=b"")
    return msgspec.structs.replace(
        failure, message=_shorten(failure.message, 4_000), traceback=_shorten(failure.traceback, 12_000)
    )


def _shorten(text: str, most: int) -> str:
    return (
        text
        if len(text) <= most
        else f"{text[: most // 2]}\n… {len(text) - most} characters left out …\n{text[-most // 2 :]}"
    )
