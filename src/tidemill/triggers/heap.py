"""The heap: an index by time of what is due, which may be lost (HEAP-9, HEAP-17).

Contract, the same for every heap (`tests/conformance/test_heap.py` is its executable form):

- An item names a subscription, an epoch of it, and the time of that epoch. One (subscription, epoch) has one
  time, so it has one place.
- `push` puts items there unless they are there: it may be repeated, by anybody, in any order.
- `listed` goes by time. A heap may know times to the minute only: then it lists an item from the beginning
  of its minute on, and whoever starts it asks the row for the exact time.
- `remove` takes items away; what is not there is no error.
- What was answered is there for whoever asks next.

No operation of a heap touches a subscription's row, and no transaction spans the two (HEAP-4). A heap is
never asked what is true: a start reads the row again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.triggers.due import NEVER

MINUTE_US = 60_000_000


class Item(NamedTuple):
    """That a subscription is due at a time (store time, µs), under one epoch."""

    at: int
    name: str
    epoch: int

    @property
    def id(self) -> tuple[str, int]:
        """What makes it this item, however exactly its heap knows its time."""
        return self.name, self.epoch


class Peeked(NamedTuple):
    """What is due, longest ago first, and when to look again (None when nothing is left)."""

    items: list[Item]
    next_at: int | None


class Heap(ABC):
    """One cluster's heap. Safe to share between threads."""

    @property
    @abstractmethod
    def form(self) -> str:
        """Where it is and how it is laid out: what the runners of a cluster have to agree on."""

    @abstractmethod
    def push(self, items: Sequence[Item]) -> None:
        """Put items there, each once however often it is pushed."""

    @abstractmethod
    def listed(self, lo_us: int, hi_us: int) -> Iterator[Item]:
        """Items with lo <= time < hi, by time, read as you go; times may be those of their minutes."""

    @abstractmethod
    def has(self, item: Item) -> bool:
        """Whether an item is there."""

    @abstractmethod
    def remove(self, items: Sequence[Item]) -> None:
        """Take items away."""

    def peek(self, now_us: int, limit: int) -> Peeked:
        """What is due now, at most so many; the first that is not tells when to look again.

        Nothing is read behind the last that was asked for: then it is time to look again at once.
        """
        found: list[Item] = []
        for item in self.listed(0, NEVER):
            if item.at > now_us:
                return Peeked(found, item.at)
            found.append(item)
            if len(found) >= limit:
                return Peeked(found, item.at)
        return Peeked(found, None)

    def parked(self) -> Iterator[Item]:
        """The items of those that are paused or dead, and leftovers of those that were."""
        return self.listed(NEVER, NEVER + MINUTE_US)
