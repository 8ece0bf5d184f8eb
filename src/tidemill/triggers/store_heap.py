"""Keep the heap in the store, as rows (C, "heap", time, subscription, epoch) with times exact to the µs.

This heap follows the same protocol as the heap in object storage. Its transactions read and write no other
rows, so both heaps have the same guarantees. Pushes are batched: one commit writes up to 500 items.
"""

from collections.abc import Iterator, Sequence

from tidemill.store import Row, Store, Tx
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys

PAGE = 500  # items per transaction
READ_PAGE = 250


class StoreHeap(Heap):
    """A cluster's heap in its store."""

    def __init__(self, store: Store, keys: TriggerKeys) -> None:
        self._store = store
        self._keys = keys

    @property
    def form(self) -> str:
        return "store"

    def push(self, items: Sequence[Item]) -> None:
        for first in range(0, len(items), PAGE):
            rows = [(self._key(item), b"") for item in items[first : first + PAGE]]
            self._store.run(lambda tx, rows=rows: tx.set_many(rows, quiet=True))  # type: ignore[misc]

    def listed(self, lo_us: int, hi_us: int) -> Iterator[Item]:
        lo, hi = self._keys.heap[(lo_us,)], self._keys.heap[(hi_us,)]
        while page := self._page(lo, hi):
            for row in page:
                at, name, epoch = self._keys.heap.unpack(row.key)
                assert isinstance(at, int)
                assert isinstance(epoch, int)
                yield Item(at, str(name), epoch)
            if len(page) < READ_PAGE:
                return
            lo = page[-1].key + b"\x00"

    def _page(self, lo: bytes, hi: bytes) -> list[Row]:
        return self._store.run(lambda tx: tx.range(lo, hi, limit=READ_PAGE, snapshot=True))

    def has(self, item: Item) -> bool:
        return self._store.run(lambda tx: tx.get(self._key(item))) is not None

    def remove(self, items: Sequence[Item]) -> None:
        for first in range(0, len(items), PAGE):
            keys = [self._key(item) for item in items[first : first + PAGE]]
            self._store.run(lambda tx, keys=keys: _clear(tx, keys))  # type: ignore[misc]

    def _key(self, item: Item) -> bytes:
        return self._keys.heap[item.at, item.name, item.epoch]


def _clear(tx: Tx, keys: Sequence[bytes]) -> None:
    for key in keys:
        tx.clear(key, quiet=True)
