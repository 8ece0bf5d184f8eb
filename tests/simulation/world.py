"""A simulated world: machines that start nodes, one store, injected faults, workloads, and rules.

A run has two phases. In the first, faults happen. Then the faults stop, all machines start again, and within
`patience_s` all work must be finished: this tests liveness. Every rule sees every commit and every action
when it happens, so a violation is found at the event that caused it.

`Rule` is the base class of what checks every commit and action, `Workload` of what the nodes must finish.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from tests.simulation.faults import MOST_DRIFT, Fault, FaultInjector, Swarm
from tests.simulation.scheduler import (
    SECOND_US,
    CurrentClock,
    Next,
    NodeClock,
    Restless,
    SimNode,
    SimulatedThread,
    SimulationScheduler,
)
from tests.simulation.store import RecordedCommit, SimStore, Timeline


class Violation(AssertionError):
    """A rule was broken. The message names the node and the command that replays it."""


class Act(NamedTuple):
    """Something that a node did because it believed to hold a lease, and that no store can refuse."""

    node: SimNode
    key: bytes  # of the lease
    epoch: int
    now_us: int  # the store's time at this moment


class Rule(Protocol):
    """An invariant. It raises `Violation` and has no other effect."""

    prefixes: tuple[bytes, ...]
    """The rule sees only commits that change keys with these prefixes."""

    def commit(self, commit: RecordedCommit) -> None:
        """Check a committed transaction."""

    def act(self, act: Act) -> None:
        """Check an act of a node."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """Check the rows at the end of the run."""


class Workload(Protocol):
    """The work of the nodes."""

    def prepare(self) -> None:
        """Write what the nodes need to the store, before the first node starts."""

    def boot(self, node: SimNode) -> None:
        """Start the threads of a new node."""

    def drain(self, node: SimNode, grace_s: float) -> None:
        """Drain a node."""

    def check_node(self, node: SimNode) -> None:
        """Check what a node believes when it continues, at the start of a step or after a block in it."""

    def unfinished(self) -> list[str]:
        """Return what is not finished; empty when everything is done."""
        ...


class SimulationReport(msgspec.Struct, frozen=True):
    """The result of one run."""

    seed: int
    events: int
    commits: int
    conflicts: int
    true_s: float
    counts: dict[str, int]


class SimulatedMachine:
    """A machine runs one node at a time. The rate and error of its clock outlive the node."""

    def __init__(self, number: int, rate: float) -> None:
        self.number = number
        self.rate = rate
        self.boots = 0
        self.node: SimNode | None = None
        self.off_s = 0.0


class World:
    """The world of one seed. Add workloads and rules, then call `run`."""

    def __init__(self, seed: int, swarm: Swarm, *, scenario: str) -> None:
        self.seed = seed
        self.swarm = swarm
        self.replay = f"python -m tests.simulation --scenario {scenario} --seed {seed}"
        self.chance = self.chance_of("world")
        self.timeline = Timeline()
        self.scheduler = SimulationScheduler()
        self.scheduler.on_crash = self._crashed
        self.scheduler.on_error = self._failed
        self.scheduler.on_continue = self.check_node
        # The names of random sources are part of the seed: a new name would change every run.
        self.faults = FaultInjector(self, swarm, self.chance_of("weather"))
        self.store = SimStore(
            self, CurrentClock(self.scheduler), self.chance_of("store"), self.faults, swarm.patience_s
        )
        self.machines = [
            SimulatedMachine(
                number + 1, 1 + MOST_DRIFT * self.chance.uniform(-1, 1) if swarm.has(Fault.DRIFT) else 1.0
            )
            for number in range(swarm.machines)
        ]
        self.workloads: list[Workload] = []
        self.counts: Counter[str] = Counter()
        self.commits = 0
        self.calm_since_us: int | None = None
        self._rules: list[Rule] = []
        self.patience_s = 15 * swarm.ttl_s  # from the last fault to rest; a scenario adds its work
        self._violation: Violation | None = None
        self._at_rest = False

    # --- what a scenario uses

    def chance_of(self, name: str) -> random.Random:
        """Return a random source for one user, so that its draws do not affect others."""
        return random.Random(f"{self.seed}/{name}")

    def add_rule(self, rule: Rule) -> None:
        self._rules.append(rule)

    @property
    def now_us(self) -> int:
        """The store's time."""
        return self.faults.now_us()

    @property
    def current_node(self) -> SimNode | None:
        thread = self.scheduler.current
        return thread.node if thread is not None else None

    def quiet_for_s(self) -> float:
        """Return the seconds since the last fault."""
        return 0.0 if self.calm_since_us is None else (self.scheduler.now_us - self.calm_since_us) / SECOND_US

    def running(self) -> list[SimNode]:
        return [machine.node for machine in self.machines if machine.node is not None]

    def record(self, source: str, event: str, *detail: object) -> None:
        """Add an entry to the timeline."""
        self.timeline.add(self.scheduler.now_us, source, event, *detail)

    def count(self, fault: Fault, *detail: object) -> None:
        """Count a fault, and add it to the timeline."""
        self.counts[fault] += 1
        node = self.current_node
        self.record(node.name if node is not None else "faults", fault.value.upper(), *detail)

    def act(self, key: bytes, epoch: int) -> None:
        """Check an act of the current node that needs the lease under `key`."""
        node = self.current_node
        assert node is not None
        self.counts["acts"] += 1
        act = Act(node, key, epoch, self.now_us)
        for rule in self._rules:
            self._judge(rule.act, act)

    def violated(self, message: str) -> Violation:
        """Return the error to raise, with the command that replays it; only the first one counts."""
        self.record("rule", "VIOLATED", message)
        if self._violation is None:
            tail = "\n".join(self.timeline.lines(last=25))
            self._violation = Violation(f"seed {self.seed}: {message}\nreplay: {self.replay} --trace\n{tail}")
        return self._violation

    # --- starting and stopping nodes

    def boot(self, machine: SimulatedMachine) -> None:
        """Start a node on a machine that has none."""
        if machine.node is not None:
            return
        machine.boots += 1
        if machine.boots == 1:
            machine.off_s = self.faults.wall_error_s()
            self.counts[Fault.DRIFT] += machine.rate != 1.0
        name = f"n{machine.number}.{machine.boots}"
        chance = self.chance_of(name)
        clock = NodeClock(
            self.scheduler, rate=machine.rate, uptime_s=chance.uniform(1, 1e6), off_s=machine.off_s
        )
        node = machine.node = SimNode(self.scheduler, machine.number, machine.boots, clock, chance)
        self.record(name, "boots")
        for workload in self.workloads:
            workload.boot(node)

    def crash(self, node: SimNode, where: str) -> None:
        """End a process at once; its machine boots again later."""
        if node.running:
            self.counts[Fault.CRASH] += 1
            self.record(node.name, "CRASH", where)
            self._end(node)

    def leave(self, node: SimNode) -> None:
        """End a process that is done."""
        if node.running:
            self.record(node.name, "exits")
            self._end(node)

    def drain(self, node: SimNode, grace_s: float) -> None:
        self.counts[Fault.DRAIN] += 1
        self.record(node.name, "DRAIN", f"grace {grace_s:.3f} s")
        for workload in self.workloads:
            workload.drain(node, grace_s)

    def _end(self, node: SimNode) -> None:
        machine = self.machines[node.machine - 1]
        machine.node, machine.off_s = None, node.clock.off_s
        node.end()
        after_s = self.swarm.ttl_s * self.chance.uniform(0.02, 1.5)
        self.scheduler.spawn("boot", partial(self.boot, machine), int(after_s * SECOND_US))

    def _crashed(self, node: SimNode, where: str) -> None:
        self.crash(node, where)

    def _failed(self, thread: SimulatedThread, error: BaseException) -> None:
        if isinstance(error, (Violation, Restless, KeyboardInterrupt)):
            raise error
        raise self.violated(f"{thread.name} raised {type(error).__name__}: {error}") from error

    # --- checking

    def check_node(self, node: SimNode) -> None:
        """Check a node that continues: it may act on its beliefs now."""
        for workload in self.workloads:
            self._judge(workload.check_node, node)

    def committed(self, commit: RecordedCommit) -> None:
        self.commits += 1
        name = commit.node.name if commit.node is not None else "world"
        self.timeline.add(
            self.scheduler.now_us, name, "commits", *[(change.key, change.new) for change in commit.changes]
        )
        for rule in self._rules:
            prefixes = rule.prefixes
            for change in commit.changes:
                if change.key.startswith(prefixes):
                    self._judge(rule.commit, commit)
                    break

    def _judge(self, rule: Callable[..., None], *args: object) -> None:
        try:
            rule(*args)
        except Violation as broken:
            if broken is self._violation:
                raise
            raise self.violated(str(broken)) from None

    # --- running

    def run(self) -> SimulationReport:
        """Run this world to its end; raise `Violation` if a rule is broken."""
        try:
            self._run()
        except Restless as restless:
            raise self.violated(str(restless)) from None
        if self._violation is not None:
            raise self._violation  # other code caught it
        return self.report()

    def report(self) -> SimulationReport:
        return SimulationReport(
            seed=self.seed,
            events=self.scheduler.events,
            commits=self.commits,
            conflicts=self.store.conflicts,
            true_s=self.scheduler.now_us / SECOND_US,
            counts=dict(self.counts),
        )

    def _run(self) -> None:
        for workload in self.workloads:
            workload.prepare()
        chaos_us = int(self.swarm.chaos_s * SECOND_US)
        for machine in self.machines:  # the first one starts at once, the others later
            late_us = int(chaos_us * max(0.0, self.chance.uniform(-1.0, 0.6))) if machine.number > 1 else 0
            self.scheduler.spawn("boot", partial(self.boot, machine), late_us)
        self.scheduler.spawn("faults", self.faults.step, int(self.swarm.timed_mean_s * SECOND_US))
        self.scheduler.run_until(chaos_us)
        self.faults.stop()
        self.record("faults", "stop")
        self.calm_since_us = self.scheduler.now_us
        for machine in self.machines:
            self.boot(machine)
        self.scheduler.spawn("judge", self._check_rest, 1)
        rest_us = self.calm_since_us + int(self.patience_s * SECOND_US)
        self.scheduler.run_until(rest_us, stop=lambda: self._at_rest)
        if not self._at_rest:
            still = "; ".join(still for workload in self.workloads for still in workload.unfinished())
            raise self.violated(f"not at rest {self.patience_s:g} s after the last fault: {still}")
        for rule in self._rules:
            self._judge(rule.end, self.store.rows)

    def _check_rest(self) -> Next:
        self._at_rest = all(
            machine.node is not None and not machine.node.frozen for machine in self.machines
        ) and not any(workload.unfinished() for workload in self.workloads)
        return None if self._at_rest else self.swarm.ttl_s / 8
