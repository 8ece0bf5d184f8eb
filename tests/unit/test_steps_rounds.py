"""Rounds: all groups stop at one step, commit a version there, and start again, whatever dies meanwhile."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tidemill import crash
from tidemill.cluster import leases
from tidemill.cluster.leases import Busy, Lease
from tidemill.cluster.nodes import Node
from tidemill.errors import (
    IllegalTransition,
    InvariantBroken,
    LeaseLost,
    RoundBroken,
    RoundNotReady,
    StepConflict,
    UsageError,
    VersionUnknown,
)
from tidemill.lots.keys import DatasetId
from tidemill.store import Space
from tidemill.store.memory import MemoryStore
from tidemill.views.steps import commits, groups, range_setting, records, rounds, states, versions
from tidemill.views.steps.commits import StepBatch
from tidemill.views.steps.coordinator import Coordinator
from tidemill.views.steps.rounds import Paused, Pausing, Running, Stopped, Stopping
from tidemill.views.steps.states import STEPPER, StepperEdge, StepperState

BASES = {name: DatasetId(name) for name in ("x", "y", "z")}
LEASE_US = 10**12


class RoundStage(StepStage):
    """Three groups, each with a dataset."""

    def __init__(self, store: MemoryStore | None = None, *, scan: bool = True) -> None:
        super().__init__(store, scan=scan)

    def prepare(self, names: str = "xyz") -> "RoundStage":
        self.names = names
        self.runner = self.node("runner", 10_000_000)
        for name in names:
            self.dataset(name)
        self.declare(*(spec(name, BASES[name]) for name in names))
        self.settle(self.runner, *names)
        return self

    def coordinate(self, holder: str = "c") -> Lease:
        lease = self.run(records.become_coordinator, self.keys, P, holder, LEASE_US)
        assert isinstance(lease, Lease)
        return lease

    def states(self) -> dict[str, rounds.Stepping]:
        return self.store.run(lambda tx: rounds.read_all(tx, self.keys, P))

    def versions(self, group: str) -> range:
        return self.store.run(lambda tx: versions.versions(tx, self.keys, P, group))

    def step_of(self, group: str) -> int:
        return self.group(group).step

    def behind(self) -> None:
        """Groups x, y and z are at different steps, and there is more for all."""
        for name in "xyz":
            self.publish(BASES[name])
            self.run(records.write_record_now, self.keys, P, "another process")
        self.page_all()
        self.one_step("x")
        self.one_step("y")

    def one_step(self, group: str) -> bool:
        """One run that ends after its first commit."""
        ticket = self.begin(self.runner, group)
        if ticket is None:
            self.clock.advance(1)
            ticket = self.begin(self.runner, group)
        if ticket is None:
            return False
        stops = iter([False, True])
        before = self.step_of(group)
        self.stepper().run(ticket, lambda: next(stops, True))
        return self.step_of(group) > before


@pytest.fixture
def stage() -> RoundStage:
    return RoundStage().prepare()


# --- states


@pytest.mark.rule("DBSP-32")
@pytest.mark.parametrize("state", StepperState)
@pytest.mark.parametrize("edge", StepperEdge)
def test_every_pair_of_state_and_edge_is_a_transition_or_refused(
    state: StepperState, edge: StepperEdge
) -> None:
    allowed = {
        (StepperState.RUN, StepperEdge.PAUSE): StepperState.PAUSE,
        (StepperState.PAUSE, StepperEdge.REST): StepperState.PAUSED,
        (StepperState.PAUSED, StepperEdge.STOP): StepperState.STOP,
        (StepperState.STOP, StepperEdge.FINISH): StepperState.STOPPED,
        **{(each, StepperEdge.START): StepperState.RUN for each in StepperState if each != "run"},
    }
    if (state, edge) in allowed:
        assert states.step(state, edge) is allowed[state, edge]
    else:
        with pytest.raises(IllegalTransition):
            states.step(state, edge)
    assert {(s, e): t for s, edges in STEPPER.items() for e, t in edges.items()} == allowed


# --- versions


@pytest.mark.rule("DBSP-23", "DBSP-24", "DBSP-25")
def test_a_database_has_one_or_two_versions_and_its_head_is_every_committed_step(stage: RoundStage) -> None:
    assert stage.versions("x") == range(1), "a new database has version 0"
    with pytest.raises(VersionUnknown, match="no version 1"):
        stage.run(versions.open_version, stage.keys, P, "x", 1)
    stage.publish(BASES["x"])
    stage.settle(stage.runner, "x")
    head = stage.group("x")
    assert head.step == len(stage.records()), "the next step to apply is the one after the head"
    assert stage.run(versions.commit_version, stage.keys, P, head) == 1
    assert stage.versions("x") == range(2)
    stage.publish(BASES["x"])
    stage.settle(stage.runner, "x")
    pinned = stage.store.run(lambda tx: versions.listed(tx, stage.keys, P, "x"))[-1]
    assert (
        (pinned.step, pinned.tables)
        == (head.step, head.tables)
        != (
            stage.group("x").step,
            stage.group("x").tables,
        )
    ), "a version stays as it was pinned while the head moves"
    assert stage.versions("x") == range(2), "a step is no version"
    stage.run(versions.open_version, stage.keys, P, "x", 1)
    assert stage.versions("x") == range(1, 2), "the other version is discarded"
    assert stage.run(versions.commit_version, stage.keys, P, stage.group("x")) == 2
    assert stage.versions("x") == range(1, 3)
    assert stage.run(versions.commit_version, stage.keys, P, stage.group("x")) == 3
    assert stage.versions("x") == range(2, 4), "at most two"
    stage.run(versions.open_version, stage.keys, P, "x", 2)
    assert stage.versions("x") == range(2, 3)


def test_a_new_group_joins_at_the_versions_of_the_others(stage: RoundStage) -> None:
    coordinator(stage).run_round(lambda tx: None)
    stage.dataset("w")
    stage.declare(spec("w", DatasetId("w")), circuit="2")
    assert stage.versions("w") == stage.versions("x") == range(1, 2)
    assert stage.run(groups.remove, stage.keys, P, "w")
    rows = stage.store.run(lambda tx: tx.range(*stage.keys.version.under(P, "w")))
    assert rows == []


# --- rounds


def coordinator(stage: RoundStage, **options: float) -> Coordinator:
    return Coordinator(stage.scope(), P, **options)


@pytest.mark.rule("DBSP-33", "DBSP-31", "DBSP-34", "DBSP-32")
def test_all_groups_stop_at_the_greatest_step_that_one_of_them_has_reached(stage: RoundStage) -> None:
    stage.behind()
    steps = {name: stage.step_of(name) for name in "xyz"}
    assert len({*steps.values()}) > 1
    lease = stage.coordinate()
    stage.run(rounds.pause, stage.keys, P, lease)
    assert {*map(type, stage.states().values())} == {Pausing}
    with pytest.raises(RoundNotReady, match="state pause"):
        stage.run(rounds.stop, stage.keys, P, lease)
    assert stage.run(rounds.rest_idle, stage.keys, P, lease)
    assert stage.states() == {name: Paused(step) for name, step in steps.items()}
    stage.clock.advance(1)
    for name in "xyz":
        assert not stage.one_step(name), "a group that rests applies nothing"
    assert {name: stage.step_of(name) for name in "xyz"} == steps
    last = stage.run(rounds.stop, stage.keys, P, lease)
    assert last == max(steps.values())
    assert stage.states() == dict.fromkeys("xyz", Stopping(last))
    for name in "xyz":
        while not stage.run(rounds.finish_idle, stage.keys, P, name, lease):
            stage.clock.advance(1)
            assert stage.one_step(name)
    assert {stage.step_of(name) for name in "xyz"} == {last} != {len(stage.records())}
    assert stage.states() == dict.fromkeys("xyz", Stopped(last))
    assert {stage.versions(name) for name in "xyz"} == {range(2)}
    stage.clock.advance(1)
    assert not any(stage.one_step(name) for name in "xyz"), "a group that has stopped applies nothing"
    assert stage.run(rounds.start, stage.keys, P, lease) == 1, "one more than before"
    assert stage.run(records.resign_coordinator, stage.keys, P, lease)
    assert stage.states() == dict.fromkeys("xyz", Running())
    assert {stage.versions(name) for name in "xyz"} == {range(1, 2)}
    stage.clock.advance(1)
    stage.settle(stage.runner, *"xyz")
    assert {stage.step_of(name) for name in "xyz"} == {len(stage.records())}


@pytest.mark.rule("DBSP-27", "DBSP-32", "DBSP-31")
def test_a_step_that_is_computed_when_the_pause_begins_is_committed_and_the_next_one_is_not_read(
    stage: RoundStage,
) -> None:
    stage.behind()
    stage.publish(BASES["z"])
    stage.run(records.write_record_now, stage.keys, P, "another process")
    ticket = stage.begin(stage.runner, "z")
    assert ticket is not None
    lease = stage.coordinate()
    at = stage.step_of("z")

    def compute(batch: StepBatch, attempt: str) -> tuple[object, ...]:
        stage.run(rounds.pause, stage.keys, P, lease)
        assert not stage.run(rounds.rest_idle, stage.keys, P, lease), "it has a run"
        assert stage.states()["z"] == Pausing()
        return outputs(batch, attempt)

    summary = stage.stepper(compute=compute).run(ticket)
    assert summary.jobs == 1
    assert summary.step > at
    assert stage.states()["z"] == Paused(stage.step_of("z"))
    assert summary.step < len(stage.records()), "later records stay unread"
    assert stage.run(rounds.rest_idle, stage.keys, P, lease)


@pytest.mark.rule("DBSP-27")
def test_a_read_that_is_cancelled_consumes_nothing(stage: RoundStage) -> None:
    stage.behind()
    ticket = stage.begin(stage.runner, "z")
    assert ticket is not None
    before = stage.group("z")
    stage.stepper().run(ticket, lambda: True)
    assert stage.group("z") == before
    batches = [stage.store.run(lambda tx: commits.next_batch(tx, stage.keys, P, "z")) for _ in range(2)]
    assert batches[0] == batches[1] is not None, "reading is repeatable"
    stage.clock.advance(1)
    stage.settle(stage.runner, *"xyz")
    assert stage.store.run(lambda tx: commits.next_batch(tx, stage.keys, P, "z")) is None, "nothing to read"
    stage.publish(BASES["z"])
    stage.settle(stage.runner, "z")
    assert stage.rows_of_group("z")[-1].step == len(stage.records()), "new input wakes the stepper"


@pytest.mark.rule("DBSP-32")
def test_a_stepper_beyond_its_last_step_is_fatal(stage: RoundStage) -> None:
    stage.behind()
    group = stage.group("x")
    state = msgspec.msgpack.encode(Stopping(group.step - 1))
    stage.store.run(lambda tx: tx.set(stage.keys.stepper[P, "x"], state))
    with pytest.raises(InvariantBroken, match=f"had to stop at step {group.step - 1}"):
        stage.run(rounds.finish, stage.keys, P, group)
    with pytest.raises(StepConflict, match="has to stop"):
        stage.run(rounds.check, stage.keys, P, "x", group.step)


@pytest.mark.rule("DBSP-33")
def test_groups_without_a_common_version_are_fatal(stage: RoundStage) -> None:
    for _ in range(3):
        stage.run(versions.commit_version, stage.keys, P, stage.group("x"))
    lease = stage.coordinate()
    with pytest.raises(RoundBroken, match=r"x: .*y: "):
        stage.run(rounds.start, stage.keys, P, lease)


@pytest.mark.rule("DBSP-35", "DBSP-36")
def test_a_coordinator_that_wakes_up_after_another_one_changes_nothing(stage: RoundStage) -> None:
    stage.behind()
    old = stage.run(records.become_coordinator, stage.keys, P, "old", 1)
    assert isinstance(old, Lease)
    stage.run(rounds.pause, stage.keys, P, old)
    stage.clock.advance(1)
    new = stage.coordinate("new")
    before = stage.states()
    for act in (rounds.pause, rounds.rest_idle, rounds.stop, rounds.start):
        with pytest.raises(LeaseLost):
            stage.run(act, stage.keys, P, old)
    with pytest.raises(LeaseLost):
        stage.run(rounds.finish_idle, stage.keys, P, "x", old)
    assert stage.states() == before
    assert stage.run(rounds.rest_idle, stage.keys, P, new), "the new one continues with what it reads"
    assert stage.run(rounds.stop, stage.keys, P, new) > 0


CRASHES = [
    f"views.{name}.{side}" for name in ("pause", "stop", "finish", "start") for side in ("before", "after")
]


@pytest.mark.rule("DBSP-36", "DBSP-38", "DBSP-3")
@pytest.mark.parametrize("point", CRASHES)
def test_a_round_whose_coordinator_dies_is_ended_by_the_next_run(point: str) -> None:
    stage, quiet = RoundStage().prepare(), RoundStage().prepare()
    for each in (stage, quiet):
        for name in "xyz":
            each.publish(BASES[name])
        each.settle(each.runner, *"xyz")
    with crash.armed(point), pytest.raises(crash.Crashed):
        coordinator(stage).run_round(lambda tx: range_setting.write(tx, stage.keys, P, 8))
    stage.clock.advance(20)
    for each in (stage, quiet):
        for name in "xyz":
            each.publish(BASES[name])
        each.page_all()
    for _ in range(10):
        for name in "xyz":
            stage.step(stage.node("next", 10_000_000), name)
        stage.clock.advance(1)
    quiet.settle(quiet.runner, *"xyz")
    assert stage.states() == dict.fromkeys("xyz", Running())
    applied = stage.store.run(lambda tx: range_setting.read(tx, stage.keys, P))
    assert applied == (8 if point == "views.start.after" else 0), "the change is part of the last transaction"
    for name in "xyz":
        assert stage.step_of(name) == len(stage.records())
        outputs_of = [[row for row in each.rows_of_group(name) if row.outputs] for each in (stage, quiet)]
        assert len(outputs_of[0]) == len(outputs_of[1]), "no step is lost or doubled"
    assert coordinator(stage).run_round(lambda tx: None) == stage.step_of("x"), "the next round works"


def test_a_round_that_takes_too_long_is_ended_without_its_change(stage: RoundStage) -> None:
    stage.behind()
    with pytest.raises(RoundNotReady, match="did not reach step") as caught:
        coordinator(stage, wait_s=5).run_round(lambda tx: range_setting.write(tx, stage.keys, P, 8))
    assert "tidemill run --watch" in caught.value.hint
    assert stage.states() == dict.fromkeys("xyz", Running())
    assert stage.store.run(lambda tx: range_setting.read(tx, stage.keys, P)) == 0
    assert isinstance(stage.run(records.become_coordinator, stage.keys, P, "next"), Lease)
    assert isinstance(stage.run(records.become_coordinator, stage.keys, P, "third"), Busy)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_round_that_dies_while_it_gives_up_is_ended_by_the_next_run(stage: RoundStage, side: str) -> None:
    stage.behind()
    with crash.armed(f"views.resume.{side}"), pytest.raises(crash.Crashed):
        coordinator(stage, wait_s=5).run_round(lambda tx: None)
    stage.clock.advance(20)
    for _ in range(4):
        stage.step(stage.node("next", 10_000_000), "y")
        stage.clock.advance(1)
    assert stage.states() == dict.fromkeys("xyz", Running())


def test_a_number_of_ranges_is_checked(stage: RoundStage) -> None:
    for wrong in (-1, 257):
        with pytest.raises(UsageError, match="ranges"):
            stage.run(range_setting.write, stage.keys, P, wrong)
    stage.run(range_setting.write, stage.keys, P, 256)
    stage.publish(BASES["x"])
    stage.settle(stage.runner, "x")
    assert stage.computed[-1][0].ranges == 256
    stage.run(range_setting.write, stage.keys, P, 0)
    assert stage.store.run(lambda tx: tx.get(stage.keys.ranges[P])) is None


# --- every order of transactions, for three steppers


class State(NamedTuple):
    """The state of the search: the store's rows, and what is left to happen."""

    rows: frozenset[tuple[bytes, bytes]]
    publications: int
    rounds: int
    dead: int  # coordinators that may still die
    lease: bytes  # of the coordinator; empty if there is none


class Search(RoundStage):
    def __init__(self, rows: frozenset[tuple[bytes, bytes]], runner: Node) -> None:
        super().__init__(scan=False)
        self.store = MemoryStore(clock=self.clock)
        self.store.run(lambda tx: tx.set_many(sorted(rows)))
        self.runner = runner

    def rows(self) -> frozenset[tuple[bytes, bytes]]:
        rows = self.store.run(lambda tx: tx.range(*Space("c").all(), snapshot=True))
        return frozenset((row.key, row.value) for row in rows)

    def apply(self, name: str) -> None:
        """One step of a group, as the transactions of a stepper without those of its run."""
        batch = self.store.run(lambda tx: commits.next_batch(tx, self.keys, P, name))
        group = self.group(name)

        def commit(tx):
            rounds.check(tx, self.keys, P, name, batch.step)
            moved = msgspec.structs.replace(group, step=batch.step)
            groups.write(tx, self.keys, P, moved)
            rounds.after_step(tx, self.keys, P, moved)

        def end(tx):
            rounds.after_step(tx, self.keys, P, group)
            if rounds.last_step(rounds.read(tx, self.keys, P, name)) is not None:
                rounds.end_abandoned(tx, self.keys, P, "runner")

        self.store.run(commit if batch is not None else end)


def moves(state: State, runner: Node) -> Iterator[State]:
    def stage() -> Search:
        return Search(state.rows, runner)

    if state.publications:
        world = stage()
        world.publish(BASES["x"])
        world.store.run(lambda tx: records.write_record_now(tx, world.keys, P, "w"))
        yield state._replace(rows=world.rows(), publications=state.publications - 1)
    for name in "xyz":
        world = stage()
        world.apply(name)
        yield state._replace(rows=world.rows())
    if not state.lease:
        if state.rounds:
            world = stage()
            lease = world.store.run(lambda tx: records.become_coordinator(tx, world.keys, P, "c", LEASE_US))
            if isinstance(lease, Lease):
                yield state._replace(rows=world.rows(), rounds=state.rounds - 1, lease=leases.encode(lease))
        return
    lease = leases.decode(state.lease)
    if state.dead:
        world = stage()
        world.store.run(lambda tx: records.resign_coordinator(tx, world.keys, P, lease))  # its lease ends
        yield state._replace(rows=world.rows(), dead=state.dead - 1, lease=b"")
    for act in (rounds.pause, rounds.rest_idle, rounds.stop):
        world = stage()
        try:
            world.store.run(lambda tx, act=act, world=world: act(tx, world.keys, P, lease))
        except RoundNotReady:
            continue
        yield state._replace(rows=world.rows())
    for name in "xyz":
        world = stage()
        world.store.run(lambda tx, world=world, name=name: rounds.finish_idle(tx, world.keys, P, name, lease))
        yield state._replace(rows=world.rows())
    world = stage()
    if all(isinstance(each, Stopped) for each in world.states().values()):
        world.store.run(lambda tx: rounds.start(tx, world.keys, P, lease))
        world.store.run(lambda tx: records.resign_coordinator(tx, world.keys, P, lease))
        yield state._replace(rows=world.rows(), lease=b"")


@pytest.mark.slow
@pytest.mark.rule("DBSP-33", "DBSP-36", "DBSP-23", "DBSP-24")
def test_in_every_order_the_groups_stop_at_one_step_with_one_version_and_start_again() -> None:
    world = RoundStage(scan=False).prepare()
    first = State(
        frozenset(
            (row.key, row.value)
            for row in world.store.run(lambda tx: tx.range(*Space("c").all(), snapshot=True))
        ),
        publications=1,
        rounds=1,
        dead=1,
        lease=b"",
    )
    visited, front, stopped = {first}, [first], set()
    while front:
        state = front.pop()
        search = Search(state.rows, world.runner)
        of_groups = search.states()
        numbers = {name: search.versions(name) for name in "xyz"}
        assert all(len(each) in (1, 2) for each in numbers.values())
        assert set.intersection(*map(set, numbers.values())), "there is always a common version"
        if all(isinstance(each, Stopped) for each in of_groups.values()):
            assert len({search.step_of(name) for name in "xyz"}) == 1
            assert len({each[-1] for each in numbers.values()}) == 1
            stopped.add((search.step_of("x"), numbers["x"][-1]))
        following = set(moves(state, world.runner)) - {state}
        if not following:  # at rest
            assert of_groups == dict.fromkeys("xyz", Running())
            assert {search.step_of(name) for name in "xyz"} == {len(search.records())}
        front += following - visited
        visited |= following
    assert len(visited) > 200
    assert stopped == {(1, 1), (2, 1)}, "rounds before and after the publication, with one version each"
