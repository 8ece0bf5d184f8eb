"""Events: that a lot became available, in one gap-free sequence per dataset (LOT-5).

The next position is taken under the lock of the head's row, in the transaction that writes the event. So
positions are in the order of the commits, and whoever sees event n sees all before it: a consumer that reads
by position skips nothing. A number drawn from a sequence would not do: its transactions commit in any order.

An event names (lot, generation) and no manifest: the layout of a generation may be revised without an event
(LOT-37), and readers find it by the lot's row.
"""

from collections.abc import Sequence

import msgspec

from tidemill.errors import UsageError
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.states import LotState
from tidemill.store import Tx


class LotEvent(msgspec.Struct, frozen=True, array_like=True):
    """A generation of a lot became available; empty and removed ones are events too (LOT-6)."""

    position: int
    lot: str
    generation: int
    state: LotState
    attempt: str
    at: int  # store time, µs: to measure how long it has waited
    wall_at: int  # wall time, µs since 1970: for people


_decoder = msgspec.msgpack.Decoder(LotEvent)
_position = msgspec.msgpack.Decoder(int)


def head(tx: Tx, keys: LotKeys, dataset: DatasetId) -> int:
    """The position of the newest event; 0 before the first."""
    raw = tx.get(keys.head[dataset.parts])
    return 0 if raw is None else _position.decode(raw)


def heads(tx: Tx, keys: LotKeys, datasets: Sequence[DatasetId]) -> dict[DatasetId, int]:
    """The heads of several datasets, read together."""
    found = tx.get_many([keys.head[one.parts] for one in datasets])
    return {
        one: 0 if raw is None else _position.decode(raw) for one, raw in zip(datasets, found, strict=True)
    }


def write(
    tx: Tx, keys: LotKeys, dataset: DatasetId, *, lot: str, generation: int, state: LotState, attempt: str
) -> LotEvent:
    """The dataset's next event; called by `lots.add` alone, with the lot's row in the same transaction."""
    raw = tx.get(keys.head[dataset.parts], lock=True)
    position = (0 if raw is None else _position.decode(raw)) + 1
    event = LotEvent(position, lot, generation, state, attempt, tx.now(), tx.wall())
    tx.set(keys.head[dataset.parts], msgspec.msgpack.encode(position))
    tx.set(keys.event[(*dataset.parts, position)], msgspec.msgpack.encode(event), quiet=True)
    return event


def advance(tx: Tx, keys: LotKeys, source: DatasetId, position: int) -> None:
    """Move the head of a source that has steps instead of lots: a group of views, a step log (DBSP-39).

    To subscribers it is a source like any other; it has no events, since each position is a row of its room.
    """
    raw = tx.get(keys.head[source.parts], lock=True)
    before = 0 if raw is None else _position.decode(raw)
    if position < before:
        raise UsageError(f"{source} cannot go from {before} back to {position}", hint="heads only grow")
    tx.set(keys.head[source.parts], msgspec.msgpack.encode(position))


def read(tx: Tx, keys: LotKeys, dataset: DatasetId, after: int, limit: int) -> list[LotEvent]:
    """The events behind a position, in order, `limit` at most."""
    lo = keys.event[(*dataset.parts, after)] + b"\x00"
    _, hi = keys.event.under(*dataset.parts)
    # A snapshot is enough: it holds every event before any that it holds.
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def first_unseen(tx: Tx, keys: LotKeys, dataset: DatasetId, progress: int) -> LotEvent | None:
    """The event right behind a position, if there is one."""
    raw = tx.get(keys.event[(*dataset.parts, progress + 1)])
    return None if raw is None else _decoder.decode(raw)
