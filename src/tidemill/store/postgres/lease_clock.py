"""Lease time on PostgreSQL: the server's clock, kept from running backwards (STO-6).

`clock_timestamp()` is one clock for all nodes, but a clock that an operator can set, and another one after a
fail-over. Three layers keep `now` from running backwards:

1. within a process, the highest time that was handed out is a floor;
2. across processes, the sequence `tidemill_lease_mark` is a floor. A transaction that asked for the time and
   writes raises the mark to its time, rounded up to the next tick, before it commits. So whoever can see a
   row that was written at time t gets a time of t or later. A sequence is read and set outside of
   transactions: nobody waits for it, and SERIALIZABLE does not look at it. Rounding up means that the mark is
   written once per tick and not once per commit, at the price that lease time may run up to a tick ahead;
3. a clock that was set back by more than `STEP_US` would leave lease time standing at the mark until it has
   caught up, and no lease would expire meanwhile. Then the difference goes into the sequence
   `tidemill_lease_offset`, once for everybody, and lease time goes on from the mark at the usual pace.

What it does not promise: a transaction that only read and whose process is not ours may have been given a
time above the mark; after the server's clock was set back, our time can be below it. Nothing in the store
depends on that time. A clock that is set forward makes leases expire early, which costs work and nothing
else: every write is fenced.

`wall` is the server's clock as it is.
"""

import threading
from typing import NamedTuple

from tidemill.clock import Clock

TICK_US = 50_000
STEP_US = 1_000_000


class Time(NamedTuple):
    """What one look at the server's clock gave."""

    now: int
    wall: int
    mark: int

    @property
    def reached(self) -> int | None:
        """What the mark must be raised to before this time may be seen in a row; None when it is there."""
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
        """Lease time, from the server's clock, the mark and the offset as they were read together."""
        with self._lock:
            self._last = max(self._last, wall + offset, mark)
            self._seen = (self._last, self._clock.monotonic())
            self._stepped_back = wall + offset < self._last - STEP_US
            return Time(self._last, wall, mark)

    def step_back(self) -> int | None:
        """The time to go on from when the server's clock was set back; said once, to whoever asks first."""
        with self._lock:
            if not self._stepped_back:
                return None
            self._stepped_back = False
            return self._last

    def estimate(self) -> int | None:
        """About the lease time, without asking: good for naming the minute of an operation, no more."""
        with self._lock:
            if self._seen is None:
                return None
            then, at = self._seen
        return then + int((self._clock.monotonic() - at) * 1_000_000)
