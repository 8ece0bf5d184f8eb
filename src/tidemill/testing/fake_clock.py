"""A clock for tests. It moves only when code waits or a test advances it, so hours pass in no time.

>>> clock = FakeClock()
>>> clock.sleep(3600)
>>> clock.monotonic()
4600.0
>>> late = ShiftedClock(clock, wall_s=-7200)
>>> late.wall() - clock.wall()
-7200.0
"""

import threading

from tidemill.clock import Clock


class FakeClock:
    """A clock that advances only when code waits, or when a test calls `advance` or sets it.

    Threads may share a clock: each wait advances the time for all threads. A test may set `monotonic_s` and
    `wall_s`, even to an earlier time, to simulate a broken clock.
    """

    def __init__(self, monotonic_s: float = 1000.0, wall_s: float = 1_700_000_000.0) -> None:
        self.monotonic_s = monotonic_s
        self.wall_s = wall_s
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s

    def advance(self, seconds: float) -> None:
        """Let time pass, for `monotonic` and for `wall`."""
        with self._lock:
            self.monotonic_s += max(0.0, seconds)
            self.wall_s += max(0.0, seconds)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Return True at once if the event is set; otherwise advance by the timeout, and check again."""
        if not event.is_set():
            self.advance(timeout_s)
        return event.is_set()


class ShiftedClock:
    """The clock of another node: it differs from the true clock by a constant."""

    def __init__(self, true: Clock, *, wall_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        self._true = true
        self.wall_shift_s = wall_s
        self.monotonic_shift_s = monotonic_s

    def monotonic(self) -> float:
        return self._true.monotonic() + self.monotonic_shift_s

    def wall(self) -> float:
        return self._true.wall() + self.wall_shift_s

    def sleep(self, seconds: float) -> None:
        self._true.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self._true.wait(event, timeout_s)
