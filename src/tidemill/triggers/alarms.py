"""Alarms: a time at which a source moves though nobody writes to it (DBSP-22).

An alarm is set by whoever it is to wake, in the transaction that ends its run, and has one next time at most.
When that has come its source's head moves, in one transaction with the alarm's end, and its subscribers are
woken as by any publication: so everything holds for it that holds for writes. Whoever tends fires them; of
two that try, one does.

Times are the store's wall time, as those of schedules are. One that is set back only makes an alarm late.
"""

import msgspec

from tidemill.lots import events
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import wakes
from tidemill.triggers.keys import TriggerKeys

_time = msgspec.msgpack.Decoder(int)


def declare(tx: Tx, lots: LotKeys, source: DatasetId) -> None:
    """From now on the source is there, and may be subscribed to."""
    events.advance(tx, lots, source, events.head(tx, lots, source))


def set_at(tx: Tx, keys: TriggerKeys, source: DatasetId, at: int | None) -> None:
    """The source's next time (wall time, µs), instead of the one it had; None for no time at all."""
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
    """When the source moves next; None when nobody set a time."""
    raw = tx.get(keys.alarm[source.parts])
    return None if raw is None else _time.decode(raw)


def due(tx: Tx, keys: TriggerKeys, limit: int = 100) -> list[DatasetId]:
    """Sources whose time has come."""
    lo, _ = keys.alarm_due.all()
    rows = tx.range(lo, keys.alarm_due[(tx.wall() + 1,)], limit=limit, snapshot=True)
    found = [keys.alarm_due.unpack(row.key) for row in rows]
    return [DatasetId(str(name), str(version)) for _, name, version in found]


def fire(tx: Tx, keys: TriggerKeys, lots: LotKeys, source: DatasetId) -> bool:
    """Move a source whose time has come; False when somebody else was faster."""
    at = next_at(tx, keys, source)
    if at is None or at > tx.wall():
        return False
    set_at(tx, keys, source, None)
    events.advance(tx, lots, source, events.head(tx, lots, source) + 1)
    wakes.wake(tx, keys, source)
    return True
