"""Peek at a heap: its due items, and when to look again."""

from typing import NamedTuple

from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import Heap, Item


class Peeked(NamedTuple):
    """The due items, oldest first, and when to look again (None if no items are left)."""

    items: list[Item]
    next_at: int | None


def peek(heap: Heap, now_us: int, limit: int) -> Peeked:
    """Return at most `limit` due items, and the time of the next one.

    After `limit` items nothing more is read; then the caller should look again at once.
    """
    items: list[Item] = []
    for item in heap.listed(0, NEVER):
        if item.at > now_us:
            return Peeked(items, item.at)
        items.append(item)
        if len(items) >= limit:
            return Peeked(items, item.at)
    return Peeked(items, None)
