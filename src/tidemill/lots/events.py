"""Lot events: record that lots are available. Each dataset numbers its events without gaps (LOT-5).

The newest position of a dataset is called its *head*. The transaction that writes an event locks the row of
the head and takes the next position. So positions follow the order of commits, and a reader that sees event n
sees all events before it. A consumer that reads by position therefore skips nothing. A database sequence
would not be enough, because transactions that take numbers from a sequence can commit in any order.

An event names a lot and a generation, but no manifest. Compaction may revise the layout of a generation
without an event (LOT-37); readers find the current layout in the lot's row.
"""

from collections.abc import Sequence

import msgspec

from tidemill.errors import UsageError
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.states import LotState
from tidemill.store import Tx


class LotEvent(msgspec.Struct, frozen=True, array_like=True):
    """A generation of a lot became available. Empty and removed lots have events too (LOT-6)."""

    position: int
    lot: str
    generation: int
    state: LotState
    attempt: str
    at: int  # store time, µs: to measure waiting times
    wall_at: int  # wall time, µs since 1970: to show to users


_decoder = msgspec.msgpack.Decoder(LotEvent)
_position = msgspec.msgpack.Decoder(int)


def head(tx: Tx, keys: LotKeys, dataset: DatasetId) -> int:
    """Return the position of the newest event; 0 before the first."""
    raw = tx.get(keys.head[dataset.parts])
    return 0 if raw is None else _position.decode(raw)


def heads(tx: Tx, keys: LotKeys, datasets: Sequence[DatasetId]) -> dict[DatasetId, int]:
    """Read the heads of several datasets at once."""
    values = tx.get_many([keys.head[dataset.parts] for dataset in datasets])
    return {
        dataset: 0 if raw is None else _position.decode(raw)
        for dataset, raw in zip(datasets, values, strict=True)
    }


def write(
    tx: Tx, keys: LotKeys, dataset: DatasetId, *, lot: str, generation: int, state: LotState, attempt: str
) -> LotEvent:
    """Write the next event. Only `lots.add` calls this; it writes the lot's row in the same transaction."""
    raw = tx.get(keys.head[dataset.parts], lock=True)
    position = (0 if raw is None else _position.decode(raw)) + 1
    event = LotEvent(position, lot, generation, state, attempt, tx.now(), tx.wall())
    tx.set(keys.head[dataset.parts], msgspec.msgpack.encode(position))
    tx.set(keys.event[(*dataset.parts, position)], msgspec.msgpack.encode(event), quiet=True)
    return event


def advance(tx: Tx, keys: LotKeys, source: DatasetId, position: int) -> None:
    """Move the head of an input that has steps instead of lots: a view group or a step log (DBSP-39).

    Subscribers treat it like any other input. Such an input has no events: the package that owns the input
    keeps a row for each position.
    """
    raw = tx.get(keys.head[source.parts], lock=True)
    before = 0 if raw is None else _position.decode(raw)
    if position < before:
        raise UsageError(
            f"the position of {source} cannot go back from {before} to {position}",
            hint=f"use a position of {before} or more",
        )
    tx.set(keys.head[source.parts], msgspec.msgpack.encode(position))


def read(tx: Tx, keys: LotKeys, dataset: DatasetId, after: int, limit: int) -> list[LotEvent]:
    """Return at most `limit` events after a position, in order."""
    lo = keys.event[(*dataset.parts, after)] + b"\x00"
    _, hi = keys.event.under(*dataset.parts)
    # A snapshot is safe: if it contains an event, it contains all events before it.
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def first_unseen(tx: Tx, keys: LotKeys, dataset: DatasetId, progress: int) -> LotEvent | None:
    """Return the first event after a position, or None."""
    raw = tx.get(keys.event[(*dataset.parts, progress + 1)])
    return None if raw is None else _decoder.decode(raw)
