"""The heap in the store: SQLite, every commit synced to disk.

Subscriptions are scheduled at times over the next thirty days, as publications would schedule them, and the
sweep pushes their items. A hundred are due. Then, for alternating sizes: wake and push a hundred, find due
work, start and finish one.
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.comparison import rounded
from bench.report import Report, at_most
from tests.scopes import scope_of
from tests.unit.lots_stage import new_lot
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import TransactionTooLong
from tidemill.lots import datasets, lots
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.store.sqlite import SqliteStore
from tidemill.triggers import heap_sync, runs
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.heap import Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.store_heap import StoreHeap
from tidemill.triggers.subscriptions import Scheduled, Tally, Terms

SIZES = (1_000, 100_000, 1_000_000)
QUICK_SIZES = (200, 400, 800)
DUE = 100
TURNS = 15
SPREAD_US = 30 * 86_400 * 1_000_000
CLUSTER = "bench"
SOURCE = DatasetId("orders")
PEEK_GROWTH = 1.5


class Scene:
    """A store with this many scheduled subscriptions, of which a hundred are due."""

    def __init__(self, folder: Path, size: int) -> None:
        self.store = SqliteStore(folder / f"heap-{size}.db")
        self.keys, self.lots, self.cluster = TriggerKeys(CLUSTER), LotKeys(CLUSTER), ClusterKeys(CLUSTER)
        self.heap = StoreHeap(self.store, self.keys)
        self.due_query = DueQuery(scope_of(self.store, CLUSTER), self.heap)
        self.chance = random.Random(size)
        self.terms = Terms(sources=(SOURCE,))
        self.store.run(
            lambda tx: datasets.declare(tx, self.lots, DatasetRow(name=SOURCE.name, schema="id INT"))
        )
        self.store.run(
            lambda tx: lots.add(tx, self.lots, new_lot(SOURCE, str(lots.next_append(tx, self.lots, SOURCE))))
        )
        self.node = self.store.run(lambda tx: nodes.join(tx, self.cluster, Node(id="n", epoch=0), 10**12))
        self.now = self.store.run(lambda tx: tx.now())
        for first in range(0, size, 250):
            self._fill_page(range(first, min(first + 250, size)))

    def _fill_page(self, page: range) -> None:
        """Run one commit, or several if the machine is so busy that one would take too long."""
        try:
            self.store.run(lambda tx: self._fill(tx, page))
        except TransactionTooLong:
            half = (page.start + page.stop) // 2
            self._fill_page(range(page.start, half))
            self._fill_page(range(half, page.stop))

    def _fill(self, tx: Tx, page: range) -> None:
        """Write rows as an attach leaves them, with the item pushed; a page is one commit."""
        for number in page:
            at = self.now if number < DUE else self.now + 10**10 + self.chance.randrange(SPREAD_US)
            name = f"s{number:07}"
            row = Scheduled(Tally(terms=self.terms, progress=(0,)), at)
            tx.set_many(
                [
                    (self.keys.subscription[name], msgspec.msgpack.encode(row)),
                    (self.keys.due[at, name], msgspec.msgpack.encode((1, False))),
                    (self.keys.heap[at, name, 1], b""),
                ],
                quiet=True,
            )

    def push(self, turn: int) -> None:
        """Push the pending items of a page of wake-ups: read them, push, and record it."""
        items = [Item(self.now + 10**15 + n, f"s{DUE + n:07}", 10**6 + turn) for n in range(100)]
        self.heap.push(items)
        self.store.run(lambda tx: heap_sync.clear_debts(tx, self.keys, items))

    def peek(self) -> None:
        answer = self.due_query.due(DUE)
        assert len(answer.due) > 0

    def finish(self, turn: int) -> None:
        """Start the oldest and finish it."""
        (due, *_) = self.due_query.due(1).due

        def both(tx: Tx) -> None:
            ticket = runs.start(tx, self.keys, self.lots, self.cluster, self.node, due.name, due.epoch)
            assert ticket is not None
            runs.finish(tx, self.keys, self.lots, self.cluster, ticket, ticket.heads)

        self.store.run(both)

    def owed(self) -> int:
        return len(self.store.run(lambda tx: heap_sync.owed(tx, self.keys)))


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(report: Report, folder: Path) -> None:
    sizes = QUICK_SIZES if report.quick else SIZES
    scenes: dict[int, Scene] = {}
    for size in sizes:
        began = time.perf_counter()
        scenes[size] = Scene(folder, size)
        report.say(f"{size:,} scheduled subscriptions in {time.perf_counter() - began:.0f} s")
    took: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in sizes} for name in ("push_100", "peek", "finish")
    }
    turns = 2 if report.quick else TURNS
    for turn in range(-1, turns):  # the first is not counted: it fills the caches
        for size, scene in scenes.items():  # alternating, so that noise affects all sizes
            figures = {
                "push_100": timed(partial(scene.push, turn)),
                "peek": min(timed(scene.peek) for _ in range(3)),
                "finish": timed(partial(scene.finish, turn)),
            }
            if turn >= 0:
                for name, value in figures.items():
                    took[name][size].append(value)
    medians = {
        name: {size: statistics.median(values) for size, values in by_size.items()}
        for name, by_size in took.items()
    }
    report.raw["store_ms"] = {
        name: {f"{size}": rounded(value) for size, value in by_size.items()}
        for name, by_size in medians.items()
    }
    first, last = sizes[0], sizes[-1]
    report.figure(
        "peek_growth",
        medians["peek"][last] / medians["peek"][first],
        {
            "peek_ms": {f"{size}": [rounded(ms) for ms in took["peek"][size]] for size in sizes},
            "due": DUE,
        },
        target=at_most(PEEK_GROWTH),
    )
    for name in ("push_100", "finish"):
        report.figure(f"{name}_ms_at_{last}", medians[name][last])
    report.figure(f"peek_ms_at_{last}", medians["peek"][last])
    for scene in scenes.values():
        scene.store.close()
