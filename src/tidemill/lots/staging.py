"""Staging: appends into an interval that is still open (LOT-42).

An append is durable with its staging row, and becomes visible when its interval closes. Closing is three
steps of bounded size, whatever the interval holds:

1. `seal`: no append lands in the interval any more; `stage` reads the interval's row in its transaction, so
   an append either commits before the seal, or lands in the next interval.
2. `page`: what the sealed interval holds is read, and listed by a manifest.
3. `close`, in the transaction that publishes the lot: the next interval is in turn. The staging rows are
   removed later, page by page, by `sweep`.

Intervals close in order, one after the other, those without an append too: as empty lots. Each step may be
repeated and done by anybody; of two closers one publishes, because `close` is refused for an interval that is
not in turn.

The time is the store's wall time. When it is set back, appends join the interval in turn.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from tidemill.errors import BadDataset, IntervalConflict
from tidemill.lots import datasets, producers
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.producers import Identity, Receipt
from tidemill.lots.states import IntervalEdge, IntervalState, step
from tidemill.store import Tx

SWEEP_PAGE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """One append that waits: what the lot's manifest will list."""

    uri: str  # of its manifest, or of its only object
    digest: str
    rows: int = 0
    size: int = 0
    producer: str = ""
    seq: int | None = None


class StagedRow(msgspec.Struct, frozen=True):
    """A staged append and where the next page begins."""

    key: bytes
    append: Staged


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """The first interval that is not closed, and whether appends may still land in it."""

    lot: str
    state: IntervalState


_interval = msgspec.msgpack.Decoder(Interval)
_staged = msgspec.msgpack.Decoder(Staged)


def wall_us(moment: datetime) -> int:
    """A moment as the store's wall time."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def begin(tx: Tx, keys: LotKeys, dataset: DatasetId) -> Interval:
    """Intervals of this dataset are closed from the present one on; a no-op once they are."""
    known = read(tx, keys, dataset)
    if known is not None:
        return known
    unit = _unit(datasets.read(tx, keys, dataset))
    first = unit.at(_EPOCH + timedelta(microseconds=tx.wall()))
    interval = Interval(str(first), IntervalState.OPEN)
    _write(tx, keys, dataset, first, interval)
    return interval


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> Interval | None:
    """The interval in turn; None for a dataset whose intervals nobody closes."""
    raw = tx.get(keys.interval[dataset.parts])
    return None if raw is None else _interval.decode(raw)


def stage(tx: Tx, keys: LotKeys, dataset: DatasetId, append: Staged) -> Receipt:
    """Make an append durable: it lands in the interval of this moment, which must not be sealed.

    Its objects are there already. One with a producer and a number is answered as the first time (LOT-36).
    """
    identity = None
    if append.seq is not None:
        identity = Identity(append.producer, append.seq, append.digest)
        known = producers.find(tx, keys, dataset, identity)
        if known is not None:
            return known
    turn = begin(tx, keys, dataset)
    first = LotId.parse(turn.lot)
    if turn.state is not IntervalState.OPEN:
        first = first.next()
    lot = max(first, first.unit.at(_EPOCH + timedelta(microseconds=tx.wall())))
    # Keyed by the order of commits: appends of one interval do not wait for each other.
    tx.set_versioned(keys.staged[(*dataset.parts, str(lot))], msgspec.msgpack.encode(append))
    receipt = Receipt(dataset=dataset, lot=str(lot), position=None, visible_at=wall_us(lot.end))
    if identity is not None:
        producers.record(tx, keys, identity, receipt)
    return receipt


def due(tx: Tx, keys: LotKeys, limit: int = 100) -> list[tuple[DatasetId, LotId]]:
    """Intervals that are over and not closed, longest ago first; of each dataset the one in turn."""
    lo, _ = keys.closing.all()
    found = []
    for row in tx.range(lo, keys.closing[tx.wall() + 1], limit=limit, snapshot=True):
        _, name, version = keys.closing.unpack(row.key)
        found.append((DatasetId(str(name), str(version)), LotId.parse(row.value.decode())))
    return found


def seal(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId) -> None:
    """No append lands in this interval any more; a no-op when it is sealed.

    `IntervalConflict` when it is not over yet, or not in turn.
    """
    turn = _in_turn(tx, keys, dataset, lot)
    if turn.state is IntervalState.SEALED:
        return
    if wall_us(lot.end) > tx.wall():
        raise IntervalConflict(f"{lot} of {dataset} is not over")
    sealed = Interval(turn.lot, step(turn.state, IntervalEdge.SEAL))
    tx.set(keys.interval[dataset.parts], msgspec.msgpack.encode(sealed))


def page(
    tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId, after: bytes | None = None, limit: int = 500
) -> Sequence[StagedRow]:
    """What a sealed interval holds, in the order of the commits; the last page is shorter than the limit."""
    turn = _in_turn(tx, keys, dataset, lot)
    if turn.state is not IntervalState.SEALED:
        raise IntervalConflict(f"{lot} of {dataset} still takes appends")
    lo, hi = keys.staged.under(*dataset.parts, str(lot))
    rows = tx.range(lo if after is None else after + b"\x00", hi, limit=limit)
    return [StagedRow(row.key, _staged.decode(row.value)) for row in rows]


def close(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId) -> None:
    """The lot of this sealed interval is published, in this transaction: the next one is in turn."""
    turn = _in_turn(tx, keys, dataset, lot)
    step(turn.state, IntervalEdge.CLOSE)
    tx.clear(keys.closing[(wall_us(lot.end), *dataset.parts)])
    _write(tx, keys, dataset, lot.next(), Interval(str(lot.next()), IntervalState.OPEN))
    tx.set(keys.spent[(*dataset.parts, str(lot))], b"", quiet=True)


def sweep(tx: Tx, keys: LotKeys, limit: int = SWEEP_PAGE) -> bool:
    """Remove a page of the staging rows of a closed interval; True when there may be more."""
    found = tx.range(*keys.spent.all(), limit=1)
    if not found:
        return False
    lo, hi = keys.staged.under(*keys.spent.unpack(found[0].key))
    rows = tx.range(lo, hi, limit=limit)
    if rows:
        tx.clear_range(lo, rows[-1].key + b"\x00")
    if len(rows) < limit:
        tx.clear(found[0].key, quiet=True)
    return True


def _in_turn(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId) -> Interval:
    turn = read(tx, keys, dataset)
    if turn is None or turn.lot != str(lot):
        raise IntervalConflict(f"{lot} of {dataset} is not in turn" + (f": {turn.lot} is" if turn else ""))
    return turn


def _write(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId, interval: Interval) -> None:
    tx.set(keys.interval[dataset.parts], msgspec.msgpack.encode(interval))
    tx.set(keys.closing[(wall_us(lot.end), *dataset.parts)], interval.lot.encode())


def _unit(dataset: DatasetRow) -> Unit:
    if dataset.unit is None:
        raise BadDataset(f"{dataset.id} has no intervals", hint="its appends are published one by one")
    return dataset.unit
