"""Threads for tests: several threads that start together, or one that runs during a transaction.

A test that races threads must never hang, and must not pass because a thread died unnoticed. So every wait
has a limit, and an exception in a thread is raised again where the test waits for it.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

STUCK_S = 900.0
"""How long a test waits for a condition. Usually the condition is true at once, or minutes later on a machine
with dozens of busy processes. After this time something is broken, and the test fails."""


class Racer(threading.Thread, Generic[T]):
    """Runs one function in a thread; `outcome()` returns its value or raises its error."""

    def __init__(self, work: Callable[[], T], gate: threading.Barrier | None = None) -> None:
        super().__init__(daemon=True)  # if a backend hangs, only its test fails, and the run continues
        self._work = work
        self._gate = gate
        self._values: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            if self._gate is not None:
                self._gate.wait(STUCK_S)
            self._values.append(self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised again by `outcome`
            self._error = error

    def outcome(self) -> T:
        self.join(STUCK_S)
        assert not self.is_alive(), f"a thread was still busy after {STUCK_S:g} s"
        if self._error is not None:
            raise self._error
        return self._values[0]


def together(*works: Callable[[], T]) -> list[T]:
    """Run functions in threads that start at the same time; return their values in the same order."""
    gate = threading.Barrier(len(works))
    racers = [Racer(work, gate) for work in works]
    for racer in racers:
        racer.start()
    return [racer.outcome() for racer in racers]


class Interloper(Generic[T]):
    """Work that another thread does in the middle of our transaction.

    An optimistic backend lets the other thread commit before us; a backend with locks makes it wait for us.
    `steps_in` waits for the commit in the first case, and continues after a moment in the second. A test need
    not know which case it is, but its assertions must hold in both cases.
    """

    def __init__(self, work: Callable[[], T], *, within_s: float = 0.1) -> None:
        self._racer = Racer(work)
        self._within_s = within_s
        self._once = threading.Lock()

    def steps_in(self) -> None:
        """Do the work now. Do it only once, because the transaction that calls this may be retried."""
        if self._once.acquire(blocking=False):
            self._racer.start()
            self._racer.join(self._within_s)

    def outcome(self) -> T:
        return self._racer.outcome()
