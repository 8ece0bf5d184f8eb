"""Supervised processes: kill child processes, delay restarts, and drain a supervisor on signals.

A worker supervises a pool of children and their zygote; a runner supervises one child with a Spark session.
Both use this module. A supervised process leads its own process group, so that all processes it starts end
with it. The kernel kills a supervised process when its supervisor dies.
"""

import contextlib
import ctypes
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from tidemill.clock import Clock, backoff
from tidemill.futures.worker.wakeup import LoopWakeup

T = TypeVar("T")
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


def prctl(option: int, value: int | bytes) -> None:
    """Set an option of this process in the kernel (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends. Exit now if the parent has already ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def describe_exit(code: int) -> str:
    """Describe how a process ended; a negative code is the number of the signal that killed it.

    >>> describe_exit(-9), describe_exit(3)
    ('killed by SIGKILL', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class SupervisedProcess:
    """One child process. It leads a process group with everything that it starts.

    The kernel may give the id of a process that was reaped to another process. So no signals are sent after
    `reap_with`.
    """

    pid: int

    def __init__(self) -> None:
        self.killed_for = ""  # why its supervisor killed it; empty if it did not
        self._reaping = threading.Lock()
        self._reaped = False

    def kill(self, why: str) -> None:
        """Kill the process and all that it started. The first reason is kept. Any thread may call this."""
        self.killed_for = self.killed_for or why
        self.kill_process()

    def kill_process(self) -> None:
        """Kill the process and all that it started, without recording a reason."""
        with self._reaping:
            if not self._reaped:
                self._kill_group()
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, signal.SIGKILL)  # just forked, it may not lead its group yet

    def reap_with(self, wait: Callable[[], T]) -> T:
        """Kill the processes that a process that has ended has started; then reap it.

        - wait: reaps the process, and returns at once, because the process has ended.
        """
        with self._reaping:
            self._kill_group()
            result = wait()
            self._reaped = True
        return result

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class RestartPause:
    """Delays the restart of a process that keeps failing, a little longer after each failure.

    Args:
        clock: the source of time.
        chance: adds jitter to the delays.
        most_s: the longest delay.
        first_s: the first delay.
    """

    def __init__(self, clock: Clock, chance: random.Random, *, most_s: float, first_s: float = 0.1) -> None:
        self.failures = 0  # in a row
        self._clock = clock
        self._chance = chance
        self._first_s = first_s
        self._most_s = most_s
        self._until = 0.0

    def failed(self) -> None:
        """Record that the process ended before it was ready."""
        self.failures += 1
        pause_s = backoff(self.failures, self._chance, first_s=self._first_s, most_s=self._most_s)
        self._until = self._clock.monotonic() + pause_s

    def succeeded(self) -> None:
        """Record that the process is ready."""
        self.failures = 0

    @property
    def left_s(self) -> float:
        """How long to wait before the next start."""
        return max(0.0, self._until - self._clock.monotonic())


class Drainable(Protocol):
    """A supervisor that can be drained."""

    @property
    def draining(self) -> bool:
        """Whether `drain` or `hurry` was called."""
        ...

    def drain(self) -> None:
        """Drain within the grace period."""

    def hurry(self) -> None:
        """Drain without a grace period. If the grace period has already begun, end it."""


@contextlib.contextmanager
def drained_by_signals(supervisor: Drainable, wakeup: LoopWakeup) -> Iterator[list[int]]:
    """Drain on SIGTERM and SIGINT; a second signal ends the grace period. For the main thread only.

    Yields a list, to which each signal adds its number.
    """
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        if supervisor.draining:
            supervisor.hurry()
        else:
            supervisor.drain()

    old_handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    old_fd = signal.set_wakeup_fd(wakeup.writer.fileno(), warn_on_full_buffer=False)
    try:
        yield received
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
