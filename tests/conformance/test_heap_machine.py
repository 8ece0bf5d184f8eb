"""Random operations on subscriptions, on a SQLite store and both heaps; every move is in the table."""

import itertools
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.heap_observer import HeapObserver
from tests.scopes import scope_of
from tests.unit.lots_stage import new_lot
from tidemill import crash
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.crash import Crashed
from tidemill.errors import LeaseLost, TemplateChild
from tidemill.lots import datasets, events, lots
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.objects.local import LocalObjects
from tidemill.store import Store, Tx
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.fake_clock import FakeClock
from tidemill.triggers import attach, runs, subscriptions, templates, wakes
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.heap import Heap
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.object_heap import ObjectHeap
from tidemill.triggers.runs import Ticket
from tidemill.triggers.scheduler import Scheduler
from tidemill.triggers.store_heap import StoreHeap
from tidemill.triggers.subscriptions import Scheduled, Terms, Waiting
from tidemill.triggers.templates import Template

SECOND_US = 1_000_000
CADENCE_US = 5 * SECOND_US
TTL_US = 100 * SECOND_US
DATASETS = [DatasetId("raw_a"), DatasetId("raw_b")]
NAMES = ("one", "two")
TERMS = {
    "one": Terms(sources=(DATASETS[0],), cadence_us=CADENCE_US, most_failures=2),
    "two": Terms(sources=tuple(DATASETS), debounce_us=3 * SECOND_US),
}
TEMPLATE = Template(
    name="t", reads="raw_*", writes="clean_{name}", terms=Terms(sources=(), cadence_us=CADENCE_US)
)
CRASHES = [
    "attach.row.after",
    "attach.push.after",
    "triggers.push.before",
    "triggers.push.after",
    "triggers.wake.after",
    "triggers.prune.before",
    "triggers.prune.after",
]
_stores = itertools.count()


def machine(store: Store, heap: Heap, clock: FakeClock) -> type[RuleBasedStateMachine]:  # noqa: C901 - rules
    """Return the machine for a store and a heap; each run uses a new cluster."""

    class Life(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            cluster = f"c{next(_stores)}"
            hour = (
                3_600 * SECOND_US
            )  # each run starts with the same one, so that the same steps give the same run
            clock.advance((hour - store.run(lambda tx: tx.now()) % hour) / SECOND_US)
            self.keys, self.lots, self.cluster = TriggerKeys(cluster), LotKeys(cluster), ClusterKeys(cluster)
            real = StoreHeap(store, self.keys) if isinstance(heap, StoreHeap) else heap
            for item in (*real.listed(0, 2**62), *real.parked()):  # of the last run
                real.remove([item])
            self.observer = HeapObserver(store, self.keys, real)
            self.store, self.heap = self.observer.store, self.observer.heap
            self.scheduler = self.new_scheduler(cluster)
            self.due_query = DueQuery(scope_of(self.store, cluster, clock=clock), self.heap)
            self.tickets: list[Ticket] = []
            self.starts: dict[str, int] = {}
            self.boots = 0
            for dataset in DATASETS:
                self.run(datasets.declare, self.lots, DatasetRow(name=dataset.name, schema="id BIGINT"))
            self.join()

        def new_scheduler(self, cluster: str) -> Scheduler:
            return Scheduler(scope_of(self.store, cluster, clock=clock), self.heap, late_s=1.0, grace_s=60.0)

        def run(self, fn: Any, *args: Any, **named: Any) -> Any:
            return self.store.run(lambda tx: fn(tx, *args, **named))

        def join(self) -> None:
            self.boots += 1
            node = Node(id=f"n{self.boots}", epoch=0)
            self.node = self.run(nodes.join, self.cluster, node, TTL_US)

        # --- what may happen

        @rule(dataset=st.sampled_from(DATASETS))
        def write(self, dataset: DatasetId) -> None:
            def publish(tx: Tx) -> None:
                lots.add(tx, self.lots, new_lot(dataset, str(lots.next_append(tx, self.lots, dataset))))
                wakes.wake(tx, self.keys, dataset)

            self.run(publish)

        @rule(name=st.sampled_from(NAMES), dies=st.sampled_from([None, *CRASHES[:2]]))
        def attach(self, name: str, dies: str | None) -> None:
            with self.dying(dies):
                attach.attach(self.store, self.keys, self.lots, self.heap, name, TERMS[name])

        @rule(name=st.sampled_from([*NAMES, *map(TEMPLATE.child, DATASETS)]))
        def delete(self, name: str) -> None:
            row = self.run(subscriptions.read, self.keys, name)
            lives = self.run(templates.find, self.keys, TEMPLATE.name) is not None
            if row is not None and row.tally.template and lives:
                with pytest.raises(TemplateChild):
                    self.run(subscriptions.remove, self.keys, name)
            else:
                assert self.run(subscriptions.remove, self.keys, name) == (row is not None)
                self.starts.pop(name, None)

        @rule()
        def add_template(self) -> None:
            self.run(templates.declare, self.keys, TEMPLATE)

        @rule()
        def remove_template(self) -> None:
            self.run(templates.remove, self.keys, TEMPLATE.name)

        @rule(dies=st.sampled_from([None, None, *CRASHES[2:]]))
        def tend(self, dies: str | None) -> None:
            with self.dying(dies):
                self.scheduler.tick()

        @rule()
        def start(self) -> None:
            try:
                self.run(nodes.beat, self.cluster, self.node, TTL_US)
            except LeaseLost:
                self.join()
            for due in self.due_query.due(2).due:
                ticket = self.run(
                    runs.start, self.keys, self.lots, self.cluster, self.node, due.name, due.epoch
                )
                if ticket is not None:
                    self.tickets.append(ticket)
                    now = self.run(lambda tx: tx.now())
                    row = self.run(subscriptions.must_read, self.keys, due.name)
                    last = self.starts.get(due.name)
                    assert last is None or now - last >= row.tally.terms.cadence_us, "HEAP-1"
                    self.starts[due.name] = now

        @rule(failed=st.booleans(), which=st.integers(0, 5))
        def end(self, failed: bool, which: int) -> None:
            if not self.tickets:
                return
            ticket = self.tickets.pop(which % len(self.tickets))
            try:
                if failed:
                    self.run(runs.fail, self.keys, self.cluster, ticket, jitter=which / 5, why="it broke")
                else:
                    self.run(runs.finish, self.keys, self.lots, self.cluster, ticket, ticket.heads)
            except LeaseLost:
                pass

        @rule()
        def die(self) -> None:
            """End the node; its runs may still try to finish."""
            self.run(nodes.leave, self.cluster, self.node)
            self.join()

        @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["pause", "resume", "retry"]))
        def flag(self, name: str, what: str) -> None:
            if self.run(subscriptions.read, self.keys, name) is None:
                return
            if what == "resume":
                self.run(subscriptions.resume, self.keys, self.lots, name)
            else:
                self.run(getattr(subscriptions, what), self.keys, name)

        @rule(seconds=st.sampled_from([1, 4, 61]))
        def wait(self, seconds: int) -> None:
            clock.advance(seconds)

        @rule()
        def lose_the_heap(self) -> None:
            inner = self.observer._real
            for item in [*inner.listed(0, 2**62), *inner.parked()]:
                inner.remove([item])
            self.observer.lost()

        # --- and in the end

        def dying(self, point: str | None) -> Any:
            return Dying(point)

        def teardown(self) -> None:
            """Without further writes and crashes all work finishes, and nothing is left."""
            for name in NAMES:
                if self.run(subscriptions.read, self.keys, name) is not None:
                    self.run(subscriptions.resume, self.keys, self.lots, name)
                    self.run(subscriptions.retry, self.keys, name)
            self.run(nodes.leave, self.cluster, self.node)
            self.join()
            self.tickets.clear()
            for _ in range(60):
                if self.at_rest():
                    break
                clock.advance(31)
                while self.scheduler.tick() == 0.0:
                    pass
                self.start()
                while self.tickets:
                    ticket = self.tickets.pop()
                    self.run(runs.finish, self.keys, self.lots, self.cluster, ticket, ticket.heads)
            for row in self.rows():
                heads = self.run(events.heads, self.lots, row.tally.terms.sources)
                assert row.tally.seen == heads, "HEAP-2: something that was written was not seen"
                assert not isinstance(row, Scheduled)
            assert [*self.heap.listed(0, 2**62)] == [], "an item was left behind"
            assert [*self.heap.parked()] == []
            for dataset in DATASETS:
                if self.run(templates.find, self.keys, TEMPLATE.name) is not None:
                    assert self.run(subscriptions.read, self.keys, TEMPLATE.child(dataset)) is not None

        def at_rest(self) -> bool:
            items = [*self.heap.listed(0, 2**62), *self.heap.parked()]
            owed = self.run(
                lambda tx: [*tx.range(*self.keys.wake.all()), *tx.range(*self.keys.templating.all())]
            )
            return not items and not owed and all(isinstance(row, Waiting) for row in self.rows())

        def rows(self) -> list[Any]:
            stored = self.run(lambda tx: tx.range(*self.keys.subscription.all()))
            return [subscriptions.decode(row.value) for row in stored]

    return Life


class Dying:
    """Crashes at a crash point, if it is reached."""

    def __init__(self, point: str | None) -> None:
        self._armed = None if point is None else crash.armed(point)

    def __enter__(self) -> None:
        if self._armed is not None:
            self._armed.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if self._armed is not None:
            self._armed.__exit__(None, None, None)
        return kind is not None and issubclass(kind, Crashed)


@pytest.mark.rule("HEAP-5", "HEAP-2", "HEAP-1")
@pytest.mark.parametrize("kind", ["store", "objects"])
@pytest.mark.parametrize("examples", [12, pytest.param(50, marks=pytest.mark.crash)])
def test_every_move_is_in_the_table_and_in_the_end_all_is_processed(kind: str, examples: int) -> None:
    clock = FakeClock()
    # in memory if possible: thousands of commits that need not survive the machine
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(dir=shared, prefix="tidemill-") as folder,
        SqliteStore(Path(folder) / "store.db", clock=clock) as store,
    ):
        heap: Heap = StoreHeap(store, TriggerKeys("c"))
        if kind == "objects":
            heap = ObjectHeap(LocalObjects(Path(folder) / "objects", clock=clock, chance=random.Random(1)))
        run_state_machine_as_test(
            machine(store, heap, clock),
            settings=settings(
                max_examples=examples,
                stateful_step_count=35,
                deadline=None,
                phases=[Phase.explicit, Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
