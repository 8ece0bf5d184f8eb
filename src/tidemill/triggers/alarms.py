"""Alarms: times at which an input of a subscription advances although nothing was written (DBSP-22).

A run can set an alarm on an input of its own subscription, in the transaction that ends the run. An input has
at most one alarm. When the time of the alarm comes, one transaction clears the alarm, moves the head of the
input and announces the new head to subscribers, like any publication. So
cadence and pauses apply to alarms as they do to writes, and an alarm survives a crash. Every scheduler fires
alarms; if two schedulers fire the same alarm, only one succeeds.

Times are the store's wall time, as for schedules. If that clock is set back, the worst that happens is that
an alarm fires late. If the clock jumps ahead, alarms ignore the jump until it is accepted.
"""

import msgspec

from tidemill.lots import events, wall_clock
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import wakes
from tidemill.triggers.keys import TriggerKeys

_time = msgspec.msgpack.Decoder(int)


def declare(tx: Tx, lots: LotKeys, source: DatasetId) -> None:
    """Create the input, so that subscriptions can read it."""
    events.advance(tx, lots, source, events.head(tx, lots, source))


def set_at(tx: Tx, keys: TriggerKeys, source: DatasetId, at: int | None) -> None:
    """Set or replace the alarm of an input (wall time, µs); None removes the alarm."""
    old = next_at(tx, keys, source)
    if old == at:
        return
    if old is not None:
        tx.clear(keys.alarm_due[(old, *source.parts)], quiet=True)
    if at is None:
        tx.clear(keys.alarm[source.parts], quiet=True)
        return
    tx.set(keys.alarm[source.parts], msgspec.msgpack.encode(at), quiet=True)
    tx.set(keys.alarm_due[(at, *source.parts)], b"", quiet=True)


def next_at(tx: Tx, keys: TriggerKeys, source: DatasetId) -> int | None:
    """Return the time of the alarm; None if there is none."""
    raw = tx.get(keys.alarm[source.parts])
    return None if raw is None else _time.decode(raw)


def due(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[DatasetId]:
    """Return the inputs whose alarm is due by the wall clock; `fire` checks that the clock has not jumped."""
    lo, _ = keys.alarm_due.all()
    rows = tx.range(lo, keys.alarm_due[(tx.wall() + 1,)], limit=limit, snapshot=True)
    unpacked = [keys.alarm_due.unpack(row.key) for row in rows]
    return [DatasetId(str(name), str(version)) for _, name, version in unpacked]


def fire(tx: Tx, keys: TriggerKeys, lots: LotKeys, source: DatasetId) -> bool:
    """Advance an input whose alarm is due; return False if no alarm is due, or another scheduler fired it."""
    at = next_at(tx, keys, source)
    if at is None or at > wall_clock.believed(tx, lots):
        return False
    set_at(tx, keys, source, None)
    events.advance(tx, lots, source, events.head(tx, lots, source) + 1)
    wakes.wake(tx, keys, source)
    return True
