"""Simulated clocks with errors: each node's clock has its own rate, and wall clocks jump."""

import threading

from tidemill.clock import Clock
from tidemill.testing.simulation.scheduler import SECOND_US, SimulationScheduler

EPOCH_S = 1_800_000_000  # true wall time when a simulation begins; the store's lease time begins there too


class NodeClock(Clock):
    """What one node knows of time. `rate` is its seconds per true second, `off_s` its wall clock's error."""

    def __init__(
        self, scheduler: SimulationScheduler, *, rate: float = 1.0, uptime_s: float = 0.0, off_s: float = 0.0
    ):
        self.rate = rate
        self.off_s = off_s
        self._scheduler = scheduler
        self._rate_us = rate / SECOND_US
        self._zero_s = uptime_s - scheduler.now_us * self._rate_us

    def monotonic(self) -> float:
        return self._zero_s + self._scheduler.now_us * self._rate_us

    def wall(self) -> float:
        return EPOCH_S + self._scheduler.now_us / SECOND_US + self.off_s

    def sleep(self, seconds: float) -> None:
        self._scheduler.block(self._true_us(seconds))

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set() and timeout_s > 0:
            self._scheduler.block(self._true_us(timeout_s), stop=event.is_set)
        return event.is_set()

    def _true_us(self, seconds: float) -> int:
        return int(seconds / self.rate * SECOND_US) + 1


class CurrentClock(Clock):
    """The clock of the running node: one store object serves all nodes, each with its own time."""

    def __init__(self, scheduler: SimulationScheduler) -> None:
        self._scheduler = scheduler
        self._true = NodeClock(scheduler)

    def whose(self) -> Clock:
        """The clock itself."""
        actor = self._scheduler.current
        return actor.node.clock if actor is not None and actor.node is not None else self._true

    def monotonic(self) -> float:
        return self.whose().monotonic()

    def wall(self) -> float:
        return self.whose().wall()

    def sleep(self, seconds: float) -> None:
        self.whose().sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self.whose().wait(event, timeout_s)
