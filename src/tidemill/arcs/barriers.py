"""Barriers: a lot of an arc with several inputs waits until every input has closed that lot.

A run of an arc skips a lot that an input has not closed yet, and writes a row with the start of the wait. The
wait starts when the first input closes the lot, even if the arc notices later. When the last input closes the
lot, its event starts the arc again. The end of the grace period (LOT-28) has no event, so runners use the row
to find it. Reports on waiting lots use the row too. After the grace period the arc's policy applies:

    wait     keep waiting
    partial  make the lot from the inputs that have it; data that arrives later becomes the next generation
    skip     give up the lot: it is marked as missing, and made only on request

The row stores the start of the wait and not its end, so a changed grace period also applies to lots that are
already waiting. The row stays until the lot is published or given up. So if a lot began after its grace
period, and another node takes the lot over, that node knows that the period was over.
"""

from collections.abc import Iterable

import msgspec

from tidemill.arcs import lot_requests, lots, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import AnyLot, MissingLot
from tidemill.lots import events
from tidemill.lots import lots as published
from tidemill.lots.keys import DatasetId
from tidemill.store import Tx
from tidemill.triggers.terms import AfterGrace

PAGE = 100

_since = msgspec.msgpack.Decoder(int)


class AwaitedLot(msgspec.Struct, frozen=True, kw_only=True):
    """A lot that waits for its inputs. Times are store times, in µs.

    - until: the end of the grace period; None if the lot waits without limit.
    - missing: the inputs that do not have the lot.
    """

    arc: str
    lot: str
    since: int
    until: int | None
    missing: tuple[DatasetId, ...]


def missing_inputs(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> tuple[DatasetId, ...]:
    """Return the inputs that do not have this lot."""
    current = [published.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads]
    return tuple(dataset for dataset, row in zip(spec.reads, current, strict=True) if row is None)


def is_over(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, row: AnyLot | None) -> bool:
    """Return whether a lot may be made although an input has not closed it.

    A lot that has already begun may be made: late data is added to it, and an interrupted attempt resumes.
    `row` is the arc's newest row of the lot.
    """
    if spec.after_grace is not AfterGrace.PARTIAL:
        return False
    if _has_begun(row):
        return True
    raw = tx.get(keys.barrier[spec.id, lot])
    return raw is not None and _since.decode(raw) + spec.grace_us <= tx.now()


def _has_begun(row: AnyLot | None) -> bool:
    """Return whether work on a lot has begun, or the lot was given up; such a lot does not wait."""
    return row is not None and not (isinstance(row, MissingLot) and not row.skipped)


def wait(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> bool:
    """Record that a lot waits; return False if all its inputs already have it. Can be repeated."""
    missing = missing_inputs(tx, keys, spec, lot)
    if not missing:
        return False
    last = rows.newest(tx, keys, spec.id, lot)
    if last is not None and _has_begun(last[1]):
        return True
    key = keys.barrier[spec.id, lot]
    if tx.get(key) is None:
        since = min(_closed_at(tx, keys, source, lot) for source in spec.reads if source not in missing)
        tx.set(key, msgspec.msgpack.encode(since), quiet=True)
        tx.set(keys.grace[spec.id, since, lot], b"", quiet=True)
    return True


def _closed_at(tx: Tx, keys: ArcKeys, dataset: DatasetId, lot: str) -> int:
    row = published.current(tx, keys.publish.lots, dataset, lot)
    assert row is not None
    (event,) = events.read(tx, keys.publish.lots, dataset, row.position - 1, 1)
    return event.at


def expired(tx: Tx, keys: ArcKeys, spec: ArcSpec, limit: int = PAGE) -> list[str]:
    """List the lots whose grace period is over, longest wait first; none if the arc waits without limit."""
    if spec.after_grace is AfterGrace.WAIT:
        return []
    lo, _ = keys.grace.under(spec.id)
    hi = keys.grace[spec.id, tx.now() - spec.grace_us + 1]
    return [
        str(keys.grace.unpack(row.key)[2]) for row in tx.range(lo, max(lo, hi), limit=limit, snapshot=True)
    ]


def next_expiry(tx: Tx, keys: ArcKeys, spec: ArcSpec) -> int | None:
    """Return when the next grace period ends (store time, µs); None if no lot waits with a limit."""
    if spec.after_grace is AfterGrace.WAIT:
        return None
    rows = tx.range(*keys.grace.under(spec.id), limit=1, snapshot=True)
    if not rows:
        return None
    since = keys.grace.unpack(rows[0].key)[1]
    assert isinstance(since, int)
    return since + spec.grace_us


def with_grace(specs: Iterable[ArcSpec]) -> list[ArcSpec]:
    """Return the arcs that act when a grace period ends."""
    return [spec for spec in specs if spec.after_grace is not AfterGrace.WAIT]


def all_expired(tx: Tx, keys: ArcKeys, specs: Iterable[ArcSpec]) -> list[tuple[ArcSpec, str]]:
    """List the lots of active arcs whose grace period is over.

    For each arc, the list has at most as many lots as the arc may make at once.
    """
    return [
        (spec, lot)
        for spec in specs
        if not lot_requests.parked(tx, keys, spec.id)
        for lot in expired(tx, keys, spec, spec.max_concurrent)
    ]


def remaining_us(tx: Tx, keys: ArcKeys, specs: Iterable[ArcSpec]) -> dict[str, int]:
    """Return how long until the next grace period ends, for each active arc with a waiting lot."""
    ends = {
        spec.id: next_expiry(tx, keys, spec) for spec in specs if not lot_requests.parked(tx, keys, spec.id)
    }
    return {arc: at - tx.now() for arc, at in ends.items() if at is not None}


def awaited_lots(tx: Tx, keys: ArcKeys, spec: ArcSpec, limit: int = PAGE) -> list[AwaitedLot]:
    """Return a page of the waiting lots for reports, longest wait first."""
    awaited = []
    for row in tx.range(*keys.grace.under(spec.id), limit=limit, snapshot=True):
        _, since, lot = keys.grace.unpack(row.key)
        assert isinstance(since, int)
        until = None if spec.after_grace is AfterGrace.WAIT else since + spec.grace_us
        awaited.append(
            AwaitedLot(
                arc=spec.id,
                lot=str(lot),
                since=since,
                until=until,
                missing=missing_inputs(tx, keys, spec, str(lot)),
            )
        )
    return awaited


def explain(awaited: AwaitedLot, spec: ArcSpec, now: int) -> str:
    """Describe why a lot is not made yet, and what happens when its grace period ends."""
    missing = ", ".join(dataset.name for dataset in awaited.missing)
    if not missing:
        return "every input has this lot; the arc will run"
    waiting = f"waits for {missing} ({_duration(now - awaited.since)} so far)"
    if awaited.until is None:
        return waiting
    action = f"made without {missing}" if spec.after_grace is AfterGrace.PARTIAL else "skipped"
    when = f"in {_duration(awaited.until - now)}" if awaited.until > now else "now"
    return f"{waiting}; will be {action} {when}"


def _duration(us: int) -> str:
    seconds = max(0, us) / 1e6
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def skip(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> MissingLot | None:
    """Give up a lot whose grace period is over.

    Return None if the last input has closed the lot, or another node was faster. The caller checks the node's
    lease in the same transaction.
    """
    raw = tx.get(keys.barrier[spec.id, lot])
    missing = missing_inputs(tx, keys, spec, lot)
    if raw is None or not missing or _since.decode(raw) + spec.grace_us > tx.now():
        return None
    names = ", ".join(source.name for source in missing)
    row = lots.skip(tx, keys, spec.id, lot, f"skipped: {names} had no such lot within the grace period")
    if row is not None:
        lots.stop_waiting(tx, keys, spec.id, lot)
    return row
