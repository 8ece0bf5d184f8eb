"""Records: which input belongs to which step, durably, before anything is computed (DBSP-26, DBSP-34).

A pipeline has one step log. Record n says, for every base dataset whose head had moved, which positions are
the step's: (after, to]. The ranges of one dataset follow each other without gap and overlap, so whatever
arrives later joins a later step, and every group that reads the dataset cuts it at the same places.

A record is written under the coordinator's epoch. Whoever needs one takes that office in the transaction that
writes it (`write_record_now`), unless somebody holds it for longer (`write_record`).
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import leases
from tidemill.cluster.leases import Busy, Lease
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.publish import transaction
from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys, step_log

MOST_RANGES = 300
"""Each range is two rows of the transaction that writes the record."""

RECORD_BYTES = 48 * 1024
"""What fits one value of the store, with room for the rest of the record."""


class PositionRange(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The positions of one dataset that belong to a step: behind `after`, up to `to`."""

    dataset: DatasetId
    after: int
    to: int


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one step.

    - now: what `now()` means in this step; wall time, µs. It never falls from record to record.
    - circuit: the version of the circuit that was declared when it was written.
    - epoch: the coordinator's.
    """

    number: int
    ranges: tuple[PositionRange, ...] = ()
    now: int
    circuit: str
    epoch: int

    @property
    def moved(self) -> frozenset[DatasetId]:
        """The datasets that have input in this step."""
        return frozenset(one.dataset for one in self.ranges)


class LastRecord(msgspec.Struct, frozen=True, array_like=True):
    """The newest record, and the last dataset it holds: the next record begins to look behind it."""

    number: int = 0
    now: int = 0
    cursor: DatasetId | None = None


_record = msgspec.msgpack.Decoder(StepRecord)
_last = msgspec.msgpack.Decoder(LastRecord)
_position = msgspec.msgpack.Decoder(int)


def last(tx: Tx, keys: StepKeys, pipeline: str) -> LastRecord:
    """What is known of the newest record; number 0 before the first."""
    raw = tx.get(keys.last[pipeline])
    return LastRecord() if raw is None else _last.decode(raw)


def read(tx: Tx, keys: StepKeys, pipeline: str, after: int, limit: int) -> list[StepRecord]:
    """The records behind a step, in order."""
    lo, (_, hi) = keys.record[pipeline, after + 1], keys.record.under(pipeline)
    return [_record.decode(row.value) for row in tx.range(lo, hi, limit=limit)]


def add_base(tx: Tx, keys: StepKeys, pipeline: str, dataset: DatasetId) -> None:
    """From the next record on this dataset is input of the pipeline's steps, from its beginning."""
    key = keys.base[(pipeline, *dataset.parts)]
    if tx.get(key) is None:
        tx.set(key, msgspec.msgpack.encode(0), quiet=True)


def assigned(tx: Tx, keys: StepKeys, pipeline: str, datasets: Sequence[DatasetId]) -> dict[DatasetId, int]:
    """Up to where these datasets belong to steps by now."""
    found = tx.get_many([keys.base[(pipeline, *one.parts)] for one in datasets])
    return {
        one: 0 if raw is None else _position.decode(raw) for one, raw in zip(datasets, found, strict=True)
    }


def positions_at(
    tx: Tx, keys: StepKeys, pipeline: str, datasets: Sequence[DatasetId], step: int
) -> dict[DatasetId, int]:
    """Up to where these datasets belong to the steps 1 to `step`."""
    found = {}
    for dataset in datasets:
        space = (pipeline, *dataset.parts)
        lo, _ = keys.range.under(*space)
        rows = tx.range(lo, keys.range[(*space, step + 1)], limit=1, reverse=True)
        found[dataset] = _position.decode(rows[0].value) if rows else 0
    return found


def write_record(
    tx: Tx, keys: StepKeys, pipeline: str, office: Lease, *, declared: bool = False
) -> StepRecord | None:
    """Write the next record: what was published since the last one; None when there is nothing to write.

    `LeaseLost` for an office that is over (DBSP-35).

    - declared: the circuit was declared anew, which is a record also when nothing was published: its step
      brings the views that changed up to date.
    """
    leases.check(tx, keys.office(pipeline), office)
    before = last(tx, keys, pipeline)
    ranges = _moved(tx, keys, pipeline, before.cursor)
    return _write(tx, keys, pipeline, office, before, ranges) if ranges or declared else None


def write_record_now(tx: Tx, keys: StepKeys, pipeline: str, holder: str) -> StepRecord | Busy | None:
    """Take the coordinator's office, write the next record, and give the office back; all or nothing.

    `Busy` while somebody holds the office for longer: that one decides about records.
    """
    before = last(tx, keys, pipeline)
    ranges = _moved(tx, keys, pipeline, before.cursor)
    if not ranges:
        return None
    office = become_coordinator(tx, keys, pipeline, holder)
    if isinstance(office, Busy):
        return office
    record = _write(tx, keys, pipeline, office, before, ranges)
    resign_coordinator(tx, keys, pipeline, office)
    return record


def _write(
    tx: Tx, keys: StepKeys, pipeline: str, office: Lease, before: LastRecord, ranges: Sequence[PositionRange]
) -> StepRecord:
    record = StepRecord(
        number=before.number + 1,
        ranges=tuple(sorted(ranges)),
        now=max(before.now, tx.wall()),
        circuit=(tx.get(keys.circuit[pipeline]) or b"").decode(),
        epoch=office.epoch,
    )
    tx.set(keys.record[pipeline, record.number], msgspec.msgpack.encode(record), quiet=True)
    for one in ranges:
        to = msgspec.msgpack.encode(one.to)
        tx.set(keys.base[(pipeline, *one.dataset.parts)], to, quiet=True)
        tx.set(keys.range[(pipeline, *one.dataset.parts, record.number)], to, quiet=True)
    cursor = ranges[-1].dataset if ranges else before.cursor
    after = LastRecord(record.number, record.now, cursor)
    tx.set(keys.last[pipeline], msgspec.msgpack.encode(after), quiet=True)
    transaction.advance(tx, keys, step_log(pipeline), record.number)
    return record


def become_coordinator(
    tx: Tx, keys: StepKeys, pipeline: str, holder: str, ttl_us: int = leases.SECOND_US
) -> Lease | Busy:
    """Be the coordinator, under the next epoch."""
    return leases.acquire(tx, keys.office(pipeline), holder, ttl_us)


def resign_coordinator(tx: Tx, keys: StepKeys, pipeline: str, office: Lease) -> bool:
    """Be it no more."""
    return leases.release(tx, keys.office(pipeline), office)


def _moved(tx: Tx, keys: StepKeys, pipeline: str, cursor: DatasetId | None) -> list[PositionRange]:
    """The ranges of a record. It holds as many as fit; those behind the last record's end come first, so that
    a dataset that moves all the time keeps none of the others waiting.
    """
    rows = tx.range(*keys.base.under(pipeline))
    bases = {}
    for row in rows:
        _, name, version = keys.base.unpack(row.key)
        bases[DatasetId(str(name), str(version))] = _position.decode(row.value)
    order = sorted(bases, key=lambda one: (cursor is not None and one <= cursor, one))
    heads = events.heads(tx, keys.lots, order) if order else {}
    ranges: list[PositionRange] = []
    size = 0
    for dataset in order:
        if heads[dataset] <= bases[dataset]:
            continue
        one = PositionRange(dataset, bases[dataset], heads[dataset])
        size += len(msgspec.msgpack.encode(one))
        if len(ranges) == MOST_RANGES or size > RECORD_BYTES:
            break
        ranges.append(one)
    return ranges
