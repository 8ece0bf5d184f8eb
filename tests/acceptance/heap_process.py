"""A writer or a runner of the test of the heap, as a process: `python -m tests.acceptance.heap_process`.

    heap_process writer NUMBER     publishes appends to the datasets, one after the other, until it is ended
    heap_process runner NUMBER     tends, pulls, starts and finishes, until it is ended
    heap_process bulk NUMBER       the same on the store's heap, a hundred in one transaction; it may kill
                                   itself at a crash point (TIDEMILL_CRASH)

Where the store and the heap are stands in the environment, because the URL of the heap holds a secret.
"""

import os
import random
import sys

import msgspec

from tests import patience
from tests.scopes import scope_of
from tests.unit.lots_stage import new_lot
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.objects import open_objects
from tidemill.store import Space, Store, Tx, open_store
from tidemill.triggers import runs, wakes
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.heap import Heap
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.object_heap import ObjectHeap
from tidemill.triggers.runs import Due, Ticket
from tidemill.triggers.scheduler import Scheduler
from tidemill.triggers.store_heap import StoreHeap

STORE, HEAP = "HEAP_TEST_STORE", "HEAP_TEST_OBJECTS"
CLUSTER = "heap-test"
DATASETS = [DatasetId("raw_a"), DatasetId("raw_b"), DatasetId("other")]
TTL_US = 1_500_000
KEYS, LOTS, NODES = TriggerKeys(CLUSTER), LotKeys(CLUSTER), ClusterKeys(CLUSTER)
STARTS = Space(CLUSTER, "test-start")


def open_heap(url: str) -> Heap:
    return ObjectHeap(open_objects(url, clock=SYSTEM, chance=random.Random(), probe=False))


def publish(tx: Tx, dataset: DatasetId) -> None:
    lots.add(tx, LOTS, new_lot(dataset, str(lots.next_append(tx, LOTS, dataset))))
    wakes.wake(tx, KEYS, dataset)


def write(store: Store, chance: random.Random) -> None:
    while True:
        store.run(lambda tx: publish(tx, chance.choice(DATASETS)))
        SYSTEM.sleep(chance.random() * 0.2)


def start(tx: Tx, node: Node, due: Due) -> Ticket | None:
    """A start, and a note of it in the same transaction."""
    ticket = runs.start(tx, KEYS, LOTS, NODES, node, due.name, due.epoch)
    if ticket is not None:
        tx.set(STARTS[due.name, ticket.fence], msgspec.msgpack.encode(tx.now()), quiet=True)
    return ticket


class Runner:
    """One node: tends, and runs one subscription after the other."""

    def __init__(self, store: Store, heap: Heap, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        scope = scope_of(store, CLUSTER)
        self.scheduler = Scheduler(
            scope, heap, poll_s=0.05, sweep_every_s=2.0, late_s=2.0, prune_every_s=1.0, grace_s=60.0
        )
        self.due_query = DueQuery(scope, heap)
        self.name = f"{chance.getrandbits(64):016x}"
        self.join()

    def join(self) -> None:
        self.node = self.store.run(lambda tx: nodes.join(tx, NODES, Node(id=self.name, epoch=0), TTL_US))
        self.beat_at = SYSTEM.monotonic()

    def beat(self) -> None:
        if SYSTEM.monotonic() >= self.beat_at:
            self.store.run(lambda tx: nodes.beat(tx, NODES, self.node, TTL_US))
            self.beat_at = SYSTEM.monotonic() + 0.3

    def run(self) -> None:
        while True:
            try:
                self.turn()
            except LeaseLost:
                self.join()

    def turn(self) -> None:
        self.beat()
        wait_s = self.scheduler.tick()
        for due in self.due_query.due(20).due:
            self.beat()
            ticket = self.store.run(lambda tx, due=due: start(tx, self.node, due))
            if ticket is not None:
                self.work(ticket)
                wait_s = 0.0
        SYSTEM.sleep(wait_s)

    def work(self, ticket: Ticket) -> None:
        SYSTEM.sleep(self.chance.random() * 0.03)
        if self.chance.random() < 0.05:
            jitter = self.chance.random()
            self.store.run(lambda tx: runs.fail(tx, KEYS, NODES, ticket, jitter=jitter, why="at random"))
        else:
            self.store.run(lambda tx: runs.finish(tx, KEYS, LOTS, NODES, ticket, ticket.heads))


def run_page(tx: Tx, node: Node, page: list[Due]) -> None:
    for due in page:
        ticket = start(tx, node, due)
        if ticket is not None:
            runs.finish(tx, KEYS, LOTS, NODES, ticket, ticket.heads)


def run_in_bulk(store: Store, chance: random.Random) -> None:
    heap = StoreHeap(store, KEYS)
    scope = scope_of(store, CLUSTER)
    scheduler, due_query = Scheduler(scope, heap, poll_s=0.05), DueQuery(scope, heap)
    name = f"{chance.getrandbits(64):016x}"
    node = store.run(lambda tx: nodes.join(tx, NODES, Node(id=name, epoch=0), 1000 * TTL_US))
    while True:
        wait_s = scheduler.tick()
        due = due_query.due(500).due
        for first in range(0, len(due), 100):
            store.run(lambda tx, page=due[first : first + 100]: run_page(tx, node, page))
        SYSTEM.sleep(0.0 if due else wait_s)


def main(role: str, number: str) -> None:
    crash.arm_from_environment()
    chance = random.Random(f"{role} {number}")
    with open_store(os.environ[STORE]) as store:
        if role == "writer":
            write(store, chance)
        elif role == "bulk":
            run_in_bulk(store, chance)
        else:
            Runner(store, open_heap(os.environ[HEAP]), chance).run()


if __name__ == "__main__":
    patience.lengthen_transactions()  # the test stops processes, also inside of a transaction
    main(*sys.argv[1:])
