"""Run many simulated processes in one thread: a queue of events by time, their threads, clocks and nodes.

A simulated thread has a step, like a thread of a real process; the step returns when the next one is due.
Time is true time in whole microseconds and moves only from one event to the next. So a run depends only on
the events, and on nothing else.

A step may block in the middle, inside a store call or a clock's `sleep`. `block` then runs the events of all
others from *within* that step until its time is over, and returns. The interleavings are real (two
transactions do overlap), and there is still only one thread and one order. Either one simulated thread is
blocked (it waits for a response, and the rest of its process continues) or its whole process (`freeze`).

Blocks nest, so the last one to block is the first to continue: an outer step may continue later than
requested, never sooner, as on a busy machine. Below `DEPTH_LIMIT` a block only advances the time.

Each node's clock has its own rate, and its wall clock may jump.
"""

import random
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from tidemill.clock import Clock
from tidemill.crash import Crashed

SECOND_US = 1_000_000
LEAST_STEP_US = 200  # the least duration of a step, so that time advances even in a loop without waits
DEPTH_LIMIT = 5


class Wait(NamedTuple):
    """What a step may return instead of seconds: also go on as soon as the event is set."""

    event: threading.Event
    seconds: float


Next: TypeAlias = float | Wait | None
"""Seconds of the thread's own clock until its next step, or None when it is over."""


class Restless(Exception):
    """The run had more events than any sensible one: something goes round in circles."""


class SimulatedThread:
    """One thread of a node, or of the world itself (`node` is None)."""

    __slots__ = ("busy", "event", "missed", "name", "node", "over", "plan", "step")

    def __init__(self, name: str, step: Callable[[], Next], node: "SimNode | None") -> None:
        self.name = name
        self.step = step
        self.node = node
        self.busy = False  # its step is running
        self.missed = False  # it became due while it could not run
        self.over = False
        self.plan = -1  # the number of the valid heap entry; older ones are ignored
        self.event: threading.Event | None = None


class SimulationScheduler:
    """Decides the order of all events."""

    def __init__(self, *, most_events: int = 200_000) -> None:
        self.now_us = 0
        self.current: SimulatedThread | None = None
        self.depth = 0
        self.events = 0
        self.on_crash: Callable[[SimNode, str], None] = lambda node, why: None
        self.on_error: Callable[[SimulatedThread, BaseException], None] = _raise
        self.on_continue: Callable[[SimNode], None] = lambda node: None  # a node continues, and may act
        self._most_events = most_events
        self._heap: list[tuple[int, int, SimulatedThread]] = []
        self._numbers = 0
        self._waiting: dict[SimulatedThread, threading.Event] = {}

    # --- planning

    def plan(self, thread: SimulatedThread, after_us: int) -> None:
        """Plan the thread's next step; it replaces an earlier plan."""
        self._numbers += 1
        thread.plan = self._numbers
        heappush(self._heap, (self.now_us + after_us, self._numbers, thread))

    def spawn(
        self, name: str, step: Callable[[], Next], after_us: int, node: "SimNode | None" = None
    ) -> SimulatedThread:
        """Create a thread and plan its first step."""
        thread = SimulatedThread(name, step, node)
        self.plan(thread, after_us)
        return thread

    def poke(self) -> None:
        """Plan the threads whose events are set."""
        for thread, event in list(self._waiting.items()):
            if event.is_set():
                del self._waiting[thread]
                self.plan(thread, LEAST_STEP_US)

    # --- running

    def run_until(self, end_us: int, stop: Callable[[], bool] | None = None) -> None:
        """Run all events up to a time, or until `stop` returns True (then time stays where it is)."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            if stop is not None and stop():
                return
            at_us, number, thread = heappop(heap)
            if thread.plan != number or thread.over:
                continue
            if at_us > self.now_us:
                self.now_us = at_us
            self._perform(thread)
        if (stop is None or not stop()) and self.now_us < end_us:
            self.now_us = end_us

    def _perform(self, thread: SimulatedThread) -> None:
        node = thread.node
        if node is not None and not node.running:
            return
        if thread.busy or (node is not None and node.frozen):
            thread.missed = True
            return
        self._count()
        self._waiting.pop(thread, None)
        outer, self.current = self.current, thread
        thread.busy = True
        after: Next = None
        try:
            if node is not None:
                self.on_continue(node)
            after = thread.step()
        except Crashed as crash:
            assert node is not None
            self.on_crash(node, str(crash))
        except BaseException as error:  # noqa: BLE001 - also LeaseLost and the like: nothing escapes a thread
            self.on_error(thread, error)
        finally:
            thread.busy = False
            self.current = outer
        self._plan_next(thread, after)

    def _plan_next(self, thread: SimulatedThread, after: Next) -> None:
        if after is None:
            thread.over = True
            return
        if thread.missed:
            thread.missed = False
            self.plan(thread, LEAST_STEP_US)
            return
        seconds = after.seconds if isinstance(after, Wait) else after
        rate = thread.node.clock.rate if thread.node is not None else 1.0
        self.plan(thread, max(LEAST_STEP_US, int(seconds / rate * SECOND_US) + 1))
        if isinstance(after, Wait):
            self._waiting[thread] = after.event
            if after.event.is_set():
                self.poke()

    def _count(self) -> None:
        self.events += 1
        if self.events > self._most_events:
            raise Restless(f"more than {self._most_events:,} events, {self.now_us / SECOND_US:.1f} s in")

    # --- blocking in the middle of a step

    def block(
        self, duration_us: int, *, freeze: bool = False, stop: Callable[[], bool] | None = None
    ) -> None:
        """Block the current step while the others continue; `Crashed` if its process dies."""
        thread = self.current
        if thread is None:
            self.now_us += duration_us
            return
        if self.depth >= DEPTH_LIMIT:
            self._count()
            self.now_us += duration_us
        else:
            self._run_others(thread, duration_us, freeze, stop)
        if thread.node is not None:
            if not thread.node.running:
                raise Crashed(f"{thread.node.name} died while it was stopped")
            self.on_continue(thread.node)

    def _run_others(
        self, thread: SimulatedThread, duration_us: int, freeze: bool, stop: Callable[[], bool] | None
    ) -> None:
        self.depth += 1
        if freeze and thread.node is not None:
            self.freeze(thread.node)
        try:
            self.run_until(self.now_us + duration_us, stop)
        finally:
            self.current = thread
            self.depth -= 1
            if freeze and thread.node is not None:
                self.thaw(thread.node)

    def freeze(self, node: "SimNode") -> None:
        """Stop a whole process, as SIGSTOP does; may be done several times."""
        node.frozen += 1

    def thaw(self, node: "SimNode") -> None:
        """Undo one `freeze`; overdue events happen now."""
        node.frozen -= 1
        if node.frozen == 0:
            for thread in node.threads:
                if thread.missed and not thread.busy:
                    thread.missed = False
                    self.plan(thread, LEAST_STEP_US)


def _raise(thread: SimulatedThread, error: BaseException) -> None:
    raise error


EPOCH_S = 1_800_000_000  # true wall time at the start of a simulation, and the store's lease time


class NodeClock(Clock):
    """The clock of one node. `rate`: its seconds per true second; `off_s`: the error of its wall clock."""

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
    """The clock of the current node: one store object serves all nodes."""

    def __init__(self, scheduler: SimulationScheduler) -> None:
        self._scheduler = scheduler
        self._true = NodeClock(scheduler)

    def current(self) -> Clock:
        """Return the clock of the current node."""
        thread = self._scheduler.current
        return thread.node.clock if thread is not None and thread.node is not None else self._true

    def monotonic(self) -> float:
        return self.current().monotonic()

    def wall(self) -> float:
        return self.current().wall()

    def sleep(self, seconds: float) -> None:
        self.current().sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self.current().wait(event, timeout_s)


class SimNode:
    """A process with a clock, a random source and threads; `name` is machine.boot."""

    def __init__(
        self, scheduler: SimulationScheduler, machine: int, boot: int, clock: NodeClock, chance: random.Random
    ):
        self.name = f"n{machine}.{boot}"
        self.machine = machine
        self.clock = clock
        self.chance = chance
        self.running = True
        self.frozen = 0
        self.threads: list[SimulatedThread] = []
        self.tokens: set[str] = set()  # the names that hold its leases
        self.at_end: list[Callable[[], None]] = []  # called when the process ends
        self.parts: dict[str, Any] = {}  # data of the workloads
        self._scheduler = scheduler

    def spawn(self, name: str, step: Callable[[], Next], after_s: float = 0.0) -> SimulatedThread:
        """Start a thread of this process."""
        after_us = int(after_s / self.clock.rate * SECOND_US) + 1
        thread = self._scheduler.spawn(f"{self.name} {name}", step, after_us, self)
        self.threads.append(thread)
        return thread

    def wake(self, thread: SimulatedThread) -> None:
        """Run the next step of a thread now instead of at its planned time."""
        self._scheduler.plan(thread, 1)

    def end(self) -> None:
        """End the process."""
        self.running = False
        for close in self.at_end:
            close()
        for thread in self.threads:
            thread.over = True
            thread.step = _nothing  # dead closures keep whole stores alive
        self.threads.clear()

    def __repr__(self) -> str:
        return f"<SimNode {self.name}>"


def _nothing() -> Next:
    return None
