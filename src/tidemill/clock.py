"""The clock that code receives as an argument, so that tests and simulations can replace it.

All code that waits, measures time or needs random numbers takes a `Clock` and a `random.Random`. The command
line and `Pipeline` create the real clock and random numbers. A simulation passes simulated ones, so a
simulated run depends only on its seed.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The source of time of a node."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back and keeps running while the machine sleeps."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970 by this machine's clock; never used for leases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; in a simulation, let other threads run."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set, or until the timeout; return whether the event is set."""
        ...


class SystemClock:
    """The machine's clock. CLOCK_BOOTTIME also counts sleep, so the lease of a suspended laptop expires."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(max(0.0, timeout_s))


SYSTEM = SystemClock()


def backoff(attempt: int, chance: random.Random, *, first_s: float = 0.002, most_s: float = 1.0) -> float:
    """Return how many seconds to wait after failed attempt number `attempt`; the first attempt is 1.

    The wait doubles with each attempt, up to `most_s`, and has random jitter.
    """
    ceiling = min(most_s, first_s * float(2 ** min(attempt - 1, 30)))
    return ceiling * (0.5 + 0.5 * chance.random())


def poll(ready: Callable[[], bool], clock: Clock, *, every_s: float, timeout_s: float) -> bool:
    """Poll until `ready()` returns True, or until the timeout; return whether `ready()` returned True."""
    end = clock.monotonic() + timeout_s
    while not ready():
        left = end - clock.monotonic()
        if left <= 0:
            return False
        clock.sleep(min(every_s, left))
    return True
