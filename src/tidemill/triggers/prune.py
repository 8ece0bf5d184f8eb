"""Pruning: items that nothing can start any more leave the heap (HEAP-10).

The order is what makes it safe: the heap is listed first and the rows are read afterwards. An item that was
listed had a row before it was pushed (INV2), so a row that is missing then was deleted, and its item is dead
for ever. Read the other way round, an item that was pushed in between would lose its row, and a scheduled
subscription its signal.

An item of an older epoch goes when its row waits, or when the item of the row's own epoch is there: as long
as a row is scheduled, something of it is on the heap (INV4).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.heap import Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Scheduled

PAGE = 500


class Verdict(NamedTuple):
    """What a page of items is, by their rows."""

    dead: list[Item]
    old: list[tuple[Item, Item]]  # with the item of its row's own epoch, whose presence decides
    strange: list[Item]  # of rows that never were: not ours, and left alone


def judged(tx: Tx, keys: TriggerKeys, listed: Sequence[Item]) -> Verdict:
    """What is true of items that were listed before this transaction."""
    rows = tx.get_many([keys.subscription[item.name] for item in listed])
    missing = [item for item, raw in zip(listed, rows, strict=True) if raw is None]
    floors = tx.get_many([keys.floor[item.name] for item in missing])
    verdict = Verdict([], [], [])
    for item, floor in zip(missing, floors, strict=True):
        # Its row was there before it was pushed (INV2), was deleted, and does not come again (INV1).
        over = floor is not None and item.epoch <= msgspec.msgpack.decode(floor, type=int)
        (verdict.dead if over else verdict.strange).append(item)
    for item, raw in zip(listed, rows, strict=True):
        if raw is None:
            continue
        row = subscriptions.decode(raw)
        if item.epoch > row.tally.epoch:
            verdict.strange.append(item)
        elif item.epoch < row.tally.epoch and isinstance(row, Scheduled):
            verdict.old.append((item, Item(row.next_run, item.name, row.tally.epoch)))
        elif item.epoch < row.tally.epoch:
            verdict.dead.append(item)
    return verdict


def removable(verdict: Verdict, has: Callable[[Item], bool]) -> list[Item]:
    """What may go: the dead, and the old whose successor is on the heap (INV4)."""
    strange = {item.id for item in verdict.strange}
    assert all(item.id not in strange for item in verdict.dead), "INV5: an item that is not known to be dead"
    for item, successor in verdict.old:
        assert item.epoch < successor.epoch, f"INV4: {item} is the signal of a scheduled row"
    return verdict.dead + [item for item, successor in verdict.old if has(successor)]
