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
        """Return seconds that never run backwards and continue while the machine sleeps."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970 by this machine's clock; never used for leases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; in a simulation, let other threads run."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set, or until the timeout; return whether it is set."""
        ...


class SystemClock:
    """The machine's clock. CLOCK_BOOTTIME includes sleep, so a suspended laptop's lease expires."""

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
    """Return the seconds to wait before attempt `attempt` (from 1): exponential, with random jitter."""
    ceiling = min(most_s, first_s * float(2 ** min(attempt - 1, 30)))
    return ceiling * (0.5 + 0.5 * chance.random())


def poll(ready: Callable[[], bool], clock: Clock, *, every_s: float, timeout_s: float) -> bool:
    """Poll until `ready()` returns True, or until the timeout; return whether it did."""
    end = clock.monotonic() + timeout_s
    while not ready():
        left = end - clock.monotonic()
        if left <= 0:
            return False
        clock.sleep(min(every_s, left))
    return True
