"""The heaps against their contract: in memory, in files, on a real S3 server, and in stores."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from tests.heap_peek import peek
from tests.servers.s3 import S3Server
from tidemill.clock import SYSTEM
from tidemill.events import Event
from tidemill.objects import open_objects
from tidemill.objects.memory import MemoryObjects
from tidemill.store.memory import MemoryStore
from tidemill.store.sqlite import SqliteStore
from tidemill.triggers.due import NEVER
from tidemill.triggers.events import StrangeKey
from tidemill.triggers.heap import MINUTE_US, Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.object_heap import ObjectHeap, parse
from tidemill.triggers.store_heap import StoreHeap

NAMES = ("plain", "with blank", "a/b", "dots.and.more", "clean[raw_orders]", "é→", "100%", "=", "..")


class HeapConformance:
    """The tests of a heap. A subclass gives the fixture `heap`, empty for each test."""

    exact: ClassVar[bool] = True
    """Whether it lists an item only from its time on, and not from the beginning of its minute."""

    @pytest.fixture
    def heap(self) -> Heap:
        """Overridden by each heap: a fresh, empty one."""
        raise pytest.UsageError(f"{type(self).__name__} has no fixture `heap`")

    def seen(self, item: Item) -> Item:
        """The item as this heap lists it."""
        return item if self.exact else item._replace(at=item.at // MINUTE_US * MINUTE_US)

    def all(self, heap: Heap) -> list[Item]:
        return list(heap.listed(0, NEVER))

    def test_pushed_items_are_listed_and_removed_ones_are_not(self, heap: Heap) -> None:
        items = [Item((n + 1) * MINUTE_US, name, n + 1) for n, name in enumerate(NAMES)]
        assert self.all(heap) == []
        heap.push(items)
        assert self.all(heap) == items
        assert all(heap.has(item) for item in items)
        heap.remove(items[1::2])
        assert self.all(heap) == items[::2]
        assert [heap.has(item) for item in items] == [n % 2 == 0 for n in range(len(items))]
        heap.remove([self.seen(item) for item in self.all(heap)])
        assert self.all(heap) == []

    def test_empty_calls_change_nothing(self, heap: Heap) -> None:
        heap.push([])
        heap.remove([])
        heap.remove([Item(0, "never there", 1)])
        assert self.all(heap) == []

    @pytest.mark.rule("HEAP-9")
    def test_an_item_that_is_pushed_again_is_still_one_item(self, heap: Heap) -> None:
        item = Item(90_000_001, "s", 7)
        heap.push([item])
        heap.push([item, item])
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: heap.push([item]), range(8)))
        assert self.all(heap) == [self.seen(item)]
        heap.remove([item])
        assert self.all(heap) == []

    def test_epochs_of_one_subscription_are_separate_items(self, heap: Heap) -> None:
        items = [Item(MINUTE_US, "s", epoch) for epoch in (1, 2, 10, 999_999_999_999)]
        heap.push(items)
        heap.remove([items[1]])
        assert [item.epoch for item in self.all(heap)] == [1, 10, 999_999_999_999]

    def test_items_are_listed_by_time(self, heap: Heap) -> None:
        chance = random.Random(4)
        items = [Item(chance.randrange(60) * MINUTE_US, f"s{n}", 1) for n in range(100)]
        heap.push(items)
        listed = self.all(heap)
        assert listed == sorted(items)
        middle = [item for item in sorted(items) if 20 * MINUTE_US <= item.at < 40 * MINUTE_US]
        assert list(heap.listed(20 * MINUTE_US, 40 * MINUTE_US)) == middle

    @pytest.mark.rule("HEAP-19")
    def test_due_items_come_oldest_first_with_the_time_of_the_next_one(self, heap: Heap) -> None:
        due = [Item(n * MINUTE_US, f"s{n}", 1) for n in range(5)]
        later = [Item((10 + n) * MINUTE_US, f"s{n}", 2) for n in range(5)]
        heap.push(later + due)
        assert peek(heap, 4 * MINUTE_US, 100) == (due, later[0].at)
        assert peek(heap, 4 * MINUTE_US, 2) == (due[:2], due[1].at), "there may be more: now"
        assert peek(heap, 100 * MINUTE_US, 100) == (due + later, None)
        heap.remove(due + later)
        assert peek(heap, 100 * MINUTE_US, 100) == ([], None)

    def test_an_item_is_listed_from_its_time_on_at_the_latest(self, heap: Heap) -> None:
        item = Item(5 * MINUTE_US + 17, "s", 1)
        heap.push([item])
        assert peek(heap, item.at, 1).items == [self.seen(item)]
        assert peek(heap, item.at - 1, 1).items == ([] if self.exact else [self.seen(item)])
        assert peek(heap, 5 * MINUTE_US - 1, 1).items == []

    @pytest.mark.rule("HEAP-15")
    def test_parked_items_are_never_due(self, heap: Heap) -> None:
        parked = [Item(NEVER, f"p{n}", 3) for n in range(3)]
        heap.push([*parked, Item(0, "s", 1)])
        assert [item.name for item in peek(heap, NEVER - 1, 100).items] == ["s"]
        assert sorted(heap.parked()) == parked
        heap.remove(parked)
        assert list(heap.parked()) == []

    def test_a_heap_has_a_form(self, heap: Heap) -> None:
        assert heap.form


_roots = itertools.count()


class TestObjectHeapInMemory(HeapConformance):
    exact = False

    @pytest.fixture
    def heap(self) -> Heap:
        return ObjectHeap(MemoryObjects(SYSTEM))


class TestObjectHeapInShards(HeapConformance):
    exact = False

    @pytest.fixture
    def heap(self) -> Heap:
        return ObjectHeap(MemoryObjects(SYSTEM), shards=7)


class TestObjectHeapInFiles(HeapConformance):
    exact = False

    @pytest.fixture
    def heap(self, tmp_path: Path) -> Heap:
        return ObjectHeap(open_objects(str(tmp_path / "root"), clock=SYSTEM, chance=random.Random(1)))


class TestObjectHeapOnS3(HeapConformance):
    exact = False

    @pytest.fixture(scope="class")
    @classmethod
    def bucket(cls, s3_server: S3Server) -> str:
        return s3_server.new_bucket()

    @pytest.fixture
    def heap(self, s3_server: S3Server, bucket: str) -> Heap:
        url = (
            f"s3://{s3_server.access_key}:{s3_server.secret_key}@{bucket}/root-{next(_roots)}"
            f"?endpoint={s3_server.endpoint}&region={s3_server.region}&listing=flat"
        )
        return ObjectHeap(open_objects(url, clock=SYSTEM, chance=random.Random(1), probe=False))


class TestStoreHeapInMemory(HeapConformance):
    @pytest.fixture
    def heap(self) -> Heap:
        return StoreHeap(MemoryStore(), TriggerKeys("c"))


class TestStoreHeapInSqlite(HeapConformance):
    @pytest.fixture
    def heap(self, tmp_path: Path) -> Heap:
        return StoreHeap(SqliteStore(tmp_path / "store.db"), TriggerKeys("c"))


@pytest.mark.rule("HEAP-9")
def test_the_key_of_an_item_can_be_parsed_back() -> None:
    heap = ObjectHeap(MemoryObjects(SYSTEM))
    assert (
        heap.key(Item(90 * MINUTE_US + 5, "clean", 42))
        == "heap/v1/shard=00/1970-01-01T01:30Z/clean.000000000042"
    )
    for name in ("a.b", "with blank", "x[raw/é]"):
        item = Item(MINUTE_US, name, 3)
        assert parse(heap.key(item)) == item


def test_unknown_objects_among_the_items_are_skipped_and_reported_once() -> None:
    events: list[Event] = []
    objects = MemoryObjects(SYSTEM)
    heap = ObjectHeap(objects, emit=events.append)
    item = Item(MINUTE_US, "s", 1)
    heap.push([item])
    strange = [
        "heap/v1/shard=00/0",
        "heap/v1/shard=00/1970-01-01T00:00Z/no-epoch",
        "heap/v1/shard=00/1970-01-01T00:01Z/s.1",
        "heap/v1/shard=00/1970-13-01T00:00Z/s.000000000001",
        "heap/v1/shard=00/zzz/s.000000000001",
        "heap/v1/shard=00/1970-01-01T00:01Z/%ff.000000000001",
        "heap/v1/README",
    ]
    for key in strange:
        objects.put(key, b"")
    for _ in range(2):
        assert peek(heap, 5 * MINUTE_US, 10).items == [item]
        assert list(heap.listed(0, 100 * MINUTE_US)) == [item]
    assert sorted(event.key for event in events if isinstance(event, StrangeKey)) == sorted(strange[:-1])
    assert all(objects.head(key) for key in strange), "nothing of it was touched"
