"""Time and chance, passed in and never reached for.

Everything that waits, measures or draws a random number takes a `Clock` and a `random.Random`. The real
ones are made once, at the edge (the command line, `Pipeline`, a test); simulation passes its own, and a
run becomes a function of one seed.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What a node may know of time."""

    def monotonic(self) -> float:
        """Seconds that never run backwards and keep counting while the machine sleeps."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, as this machine believes; never used to judge a lease."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; in simulation, let the others go on."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time is over; True when it is set."""
        ...


class SystemClock:
    """The machine's clock. CLOCK_BOOTTIME counts time asleep, so a suspended laptop's lease does expire."""

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
    """Seconds to wait before try number `attempt` (from 1): exponential, with half of it left to chance."""
    ceiling = min(most_s, first_s * float(2 ** min(attempt - 1, 30)))
    return ceiling * (0.5 + 0.5 * chance.random())


def poll(ready: Callable[[], bool], clock: Clock, *, every_s: float, timeout_s: float) -> bool:
    """Ask until `ready` or the time is over; True when it became ready."""
    end = clock.monotonic() + timeout_s
    while not ready():
        left = end - clock.monotonic()
        if left <= 0:
            return False
        clock.sleep(min(every_s, left))
    return True
