"""Every order of what writers, schedulers, pruners, runners and users do, on the real functions (HEAP-18).

Each step of the protocol is one transaction or one operation on the heap, so an interleaving is an order of
steps. A state is everything there is: the store's rows, the items, the time, and what somebody has in hand
between two steps of theirs: a push that was seen to be owed, a listing of the heap, a ticket. Whoever has
something in hand may die and lose it, or pause for as long as it likes and go on, late.

The search walks through all states, holds every move against the table of 144 cells, and then asks of every
state whether the protocol alone, without another write or death, can lead from it to rest: all that was
published is seen, and no item is left.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from tests.heap_table import HeapState, check, state_of
from tests.simulation.plain_store import PlainTx
from tests.unit.lots_stage import new_lot
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import IllegalTransition, InvariantBroken, LeaseLost
from tidemill.lots import datasets, events, lots
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import attach, heap_sync, runs, subscriptions, templates, wakes
from tidemill.triggers.heap import Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.runs import Ticket
from tidemill.triggers.states import SubscriptionState
from tidemill.triggers.subscriptions import Scheduled, Terms, Waiting
from tidemill.triggers.templates import Template

T = TypeVar("T")
StoredRows = frozenset[tuple[bytes, bytes]]

KEYS, LOTS, CLUSTER = TriggerKeys("c"), LotKeys("c"), ClusterKeys("c")
LIFE = 1_000_000  # of a node's entry: longer than any search
TEMPLATE = Template(name="t", reads="raw_*", writes="clean_{name}")


@dataclass(frozen=True)
class Plan:
    """Which events a search includes, and how often."""

    sources: tuple[str, ...] = ("d",)
    terms: dict[str, Any] = field(default_factory=dict)
    publications: tuple[int, ...] = (2,)  # of each source
    schedulers: int = 1
    runners: int = 1
    kills: int = 0  # of the first runner; its finish still arrives
    deletes: int = 0
    attaches: int = 0  # in two phases; else the subscription exists from the start
    added: int = 0  # how often the template is declared; then it is the only subscriber
    removed: int = 0
    losses: int = 0  # of the whole heap
    ticks: int = 0  # of time
    prunes: bool = True
    # what an ablation omits or does in the wrong order
    sweeps: bool = True
    torn_finish: bool = False
    guarded: bool = True
    rows_first: bool = False


class State(NamedTuple):
    """The whole state: rows, items, time, and what each process holds."""

    rows: StoredRows
    items: frozenset[Item]
    now: int
    left: tuple[int, ...]  # publications of each source, kills, deletes, attaches, adds, removes, losses
    schedulers: tuple[Any, ...]  # (step, items) of each
    pruner: Any
    attacher: Any
    tickets: tuple[Any, ...]
    torn: tuple[Any, ...]


class Held(NamedTuple):
    """A ticket in a form that can be compared and hashed."""

    name: str
    epoch: int
    fence: int
    node: str
    node_epoch: int
    progress: tuple[tuple[DatasetId, int], ...]
    heads: tuple[tuple[DatasetId, int], ...]

    @staticmethod
    def of(ticket: Ticket) -> "Held":
        pairs = (tuple(sorted(ticket.progress.items())), tuple(sorted(ticket.heads.items())))
        return Held(ticket.name, ticket.epoch, ticket.fence, ticket.node.id, ticket.node.epoch, *pairs)

    @property
    def ticket(self) -> Ticket:
        node = Node(id=self.node, epoch=self.node_epoch)
        return Ticket(self.name, self.epoch, self.fence, node, dict(self.progress), dict(self.heads))


class SearchResult(NamedTuple):
    """The result of a search."""

    states: int
    moves: frozenset[tuple[HeapState, HeapState]]
    stuck: State | None  # from which the final state cannot be reached
    broken: str  # a forbidden move or a broken invariant


class Broken(Exception):
    """A move is not in the table, or an invariant is broken."""


class Search:
    """Explores all states of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sources = [DatasetId(name) for name in plan.sources]
        self.terms = Terms(sources=tuple(self.sources), **plan.terms)
        self.name = TEMPLATE.child(self.sources[0]) if plan.added else "s"
        self.row_key, self.template_key = KEYS.subscription[self.name], KEYS.template[TEMPLATE.name]
        self.moves_seen: set[tuple[HeapState, HeapState]] = set()
        self.decoded: dict[bytes, Scheduled | Waiting] = {}

    # --- running steps

    def tx(self, state: State, fn: Callable[..., T], *args: Any, **options: Any) -> tuple[T, StoredRows]:
        """Run a transaction; return its result and the rows after it."""
        tx = PlainTx(dict(state.rows), state.now)
        answer = fn(tx, *args, **options)
        return answer, frozenset(tx.rows.items())

    def beginning(self) -> State:
        plan = self.plan
        left = (
            *plan.publications,
            plan.kills,
            plan.deletes,
            plan.attaches,
            plan.added,
            plan.removed,
            plan.losses,
        )
        state = State(
            frozenset(), frozenset(), 0, left, (None,) * plan.schedulers, None, None,
            (None,) * plan.runners, (None,) * plan.runners,
        )  # fmt: skip

        def set_up(tx: Tx) -> None:
            for source in self.sources:
                datasets.declare(tx, LOTS, DatasetRow(name=source.name, schema="id BIGINT"))
            for number in range(plan.runners):
                nodes.join(tx, CLUSTER, Node(id=f"n{number}", epoch=0), LIFE)
            if not plan.attaches and not plan.added:
                subscriptions.subscribe(
                    tx, KEYS, LOTS, self.name, self.terms, creation=subscriptions.SCHEDULED
                )

        return state._replace(rows=self.tx(state, set_up)[1])

    # --- moves: (is it of the protocol, the state it leads to)

    def moves(self, state: State) -> Iterator[tuple[bool, State]]:
        yield from self._environment(state)
        if self.plan.attaches:
            yield from self._attaching(state)
        _, rows = self.tx(state, wakes.page_wakes, KEYS, LOTS, 1)
        yield True, state._replace(rows=rows)
        if self.plan.added:
            _, rows = self.tx(state, templates.page_templates, KEYS, LOTS, 1)
            yield True, state._replace(rows=rows)
        for number in range(self.plan.schedulers):
            yield from self._tending(state, number)
        if self.plan.prunes:
            yield from self._pruning(state)
        for number in range(self.plan.runners):
            yield from self._running(state, number)
        row = self._row(state)
        if isinstance(row, Scheduled) and row.run is not None:
            _, rows = self.tx(state, runs.end_if_lost, KEYS, CLUSTER, self.name, row.tally.epoch)
            yield True, state._replace(rows=rows)

    def _environment(self, state: State) -> Iterator[tuple[bool, State]]:
        """Yield writes, crashes, user actions and time: events that the protocol does not control."""
        plan, at = self.plan, len(self.plan.publications)
        kill, delete, _, add, remove, loss = range(at, at + 6)

        def spend(number: int) -> tuple[int, ...]:
            return (*state.left[:number], state.left[number] - 1, *state.left[number + 1 :])

        def publish(tx: Tx, source: DatasetId) -> None:
            lots.add(tx, LOTS, new_lot(source, str(lots.next_append(tx, LOTS, source))))
            wakes.wake(tx, KEYS, source)

        for number, source in enumerate(self.sources):
            if state.left[number]:
                _, rows = self.tx(state, publish, source)
                yield False, state._replace(rows=rows, left=spend(number))
        if state.left[kill]:
            node = Node(id="n0", epoch=1)
            _, rows = self.tx(state, nodes.leave, CLUSTER, node)
            yield False, state._replace(rows=rows, left=spend(kill))
        if state.left[delete] and self._row(state) is not None and not self._template(state):
            _, rows = self.tx(state, subscriptions.remove, KEYS, self.name)
            yield False, state._replace(rows=rows, left=spend(delete))
        if state.left[add] and not self._template(state):
            _, rows = self.tx(state, templates.declare, KEYS, TEMPLATE)
            yield False, state._replace(rows=rows, left=spend(add))
        if state.left[remove] and self._template(state):
            _, rows = self.tx(state, templates.remove, KEYS, TEMPLATE.name)
            yield False, state._replace(rows=rows, left=spend(remove))
        if state.left[loss] and state.items:
            yield False, state._replace(items=frozenset(), left=spend(loss))
        if state.now < plan.ticks:
            yield True, state._replace(now=state.now + 1)  # time passes independently

    def _attaching(self, state: State) -> Iterator[tuple[bool, State]]:
        left = len(self.plan.publications) + 2
        hand = state.attacher
        if hand is None:
            if state.left[left] and self._row(state) is None:
                begun, rows = self.tx(state, attach.begin, KEYS, LOTS, self.name, self.terms)
                assert isinstance(begun, Scheduled)
                item = Item(begun.next_run, self.name, begun.tally.epoch)
                budget = (*state.left[:left], state.left[left] - 1, *state.left[left + 1 :])
                yield False, state._replace(rows=rows, left=budget, attacher=("push", item))
            row = self._row(state)
            if row is not None and not row.tally.ready:  # its creator is gone: the grace is over
                _, rows = self.tx(state._replace(now=state.now + 10), attach.collect, KEYS, 1)
                yield True, state._replace(rows=rows)
            return
        yield True, state._replace(attacher=None)  # it dies
        step, item = hand
        if step == "push":
            yield True, state._replace(items=state.items | {item}, attacher=("ready", item))
        else:
            _, rows = self.tx(state, attach.ready, KEYS, LOTS, self.name, self.terms, item.epoch)
            yield True, state._replace(rows=rows, attacher=None)

    def _tending(self, state: State, number: int) -> Iterator[tuple[bool, State]]:
        def hand(value: Any) -> tuple[Any, ...]:
            return (*state.schedulers[:number], value, *state.schedulers[number + 1 :])

        held = state.schedulers[number]
        if held is None:
            items, rows = self.tx(state, heap_sync.owed, KEYS)
            if self.plan.sweeps:
                if items:
                    yield True, state._replace(rows=rows, schedulers=hand(("push", tuple(items))))
                else:
                    yield True, state._replace(rows=rows)
                late, _ = self.tx(state._replace(now=state.now + 1), heap_sync.overdue, KEYS, 0)
                missing = tuple(item for item in late[0] if item not in state.items)
                if missing and not items:
                    yield True, state._replace(schedulers=hand(("push", missing)))
            elif items:  # each is pushed once, by the process that scheduled it, and never again
                _, rows = self.tx(state._replace(rows=rows), heap_sync.clear_debts, KEYS, items)
                yield True, state._replace(rows=rows, schedulers=hand(("push", tuple(items))))
            return
        yield True, state._replace(schedulers=hand(None))  # it dies, or its push is lost
        step, items = held
        if step == "push":
            pushed = None if not self.plan.sweeps else ("pushed", items)
            yield True, state._replace(items=state.items | set(items), schedulers=hand(pushed))
        else:
            _, rows = self.tx(state, heap_sync.clear_debts, KEYS, items)
            yield True, state._replace(rows=rows, schedulers=hand(None))

    def _pruning(self, state: State) -> Iterator[tuple[bool, State]]:
        if state.pruner is None:
            if self.plan.rows_first:  # the wrong order: the row was read before the listing
                yield True, state._replace(pruner=("rows", self._row_bytes(state)))
            elif state.items:
                yield True, state._replace(pruner=("listed", tuple(sorted(state.items))))
            return
        yield True, state._replace(pruner=None)  # it dies
        step, held = state.pruner
        if step == "rows":
            old = state._replace(rows=held)
            verdict, _ = self.tx(old, heap_sync.classify, KEYS, sorted(state.items))
            gone = tuple(verdict.dead + verdict.unknown)
            yield True, state._replace(pruner=("gone", gone) if gone else None)
        elif step == "listed":
            verdict, _ = self.tx(state, heap_sync.classify, KEYS, held)
            gone = tuple(heap_sync.removable(verdict, lambda item: item in state.items))
            yield True, state._replace(pruner=("gone", gone) if gone else None)
        else:
            yield True, state._replace(items=state.items - set(held), pruner=None)

    def _running(self, state: State, number: int) -> Iterator[tuple[bool, State]]:
        def put(pair: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
            return (*pair[:number], value, *pair[number + 1 :])

        held = state.tickets[number]
        if held is None:
            alive = number > 0 or state.left[len(self.plan.publications)] == self.plan.kills
            for item in sorted(state.items):
                if alive:
                    yield from self._start(state, number, item, put)
            return
        tickets = put(state.tickets, None)
        if not self.plan.torn_finish:
            yield True, state._replace(rows=self._finish(state, held), tickets=tickets)
        elif state.torn[number] is None:
            heads, _ = self.tx(state, events.heads, LOTS, self.sources)
            yield True, state._replace(torn=put(state.torn, tuple(heads.items())))
        else:
            rows = self._refused(state, torn_finish, held.ticket, dict(state.torn[number]))
            yield True, state._replace(rows=rows, tickets=tickets, torn=put(state.torn, None))

    def _start(
        self, state: State, number: int, item: Item, put: Callable[[tuple[Any, ...], Any], tuple[Any, ...]]
    ) -> Iterator[tuple[bool, State]]:
        node = Node(id=f"n{number}", epoch=1)
        before = self._row(state)
        start = runs.start if self.plan.guarded else unguarded_start
        ticket, rows = self.tx(state, start, KEYS, LOTS, CLUSTER, node, item.name, item.epoch)
        if ticket is None:
            yield True, state._replace(rows=rows)
            return
        assert before is not None
        last, cadence = before.tally.last_start, self.terms.cadence_us
        if last is not None and state.now - last < cadence:
            raise Broken(f"HEAP-1: started at {last} and again at {state.now}")
        yield True, state._replace(rows=rows, tickets=put(state.tickets, Held.of(ticket)))

    def _finish(self, state: State, held: Held) -> StoredRows:
        """Check that a finish is refused, and changes nothing, unless it belongs to the row's current run."""
        row = self._row(state)
        is_own = (
            isinstance(row, Scheduled)
            and row.run is not None
            and (row.tally.epoch, row.tally.fence) == (held.epoch, held.fence)
        )
        node, _ = self.tx(state, nodes.read, CLUSTER, held.node)
        other_tickets = [ticket for ticket in state.tickets if ticket is not None and ticket is not held]
        rows = self._refused(state, runs.finish, None, held.ticket, dict(held.heads))
        if rows != state.rows:
            if not (is_own and node is not None):
                raise Broken("HEAP-7: the finish of a run that is over was taken")
            twins = [
                ticket for ticket in other_tickets if (ticket.epoch, ticket.fence) == (held.epoch, held.fence)
            ]
            if twins:
                raise Broken("HEAP-7: two runs of one subscription under one fence")
        return rows

    def _refused(self, state: State, fn: Callable[..., Any], *args: Any) -> StoredRows:
        arguments = (KEYS, LOTS, CLUSTER, *args[1:]) if fn is runs.finish else args
        try:
            return self.tx(state, fn, *arguments)[1]
        except LeaseLost:
            return state.rows

    # --- checking

    def _row_bytes(self, state: State) -> StoredRows:
        keys = {KEYS.subscription[self.name], KEYS.floor[self.name]}
        return frozenset(row for row in state.rows if row[0] in keys)

    def _row(self, state: State) -> Scheduled | Waiting | None:
        raw = next((value for key, value in state.rows if key == self.row_key), None)
        if raw is None:
            return None
        row = self.decoded.get(raw)
        if row is None:
            row = self.decoded[raw] = subscriptions.decode(raw)
        return row

    def _template(self, state: State) -> bool:
        return bool(self.plan.added) and any(key == self.template_key for key, _ in state.rows)

    def born(self, state: State) -> int | None:
        row = self._row(state)
        return None if row is None else row.tally.born

    def states_of(self, state: State, ids: tuple[int, ...]) -> dict[int, HeapState]:
        """Return the state of each id; an id is the epoch in which the subscription was created."""
        row, template = self._row(state), self._template(state)
        states: dict[int, HeapState] = {}
        for born, following in zip(ids, (*ids[1:], None), strict=True):
            row_state = row.state if row is not None and row.tally.born == born else SubscriptionState.ABSENT
            on_heap = any(
                item.epoch >= born and (following is None or item.epoch < following) for item in state.items
            )
            states[born] = state_of(row_state, template=template, on_heap=on_heap)
        return states

    def check_move(self, before: State, after: State) -> None:
        """Check that every move is allowed, and that the item of a scheduled row did not leave the heap."""
        if before.rows is after.rows and before.items is after.items:
            return
        ids = tuple(sorted({1, self.born(before) or 1, self.born(after) or 1}))
        was, is_ = self.states_of(before, ids), self.states_of(after, ids)
        for born in ids:
            check(was[born], is_[born], f"id {self.name}/{born}")
            self.moves_seen.add((was[born], is_[born]))
        row = self._row(after)
        if isinstance(row, Scheduled):
            signal = Item(row.next_run, self.name, row.tally.epoch)
            if signal in before.items and signal not in after.items:
                raise Broken(f"INV4: {signal} left the heap")

    def at_rest(self, state: State) -> bool:
        """Return whether all publications are processed, no process holds anything, and no item is left."""
        hands = [*state.schedulers, state.pruner, state.attacher, *state.tickets]
        if (state.items and self.plan.prunes) or any(hand is not None for hand in hands):
            return False
        row = self._row(state)
        if isinstance(row, Scheduled) and row.next_run > self.plan.ticks > 0:
            return True  # it continues after the end of the search
        heads, _ = self.tx(state, events.heads, LOTS, self.sources)
        if row is None:  # it has no subscriber, or nothing was published for its template
            return not self._template(state) or not any(heads.values())
        return isinstance(row, Waiting) and row.tally.seen == heads

    # --- searching

    def run(self, most: int = 200_000) -> SearchResult:
        first = self.beginning()
        number = {first: 0}
        back: list[list[int]] = [[]]  # the predecessors by a step of the protocol
        front, good = deque([first]), set[int]()
        lost = len(self.plan.publications) + 5
        while front:
            state = front.popleft()
            source = number[state]
            if self.at_rest(state):
                good.add(source)
            try:
                for protocol, after in self.moves(state):
                    if after == state:
                        continue
                    if after.left[lost] == self.plan.losses:  # a loss is not a step of the protocol
                        self.check_move(state, after)
                    target = number.get(after)
                    if target is None:
                        target = number[after] = len(number)
                        back.append([])
                        front.append(after)
                    if protocol:
                        back[target].append(source)
            except (Broken, IllegalTransition, InvariantBroken, AssertionError) as error:
                return self._found(number, None, f"{error}")
            assert len(number) < most, "more states than a test has time for"
        reached, stack = set(good), list(good)
        while stack:
            for predecessor in back[stack.pop()]:
                if predecessor not in reached:
                    reached.add(predecessor)
                    stack.append(predecessor)
        stuck = next((state for state, predecessor in number.items() if predecessor not in reached), None)
        return self._found(number, stuck, "")

    def _found(self, number: dict[State, int], stuck: State | None, broken: str) -> SearchResult:
        return SearchResult(len(number), frozenset(self.moves_seen), stuck, broken)


# --- the ablations


def torn_finish(tx: Tx, ticket: Ticket, heads: dict[DatasetId, int]) -> None:
    """Decide the next state by heads of an earlier transaction, which HEAP-8 forbids."""
    row = runs.check(tx, KEYS, CLUSTER, ticket)
    progress = tuple(ticket.heads.values())
    tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1, progress=progress)
    more = any(heads[dataset] > position for dataset, position in zip(heads, progress, strict=True))
    new = Scheduled(tally, tx.now()) if more else Waiting(tally)
    subscriptions.write(tx, KEYS, ticket.name, row, new)


def unguarded_start(
    tx: Tx, keys: TriggerKeys, lots_: LotKeys, cluster: ClusterKeys, node: Node, name: str, epoch: int
) -> Ticket | None:
    """Start without a check of time and lease, and without a fence, which HEAP-7 forbids."""
    row = subscriptions.read(tx, keys, name)
    if not isinstance(row, Scheduled) or row.tally.epoch != epoch:
        return None
    entry = nodes.check(tx, cluster, node)
    tally = msgspec.structs.replace(row.tally, last_start=tx.now())
    run = subscriptions.Run(node.id, node.epoch, entry.expires_at)
    subscriptions.write(tx, keys, name, row, msgspec.structs.replace(row, tally=tally, run=run))
    heads = events.heads(tx, lots_, tally.terms.sources)
    return Ticket(name, epoch, tally.fence, node, tally.seen, heads)


__all__ = ["Plan", "Search", "SearchResult"]
