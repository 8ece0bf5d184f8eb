"""The scheduler, the store with faults and the world of the simulation, which scenarios build on."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.simulation import (
    Act,
    Fault,
    RecordedCommit,
    Rule,
    SimNode,
    Swarm,
    Violation,
    Wait,
    Workload,
    World,
)
from tests.simulation.scheduler import DEPTH_LIMIT, SECOND_US, Next, Restless, SimulationScheduler
from tidemill.crash import Crashed
from tidemill.errors import StoreError
from tidemill.store import Space, Tx

COUNTER = Space("test")["counter"]


def calm(*faults: Fault, machines: int = 2, call_rate: float = 0.0) -> Swarm:
    return Swarm(
        machines=machines,
        ttl_s=1.0,
        every_s=0.2,
        patience_s=1.0,
        chaos_s=3.0,
        faults=faults,
        call_rate=call_rate,
        timed_mean_s=0.5,
    )


class Steps:
    """A thread's steps, one function after the other."""

    def __init__(self, *steps: Callable[[], Next]) -> None:
        self._steps = list(steps)

    def __call__(self) -> Next:
        return self._steps.pop(0)() if self._steps else None


@pytest.fixture
def world() -> World:
    return World(1, calm(), scenario="test")


def booted(world: World) -> list[SimNode]:
    for machine in world.machines:
        world.boot(machine)
    return world.running()


# --- the scheduler ------------------------------------------------------------------------------------------


def test_things_happen_in_the_order_of_their_times_then_of_their_planning() -> None:
    scheduler, order = SimulationScheduler(), list[str]()
    for name, after_us in [("late", 30), ("first", 10), ("second", 10)]:
        scheduler.spawn(name, lambda name=name: order.append(name), after_us)  # type: ignore[misc]
    scheduler.run_until(20)
    assert order == ["first", "second"]
    assert scheduler.now_us == 20
    scheduler.run_until(100)
    assert order == ["first", "second", "late"]


def test_a_blocked_step_lets_all_others_continue(world: World) -> None:
    first, other = booted(world)
    order = list[str]()

    def stops() -> Next:
        order.append("stops")
        world.scheduler.block(SECOND_US)
        order.append("goes on")
        return None

    def ticks() -> Next:
        order.append("other")
        return 0.4

    first.spawn("stops", stops)
    other.spawn("ticks", ticks, 0.1)
    world.scheduler.run_until(SECOND_US + 10)
    assert order == ["stops", "other", "other", "other", "goes on"]


@pytest.mark.parametrize("freeze", [False, True])
def test_a_pause_stops_a_whole_node_and_a_slow_answer_one_thread_of_it(world: World, freeze: bool) -> None:
    node = booted(world)[0]
    order = list[str]()

    def stops() -> Next:
        world.scheduler.block(SECOND_US, freeze=freeze)
        order.append("goes on")
        return None

    def sibling() -> Next:
        order.append("sibling")
        return None

    node.spawn("stops", stops)
    node.spawn("sibling", sibling, 0.5)
    world.scheduler.run_until(2 * SECOND_US)
    assert order == (["goes on", "sibling"] if freeze else ["sibling", "goes on"])


def test_a_node_that_dies_while_it_is_paused_does_not_continue(world: World) -> None:
    node = booted(world)[0]
    order = list[str]()

    def stops() -> Next:
        try:
            world.scheduler.block(SECOND_US, freeze=True)
        except Crashed:
            order.append("crashed")
            raise
        order.append("goes on")
        return None

    node.spawn("stops", stops)
    node.spawn("sibling", lambda: order.append("sibling"), 2.0)
    world.scheduler.spawn("killer", lambda: world.crash(node, "here"), SECOND_US // 2)
    world.scheduler.run_until(3 * SECOND_US)
    assert order == ["crashed"]
    assert world.machines[0].boots >= 1


def test_stops_nest_only_so_deep_and_then_just_take_time(world: World) -> None:
    nodes = [booted(world)[0]]
    deepest = 0

    def stops() -> Next:
        nonlocal deepest
        deepest = max(deepest, world.scheduler.depth)
        world.scheduler.block(SECOND_US)
        return None

    for number in range(DEPTH_LIMIT + 3):
        nodes[0].spawn(f"stops {number}", stops, 0.01 * number)
    world.scheduler.run_until(10 * SECOND_US)
    assert deepest == DEPTH_LIMIT


def test_a_wait_ends_with_its_event_or_its_time(world: World) -> None:
    node = booted(world)[0]
    event, times = threading.Event(), list[int]()

    def waits() -> Next:
        times.append(world.scheduler.now_us // 1000)
        event.clear()
        return Wait(event, 1.0)

    def rings() -> Next:
        event.set()
        world.scheduler.poke()
        return None

    node.spawn("waits", waits)
    world.scheduler.spawn("rings", rings, 300_000)
    world.scheduler.run_until(2 * SECOND_US)
    assert times == [0, 300, 1300]


def test_an_endless_loop_is_stopped() -> None:
    scheduler = SimulationScheduler(most_events=100)
    scheduler.spawn("circles", lambda: 0.0, 0)
    with pytest.raises(Restless):
        scheduler.run_until(10 * SECOND_US)


def test_clocks_drift_and_jump_by_themselves(world: World) -> None:
    first, other = booted(world)
    first.clock.off_s = -7200.0
    slow = type(first.clock)(world.scheduler, rate=0.5)
    before = first.clock.monotonic(), other.clock.wall() - first.clock.wall(), slow.monotonic()
    world.scheduler.run_until(4 * SECOND_US)
    assert before[1] == pytest.approx(7200.0)
    assert first.clock.monotonic() - before[0] == pytest.approx(4.0)
    assert slow.monotonic() - before[2] == pytest.approx(2.0)


# --- the store with faults --------------------------------------------------------------------------------


def add_one(tx: Tx) -> int:
    value = int(tx.get(COUNTER) or b"0") + 1
    tx.set(COUNTER, str(value).encode())
    return value


class Counting(Workload, Rule):
    """The smallest scenario there is: each node counts three times; no count is lost, none is made twice."""

    prefixes = (COUNTER,)

    def __init__(self, world: World) -> None:
        self.world = world
        self.counted = 0
        self.told = list[int]()
        self.doubts = 0

    def prepare(self) -> None:
        """The counter begins at nothing."""

    def boot(self, node: SimNode) -> None:
        node.spawn("count", Steps(*[self._count] * 3))

    def _count(self) -> Next:
        try:
            self.told.append(self.world.store.run(add_one))
        except StoreError:
            self.doubts += 1
        return 0.3

    def drain(self, node: SimNode, grace_s: float) -> None:
        """Nobody drains."""

    def check_node(self, node: SimNode) -> None:
        """Nobody believes anything."""

    def unfinished(self) -> list[str]:
        return []

    def commit(self, commit: RecordedCommit) -> None:
        (change,) = commit.changes
        if int(change.new or b"0") != int(change.old or b"0") + 1:
            raise Violation("a count was lost")
        self.counted += 1

    def act(self, act: Act) -> None:
        """Nobody acts."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        if len(set(self.told)) != len(self.told):
            raise Violation(f"a count was told twice: {self.told}")
        if (
            self.counted < len(self.told)
            or self.counted > len(self.told) + self.doubts + self.world.counts["crash"]
        ):
            raise Violation(f"{len(self.told)} counts were told, {self.counted} are committed")


def counting(seed: int, swarm: Swarm) -> tuple[World, Counting]:
    world = World(seed, swarm, scenario="counting")
    work = Counting(world)
    world.workloads.append(work)
    world.add_rule(work)
    return world, work


@pytest.mark.parametrize("seed", range(40))
def test_another_scenario_needs_nothing_but_a_workload_and_a_rule(seed: int) -> None:
    world, work = counting(seed, calm(*Fault, machines=4, call_rate=0.2))
    world.run()
    assert work.counted >= 3


def test_overlapping_transactions_really_conflict(world: World) -> None:
    """Not by injection: one stops between reading and committing, and the other gets in between."""
    world.faults._strike = (  # type: ignore[method-assign]
        lambda node, moment: (
            world.scheduler.block(SECOND_US)
            if moment.startswith("between") and world.store.conflicts == 0 and world.scheduler.depth == 0
            else None
        )
    )
    first, other = booted(world)
    results = list[tuple[str, int]]()
    for node, after_s in ((first, 0.0), (other, 0.5)):
        node.spawn(
            "add",
            lambda name=node.name: results.append((name, world.store.run(add_one))),
            after_s,  # type: ignore[misc]
        )
    world.scheduler.run_until(5 * SECOND_US)
    assert results == [(other.name, 1), (first.name, 2)]
    assert world.store.conflicts == 1


@pytest.mark.rule("STO-5")
def test_a_commit_that_was_given_up_for_lost_never_arrives_later(world: World) -> None:
    """Its look-up has fenced it: it comes when the repeated one is long committed, and is refused."""
    late = iter([SECOND_US])
    world.faults.late_us = lambda: next(late, None)  # type: ignore[method-assign]
    node, results = booted(world)[0], list[int]()
    node.spawn("add", lambda: results.append(world.store.run(add_one)))
    world.scheduler.run_until(5 * SECOND_US)
    assert results == [1]
    assert world.store.rows[COUNTER] == b"1"
    assert [entry.event for entry in world.timeline.entries if entry.source == "store"] == [
        "late commit refused"
    ]


def test_an_unknown_commit_that_could_not_be_looked_up_may_arrive(world: World) -> None:
    late = iter([SECOND_US])

    def late_and_then_down() -> int | None:
        late_us = next(late, None)
        if late_us is not None:
            world.faults._down_until_us = world.scheduler.now_us + 10 * SECOND_US
        return late_us

    world.faults.late_us = late_and_then_down  # type: ignore[method-assign]
    node, failed = booted(world)[0], list[str]()

    def add() -> Next:
        try:
            world.store.run(add_one)
        except StoreError as error:
            failed.append(error.code)
        return None

    node.spawn("add", add)
    world.scheduler.run_until(5 * SECOND_US)
    assert failed == ["store-commit-unknown"]
    assert world.store.rows[COUNTER] == b"1"


# --- the world ----------------------------------------------------------------------------------------------


def test_a_violation_that_is_caught_still_fails_the_run() -> None:
    world, work = counting(3, calm())

    def swallow(commit: RecordedCommit) -> None:
        raise Violation("broken")

    work.commit = swallow  # type: ignore[method-assign]
    work._count = lambda: _swallowing(world)  # type: ignore[method-assign]
    with pytest.raises(Violation, match=r"replay: python -m \S+ --scenario counting --seed 3 --trace"):
        world.run()


def _swallowing(world: World) -> Next:
    with suppress(AssertionError):
        world.store.run(add_one)
    return None


def test_an_error_that_escapes_a_nodes_thread_is_a_violation() -> None:
    world, work = counting(4, calm())

    def fails() -> Next:
        raise ZeroDivisionError("by accident")

    work._count = fails  # type: ignore[method-assign]
    with pytest.raises(Violation, match=r"n1\.1 count raised ZeroDivisionError"):
        world.run()


def test_work_that_does_not_end_is_a_violation() -> None:
    world, work = counting(5, calm())
    work.unfinished = lambda: ["the last count"]  # type: ignore[method-assign]
    with pytest.raises(Violation, match="not at rest 15 s after the last fault: the last count"):
        world.run()
