"""Every order of publications, records, steps, deaths and zombies: each step is committed once, in order.

All of the protocol is transactions, so an interleaving is an order of them. The first search walks through
every state that a group, two runners and two publications can reach, one of the runners being killed at any
moment and its transactions arriving late, and somebody else writing records meanwhile. The second one has two
coordinators that hold the office for longer than one record, the first of them deposed at any moment.
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


class Hand(msgspec.Struct, frozen=True, array_like=True):
    """What a runner has in its hands between two transactions, and which one is next."""

    next: str
    ticket: Ticket
    batch: StepBatch | None = None
    hold: Hold | None = None


class State(NamedTuple):
    """Everything there is: the store's rows, and what runners have in their hands."""

    rows: frozenset[tuple[bytes, bytes]]
    publications: int  # to come
    records: int  # that somebody else will write
    killed: bool
    hands: tuple[bytes, bytes]  # of two runners; empty for nothing


class World(StepStage):
    """A stage that is set to a state."""

    def __init__(self, rows: frozenset[tuple[bytes, bytes]] = frozenset()) -> None:
        super().__init__(scan=False)
        self.store = MemoryStore(clock=self.clock)
        self.store.run(lambda tx: tx.set_many(sorted(rows)))

    def rows(self) -> frozenset[tuple[bytes, bytes]]:
        found = self.store.run(lambda tx: tx.range(*Space("c").all(), snapshot=True))
        return frozenset((row.key, row.value) for row in found)


def beginning() -> tuple[State, list[Node]]:
    world = World()
    world.dataset("d")
    runners = [world.node("a"), world.node("b")]
    world.declare(spec("g", BASE))
    world.settle(runners[1], "g")
    return State(world.rows(), 2, 1, False, (b"", b"")), runners


def moves(state: State, runners: list[Node]) -> Iterator[State]:
    """Every state that one transaction leads to."""

    def after(act: Callable[[World], object], **changes: object) -> State:
        world = World(state.rows)
        act(world)
        world.page_all()  # every order of waking has a search of its own
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
        raw = state.hands[number]
        world = World(state.rows)
        if raw:
            hand = act(world, msgspec.msgpack.decode(raw, type=Hand))
        elif number == 1 or not state.killed:
            hand = begin(world, runner)
        else:
            continue
        world.page_all()
        new = b"" if hand is None else msgspec.msgpack.encode(hand)
        yield state._replace(rows=world.rows(), hands=put(state.hands, number, new))


def put(pair: tuple[bytes, bytes], number: int, value: bytes) -> tuple[bytes, bytes]:
    return (value, pair[1]) if number == 0 else (pair[0], value)


def begin(world: World, runner: Node) -> Hand | None:
    for due in world.due():
        ticket = world.start(runner, due.name, due.epoch)
        if ticket is not None:
            node = msgspec.structs.replace(runner, total={}, free={})
            return Hand("cut", msgspec.structs.replace(ticket, node=node))
    return None


def act(world: World, hand: Hand) -> Hand | None:
    """The next transaction of a run, as `Stepper` makes them; None when the run is over."""
    keys, ticket, batch = world.keys, hand.ticket, hand.batch
    before = world.rows()
    try:
        match hand.next:
            case "cut":
                world.run(commits.next_record, keys, P, ticket, "g")
                return Hand("read", ticket)
            case "read":
                batch = world.run(commits.next_batch, keys, P, "g")
                if batch is None:
                    return Hand("rest", ticket)
                return Hand("open" if batch.has_work else "pass", ticket, batch)
            case "open":
                attempt = f"{ticket.node.id}-{ticket.epoch}-{ticket.fence}-{batch.step}"
                hold = world.run(commits.open_step, keys, ticket, batch, attempt)
                return Hand("commit", ticket, batch, hold)
            case "commit" | "pass":
                result = None
                if hand.hold is not None:
                    result = StepResult.of(hand.hold, outputs(batch, hand.hold.draft.id))
                world.run(commits.commit, keys, ticket, batch, result, ends=not batch.more)
                return Hand("read", ticket) if batch.more else None
            case _:
                world.run(commits.end_run, keys, P, ticket, "g")
                return None
    except (LeaseLost, AttemptEnded, StepConflict):
        assert world.rows() == before
        return None


def search() -> tuple[int, str]:
    """How many states there are, and what is wrong with one of them, if anything is."""
    first, runners = beginning()
    known, front = {first}, [first]
    while front:
        state = front.pop()
        world = World(state.rows)
        try:
            world.check()
            found = set(moves(state, runners)) - {state}
        except (AssertionError, TidemillError) as wrong:
            return len(known), f"not as it must be: {wrong}"
        if not found:  # at rest: nothing that anybody can do changes anything
            assert state.publications == 0
            log = world.records()
            if world.group("g").step != len(log) or log[-1].ranges[-1].to != 2:
                return len(known), "something was not processed"
        front += found - known
        known |= found
    return len(known), ""


@pytest.mark.slow
@pytest.mark.rule("DBSP-26")
@pytest.mark.rule("DBSP-35")
@pytest.mark.rule("DBSP-39")
def test_in_whatever_order_every_step_is_committed_once_and_in_order_and_nothing_is_left_out():
    states, wrong = search()
    assert wrong == ""
    assert states > 500


@pytest.mark.rule("DBSP-35")
def test_the_search_finds_what_commits_without_fences_do(monkeypatch):
    """Nobody asks whether a run is over, its node gone, or the group elsewhere by now."""
    monkeypatch.setattr(runs, "check", lambda tx, keys, _, ticket: subscriptions.read(tx, keys, ticket.name))
    monkeypatch.setattr(nodes, "check", lambda tx, keys, node, **_: node)
    monkeypatch.setattr(attempts, "supersede", lambda *_: [])
    monkeypatch.setattr(
        commits, "_check_fence", lambda tx, keys, ticket, batch: groups.read(tx, keys, P, batch.spec.name)
    )
    _, wrong = search()
    assert wrong


class Offices(NamedTuple):
    """Two coordinators: what is stored, and the epochs they believe to have."""

    rows: frozenset[tuple[bytes, bytes]]
    publications: int
    offices: tuple[bytes, bytes]


def coordinate(state: Offices) -> Iterator[Offices]:
    if state.publications:
        world = World(state.rows)
        world.publish(BASE)
        yield state._replace(rows=world.rows(), publications=state.publications - 1)
    for number in (0, 1):
        world = World(state.rows)
        if not state.offices[number]:  # the holder's time is over by now, whatever it believes
            world.clock.advance(2 * number)
            lease = world.run(records.become_coordinator, world.keys, P, f"c{number}")
            if isinstance(lease, Lease):
                held = put(state.offices, number, leases.encode(lease))
                yield state._replace(rows=world.rows(), offices=held)
            continue
        lease = leases.decode(state.offices[number])
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
def test_whichever_of_two_coordinators_writes_the_ranges_follow_each_other():
    world = World()
    world.dataset("d")
    world.declare(spec("g", BASE))
    first = Offices(world.rows(), 3, (b"", b""))
    known, front = {first}, [first]
    both = set()
    while front:
        state = front.pop()
        world = World(state.rows)
        world.check()
        both.add(frozenset(record.epoch for record in world.records()))
        found = set(coordinate(state)) - known
        front += found
        known |= found
    assert len(known) > 50
    assert any(len(epochs) == 3 for epochs in both)  # the declaration's, and both coordinators'
