"""Run many simulated processes in one thread: a queue of events by time, and threads that take turns.

A simulated thread has a step, like a thread of a real process; the step returns when the next one is due.
Time is true time in whole microseconds and moves only from one event to the next. So a run depends only on
the events, and on nothing else.

A step may block in the middle, inside a store call or a clock's `sleep`. `block` then runs the events of all
others from *within* that step until its time is over, and returns. The interleavings are real (two
transactions do overlap), and there is still only one thread and one order. Either one simulated thread is
blocked (it waits for a response, and the rest of its process continues) or its whole process (`freeze`).

Blocks nest, so the last one to block is the first to continue: an outer step may continue later than
requested, never sooner, as on a busy machine. Below `DEPTH_LIMIT` a block only advances the time.
"""

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidemill.crash import Crashed

if TYPE_CHECKING:
    from tidemill.testing.simulation.node import SimNode

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
