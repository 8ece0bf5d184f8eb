"""Staging: appends to an interval that is still open (LOT-42).

An append is durable when its staging row is committed. It becomes visible when its interval closes. Closing
takes three steps of bounded size, however many appends the interval has:

1. `seal`: the interval accepts no more appends. `stage` reads the interval's row in its transaction, so an
   append either commits before the seal or goes to the next interval.
2. `page`: read the appends of the sealed interval, for the manifest.
3. `close`, in the transaction that publishes the lot: move on to the next interval. `sweep` removes the
   staging rows later, page by page.

Intervals close one by one and in order; those without appends become empty lots. Any process can perform or
repeat a step. If two processes close an interval, only one publishes: `close` accepts only the current
interval, which is the first one that is not closed.

Times are the store's wall time. If the clock is set back, appends go to the current interval. If the clock
jumps ahead, appends and closing ignore the new time until the jump is accepted (`wall_clock`). If a wrong
time was accepted, and intervals that lie in the future were closed, `rewind` moves the current interval back
to the present. When such an interval closes again, its lot already exists and is empty. If the interval now
has appends, they become the lot's next generation.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from tidemill.errors import BadDataset, IntervalConflict
from tidemill.lots import datasets, lots, producers, wall_clock
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.producers import Identity, Receipt
from tidemill.lots.states import IntervalEdge, IntervalState, LotState, step
from tidemill.store import Row, Tx

SWEEP_PAGE = 500
MOVE_PAGE = 300  # each moved append takes two writes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """An append that waits for its interval to close. The lot's manifest will list it."""

    uri: str  # of its manifest, or of its only object
    digest: str
    rows: int = 0
    size: int = 0
    producer: str = ""
    seq: int | None = None


class StagedRow(msgspec.Struct, frozen=True):
    """A staged append and its key. The next page begins after the key."""

    key: bytes
    append: Staged


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """The first interval that is not closed: open or sealed."""

    lot: str
    state: IntervalState


_interval = msgspec.msgpack.Decoder(Interval)
_staged = msgspec.msgpack.Decoder(Staged)


def wall_us(moment: datetime) -> int:
    """Convert a time to the store's wall time, in µs."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def begin(tx: Tx, keys: LotKeys, dataset: DatasetId) -> Interval:
    """Return the current interval. If the dataset has none yet, begin with the one at the current time."""
    interval = read(tx, keys, dataset)
    if interval is not None:
        return interval
    unit = _unit(datasets.read(tx, keys, dataset))
    first = _at(unit, wall_clock.believed(tx, keys))
    interval = Interval(str(first), IntervalState.OPEN)
    _write(tx, keys, dataset, first, interval)
    return interval


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> Interval | None:
    """Return the current interval; None if the dataset has no intervals, or none has begun yet."""
    raw = tx.get(keys.interval[dataset.parts])
    return None if raw is None else _interval.decode(raw)


def stage(tx: Tx, keys: LotKeys, dataset: DatasetId, append: Staged) -> Receipt:
    """Make an append durable in the interval at the current time or, if that is sealed, in the next one.

    The append's objects must be stored already. If a producer repeats an append, return the first receipt
    (LOT-36).
    """
    identity = None
    if append.seq is not None:
        identity = Identity(append.producer, append.seq, append.digest)
        earlier = producers.find(tx, keys, dataset, identity)
        if earlier is not None:
            return earlier
    current = begin(tx, keys, dataset)
    first = LotId.parse(current.lot)
    if current.state is not IntervalState.OPEN:
        first = first.next()
    lot = _at(first.unit, tx.wall())
    if lot > first:  # the current interval is over, or the clock has jumped
        lot = _at(first.unit, wall_clock.believed(tx, keys))
    lot = max(first, lot)
    # Keyed by commit order, so that appends to one interval do not wait for each other.
    tx.set_versioned(keys.staged[(*dataset.parts, str(lot))], msgspec.msgpack.encode(append))
    receipt = Receipt(dataset=dataset, lot=str(lot), position=None, visible_at=wall_us(lot.end))
    if identity is not None:
        producers.record(tx, keys, identity, receipt)
    return receipt


def due(tx: Tx, keys: LotKeys, limit: int = 100) -> list[tuple[DatasetId, LotId]]:
    """List the current intervals that have ended, oldest first."""
    lo, _ = keys.closing.all()
    intervals = []
    for row in tx.range(lo, keys.closing[wall_clock.believed(tx, keys) + 1], limit=limit, snapshot=True):
        _, name, version = keys.closing.unpack(row.key)
        intervals.append((DatasetId(str(name), str(version)), LotId.parse(row.value.decode())))
    return intervals


def seal(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId) -> None:
    """Stop appends to this interval; does nothing if it is sealed already.

    Raises `IntervalConflict` if it has not ended, or if it is not the current interval.
    """
    interval = _current(tx, keys, dataset, lot)
    if interval.state is IntervalState.SEALED:
        return
    if wall_us(lot.end) > wall_clock.believed(tx, keys):
        raise IntervalConflict(f"interval {lot} of {dataset} has not ended yet")
    sealed = Interval(interval.lot, step(interval.state, IntervalEdge.SEAL))
    tx.set(keys.interval[dataset.parts], msgspec.msgpack.encode(sealed))


def page(
    tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId, after: bytes | None = None, limit: int = 500
) -> Sequence[StagedRow]:
    """Return a page of a sealed interval's appends, in commit order.

    A page with fewer than `limit` appends is the last one.
    """
    interval = _current(tx, keys, dataset, lot)
    if interval.state is not IntervalState.SEALED:
        raise IntervalConflict(f"interval {lot} of {dataset} still accepts appends")
    lo, hi = keys.staged.under(*dataset.parts, str(lot))
    rows = tx.range(lo if after is None else after + b"\x00", hi, limit=limit)
    return [StagedRow(row.key, _staged.decode(row.value)) for row in rows]


def close(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId) -> None:
    """Close a sealed interval and open the next, in the transaction that publishes its lot."""
    interval = _current(tx, keys, dataset, lot)
    step(interval.state, IntervalEdge.CLOSE)
    tx.clear(keys.closing[(wall_us(lot.end), *dataset.parts)])
    _write(tx, keys, dataset, lot.next(), Interval(str(lot.next()), IntervalState.OPEN))
    tx.set(keys.spent[(*dataset.parts, str(lot))], b"", quiet=True)


def skip(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId, limit: int = MOVE_PAGE) -> bool:
    """Close a sealed interval without publishing a lot: move a page of its appends to the next interval.

    Returns True if there may be more; the interval closes with the last page.
    """
    interval = _current(tx, keys, dataset, lot)
    step(interval.state, IntervalEdge.CLOSE)
    rows = tx.range(*keys.staged.under(*dataset.parts, str(lot)), limit=limit)
    _restage(tx, keys, dataset, rows, lot.next())
    if len(rows) == limit:
        return True
    tx.clear(keys.closing[(wall_us(lot.end), *dataset.parts)])
    _write(tx, keys, dataset, lot.next(), Interval(str(lot.next()), IntervalState.OPEN))
    return False


def rewind(tx: Tx, keys: LotKeys, dataset: DatasetId, limit: int = MOVE_PAGE) -> bool:
    """Move the current interval back to the present, after a wrong clock closed intervals too early.

    The current interval stays after every lot that has rows. This function also moves a page of the appends
    that wait in later intervals to the current interval, and returns True if there may be more. It is safe to
    stop or repeat this: an append always waits in an interval that will close.
    """
    declared = datasets.read(tx, keys, dataset)
    if declared.kind is Kind.KEYED:
        raise IntervalConflict(
            f"the intervals of {dataset} cannot be rewound: it has a key, so each of its lots can have only"
            " one generation",
            hint=f"the current interval of {dataset} is in the future: wait until the clock reaches it, or"
            " declare a new version of the dataset",
        )
    interval = read(tx, keys, dataset)
    if interval is None:
        raise BadDataset(f"{dataset} has no intervals", hint="only datasets with lots= have intervals")
    if interval.state is not IntervalState.OPEN or tx.range(*keys.spent.under(*dataset.parts), limit=1):
        raise IntervalConflict(f"interval {interval.lot} of {dataset} is being closed", hint="try again")
    current = LotId.parse(interval.lot)
    present = _at(_unit(declared), wall_clock.believed(tx, keys))
    if current > present:
        filled = _last_filled(tx, keys, dataset, present)
        present = present if filled is None else max(present, filled.next())
    if current > present:
        tx.clear(keys.closing[(wall_us(current.end), *dataset.parts)])
        _write(tx, keys, dataset, present, Interval(str(present), IntervalState.OPEN))
        current = present
    lot = max(current, present)
    _, lo = keys.staged.under(*dataset.parts, str(lot))
    _, hi = keys.staged.under(*dataset.parts)
    rows = tx.range(lo, hi, limit=limit)
    _restage(tx, keys, dataset, rows, lot)
    return len(rows) == limit


def _last_filled(tx: Tx, keys: LotKeys, dataset: DatasetId, first: LotId) -> LotId | None:
    """Return the last lot from `first` on that is not empty."""
    filled, after = None, ""
    while page := lots.briefs(tx, keys, dataset, after, first=str(first)):
        filled = next((brief.lot for brief in reversed(page) if brief.state is not LotState.EMPTY), filled)
        after = page[-1].lot
    return None if filled is None else LotId.parse(filled)


def _restage(tx: Tx, keys: LotKeys, dataset: DatasetId, rows: Sequence[Row], lot: LotId) -> None:
    for row in rows:
        tx.clear(row.key)
        tx.set_versioned(keys.staged[(*dataset.parts, str(lot))], row.value)


def sweep(tx: Tx, keys: LotKeys, limit: int = SWEEP_PAGE) -> bool:
    """Remove a page of the staging rows of a closed interval; return True if there may be more."""
    spent = tx.range(*keys.spent.all(), limit=1)
    if not spent:
        return False
    lo, hi = keys.staged.under(*keys.spent.unpack(spent[0].key))
    rows = tx.range(lo, hi, limit=limit)
    if rows:
        tx.clear_range(lo, rows[-1].key + b"\x00")
    if len(rows) < limit:
        tx.clear(spent[0].key, quiet=True)
    return True


def _current(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId) -> Interval:
    interval = read(tx, keys, dataset)
    if interval is None or interval.lot != str(lot):
        current = "none" if interval is None else interval.lot
        raise IntervalConflict(f"the current interval of {dataset} is {current}, not {lot}")
    return interval


def forget(tx: Tx, keys: LotKeys, dataset: DatasetId) -> None:
    """Delete the current interval of a dataset that is dropped, so that it is never closed."""
    interval = read(tx, keys, dataset)
    if interval is not None:
        tx.clear(keys.interval[dataset.parts])
        tx.clear(keys.closing[(wall_us(LotId.parse(interval.lot).end), *dataset.parts)])


def _write(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: LotId, interval: Interval) -> None:
    tx.set(keys.interval[dataset.parts], msgspec.msgpack.encode(interval))
    tx.set(keys.closing[(wall_us(lot.end), *dataset.parts)], interval.lot.encode())


def _at(unit: Unit, wall_us: int) -> LotId:
    return unit.at(_EPOCH + timedelta(microseconds=wall_us))


def _unit(dataset: DatasetRow) -> Unit:
    if dataset.unit is None:
        raise BadDataset(
            f"{dataset.id} has no intervals", hint="declare it with lots=, for example lots='PT1H'"
        )
    return dataset.unit
