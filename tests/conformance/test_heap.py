"""The heaps against their contract: in memory, in files, on a real S3 server, and in stores."""

import itertools
import random
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server
from tidemill.clock import SYSTEM
from tidemill.events import Event
from tidemill.objects import open_objects
from tidemill.objects.memory import MemoryObjects
from tidemill.store.memory import MemoryStore
from tidemill.store.sqlite import SqliteStore
from tidemill.testing import HeapConformance
from tidemill.triggers.events import StrangeKey
from tidemill.triggers.heap import MINUTE_US, Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.object_heap import ObjectHeap, parse
from tidemill.triggers.store_heap import StoreHeap

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
def test_the_key_of_an_item_says_everything_and_is_read_back() -> None:
    heap = ObjectHeap(MemoryObjects(SYSTEM))
    assert (
        heap.key(Item(90 * MINUTE_US + 5, "clean", 42))
        == "heap/v1/shard=00/1970-01-01T01:30Z/clean.000000000042"
    )
    for name in ("a.b", "with blank", "x[raw/é]"):
        item = Item(MINUTE_US, name, 3)
        assert parse(heap.key(item)) == item


def test_what_lies_among_the_items_and_is_none_is_passed_over_and_told_once() -> None:
    told: list[Event] = []
    objects = MemoryObjects(SYSTEM)
    heap = ObjectHeap(objects, emit=told.append)
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
        assert heap.peek(5 * MINUTE_US, 10).items == [item]
        assert list(heap.listed(0, 100 * MINUTE_US)) == [item]
    assert sorted(one.key for one in told if isinstance(one, StrangeKey)) == sorted(strange[:-1])
    assert all(objects.head(key) for key in strange), "nothing of it was touched"
