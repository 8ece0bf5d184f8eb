"""The heap: an index of scheduled runs by time, which can be rebuilt if it is lost (HEAP-9, HEAP-17).

Every heap follows this contract; `tests/conformance/test_heap.py` tests it:

- An item names a subscription, one of its epochs, and the time of that epoch. Each (subscription, epoch) has
  one time, so an item has one place.
- `push` adds items that are not on the heap. Any process can repeat it, in any order.
- `listed` returns items by time. A heap may store times to the minute. Such a heap lists an item from the
  beginning of its minute, and the start of a run reads the exact time from the row.
- `remove` removes items; removing an item that is not on the heap is not an error.
- Everything that was pushed or removed is visible to the next reader.

No heap operation touches the row of a subscription, and no transaction spans the heap and a row (HEAP-4). The
heap decides nothing: the start of a run reads the row again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.triggers.due import NEVER

MINUTE_US = 60_000_000


class Item(NamedTuple):
    """A subscription is due at this time (store time, µs), in this epoch."""

    at: int
    name: str
    epoch: int

    @property
    def id(self) -> tuple[str, int]:
        """The identity of the item, independent of how exactly the heap stores its time."""
        return self.name, self.epoch


class Heap(ABC):
    """One cluster's heap. Safe to share between threads."""

    @property
    @abstractmethod
    def form(self) -> str:
        """The place and layout of the heap. All runners of a cluster must use the same heap."""

    @abstractmethod
    def push(self, items: Sequence[Item]) -> None:
        """Add items; an item that is pushed again stays a single item."""

    @abstractmethod
    def listed(self, lo_us: int, hi_us: int) -> Iterator[Item]:
        """Yield items with lo <= time < hi, ordered by time, which may be rounded down to the minute."""

    @abstractmethod
    def has(self, item: Item) -> bool:
        """Return whether an item is on the heap."""

    @abstractmethod
    def remove(self, items: Sequence[Item]) -> None:
        """Remove items."""

    def parked(self) -> Iterator[Item]:
        """Yield the items of subscriptions that are paused or dead now, or were paused or dead earlier."""
        return self.listed(NEVER, NEVER + MINUTE_US)
