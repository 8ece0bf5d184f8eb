"""The wall clock that intervals, schedules and `now()` in views use, protected against jumps.

The wall clock of a machine can be wrong for a moment, for example after a virtual machine resumes. If
Tidemill used such a clock to close intervals, all intervals of the next week could close at once, and later
appends would stay hidden for a week. Lease time (`Tx.now`) has no such jumps, because it does not follow the
wall clock.

So the store keeps the accepted offset between the two clocks. `believed` returns the wall time, but at most
`AHEAD_US` more than lease time plus the accepted offset. Every runner compares the clocks (`observe`):

- A small difference is accepted, because clocks drift.
- A larger difference is a jump, which is reported. If the clock keeps to the new time for `CONFIRM_US`, the
  jump is accepted, because the new time is probably right. For example, lease time does not count the hours
  during which the machine of a SQLite store is off.
- If the clock is corrected before that, nothing changes.

`accept` accepts a jump at once, and so does `tidemill clock --accept`.

A clock that was set back needs no protection: intervals wait for it. But a new offset is recorded in the same
way. Otherwise, if the clock later jumped forward by as much as it was set back, that jump would be missed.
"""

from typing import Final

import msgspec

from tidemill.lots.keys import LotKeys
from tidemill.store import Tx

AHEAD_US: Final = 300_000_000
"""How far the wall clock may differ from lease time plus the accepted offset: five minutes."""

CONFIRM_US: Final = 600_000_000
"""How long the clock must keep to the new time until a jump is accepted: ten minutes of lease time."""


class ClockRow(msgspec.Struct, frozen=True, array_like=True):
    """The accepted offset of the wall clock from lease time, and a jump that is not accepted yet.

    - offset_us: wall time minus lease time.
    - jumped_us: the offset after the jump.
    - since_us: when the jump was first seen (lease time); None if there is no jump.
    """

    offset_us: int
    jumped_us: int = 0
    since_us: int | None = None


class ClockJump(msgspec.Struct, frozen=True, kw_only=True):
    """A jump that is not accepted yet.

    - shift_us: how far the clock jumped; negative if it was set back.
    - since_us: when it was first seen (lease time).
    - accepted_in_us: how long until it is accepted, if the clock is not set back before that.
    """

    shift_us: int
    since_us: int
    accepted_in_us: int

    @property
    def text(self) -> str:
        """Describe the jump in one sentence."""
        direction = "ahead of" if self.shift_us > 0 else "behind"
        return f"the wall clock is {_duration(abs(self.shift_us))} {direction} the expected time"


_decoder = msgspec.msgpack.Decoder(ClockRow)


def believed(tx: Tx, keys: LotKeys) -> int:
    """Return the wall time to use, in µs: the wall clock, without a jump that is not accepted yet."""
    row = _read(tx, keys)
    wall_us = tx.wall()
    return wall_us if row is None else min(wall_us, tx.now() + row.offset_us + AHEAD_US)


def steady(tx: Tx, keys: LotKeys) -> int:
    """Return the wall time in µs, but never ahead of lease time plus the accepted offset.

    For ages of a few seconds, for which the tolerance of `believed` is too large.
    """
    row = _read(tx, keys)
    wall_us = tx.wall()
    return wall_us if row is None else min(wall_us, tx.now() + row.offset_us)


def observe(tx: Tx, keys: LotKeys) -> ClockJump | None:
    """Compare the clocks, and record a jump; return the jump that is not accepted yet.

    Writes only if something changed. The observation of a node that has lost its lease does no harm, because
    it compares the same clocks as every other node.
    """
    row, now_us = _read(tx, keys), tx.now()
    offset_us = tx.wall() - now_us
    if row is None:
        _write(tx, keys, ClockRow(offset_us))
        return None
    shift_us = offset_us - row.offset_us
    if abs(shift_us) <= AHEAD_US:
        if abs(shift_us) > AHEAD_US // 2:  # drift: follow it now and then
            _write(tx, keys, ClockRow(offset_us))
        elif row.since_us is not None:
            _write(tx, keys, ClockRow(row.offset_us))
        return None
    since_us = row.since_us
    if since_us is None or abs(offset_us - row.jumped_us) > AHEAD_US:
        since_us = now_us
        _write(tx, keys, ClockRow(row.offset_us, offset_us, since_us))
    left_us = since_us + CONFIRM_US - now_us
    if left_us <= 0:
        _write(tx, keys, ClockRow(offset_us))
        return None
    return ClockJump(shift_us=shift_us, since_us=since_us, accepted_in_us=left_us)


def pending(tx: Tx, keys: LotKeys) -> ClockJump | None:
    """Return the recorded jump that is not accepted yet; writes nothing."""
    row = _read(tx, keys)
    if row is None or row.since_us is None:
        return None
    return ClockJump(
        shift_us=row.jumped_us - row.offset_us,
        since_us=row.since_us,
        accepted_in_us=max(0, row.since_us + CONFIRM_US - tx.now()),
    )


def accept(tx: Tx, keys: LotKeys) -> None:
    """Accept the wall clock as it is now."""
    _write(tx, keys, ClockRow(tx.wall() - tx.now()))


def _read(tx: Tx, keys: LotKeys) -> ClockRow | None:
    raw = tx.get(keys.wall_clock)
    return None if raw is None else _decoder.decode(raw)


def _write(tx: Tx, keys: LotKeys, row: ClockRow) -> None:
    tx.set(keys.wall_clock, msgspec.msgpack.encode(row), quiet=True)


def _duration(us: int) -> str:
    minutes = us // 60_000_000
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 2880 else f"{minutes // 1440} days"
