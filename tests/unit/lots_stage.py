"""A stage for tests of lots, triggers and publication: one store, one fake clock, no Spark.

After every transaction the whole store is scanned: events without gaps, no event without its lot's row and no
row without its event, one index row per subscription and the like.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.lots import datasets, events, expiry, lots
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.states import LotState
from tidemill.objects import Objects
from tidemill.objects.memory import MemoryObjects
from tidemill.scope import Scope
from tidemill.store import Store, Tx
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock
from tidemill.triggers import runs, subscriptions, wakes
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.runs import Ticket
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Terms

T = TypeVar("T")

SECOND_US = 1_000_000
TTL_US = 15 * SECOND_US
FIVE_MINUTES = Unit.parse("PT5M")


class Stage:
    """One store and one fake clock."""

    def __init__(self, store: Store | None = None, *, scan: bool = True) -> None:
        self.clock = FakeClock()
        self.store = store or MemoryStore(clock=self.clock, chance=random.Random(7))
        self.lots = LotKeys("c")
        self.triggers = TriggerKeys("c")
        self.cluster = ClusterKeys("c")
        self.objects: Objects = MemoryObjects(self.clock)
        self.chance = random.Random(11)
        self.scan = scan
        self.writes = 0  # of the last transaction

    def run(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run `fn(tx, …)` in one transaction, then check every invariant."""

        def counted(tx: Tx) -> tuple[T, int]:
            return fn(tx, *args, **options), tx.writes

        answer, self.writes = self.store.run(counted)
        if self.scan:
            self.check()
        return answer

    def check(self) -> None:
        self.store.run(lambda tx: check_lots(tx, self.lots))
        self.store.run(lambda tx: check_subscriptions(tx, self.triggers, self.lots))

    # --- datasets and lots

    def dataset(self, name: str = "orders", **fields: Any) -> DatasetId:
        return self.run(datasets.declare, self.lots, DatasetRow(name=name, schema="id BIGINT", **fields)).id

    def add(self, dataset: DatasetId, lot: str, generation: int = 0, **fields: Any) -> int:
        return self.run(lots.add, self.lots, new_lot(dataset, lot, generation, **fields))

    def events(self, dataset: DatasetId, after: int = 0, limit: int = 10_000) -> list[events.LotEvent]:
        return self.store.run(lambda tx: events.read(tx, self.lots, dataset, after, limit))

    def rows_of(self, dataset: DatasetId) -> list[LotRow]:
        return self.store.run(lambda tx: lots.listed(tx, self.lots, dataset, limit=10_000))

    def input_lot(self, dataset: DatasetId, lot: str) -> InputLot:
        """Return a lot as an input, in its current generation."""
        row = self.run(lots.current, self.lots, dataset, lot)
        assert row is not None
        return InputLot(dataset=dataset.name, version=dataset.version, lot=lot, generation=row.generation)

    # --- nodes

    def node(self, name: str, ttl_us: int = TTL_US) -> Node:
        return self.store.run(lambda tx: nodes.join(tx, self.cluster, Node(id=name, epoch=0), ttl_us))

    def scope(self, node: Node | None = None, **fields: Any) -> Scope:
        """Return the scope of a node; by default of a node that is not in the node list."""
        scope = Scope(
            store=self.store,
            cluster="c",
            objects=self.objects,
            node=node or Node(id="unlisted", epoch=1),
            clock=self.clock,
            chance=self.chance,
        )
        return replace(scope, **fields)

    def kill(self, node: Node) -> None:
        self.store.run(lambda tx: nodes.leave(tx, self.cluster, node))

    # --- subscriptions

    def subscribe(self, name: str, *sources: DatasetId, **given: Any) -> AnyRow:
        """Subscribe; by default without pauses after failures and deaths."""
        terms = Terms(**{"sources": sources, "backoff_us": 0, **given})
        return self.run(subscriptions.subscribe, self.triggers, self.lots, name, terms)

    def row(self, name: str) -> AnyRow:
        return self.store.run(lambda tx: subscriptions.must_read(tx, self.triggers, name))

    def publish(self, dataset: DatasetId) -> int:
        """Publish one more append."""

        def both(tx: Tx) -> int:
            position = lots.add(
                tx, self.lots, new_lot(dataset, str(lots.next_append(tx, self.lots, dataset)))
            )
            wakes.wake(tx, self.triggers, dataset)
            return position

        return self.run(both)

    def page(self, limit: int = wakes.PAGE) -> bool:
        return self.run(wakes.page_wakes, self.triggers, self.lots, limit)

    def page_all(self) -> None:
        while self.page():
            pass

    def due(self) -> list[runs.Due]:
        return self.store.run(lambda tx: runs.due_page(tx, self.triggers, b"", 100)[0])

    def start(self, node: Node, name: str, epoch: int | None = None) -> Ticket | None:
        epoch = self.row(name).tally.epoch if epoch is None else epoch
        return self.run(runs.start, self.triggers, self.lots, self.cluster, node, name, epoch)

    def finish(self, ticket: Ticket, target: dict[DatasetId, int] | None = None) -> AnyRow:
        target = ticket.heads if target is None else target
        return self.run(runs.finish, self.triggers, self.lots, self.cluster, ticket, target)

    def fail(self, ticket: Ticket, backoff_s: float = 0) -> AnyRow:
        return self.run(runs.fail, self.triggers, self.cluster, ticket, backoff_us=int(backoff_s * SECOND_US))

    def forgive(self, name: str) -> None:
        """Forget that nodes have died while they ran a subscription."""

        def forget(tx: Tx) -> None:
            row = subscriptions.must_read(tx, self.triggers, name)
            tally = msgspec.structs.replace(row.tally, deaths=0, failures=0)
            subscriptions.write(tx, self.triggers, name, row, msgspec.structs.replace(row, tally=tally))

        self.store.run(forget)

    def look(self, name: str) -> bool:
        """End the run if its node is gone; return whether it was."""
        epoch = self.row(name).tally.epoch
        return self.run(runs.end_if_lost, self.triggers, self.cluster, name, epoch) is not None


def check_subscriptions(tx: Tx, keys: TriggerKeys, lots_keys: LotKeys) -> None:
    """Check: one index entry for each scheduled row, none for others; no progress beyond a head."""
    expected = {}
    for row in tx.range(*keys.subscription.all(), snapshot=True):
        name = str(keys.subscription.unpack(row.key)[0])
        decoded = subscriptions.decode(row.value)
        if isinstance(decoded, Scheduled):
            expected[keys.due[decoded.look_at, name]] = (decoded.tally.epoch, decoded.run is not None)
        for source, position in decoded.tally.seen.items():
            assert position <= events.head(tx, lots_keys, source)
            assert tx.get(keys.subscriber[(*source.parts, name)]) == b""
    index = {row.key: row.value for row in tx.range(*keys.due.all(), snapshot=True)}
    assert {
        key: msgspec.msgpack.decode(value, type=tuple[int, bool]) for key, value in index.items()
    } == expected


def new_lot(dataset: DatasetId, lot: str, generation: int = 0, **fields: Any) -> LotRow:
    values = {"state": LotState.COMPLETE, "manifest": f"m/{lot}/{generation}", "attempt": "t", **fields}
    return LotRow(dataset=dataset, lot=lot, generation=generation, **values)


def check_lots(tx: Tx, keys: LotKeys) -> None:
    """Check: every event has its lot's row and vice versa, positions have no gaps, heads are the last
    position.
    """
    events_by_dataset: dict[DatasetId, dict[int, tuple[str, int]]] = {}
    for row in tx.range(*keys.event.all(), snapshot=True):
        name, version, position = keys.event.unpack(row.key)
        event = msgspec.msgpack.decode(row.value, type=events.LotEvent)
        assert event.position == position
        events_by_dataset.setdefault(DatasetId(str(name), str(version)), {})[event.position] = (
            event.lot,
            event.generation,
        )
    rows: dict[DatasetId, dict[int, tuple[str, int]]] = {}
    for space in (keys.lot, keys.replaced):
        for row in tx.range(*space.all(), snapshot=True):
            lot = msgspec.msgpack.decode(row.value, type=LotRow)
            positions = rows.setdefault(lot.dataset, {})
            assert lot.position not in positions
            positions[lot.position] = (lot.lot, lot.generation)
    assert events_by_dataset == rows
    for dataset, positions in events_by_dataset.items():
        head, first = events.head(tx, keys, dataset), expiry.read(tx, keys, dataset).position + 1
        assert sorted(positions) == list(range(first, head + 1))
        assert len(set(positions.values())) == len(positions)
