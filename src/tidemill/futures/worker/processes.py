"""Child processes: how a supervisor starts them again, ends them, and learns how they ended.

A worker supervises a pool of children and their zygote; a runner supervises one child with a Spark session.
Both use this module. A supervised process leads its own process group, so that whatever it has started ends
with it, and asks the kernel to kill it when its supervisor dies.
"""

import contextlib
import ctypes
import os
import random
import signal
from collections.abc import Iterator
from typing import Protocol

from tidemill.clock import Clock, backoff
from tidemill.futures.worker.wakeup import LoopWakeup

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


def prctl(option: int, value: int | bytes) -> None:
    """Set an option of this process in the kernel (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent ends; end it now if the parent is gone already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


class SupervisedProcess:
    """One child process. It leads a process group with everything that it starts."""

    pid: int

    def __init__(self) -> None:
        self.killed_for = ""  # why its supervisor killed it; empty if it did not

    def kill(self, why: str) -> None:
        """End it and what it has started, at once; the first reason is kept. Any thread may call this."""
        self.killed_for = self.killed_for or why
        self.kill_group()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)  # just forked, it may not lead its group yet

    def kill_group(self) -> None:
        """Kill its process group: after its end, what it has left behind."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class RestartPause:
    """Spaces out the restarts of a process that keeps failing: soon at first, then later each time.

    Args:
        clock: the source of time.
        chance: spreads the pauses.
        most_s: the longest pause.
        first_s: the first pause.
    """

    def __init__(self, clock: Clock, chance: random.Random, *, most_s: float, first_s: float = 0.1) -> None:
        self.failures = 0  # in a row
        self._clock = clock
        self._chance = chance
        self._first_s = first_s
        self._most_s = most_s
        self._until = 0.0

    def failed(self) -> None:
        """The process ended before it was of any use."""
        self.failures += 1
        pause_s = backoff(self.failures, self._chance, first_s=self._first_s, most_s=self._most_s)
        self._until = self._clock.monotonic() + pause_s

    def succeeded(self) -> None:
        """The process works."""
        self.failures = 0

    @property
    def left_s(self) -> float:
        """How long to wait before the process may be started."""
        return max(0.0, self._until - self._clock.monotonic())


class Drainable(Protocol):
    """A supervisor that can be asked to leave."""

    @property
    def draining(self) -> bool:
        """Was it asked to?"""
        ...

    def drain(self) -> None:
        """Leave within the grace."""

    def hurry(self) -> None:
        """Leave without a grace, or end it."""


@contextlib.contextmanager
def drained_by_signals(supervisor: Drainable, wakeup: LoopWakeup) -> Iterator[None]:
    """Drain on SIGTERM and SIGINT; a second signal ends the grace. The main thread alone may call this."""

    def end(*_: object) -> None:
        if supervisor.draining:
            supervisor.hurry()
        else:
            supervisor.drain()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    old = signal.set_wakeup_fd(wakeup.writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
