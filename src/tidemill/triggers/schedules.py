"""Schedules: cron is one more writer (HEAP-16).

A schedule is a source whose head moves when its time comes, in one transaction with its next time, and wakes
its subscribers as any publication does. So everything holds for it that holds for writes: cadence, barriers,
pauses, crashes. Whoever tends fires them; of two that try, one does.

Times are the store's wall time. When that is set back nothing fires twice, because the next time stands in
the row and only moves forward. What was missed while nobody tended is made up for as `catch_up` says.
"""

from datetime import UTC, datetime, timedelta

import msgspec

from tidemill.lots import events, layout
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import wakes
from tidemill.triggers.cron import Cron, next_after, zone_of
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Tally
from tidemill.triggers.terms import CatchUp

LATE_US = 60_000_000
"""With the policy `none`, a time counts as missed when it is so long ago."""

MOST_MISSED = 1000
"""Times that one transaction goes through; the next one goes on."""

SOURCE = "cron "
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is declared: a cron expression, in a time zone.

    - catch_up: of times that were missed: all of them are written, the latest, or none.
    """

    name: str
    expression: str
    zone: str = "UTC"
    catch_up: CatchUp = CatchUp.LATEST


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its next time (wall time, µs)."""

    schedule: Schedule
    next_at: int


class Fired(msgspec.Struct, frozen=True):
    """What came of a look at a schedule: how many times were written, and how many left out."""

    written: int
    left_out: int


_decoder = msgspec.msgpack.Decoder(Entry)


def source(name: str) -> DatasetId:
    """What a subscription to a schedule reads."""
    return DatasetId(SOURCE + name)


def declare(tx: Tx, keys: TriggerKeys, lots: LotKeys, schedule: Schedule) -> Entry:
    """Enter a schedule, or find it; another expression holds from now on. `BadSchedule` for one that is
    none.
    """
    layout.quote(schedule.name)
    old = find(tx, keys, schedule.name)
    if old is not None and old.schedule == schedule:
        return old
    entry = Entry(schedule=schedule, next_at=_next(schedule, tx.wall()))
    head = events.head(tx, lots, source(schedule.name))
    events.advance(tx, lots, source(schedule.name), head)  # it is there from now on, and may be subscribed to
    _write(tx, keys, old, entry)
    return entry


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a schedule; what it wrote stays written."""
    old = find(tx, keys, name)
    if old is None:
        return False
    tx.clear(keys.cron[name], quiet=True)
    tx.clear(keys.cron_due[old.next_at, name], quiet=True)
    return True


def find(tx: Tx, keys: TriggerKeys, name: str) -> Entry | None:
    """A schedule with its next time."""
    raw = tx.get(keys.cron[name])
    return None if raw is None else _decoder.decode(raw)


def opens_us(tx: Tx, keys: TriggerKeys, lots: LotKeys, tally: Tally) -> int | None:
    """How long it is until the gate of a subscription opens, by a schedule, for what it has not seen (µs);
    None for one without, and when there is nothing behind it.
    """
    gate = tally.terms.gate
    if gate is None or not gate.name.startswith(SOURCE):
        return None
    heads = events.heads(tx, lots, tally.terms.tables)
    if all(heads[one] <= tally.seen[one] for one in tally.terms.tables):
        return None
    entry = find(tx, keys, gate.name.removeprefix(SOURCE))
    return None if entry is None else max(0, entry.next_at - tx.wall())


def listed(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[Entry]:
    """Schedules by name, so many at most."""
    return [_decoder.decode(row.value) for row in tx.range(*keys.cron.all(), limit=limit, snapshot=True)]


def due(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[str]:
    """Schedules whose time has come."""
    lo, _ = keys.cron_due.all()
    rows = tx.range(lo, keys.cron_due[(tx.wall() + 1,)], limit=limit, snapshot=True)
    return [str(keys.cron_due.unpack(row.key)[1]) for row in rows]


def fire(tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str) -> Fired:
    """Write the times that have come, and move on to the next."""
    entry = find(tx, keys, name)
    wall = tx.wall()
    if entry is None or entry.next_at > wall:
        return Fired(0, 0)  # somebody else was faster
    schedule, times = entry.schedule, [entry.next_at]
    following = _next(schedule, times[-1])
    while following <= wall and len(times) < MOST_MISSED:
        times.append(following)
        following = _next(schedule, following)
    written = len(times)
    if schedule.catch_up is CatchUp.LATEST:
        written = 1 if following > wall else 0  # of many the very last, which a later page has
    elif schedule.catch_up is CatchUp.NONE:
        written = 1 if wall - times[-1] < LATE_US else 0
    if written:
        head = events.head(tx, lots, source(name))
        events.advance(tx, lots, source(name), head + written)
        wakes.wake(tx, keys, source(name))
    _write(tx, keys, entry, msgspec.structs.replace(entry, next_at=following))
    return Fired(written, len(times) - written)


def _next(schedule: Schedule, wall_us: int) -> int:
    moment = _EPOCH + timedelta(microseconds=wall_us)
    found = next_after(Cron.parse(schedule.expression), zone_of(schedule.zone), moment)
    return (found - _EPOCH) // timedelta(microseconds=1)


def _write(tx: Tx, keys: TriggerKeys, old: Entry | None, new: Entry) -> None:
    if old is not None:
        tx.clear(keys.cron_due[old.next_at, new.schedule.name], quiet=True)
    tx.set(keys.cron[new.schedule.name], msgspec.msgpack.encode(new), quiet=True)
    tx.set(keys.cron_due[new.next_at, new.schedule.name], b"", quiet=True)
