"""Choose the faults of a simulation, and cause them: inside store calls, and from outside.

A `Swarm` is the world of one seed: how large and how fast it is, and which faults it has. Each seed has its
own subset of the kinds of fault and its own rates. A world with every fault at once hides problems that only
show when, for example, only long pauses happen. Over many seeds every subset is tried.

`FaultInjector` implements the `StoreFaults` port of the memory store and runs one thread. All its choices
come from one random source, in the order of the events, so the same seed has the same faults.
"""

import random
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.scheduler import EPOCH_S, SECOND_US, Next, SimulatedThread
from tidemill.cluster.leases import LeaseTiming
from tidemill.crash import Crashed
from tidemill.store.memory import MemoryStore, StoreFaults
from tidemill.store.retry import Conflict, Unknown, Unreached

if TYPE_CHECKING:
    from tests.simulation.scheduler import SimNode
    from tests.simulation.world import World


class Fault(StrEnum):
    """The kinds of faults."""

    CRASH = "crash"  # a process ends in the middle of anything; the machine boots again later
    PAUSE = "pause"  # a process stops for less or more than the ttl, and then continues
    SLOW = "slow store"  # a response is slow; the other threads of the process continue
    CONFLICT = "conflict"  # the store refuses a commit without a visible reason
    UNKNOWN = "unknown commit"  # the response is lost: committed, not committed, or committed later
    LOST_WAKEUP = "lost wake-up"  # a watch does not fire
    RESTART = "store restart"  # the store is unreachable for a while; open transactions are lost or unknown
    DRIFT = "drift"  # monotonic clocks run at different rates
    JUMP = "clock jump"  # wall clocks are wrong by hours, and jump
    DRAIN = "drain"  # a node drains, and its machine starts again later
    BLACKOUT = "blackout"  # every node is killed at once
    CUT_OFF = "cut off"  # a response is lost, and its process does not reach the store until it gives up


DRAWN = tuple(fault for fault in Fault if fault is not Fault.CUT_OFF)
"""The faults of random worlds. A process is cut off only in worlds that ask for it."""

IN_CALLS = (Fault.CRASH, Fault.PAUSE, Fault.SLOW, Fault.CONFLICT, Fault.UNKNOWN)
TIMED = (Fault.CRASH, Fault.PAUSE, Fault.RESTART, Fault.JUMP, Fault.DRAIN, Fault.BLACKOUT)
MOST_DRIFT = 0.12  # the margin of a lease, a fifth, must cover the difference to the store's clock


class Swarm(msgspec.Struct, frozen=True):
    """The conditions of one seed."""

    machines: int
    ttl_s: float
    every_s: float
    patience_s: float
    chaos_s: float  # how long faults happen; after that all work must finish
    faults: tuple[Fault, ...]
    call_rate: float  # probability of a fault at each of the three moments of a store call
    timed_mean_s: float  # the mean time between two faults from outside

    @property
    def timing(self) -> LeaseTiming:
        """The timing of all leases."""
        return LeaseTiming(self.ttl_s, self.every_s)

    def has(self, fault: Fault) -> bool:
        return fault in self.faults


def draw_swarm(chance: random.Random, *, most_machines: int = 6) -> Swarm:
    """Draw the conditions of one seed."""
    many = chance.choice((0.2, 0.5, 0.8))
    faults = tuple(fault for fault in DRAWN if chance.random() < many)
    ttl_s = chance.choice((1.0, 3.0, 15.0))
    return Swarm(
        machines=min(chance.choice((1, 2, 2, 3, 3, 3, 4, 5, 6)), most_machines),
        ttl_s=ttl_s,
        every_s=ttl_s / chance.choice((3, 4, 5)),
        patience_s=ttl_s * chance.choice((0.1, 0.5, 2.0)),
        chaos_s=ttl_s * chance.uniform(2.0, 4.5),
        faults=faults,
        call_rate=chance.choice((0.01, 0.03, 0.1, 0.25)),
        timed_mean_s=ttl_s * chance.choice((0.3, 0.7, 1.5)),
    )


OVERLAP = 0.4  # the share of transactions that overlap with others, if the store is slow


class FaultInjector(StoreFaults):
    """Decides which faults happen, and causes them."""

    def __init__(self, world: "World", swarm: Swarm, chance: random.Random) -> None:
        self.swarm = swarm
        self.calm = False
        self._world = world
        self._chance = chance
        self._in_calls = [fault for fault in IN_CALLS if swarm.has(fault)]
        self._timed = [fault for fault in TIMED if swarm.has(fault)]
        self._down_until_us = -1
        self._restarts = 0
        self._connections: dict[SimulatedThread, int] = {}
        self._cut_off_us: dict[SimNode, int] = {}  # until when a process is cut off

    # --- inside store calls

    def before(self, store: MemoryStore) -> None:
        thread, node = self._world.scheduler.current, self._world.current_node
        if thread is None or node is None:
            return
        if not node.running:
            raise Crashed(f"{node.name} is dead and calls the store")
        self._world.check_node(node)
        self._strike(node, "before the transaction")
        if self._world.scheduler.now_us < max(self._down_until_us, self._cut_off_us.get(node, -1)):
            raise Unreached("the store is down")
        self._connections[thread] = self._restarts

    def between(self, store: MemoryStore) -> None:
        node = self._world.current_node
        if node is not None:
            self._take_time()
            self._strike(node, "between reading and committing")
            self._check_connection("before the commit")

    def after(self, store: MemoryStore) -> None:
        node = self._world.current_node
        if node is not None:
            self._strike(node, "after the commit")
            self._check_connection("after the commit")
            self._cut_off(node)

    def _cut_off(self, node: "SimNode") -> None:
        """Lose the response, and keep the process from the store until it gives up; its lease runs on."""
        rare = not self.calm and self.swarm.has(Fault.CUT_OFF)
        if rare and self._chance.random() < self.swarm.call_rate:
            self._world.count(Fault.CUT_OFF, node.name)
            self._cut_off_us[node] = self._world.scheduler.now_us + self._us(1.1 * self.swarm.patience_s)
            raise Unknown("the connection broke after the commit")

    def _check_connection(self, when: str) -> None:
        thread = self._world.scheduler.current
        if thread is not None and self._connections.get(thread) != self._restarts:
            raise Unknown(f"the store restarted {when}")

    def late_us(self) -> int | None:
        """Return the delay of a commit; None if it is not delayed."""
        rare = not self.calm and Fault.UNKNOWN in self._in_calls and self._world.current_node is not None
        if not rare or self._chance.random() >= self.swarm.call_rate / 2:
            return None
        self._world.count(Fault.UNKNOWN, "commit delayed")
        return self._us(2.0 * self.swarm.ttl_s * self._chance.random() ** 3)

    def loses_wakeup(self) -> bool:
        lost = not self.calm and self.swarm.has(Fault.LOST_WAKEUP) and self._chance.random() < 0.5
        if lost:
            self._world.count(Fault.LOST_WAKEUP, "wake-up lost")
        return lost

    def now_us(self) -> int:
        return EPOCH_S * SECOND_US + self._world.scheduler.now_us

    def wall_us(self) -> int:
        return self.now_us()

    def _take_time(self) -> None:
        """Let transactions overlap if the store is slow, without any fault."""
        if not self.calm and self.swarm.has(Fault.SLOW) and self._chance.random() < OVERLAP:
            self._world.scheduler.block(self._us(self.swarm.ttl_s / 50 * self._chance.random()))

    def _strike(self, node: "SimNode", moment: str) -> None:
        if self.calm or not self._in_calls or self._chance.random() >= self.swarm.call_rate:
            return
        match self._chance.choice(self._in_calls):
            case Fault.CRASH:
                self._world.crash(node, moment)
                raise Crashed(moment)
            case Fault.PAUSE:
                self._pause_here(node, moment)
            case Fault.SLOW:
                self._world.count(Fault.SLOW, moment)
                self._world.scheduler.block(self._us(0.6 * self.swarm.ttl_s * self._chance.random() ** 3))
            case Fault.CONFLICT:
                if moment != "after the commit":
                    self._world.count(Fault.CONFLICT, moment)
                    raise Conflict("simulated")
            case Fault.UNKNOWN:
                self._world.count(Fault.UNKNOWN, moment)
                if moment == "before the transaction":
                    raise Unreached("the connection broke")
                raise Unknown(f"the connection broke {moment}")

    def _pause_here(self, node: "SimNode", moment: str) -> None:
        duration_us = self._pause_us()
        self._world.count(Fault.PAUSE, f"{duration_us / SECOND_US:.3f} s", moment)
        self._world.scheduler.block(duration_us, freeze=True)
        self._world.record(node.name, "continues")

    def _pause_us(self) -> int:
        low, high = self._chance.choice(((0.05, 0.9), (0.9, 1.3), (1.0, 2.5)))
        return self._us(self.swarm.ttl_s * self._chance.uniform(low, high))

    # --- from outside

    def step(self) -> Next:
        """Cause a fault; return the seconds until the next one."""
        if self.calm or not self._timed:
            return None
        self._happen(self._chance.choice(self._timed))
        return self._chance.expovariate(1 / self.swarm.timed_mean_s)

    def _happen(self, fault: Fault) -> None:
        running = self._world.running()
        if fault is Fault.RESTART:
            self._restart()
        elif not running:
            return
        elif fault is Fault.BLACKOUT:
            self._world.count(Fault.BLACKOUT, f"{len(running)} nodes")
            for node in running:
                self._world.crash(node, "in the blackout")
        else:
            self._befall(fault, self._chance.choice(running))

    def _befall(self, fault: Fault, node: "SimNode") -> None:
        if fault is Fault.CRASH:
            self._world.crash(node, "between two steps")
        elif fault is Fault.PAUSE:
            duration_us = self._pause_us()
            self._world.count(Fault.PAUSE, node.name, f"{duration_us / SECOND_US:.3f} s")
            self._world.scheduler.freeze(node)
            self._world.scheduler.spawn("thaw", lambda: self._world.scheduler.thaw(node), duration_us)
        elif fault is Fault.JUMP:
            node.clock.off_s = self.wall_error_s()
            self._world.count(Fault.JUMP, node.name, f"{node.clock.off_s:+.0f} s")
        else:
            self._world.drain(node, self.swarm.ttl_s * self._chance.choice((0.0, 0.2, 1.0, 3.0)))

    def _restart(self) -> None:
        down_us = self._us(self.swarm.ttl_s * self._chance.choice((0.05, 0.5, 2.0)) * self._chance.random())
        self._restarts += 1
        self._down_until_us = max(self._down_until_us, self._world.scheduler.now_us + down_us)
        self._world.count(Fault.RESTART, f"down for {down_us / SECOND_US:.3f} s")

    def wall_error_s(self) -> float:
        """Return the error of a wall clock."""
        if not self.swarm.has(Fault.JUMP):
            return 0.0
        return self._chance.choice((-1.0, 1.0)) * self._chance.choice((2.0, 60.0, 3600.0, 36_000.0))

    def stop(self) -> None:
        """Stop all faults; clocks keep their errors."""
        self.calm = True
        self._down_until_us = -1

    @staticmethod
    def _us(seconds: float) -> int:
        return int(seconds * SECOND_US) + 1
