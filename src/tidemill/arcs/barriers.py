"""Barriers: lots that wait until every source has closed them, and what follows when they waited long.

A lot that not every source has is passed by its arc's run, and a row says since when it waits: from the
moment the first of its sources had it, whenever the arc came to see it. The last source's event brings the
lot back by itself; the row is there for what has no event, the end of a grace (LOT-28), and for people who
ask what is awaited.

    wait     nothing follows: the lot is awaited for ever
    partial  the lot is made of what is there; whatever comes later makes its next generation
    skip     the lot is given up: missing, and not made any more unless somebody asks for it

The row is kept by the moment it waits from, and not by the end of its grace: another grace that is declared
holds for what waits already. It stays until the lot is published or given up, so that whoever takes over a
lot that was begun after its grace knows that it was over.
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
    """A lot that waits for its sources; times are of the store, in µs.

    - until: the end of its grace; None where nothing follows.
    """

    arc: str
    lot: str
    since: int
    until: int | None
    lacking: tuple[DatasetId, ...]


def lacking(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> tuple[DatasetId, ...]:
    """The sources that have no such lot."""
    found = [published.current(tx, keys.publish.lots, dataset, lot) for dataset in spec.reads]
    return tuple(dataset for dataset, row in zip(spec.reads, found, strict=True) if row is None)


def is_over(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str, row: AnyLot | None) -> bool:
    """May a lot be made of what is there, though a source has not closed it? `row`: the arc's newest of it.

    One that was begun so before may: what comes late joins it, and what broke off goes on.
    """
    if spec.after_grace is not AfterGrace.PARTIAL:
        return False
    if row is not None and not (isinstance(row, MissingLot) and not row.skipped):
        return True
    raw = tx.get(keys.barrier[spec.id, lot])
    return raw is not None and _since.decode(raw) + spec.grace_us <= tx.now()


def wait(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> bool:
    """Enter a lot as one that waits; False when all its sources have it by now. May be repeated."""
    missing = lacking(tx, keys, spec, lot)
    if not missing:
        return False
    last = rows.newest(tx, keys, spec.id, lot)
    if last is not None and not (isinstance(last[1], MissingLot) and not last[1].skipped):
        return True  # it was made, or given up: nothing waits
    key = keys.barrier[spec.id, lot]
    if tx.get(key) is None:
        since = min(_closed_at(tx, keys, one, lot) for one in spec.reads if one not in missing)
        tx.set(key, msgspec.msgpack.encode(since), quiet=True)
        tx.set(keys.grace[spec.id, since, lot], b"", quiet=True)
    return True


def _closed_at(tx: Tx, keys: ArcKeys, dataset: DatasetId, lot: str) -> int:
    row = published.current(tx, keys.publish.lots, dataset, lot)
    assert row is not None
    (event,) = events.read(tx, keys.publish.lots, dataset, row.position - 1, 1)
    return event.at


def due(tx: Tx, keys: ArcKeys, spec: ArcSpec, limit: int = PAGE) -> list[str]:
    """Lots whose grace is over, and for which something follows; those that wait longest first."""
    if spec.after_grace is AfterGrace.WAIT:
        return []
    lo, _ = keys.grace.under(spec.id)
    hi = keys.grace[spec.id, tx.now() - spec.grace_us + 1]
    return [
        str(keys.grace.unpack(row.key)[2]) for row in tx.range(lo, max(lo, hi), limit=limit, snapshot=True)
    ]


def next_at(tx: Tx, keys: ArcKeys, spec: ArcSpec) -> int | None:
    """When the next grace is over (store time, µs); None when nothing waits that something follows for."""
    if spec.after_grace is AfterGrace.WAIT:
        return None
    rows = tx.range(*keys.grace.under(spec.id), limit=1, snapshot=True)
    if not rows:
        return None
    since = keys.grace.unpack(rows[0].key)[1]
    assert isinstance(since, int)
    return since + spec.grace_us


def with_grace(specs: Iterable[ArcSpec]) -> list[ArcSpec]:
    """Those arcs that do something when a grace is over."""
    return [spec for spec in specs if spec.after_grace is not AfterGrace.WAIT]


def over(tx: Tx, keys: ArcKeys, specs: Iterable[ArcSpec]) -> list[tuple[ArcSpec, str]]:
    """Lots whose grace is over, of arcs that run, as many of each arc as it may make at once."""
    return [
        (spec, lot)
        for spec in specs
        if not lot_requests.parked(tx, keys, spec.id)
        for lot in due(tx, keys, spec, spec.max_concurrent)
    ]


def left_us(tx: Tx, keys: ArcKeys, specs: Iterable[ArcSpec]) -> dict[str, int]:
    """By arc, how long until the next of its graces is over; only arcs that run and have a lot that waits."""
    ends = {spec.id: next_at(tx, keys, spec) for spec in specs if not lot_requests.parked(tx, keys, spec.id)}
    return {arc: at - tx.now() for arc, at in ends.items() if at is not None}


def awaited_lots(tx: Tx, keys: ArcKeys, spec: ArcSpec, limit: int = PAGE) -> list[AwaitedLot]:
    """A page of the lots that wait, longest first: for reports."""
    found = []
    for row in tx.range(*keys.grace.under(spec.id), limit=limit, snapshot=True):
        _, since, lot = keys.grace.unpack(row.key)
        assert isinstance(since, int)
        until = None if spec.after_grace is AfterGrace.WAIT else since + spec.grace_us
        found.append(
            AwaitedLot(
                arc=spec.id,
                lot=str(lot),
                since=since,
                until=until,
                lacking=lacking(tx, keys, spec, str(lot)),
            )
        )
    return found


def explain(one: AwaitedLot, spec: ArcSpec, now: int) -> str:
    """Why a lot is not made yet, and what follows when."""
    missing = ", ".join(dataset.name for dataset in one.lacking)
    if not missing:
        return "every source has it: its arc is to run"
    said = f"waits for {missing}, {_for(now - one.since)} so far"
    if one.until is None:
        return said
    then = "made of what is there" if spec.after_grace is AfterGrace.PARTIAL else "skipped"
    when = f"in {_for(one.until - now)}" if one.until > now else "now"
    return f"{said}; {then} {when}"


def _for(us: int) -> str:
    seconds = max(0, us) / 1e6
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def skip(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> MissingLot | None:
    """Give up a lot whose grace is over; None when that is not so any more: a source closed it, or somebody
    was faster. To be called with the node's fence in the same transaction.
    """
    raw = tx.get(keys.barrier[spec.id, lot])
    missing = lacking(tx, keys, spec, lot)
    if raw is None or not missing or _since.decode(raw) + spec.grace_us > tx.now():
        return None
    why = f"skipped: {', '.join(one.name for one in missing)} had no such lot within its grace"
    row = lots.skip(tx, keys, spec.id, lot, why)
    if row is not None:
        lots.no_longer_awaited(tx, keys, spec.id, lot)
    return row
