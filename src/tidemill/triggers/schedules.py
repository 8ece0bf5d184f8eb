"""Schedules: cron expressions that act as inputs of subscriptions (HEAP-16).

When the time of a schedule comes, one transaction moves its head, sets its next time and announces the head
to subscribers, like a publication. So cadence, barriers, pauses and crashes work exactly as they do for
writes. Every scheduler fires schedules. If two of them fire a schedule for the same time, only one succeeds.

Times are the store's wall time. If that clock jumps ahead, schedules ignore the jump until it is accepted
(`tidemill.lots.wall_clock`). If the clock is set back, nothing fires twice, because the next time is in
the row and only moves forward. Missed times are times that passed while no scheduler was active; `catch_up`
decides which of them count.
"""

from datetime import UTC, datetime, timedelta

import msgspec

from tidemill.lots import events, layout, wall_clock
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import wakes
from tidemill.triggers.cron import Cron, next_after, zone_of
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Tally
from tidemill.triggers.terms import CatchUp

LATE_US = 60_000_000
"""With the policy `none`, a time counts as missed if it is this long ago."""

MOST_MISSED = 1000
"""The maximum number of due times that one transaction handles. The next transaction handles the rest."""

SOURCE = "cron "
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declaration: a cron expression in a time zone.

    - catch_up: which of the missed times count: all, the latest, or none.
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
    """The result of firing a schedule: how many of its due times were recorded, and how many were skipped."""

    written: int
    left_out: int


_decoder = msgspec.msgpack.Decoder(Entry)


def source(name: str) -> DatasetId:
    """Return the input that subscriptions to a schedule read."""
    return DatasetId(SOURCE + name)


def declare(tx: Tx, keys: TriggerKeys, lots: LotKeys, schedule: Schedule) -> Entry:
    """Store a schedule, or return the stored one; raise `BadSchedule` if the expression is invalid.

    A changed expression applies from now on.
    """
    layout.quote(schedule.name)
    old = find(tx, keys, schedule.name)
    if old is not None and old.schedule == schedule:
        return old
    entry = Entry(schedule=schedule, next_at=_next(schedule, wall_clock.believed(tx, lots)))
    head = events.head(tx, lots, source(schedule.name))
    events.advance(tx, lots, source(schedule.name), head)  # creates the source, so that others can subscribe
    _write(tx, keys, old, entry)
    return entry


def remove(tx: Tx, keys: TriggerKeys, name: str) -> bool:
    """Remove a schedule; its head stays."""
    old = find(tx, keys, name)
    if old is None:
        return False
    tx.clear(keys.cron[name], quiet=True)
    tx.clear(keys.cron_due[old.next_at, name], quiet=True)
    return True


def find(tx: Tx, keys: TriggerKeys, name: str) -> Entry | None:
    """Read a schedule with its next time."""
    raw = tx.get(keys.cron[name])
    return None if raw is None else _decoder.decode(raw)


def opens_us(tx: Tx, keys: TriggerKeys, lots: LotKeys, tally: Tally) -> int | None:
    """Return the time until a schedule opens the gate of a subscription (µs).

    None if its gate is not a schedule, or if its tables have nothing new.
    """
    gate = tally.terms.gate
    if gate is None or not gate.name.startswith(SOURCE):
        return None
    heads = events.heads(tx, lots, tally.terms.tables)
    if all(heads[table] <= tally.seen[table] for table in tally.terms.tables):
        return None
    entry = find(tx, keys, gate.name.removeprefix(SOURCE))
    return None if entry is None else max(0, entry.next_at - wall_clock.believed(tx, lots))


def listed(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[Entry]:
    """Return at most `limit` schedules, ordered by name."""
    return [_decoder.decode(row.value) for row in tx.range(*keys.cron.all(), limit=limit, snapshot=True)]


def due(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[str]:
    """Return the schedules that are due by the wall clock; `fire` checks that the clock has not jumped."""
    lo, _ = keys.cron_due.all()
    rows = tx.range(lo, keys.cron_due[(tx.wall() + 1,)], limit=limit, snapshot=True)
    return [str(keys.cron_due.unpack(row.key)[1]) for row in rows]


def fire(tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str) -> Fired:
    """Count the times that have passed, move the head, and set the next time."""
    entry = find(tx, keys, name)
    wall = wall_clock.believed(tx, lots)
    if entry is None or entry.next_at > wall:
        return Fired(0, 0)  # another scheduler was faster
    schedule, times = entry.schedule, [entry.next_at]
    following = _next(schedule, times[-1])
    while following <= wall and len(times) < MOST_MISSED:
        times.append(following)
        following = _next(schedule, following)
    written = len(times)
    if schedule.catch_up is CatchUp.LATEST:
        written = 1 if following > wall else 0  # only the last time counts; a later transaction may handle it
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
    next_time = next_after(Cron.parse(schedule.expression), zone_of(schedule.zone), moment)
    return (next_time - _EPOCH) // timedelta(microseconds=1)


def _write(tx: Tx, keys: TriggerKeys, old: Entry | None, new: Entry) -> None:
    if old is not None:
        tx.clear(keys.cron_due[old.next_at, new.schedule.name], quiet=True)
    tx.set(keys.cron[new.schedule.name], msgspec.msgpack.encode(new), quiet=True)
    tx.set(keys.cron_due[new.next_at, new.schedule.name], b"", quiet=True)
