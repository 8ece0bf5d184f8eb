"""A simulated node: one life of a process, from its start to its end."""

import random
from collections.abc import Callable
from typing import Any

from tidemill.testing.simulation.clock import NodeClock
from tidemill.testing.simulation.scheduler import SECOND_US, Next, SimulatedThread, SimulationScheduler


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
