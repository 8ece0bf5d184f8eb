"""Every order of publications, wake-ups, runs, crashes and stale runners: no wake-up is lost, nothing is
stuck.

All steps are transactions, so an interleaving is an order of them. The search walks through every state that
two subscriptions, two runners and two publications can reach, one of the runners being killed at any moment
and its finish arriving late.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import pytest

from tests.simulation.plain_store import PlainStore
from tests.unit.lots_stage import Stage
from tidemill.cluster import nodes
from tidemill.errors import LeaseLost
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.store import Tx
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.runs import Ticket
from tidemill.triggers.subscriptions import Scheduled, Waiting

SOURCE = DatasetId("d")
NAMES = ("s", "t")


class Held(NamedTuple):
    """A ticket in a runner's hands, as something that can be compared and hashed."""

    name: str
    epoch: int
    fence: int
    runner: nodes.Node
    progress: int
    head: int

    @staticmethod
    def of(ticket: Ticket) -> "Held":
        position, head = ticket.progress[SOURCE], ticket.heads[SOURCE]
        node = msgspec.structs.replace(ticket.node, total=None, free=None)
        return Held(ticket.name, ticket.epoch, ticket.fence, node, position, head)

    @property
    def ticket(self) -> Ticket:
        return Ticket(
            self.name, self.epoch, self.fence, self.runner, {SOURCE: self.progress}, {SOURCE: self.head}
        )


class State(NamedTuple):
    """Everything there is: the store's rows, and what runners have in their hands."""

    rows: frozenset[tuple[bytes, bytes]]
    publications: int  # to come
    killed: bool
    tickets: tuple[Held | None, Held | None]
    torn: tuple[int | None, int | None]  # heads that a torn finish has read already


class World(Stage):
    """A stage that is set to a state."""

    def __init__(self, state: State) -> None:
        super().__init__(scan=False)
        self.store = PlainStore(dict(state.rows), int(self.clock.monotonic() * 1_000_000))

    def rows(self) -> frozenset[tuple[bytes, bytes]]:
        return frozenset(self.store.rows.items())


def beginning() -> tuple[State, list[nodes.Node]]:
    world = World(State(frozenset(), 0, False, (None, None), (None, None)))
    world.dataset("d")
    runners = [world.node("a"), world.node("b")]
    for name in NAMES:
        world.subscribe(name, SOURCE)
    return State(world.rows(), 2, False, (None, None), (None, None)), runners


def torn_finish(tx: Tx, world: World, ticket: Ticket, head: int) -> None:
    """What HEAP-8 forbids: what is next is decided by a head that was read in an earlier transaction."""
    row = runs.check(tx, world.triggers, world.cluster, ticket)
    target = ticket.heads[SOURCE]
    tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1, progress=(target,))
    new = Scheduled(tally, tx.now()) if head > target else Waiting(tally)
    subscriptions.write(tx, world.triggers, ticket.name, row, new)


def moves(state: State, runners: list[nodes.Node], *, torn: bool) -> Iterator[State]:
    """Every state that one transaction leads to."""

    def after(act: Callable[[World], None], **changes: object) -> State:
        world = World(state)
        act(world)
        return state._replace(rows=world.rows(), **changes)

    if state.publications:
        yield after(lambda world: world.publish(SOURCE), publications=state.publications - 1)
    yield after(lambda world: world.page(limit=1))
    for name in NAMES:
        yield after(lambda world, name=name: world.look(name))
    if not state.killed:
        yield after(lambda world: world.kill(runners[0]), killed=True)
    for number, runner in enumerate(runners):
        alive = number == 1 or not state.killed
        holder = state.tickets[number]
        ticket = None if holder is None else holder.ticket
        if ticket is None and alive:
            for due in World(state).due():
                world = World(state)
                begun = world.start(runner, due.name, due.epoch)
                assert (begun is None) == due.running
                if begun is not None:
                    yield state._replace(
                        rows=world.rows(), tickets=put(state.tickets, number, Held.of(begun))
                    )
        elif ticket is not None:
            tickets = put(state.tickets, number, None)
            if not torn:
                yield after(lambda world, ticket=ticket: ended(world, ticket), tickets=tickets)
            elif state.torn[number] is None:
                world = World(state)
                head = world.store.run(lambda tx, keys=world.lots: events.head(tx, keys, SOURCE))
                yield state._replace(torn=put(state.torn, number, head))
            else:
                head, cleared = state.torn[number], put(state.torn, number, None)
                yield after(
                    lambda world, ticket=ticket, head=head: refused(
                        lambda: world.run(torn_finish, world, ticket, head)
                    ),
                    tickets=tickets,
                    torn=cleared,
                )


def put(pair: tuple, number: int, value: object) -> tuple:
    return (value, pair[1]) if number == 0 else (pair[0], value)


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except LeaseLost:
        return True
    return False


def ended(world: World, ticket: Ticket) -> None:
    """A finish: refused, and nothing changed, unless the run is the one in the row."""
    before = world.rows()
    row = world.row(ticket.name)
    expected = (
        isinstance(row, Scheduled)
        and row.run is not None
        and (row.tally.epoch, row.tally.fence) == (ticket.epoch, ticket.fence)
    )
    alive = any(
        node.id == ticket.node.id for node in world.store.run(lambda tx: nodes.read_all(tx, world.cluster))
    )
    was_refused = refused(lambda: world.finish(ticket))
    assert was_refused == (not (expected and alive))
    if was_refused:
        assert world.rows() == before


def search(*, torn: bool = False) -> tuple[int, State | None]:
    """How many states there are, and one at rest in which something was not seen, if there is one."""
    first, runners = beginning()
    states, front = {first}, [first]
    while front:
        state = front.pop()
        new_states = set(moves(state, runners, torn=torn)) - {state}
        if not new_states:  # at rest: nothing that anybody can do changes anything
            world = World(state)
            world.check()
            assert state.publications == 0
            if any(world.row(name).tally.progress != (2,) for name in NAMES):
                return len(states), state
        front += new_states - states
        states |= new_states
    return len(states), None


@pytest.mark.slow
@pytest.mark.rule("HEAP-2")
@pytest.mark.rule("HEAP-20")
def test_everything_published_is_seen_in_the_end_in_any_order_of_steps():
    states, lost = search()
    assert states > 500
    assert lost is None


@pytest.mark.rule("HEAP-8")
def test_the_search_finds_the_loss_when_the_decision_is_not_in_the_finishing_transaction():
    _, lost = search(torn=True)
    assert lost is not None
