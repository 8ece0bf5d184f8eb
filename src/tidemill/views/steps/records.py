"""Step records: which input belongs to which step, written before anything is computed (DBSP-26, DBSP-34).

A pipeline has one step log. Record n lists the range of positions (after, to] of every base dataset with new
positions. The ranges of one dataset have no gaps or overlaps, so later input belongs to a later step, and all
groups that read the dataset divide it at the same positions.

A record is written under the coordinator's epoch. A process that needs only one record becomes the
coordinator in the same transaction (`write_record_now`). A process that holds the lease for longer uses
`write_record`.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster import leases
from tidemill.cluster.leases import Busy, Lease
from tidemill.lots import events, wall_clock
from tidemill.lots.keys import DatasetId
from tidemill.publish import transaction
from tidemill.store import Tx
from tidemill.views.steps import step_limit
from tidemill.views.steps.keys import StepKeys, step_log
from tidemill.views.steps.step_limit import InputBudget

MOST_RANGES = 300
"""The maximum number of ranges in a record: each adds two rows to the transaction that writes it."""

RECORD_BYTES = 48 * 1024
"""The maximum bytes of a record's ranges: they fit one value of the store, with room for other fields."""


class PositionRange(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The positions of one dataset that belong to a step: after `after`, up to and including `to`."""

    dataset: DatasetId
    after: int
    to: int


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one step.

    - now: the value of `now()` in this step (wall time, µs); it never decreases from record to record.
    - circuit: the circuit's declared version when the record was written.
    - epoch: the epoch of the coordinator that wrote the record.
    """

    number: int
    ranges: tuple[PositionRange, ...] = ()
    now: int
    circuit: str
    epoch: int

    @property
    def moved(self) -> frozenset[DatasetId]:
        """The datasets that have input in this step."""
        return frozenset(each.dataset for each in self.ranges)


class LastRecord(msgspec.Struct, frozen=True, array_like=True):
    """The newest record, and the last dataset in it: the next record starts after that dataset."""

    number: int = 0
    now: int = 0
    cursor: DatasetId | None = None


_record = msgspec.msgpack.Decoder(StepRecord)
_last = msgspec.msgpack.Decoder(LastRecord)
_position = msgspec.msgpack.Decoder(int)


def last(tx: Tx, keys: StepKeys, pipeline: str) -> LastRecord:
    """Return the number and the cursor of the newest record; number 0 before the first one."""
    raw = tx.get(keys.last[pipeline])
    return LastRecord() if raw is None else _last.decode(raw)


def read(tx: Tx, keys: StepKeys, pipeline: str, after: int, limit: int) -> list[StepRecord]:
    """Return the records after a step, in order."""
    lo, (_, hi) = keys.record[pipeline, after + 1], keys.record.under(pipeline)
    return [_record.decode(row.value) for row in tx.range(lo, hi, limit=limit)]


def add_base(tx: Tx, keys: StepKeys, pipeline: str, dataset: DatasetId) -> None:
    """Add a dataset to the inputs of the pipeline's steps, from its first position."""
    key = keys.base[(pipeline, *dataset.parts)]
    if tx.get(key) is None:
        tx.set(key, msgspec.msgpack.encode(0), quiet=True)


def assigned(tx: Tx, keys: StepKeys, pipeline: str, datasets: Sequence[DatasetId]) -> dict[DatasetId, int]:
    """Return for each dataset the last position that is assigned to a step."""
    values = tx.get_many([keys.base[(pipeline, *dataset.parts)] for dataset in datasets])
    return {
        dataset: 0 if raw is None else _position.decode(raw)
        for dataset, raw in zip(datasets, values, strict=True)
    }


def positions_at(
    tx: Tx, keys: StepKeys, pipeline: str, datasets: Sequence[DatasetId], step: int
) -> dict[DatasetId, int]:
    """Return for each dataset the last position that is assigned to one of the steps 1 to `step`."""
    positions = {}
    for dataset in datasets:
        space = (pipeline, *dataset.parts)
        lo, _ = keys.range.under(*space)
        rows = tx.range(lo, keys.range[(*space, step + 1)], limit=1, reverse=True)
        positions[dataset] = _position.decode(rows[0].value) if rows else 0
    return positions


def write_record(
    tx: Tx, keys: StepKeys, pipeline: str, lease: Lease, *, declared: bool = False
) -> StepRecord | None:
    """Write the next record, with everything published since the last one; None if there is nothing to write.

    Raises `LeaseLost` if the coordinator's lease has ended (DBSP-35).

    - declared: whether the circuit has a new version. Then a record is written even if nothing was published,
      and its step rebuilds the views that changed.
    """
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    before = last(tx, keys, pipeline)
    ranges = _next_ranges(tx, keys, pipeline, before.cursor)
    return _write(tx, keys, pipeline, lease, before, ranges) if ranges or declared else None


def write_record_now(tx: Tx, keys: StepKeys, pipeline: str, holder: str) -> StepRecord | Busy | None:
    """Become the coordinator, write the next record, and release the lease, in one transaction.

    Returns `Busy` while another process holds the lease: that process writes the records.
    """
    before = last(tx, keys, pipeline)
    ranges = _next_ranges(tx, keys, pipeline, before.cursor)
    if not ranges:
        return None
    lease = become_coordinator(tx, keys, pipeline, holder)
    if isinstance(lease, Busy):
        return lease
    record = _write(tx, keys, pipeline, lease, before, ranges)
    resign_coordinator(tx, keys, pipeline, lease)
    return record


def _write(
    tx: Tx, keys: StepKeys, pipeline: str, lease: Lease, before: LastRecord, ranges: Sequence[PositionRange]
) -> StepRecord:
    record = StepRecord(
        number=before.number + 1,
        ranges=tuple(sorted(ranges)),
        now=max(before.now, wall_clock.believed(tx, keys.lots)),
        circuit=(tx.get(keys.circuit[pipeline]) or b"").decode(),
        epoch=lease.epoch,
    )
    tx.set(keys.record[pipeline, record.number], msgspec.msgpack.encode(record), quiet=True)
    for each in ranges:
        to = msgspec.msgpack.encode(each.to)
        tx.set(keys.base[(pipeline, *each.dataset.parts)], to, quiet=True)
        tx.set(keys.range[(pipeline, *each.dataset.parts, record.number)], to, quiet=True)
    cursor = ranges[-1].dataset if ranges else before.cursor
    after = LastRecord(record.number, record.now, cursor)
    tx.set(keys.last[pipeline], msgspec.msgpack.encode(after), quiet=True)
    transaction.advance(tx, keys, step_log(pipeline), record.number)
    return record


def become_coordinator(
    tx: Tx, keys: StepKeys, pipeline: str, holder: str, ttl_us: int = leases.SECOND_US
) -> Lease | Busy:
    """Acquire the coordinator's lease, under the next epoch."""
    return leases.acquire(tx, keys.coordinator_lease(pipeline), holder, ttl_us)


def resign_coordinator(tx: Tx, keys: StepKeys, pipeline: str, lease: Lease) -> bool:
    """Release the coordinator's lease."""
    return leases.release(tx, keys.coordinator_lease(pipeline), lease)


def _next_ranges(tx: Tx, keys: StepKeys, pipeline: str, cursor: DatasetId | None) -> list[PositionRange]:
    """Return the ranges of the next record, as many as fit, and within the limit of the pipeline's steps.

    Datasets after the cursor come first, so a dataset that gets new lots all the time does not delay the
    others.
    """
    rows = tx.range(*keys.base.under(pipeline))
    bases = {}
    for row in rows:
        _, name, version = keys.base.unpack(row.key)
        bases[DatasetId(str(name), str(version))] = _position.decode(row.value)
    limit = step_limit.read(tx, keys, pipeline)
    budget = None if limit is None else InputBudget(limit)
    order = sorted(bases, key=lambda dataset: (cursor is not None and dataset <= cursor, dataset))
    heads = events.heads(tx, keys.lots, order) if order else {}
    ranges: list[PositionRange] = []
    size = 0
    for dataset in order:
        if heads[dataset] <= bases[dataset]:
            continue
        after, to = bases[dataset], heads[dataset]
        if budget is not None:
            to = budget.cut(tx, keys, dataset, after, to)
            if to == after:
                break  # the dataset comes first in the next record
        positions = PositionRange(dataset, after, to)
        size += len(msgspec.msgpack.encode(positions))
        if len(ranges) == MOST_RANGES or size > RECORD_BYTES:
            break
        ranges.append(positions)
    return ranges
