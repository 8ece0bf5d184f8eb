"""A stage for tests of lots, triggers and publication: one store, one fake clock, no Spark and no objects.

After every transaction the whole store is scanned: events without gaps, no event without its lot's row and no
row without its event, one index row per subscription and the like.
"""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.lots import datasets, events, lots
from tidemill.lots.datasets import Dataset
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.lots.states import LotState
from tidemill.store import Store, Tx
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock

T = TypeVar("T")

SECOND_US = 1_000_000
TTL_US = 15 * SECOND_US
FIVE_MINUTES = Unit.parse("PT5M")


class Stage:
    """One store, one time."""

    def __init__(self, store: Store | None = None, *, scan: bool = True) -> None:
        self.clock = FakeClock()
        self.store = store or MemoryStore(clock=self.clock, chance=random.Random(7))
        self.lots = LotKeys("c")
        self.cluster = ClusterKeys("c")
        self.scan = scan
        self.writes = 0  # of the last transaction

    def run(self, fn: Callable[..., T], *args: Any, **named: Any) -> T:
        """`fn(tx, …)` in one transaction, then every invariant."""

        def counted(tx: Tx) -> tuple[T, int]:
            return fn(tx, *args, **named), tx.writes

        answer, self.writes = self.store.run(counted)
        if self.scan:
            self.check()
        return answer

    def check(self) -> None:
        self.store.run(lambda tx: check_lots(tx, self.lots))

    # --- datasets and lots

    def dataset(self, name: str = "orders", **fields: Any) -> DatasetId:
        return self.run(datasets.declare, self.lots, Dataset(name=name, schema="id BIGINT", **fields)).id

    def add(self, dataset: DatasetId, lot: str, generation: int = 0, **fields: Any) -> int:
        return self.run(lots.add, self.lots, new_lot(dataset, lot, generation, **fields))

    def events(self, dataset: DatasetId, after: int = 0, limit: int = 10_000) -> list[events.LotEvent]:
        return self.store.run(lambda tx: events.read(tx, self.lots, dataset, after, limit))

    def rows_of(self, dataset: DatasetId) -> list[LotRow]:
        return self.store.run(lambda tx: lots.listed(tx, self.lots, dataset, limit=10_000))

    # --- nodes

    def node(self, name: str, ttl_us: int = TTL_US) -> Node:
        return self.store.run(lambda tx: nodes.join(tx, self.cluster, Node(id=name, epoch=0), ttl_us))

    def kill(self, node: Node) -> None:
        self.store.run(lambda tx: nodes.leave(tx, self.cluster, node))


def new_lot(dataset: DatasetId, lot: str, generation: int = 0, **fields: Any) -> LotRow:
    values = {"state": LotState.COMPLETE, "manifest": f"m/{lot}/{generation}", "attempt": "t", **fields}
    return LotRow(dataset=dataset, lot=lot, generation=generation, **values)


def check_lots(tx: Tx, keys: LotKeys) -> None:
    """No event without its lot's row, no row without its event, positions without gaps, heads at the last."""
    found: dict[DatasetId, dict[int, tuple[str, int]]] = {}
    for row in tx.range(*keys.event.all(), snapshot=True):
        name, version, position = keys.event.unpack(row.key)
        event = msgspec.msgpack.decode(row.value, type=events.LotEvent)
        assert event.position == position
        found.setdefault(DatasetId(str(name), str(version)), {})[event.position] = (
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
    assert found == rows
    for dataset, positions in found.items():
        assert sorted(positions) == list(range(1, len(positions) + 1))
        assert len(set(positions.values())) == len(positions)
        assert events.head(tx, keys, dataset) == len(positions)
