"""The cost of heap queries: requests to object storage, and reads of a large store."""

from collections import Counter

import msgspec
import pytest

from tests.heap_peek import peek
from tests.unit.lots_stage import Stage
from tests.unit.test_triggers_heap import DAY_US
from tidemill.objects.memory import MemoryObjects
from tidemill.store import Tx
from tidemill.testing.fake_clock import FakeClock
from tidemill.triggers import listing
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.heap import MINUTE_US, Item
from tidemill.triggers.object_heap import ObjectHeap
from tidemill.triggers.store_heap import StoreHeap
from tidemill.triggers.subscriptions import Scheduled, Tally, Terms


class Counting(MemoryObjects):
    """Object storage that counts what is asked of it; a list is one request per thousand keys."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.asked: Counter[str] = Counter()

    def _get(self, key):  # type: ignore[no-untyped-def]
        self.asked["get"] += 1
        return super()._get(key)

    def _list(self, prefix, after):  # type: ignore[no-untyped-def]
        self.asked["list"] += 1
        for number, info in enumerate(super()._list(prefix, after)):
            if number and number % 1000 == 0:
                self.asked["list"] += 1
            yield info


@pytest.mark.rule("HEAP-19")
def test_a_peek_costs_one_list_for_each_thousand_that_are_due_and_no_get() -> None:
    objects = Counting()
    heap = ObjectHeap(objects)
    due = [Item(n % 50 * MINUTE_US, f"s{n:05}", 1) for n in range(4_500)]
    heap.push(due)
    heap.push([Item((100 + n % 900) * MINUTE_US, f"t{n:05}", 1) for n in range(3_000)])
    objects.asked.clear()
    peeked = peek(heap, 50 * MINUTE_US, 10_000)
    assert len(peeked.items) == 4_500
    assert peeked.next_at == 100 * MINUTE_US
    assert objects.asked == {"list": 5}
    objects.asked.clear()
    assert len(peek(heap, 50 * MINUTE_US, 4_000).items) == 4_000
    assert objects.asked == {"list": 4}, "nothing is read behind the last that was asked for"


@pytest.mark.rule("HEAP-19")
def test_the_lag_is_the_age_of_the_oldest_that_is_due_and_many_that_are_not_cost_nothing() -> None:
    stage = Stage(scan=False)
    orders = stage.dataset()
    stage.publish(orders)
    heap = StoreHeap(stage.store, stage.triggers)
    now = stage.store.run(lambda tx: tx.now())

    def fill(tx: Tx, first: int) -> None:
        for number in range(first, first + 200):
            at = now + (number if number < 10 else DAY_US + number)
            row = Scheduled(Tally(terms=Terms(sources=(orders,)), progress=(0,)), at)
            name = f"s{number:05}"
            tx.set(stage.triggers.subscription[name], msgspec.msgpack.encode(row), quiet=True)
            tx.set(stage.triggers.due[at, name], msgspec.msgpack.encode((1, False)), quiet=True)
            tx.set(stage.triggers.heap[at, name, 1], b"", quiet=True)

    for first in range(0, 4_000, 200):
        stage.store.run(lambda tx, first=first: fill(tx, first))
    stage.clock.advance(30)
    reads = Counter[str]()
    pages = heap._page

    def counted(lo: bytes, hi: bytes):  # type: ignore[no-untyped-def]
        reads["page"] += 1
        return pages(lo, hi)

    heap._page = counted  # type: ignore[method-assign]
    pulled = DueQuery(stage.scope(), heap).due()
    assert [due.name for due in pulled.due] == [f"s{n:05}" for n in range(10)]
    assert pulled.lag_us == 30_000_000
    assert pulled.next_at == now + DAY_US + 10
    assert reads == {"page": 1}
    assert listing.overview(stage.store, stage.triggers).lag_s == pytest.approx(30)
