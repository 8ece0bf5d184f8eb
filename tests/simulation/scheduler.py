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
LEAST_STEP_US = 200  # what a step costs at least: a loop that never waits still lets time go on
DEPTH_LIMIT = 5


class Wait(NamedTuple):
    """What a step may return instead of seconds: also go on as soon as the event is set."""

    event: threading.Event
    seconds: float


Next: TypeAlias = float | Wait | None
"""Seconds of the actor's own clock until its next step, or None when it is over."""


class Restless(Exception):
    """The run had more events than any sensible one: something goes round in circles."""


class SimulatedThread:
    """One thread of a node, or a force of nature (`node` is None)."""

    __slots__ = ("busy", "event", "missed", "name", "node", "over", "plan", "step")

    def __init__(self, name: str, step: Callable[[], Next], node: "SimNode | None") -> None:
        self.name = name
        self.step = step
        self.node = node
        self.busy = False  # its step is on the stack
        self.missed = False  # its time came while it could not go on
        self.over = False
        self.plan = -1  # the number of the heap entry that counts; older ones are void
        self.event: threading.Event | None = None


class SimulationScheduler:
    """The order of everything."""

    def __init__(self, *, most_events: int = 200_000) -> None:
        self.now_us = 0
        self.current: SimulatedThread | None = None
        self.depth = 0
        self.events = 0
        self.on_crash: Callable[[SimNode, str], None] = lambda node, why: None
        self.on_error: Callable[[SimulatedThread, BaseException], None] = _raise
        self.on_turn: Callable[[SimNode], None] = lambda node: None  # a node continues, and may act
        self._most_events = most_events
        self._heap: list[tuple[int, int, SimulatedThread]] = []
        self._numbers = 0
        self._waiting: dict[SimulatedThread, threading.Event] = {}

    # --- planning

    def plan(self, actor: SimulatedThread, after_us: int) -> None:
        """Let the actor's next step be then; an earlier plan of it is void."""
        self._numbers += 1
        actor.plan = self._numbers
        heappush(self._heap, (self.now_us + after_us, self._numbers, actor))

    def spawn(
        self, name: str, step: Callable[[], Next], after_us: int, node: "SimNode | None" = None
    ) -> SimulatedThread:
        """A new actor and its first step."""
        actor = SimulatedThread(name, step, node)
        self.plan(actor, after_us)
        return actor

    def poke(self) -> None:
        """Continue the threads whose events have been set."""
        for actor, event in list(self._waiting.items()):
            if event.is_set():
                del self._waiting[actor]
                self.plan(actor, LEAST_STEP_US)

    # --- running

    def run_until(self, end_us: int, stop: Callable[[], bool] | None = None) -> None:
        """Everything up to a time, or until `stop` says so (then time stays where it is)."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            if stop is not None and stop():
                return
            at_us, number, actor = heappop(heap)
            if actor.plan != number or actor.over:
                continue
            if at_us > self.now_us:
                self.now_us = at_us
            self._perform(actor)
        if (stop is None or not stop()) and self.now_us < end_us:
            self.now_us = end_us

    def _perform(self, actor: SimulatedThread) -> None:
        node = actor.node
        if node is not None and not node.running:
            return
        if actor.busy or (node is not None and node.frozen):
            actor.missed = True
            return
        self._count()
        self._waiting.pop(actor, None)
        outer, self.current = self.current, actor
        actor.busy = True
        after: Next = None
        try:
            if node is not None:
                self.on_turn(node)
            after = actor.step()
        except Crashed as crash:
            assert node is not None
            self.on_crash(node, str(crash))
        except BaseException as error:  # noqa: BLE001 - also LeaseLost and the like: nothing escapes a thread
            self.on_error(actor, error)
        finally:
            actor.busy = False
            self.current = outer
        self._plan_next(actor, after)

    def _plan_next(self, actor: SimulatedThread, after: Next) -> None:
        if after is None:
            actor.over = True
            return
        if actor.missed:
            actor.missed = False
            self.plan(actor, LEAST_STEP_US)
            return
        seconds = after.seconds if isinstance(after, Wait) else after
        rate = actor.node.clock.rate if actor.node is not None else 1.0
        self.plan(actor, max(LEAST_STEP_US, int(seconds / rate * SECOND_US) + 1))
        if isinstance(after, Wait):
            self._waiting[actor] = after.event
            if after.event.is_set():
                self.poke()

    def _count(self) -> None:
        self.events += 1
        if self.events > self._most_events:
            raise Restless(f"more than {self._most_events:,} events, {self.now_us / SECOND_US:.1f} s in")

    # --- stopping in the middle of a step

    def block(
        self, duration_us: int, *, freeze: bool = False, stop: Callable[[], bool] | None = None
    ) -> None:
        """Block the current step while the others continue; `Crashed` if its process dies."""
        actor = self.current
        if actor is None:
            self.now_us += duration_us
            return
        if self.depth >= DEPTH_LIMIT:
            self._count()
            self.now_us += duration_us
        else:
            self._run_others(actor, duration_us, freeze, stop)
        if actor.node is not None:
            if not actor.node.running:
                raise Crashed(f"{actor.node.name} died while it was stopped")
            self.on_turn(actor.node)

    def _run_others(
        self, actor: SimulatedThread, duration_us: int, freeze: bool, stop: Callable[[], bool] | None
    ) -> None:
        self.depth += 1
        if freeze and actor.node is not None:
            self.freeze(actor.node)
        try:
            self.run_until(self.now_us + duration_us, stop)
        finally:
            self.current = actor
            self.depth -= 1
            if freeze and actor.node is not None:
                self.thaw(actor.node)

    def freeze(self, node: "SimNode") -> None:
        """Stop a whole process, as SIGSTOP does; may be done several times."""
        node.frozen += 1

    def thaw(self, node: "SimNode") -> None:
        """Undo one `freeze`; overdue events happen now."""
        node.frozen -= 1
        if node.frozen == 0:
            for actor in node.actors:
                if actor.missed and not actor.busy:
                    actor.missed = False
                    self.plan(actor, LEAST_STEP_US)


def _raise(actor: SimulatedThread, error: BaseException) -> None:
    raise error


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


class SimNode:
    """A process with its own clock, its own chance and its threads; `name` is machine.boot."""

    def __init__(
        self, scheduler: SimulationScheduler, machine: int, boot: int, clock: NodeClock, chance: random.Random
    ):
        self.name = f"n{machine}.{boot}"
        self.machine = machine
        self.clock = clock
        self.chance = chance
        self.running = True
        self.frozen = 0
        self.actors: list[SimulatedThread] = []
        self.tokens: set[str] = set()  # the names under which it holds leases
        self.at_end: list[Callable[[], None]] = []  # what the machine lets go of when the process is no more
        self.parts: dict[str, Any] = {}  # what the workloads keep of this node
        self._scheduler = scheduler

    def spawn(self, name: str, step: Callable[[], Next], after_s: float = 0.0) -> SimulatedThread:
        """A new thread of this process."""
        after_us = int(after_s / self.clock.rate * SECOND_US) + 1
        actor = self._scheduler.spawn(f"{self.name} {name}", step, after_us, self)
        self.actors.append(actor)
        return actor

    def wake(self, actor: SimulatedThread) -> None:
        """Let a thread go on now instead of when it planned to."""
        self._scheduler.plan(actor, 1)

    def end(self) -> None:
        """The process is no more."""
        self.running = False
        for let_go in self.at_end:
            let_go()
        for actor in self.actors:
            actor.over = True
            actor.step = _nothing  # dead closures keep whole stores alive
        self.actors.clear()

    def __repr__(self) -> str:
        return f"<SimNode {self.name}>"


def _nothing() -> Next:
    return None
