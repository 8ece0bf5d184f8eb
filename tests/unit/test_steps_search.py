"""Search all orders of publications, records, steps and crashes: each step is committed once, in order.

The protocol consists of transactions, so an interleaving is an order of transactions. The first search visits
every state that a group, two runners and two publications can reach. One runner may be killed at any moment
while its transactions still arrive, and another process writes a record. The second search has two
coordinators that hold the lease for longer than one record; the first may lose it at any moment.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tidemill.cluster import leases, nodes
from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptEnded, LeaseLost, StepConflict, TidemillError
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold
from tidemill.store import Space
from tidemill.store.memory import MemoryStore
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.runs import Ticket
from tidemill.views.steps import commits, groups, records
from tidemill.views.steps.commits import StepBatch, StepResult
from tidemill.views.steps.keys import group_id

BASE = DatasetId("d")
GROUP = group_id(P, "g")


class RunState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a run between two transactions, and which transaction is next."""

    next: str
    ticket: Ticket
    batch: StepBatch | None = None
    hold: Hold | None = None


class State(NamedTuple):
    """The state of the search: the store's rows, the work that is left, and the runs of the two runners."""

    rows: frozenset[tuple[bytes, bytes]]
    publications: int  # that are left
    records: int  # that another process will write
    killed: bool
    runs: tuple[bytes, bytes]  # of two runners; empty if there is no run


class World(StepStage):
    """A stage that is set to a state."""

    def __init__(self, rows: frozenset[tuple[bytes, bytes]] = frozenset()) -> None:
        super().__init__(scan=False)
        self.store = MemoryStore(clock=self.clock)
        self.store.run(lambda tx: tx.set_many(sorted(rows)))

    def rows(self) -> frozenset[tuple[bytes, bytes]]:
        rows = self.store.run(lambda tx: tx.range(*Space("c").all(), snapshot=True))
        return frozenset((row.key, row.value) for row in rows)


def beginning() -> tuple[State, list[Node]]:
    world = World()
    world.dataset("d")
    runners = [world.node("a"), world.node("b")]
    world.declare(spec("g", BASE))
    world.settle(runners[1], "g")
    return State(world.rows(), 2, 1, False, (b"", b"")), runners


def moves(state: State, runners: list[Node]) -> Iterator[State]:
    """Yield every state that one transaction leads to."""

    def after(act: Callable[[World], object], **changes: object) -> State:
        world = World(state.rows)
        act(world)
        world.page_all()  # another search covers the orders of waking
        return state._replace(rows=world.rows(), **changes)

    if state.publications:
        yield after(lambda world: world.publish(BASE), publications=state.publications - 1)
    yield after(lambda world: world.look(GROUP))
    if state.records:
        yield after(
            lambda world: world.run(records.write_record_now, world.keys, P, "another group's run"),
            records=state.records - 1,
        )
    if not state.killed:
        yield after(lambda world: world.kill(runners[0]), killed=True)
    for number, runner in enumerate(runners):
        raw = state.runs[number]
        world = World(state.rows)
        if raw:
            run = act(world, msgspec.msgpack.decode(raw, type=RunState))
        elif number == 1 or not state.killed:
            run = begin(world, runner)
        else:
            continue
        world.page_all()
        new = b"" if run is None else msgspec.msgpack.encode(run)
        yield state._replace(rows=world.rows(), runs=put(state.runs, number, new))


def put(pair: tuple[bytes, bytes], number: int, value: bytes) -> tuple[bytes, bytes]:
    return (value, pair[1]) if number == 0 else (pair[0], value)


def begin(world: World, runner: Node) -> RunState | None:
    for due in world.due():
        ticket = world.start(runner, due.name, due.epoch)
        if ticket is not None:
            node = msgspec.structs.replace(runner, total={}, free={})
            return RunState("cut", msgspec.structs.replace(ticket, node=node))
    return None


def act(world: World, run: RunState) -> RunState | None:
    """The next transaction of a run, as `Stepper` makes them; None when the run is over."""
    keys, ticket, batch = world.keys, run.ticket, run.batch
    before = world.rows()
    try:
        match run.next:
            case "cut":
                world.run(commits.next_record, keys, P, ticket, "g")
                return RunState("read", ticket)
            case "read":
                batch = world.run(commits.next_batch, keys, P, "g")
                if batch is None:
                    return RunState("rest", ticket)
                return RunState("open" if batch.has_work else "pass", ticket, batch)
            case "open":
                attempt = f"{ticket.node.id}-{ticket.epoch}-{ticket.fence}-{batch.step}"
                hold = world.run(commits.open_step, keys, ticket, batch, attempt)
                return RunState("commit", ticket, batch, hold)
            case "commit" | "pass":
                result = None
                if run.hold is not None:
                    result = StepResult.of(run.hold, outputs(batch, run.hold.draft.id))
                world.run(commits.commit, keys, ticket, batch, result, ends=not batch.more)
                return RunState("read", ticket) if batch.more else None
            case _:
                world.run(commits.end_run, keys, P, ticket, "g")
                return None
    except (LeaseLost, AttemptEnded, StepConflict):
        assert world.rows() == before
        return None


def search() -> tuple[int, str]:
    """Return the number of states, and a description of the first wrong one, or an empty text."""
    first, runners = beginning()
    visited, front = {first}, [first]
    while front:
        state = front.pop()
        world = World(state.rows)
        try:
            world.check()
            following = set(moves(state, runners)) - {state}
        except (AssertionError, TidemillError) as wrong:
            return len(visited), f"a check failed: {wrong}"
        if not following:  # at rest: no transaction changes anything
            assert state.publications == 0
            log = world.records()
            if world.group("g").step != len(log) or log[-1].ranges[-1].to != 2:
                return len(visited), "something was not processed"
        front += following - visited
        visited |= following
    return len(visited), ""


@pytest.mark.slow
@pytest.mark.rule("DBSP-26")
@pytest.mark.rule("DBSP-35")
@pytest.mark.rule("DBSP-39")
def test_every_interleaving_commits_each_step_once_in_order_and_leaves_nothing_out():
    states, wrong = search()
    assert wrong == ""
    assert states > 500


@pytest.mark.rule("DBSP-35")
def test_the_search_finds_errors_if_commits_are_not_fenced(monkeypatch):
    """Disable the checks whether a run has ended, its node is gone, or the group has moved."""
    monkeypatch.setattr(runs, "check", lambda tx, keys, _, ticket: subscriptions.read(tx, keys, ticket.name))
    monkeypatch.setattr(nodes, "check", lambda tx, keys, node, **_: node)
    monkeypatch.setattr(attempts, "supersede", lambda *_: [])
    monkeypatch.setattr(
        commits, "_check_fence", lambda tx, keys, ticket, batch: groups.read(tx, keys, P, batch.spec.name)
    )
    _, wrong = search()
    assert wrong


class Coordinators(NamedTuple):
    """Two coordinators: the store's rows, and the leases that they believe to hold."""

    rows: frozenset[tuple[bytes, bytes]]
    publications: int
    leases: tuple[bytes, bytes]


def coordinate(state: Coordinators) -> Iterator[Coordinators]:
    if state.publications:
        world = World(state.rows)
        world.publish(BASE)
        yield state._replace(rows=world.rows(), publications=state.publications - 1)
    for number in (0, 1):
        world = World(state.rows)
        if not state.leases[number]:  # the lease of the other coordinator has expired
            world.clock.advance(2 * number)
            lease = world.run(records.become_coordinator, world.keys, P, f"c{number}")
            if isinstance(lease, Lease):
                pair = put(state.leases, number, leases.encode(lease))
                yield state._replace(rows=world.rows(), leases=pair)
            continue
        lease = leases.decode(state.leases[number])
        world.clock.advance(2 * number)
        before = world.rows()
        try:
            world.run(records.write_record, world.keys, P, lease)
        except LeaseLost:
            assert world.rows() == before
            newest = world.store.run(lambda tx, world=world: leases.read(tx, world.keys.coordinator_lease(P)))
            assert newest.epoch > lease.epoch or newest.expires_at <= world.clock.monotonic() * 1e6
            continue
        yield state._replace(rows=world.rows())


@pytest.mark.rule("DBSP-34")
@pytest.mark.rule("DBSP-35")
def test_ranges_are_consecutive_whichever_of_two_coordinators_writes_them():
    world = World()
    world.dataset("d")
    world.declare(spec("g", BASE))
    first = Coordinators(world.rows(), 3, (b"", b""))
    visited, front = {first}, [first]
    both = set()
    while front:
        state = front.pop()
        world = World(state.rows)
        world.check()
        both.add(frozenset(record.epoch for record in world.records()))
        following = set(coordinate(state)) - visited
        front += following
        visited |= following
    assert len(visited) > 50
    assert any(len(epochs) == 3 for epochs in both)  # the declaration's, and both coordinators'
