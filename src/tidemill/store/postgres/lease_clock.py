"""Compute lease time on PostgreSQL from the server's clock, so that it never runs backwards (STO-6).

`clock_timestamp()` is one clock for all nodes, but an operator can set it, and after a fail-over it is
another machine's clock. Three measures keep `now` from running backwards:

1. Within a process, the highest time returned so far is a lower bound.
2. Across processes, the sequence `tidemill_lease_mark` is a lower bound. If a transaction has read the time
   and writes rows, it raises the mark to its time, rounded up to the next tick, before it commits. So every
   transaction that can see a row written at time t gets a time of t or later. Sequences are read and set
   outside of transactions: nothing waits for them, and SERIALIZABLE ignores them. Because of the rounding,
   the mark is written once per tick instead of once per commit. In return, lease time may be up to a tick
   ahead of the server's clock.
3. If the clock is set back by more than `STEP_US`, lease time would stand still at the mark, and no lease
   would expire. In that case, one process adds the difference to the sequence `tidemill_lease_offset` for all
   processes, and lease time continues from the mark at its normal speed.

One case is not covered: a transaction that only reads, in another process, may have got a time above the
mark. After the server's clock is set back, our time can be below that time. This is harmless, because no row
depends on the time of a transaction that only reads. If the clock is set forward, leases expire early. That
only costs work, because every write is fenced.

`wall` is the server's clock, unchanged.
"""

import threading
from typing import NamedTuple

from tidemill.clock import Clock

TICK_US = 50_000
STEP_US = 1_000_000


class Time(NamedTuple):
    """One reading: lease time, the server's clock and the mark, in microseconds."""

    now: int
    wall: int
    mark: int

    @property
    def reached(self) -> int | None:
        """The value that the mark must have before this time may be stored in a row.

        None if the mark is already high enough.
        """
        return None if self.now <= self.mark else -(-self.now // TICK_US) * TICK_US


class LeaseClock:
    """The lease time of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._seen: tuple[int, float] | None = None  # lease time, and our own clock at that moment
        self._stepped_back = False  # the server's clock was set back and the offset is not yet raised

    def read(self, wall: int, mark: int, offset: int) -> Time:
        """Compute lease time from the server's clock, the mark and the offset, read together."""
        with self._lock:
            self._last = max(self._last, wall + offset, mark)
            self._seen = (self._last, self._clock.monotonic())
            self._stepped_back = wall + offset < self._last - STEP_US
            return Time(self._last, wall, mark)

    def step_back(self) -> int | None:
        """Return the time to continue from if the last reading showed that the clock was set back; else None.

        Only the first call after such a reading returns the time, so one thread handles it.
        """
        with self._lock:
            if not self._stepped_back:
                return None
            self._stepped_back = False
            return self._last

    def estimate(self) -> int | None:
        """Estimate lease time without asking the server; None before the first reading.

        The estimate is accurate enough to choose the minute in the key of an operation's row.
        """
        with self._lock:
            if self._seen is None:
                return None
            then, at = self._seen
        return then + int((self._clock.monotonic() - at) * 1_000_000)
