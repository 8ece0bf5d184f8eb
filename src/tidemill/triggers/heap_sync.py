"""Heap synchronization: push missing items to the heap, and prune stale ones.

**Push** (HEAP-9, R1). A transaction that schedules a row under a new epoch also writes a debt: an item that
the row owes to the heap. The scheduler reads the debts (`owed`), pushes the items, and clears the debts
(`clear_debts`), in three separate steps. If a scheduler dies in between, the debt stays, and the next
scheduler pushes the item again, to the same place. If the heap is lost, `overdue` finds rows that should run
but do not, and their items are pushed again. `rebuild` pushes the items of all rows (HEAP-17).

**Prune** (HEAP-10). The scheduler removes items that can no longer start a run. The order makes this safe:
the scheduler lists the heap first, and reads the rows afterwards. A listed item had a row before it was
pushed (INV2). If the row is missing now, it was deleted, and the item is dead. In the other order, an item
pushed in between would seem to have no row, and a scheduled subscription would lose its item. An item of an
older epoch is removed if its row waits, or if the item of the row's current epoch is on the heap: a scheduled
row always has an item (INV4).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.heap import Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Scheduled

PAGE = 400
PRUNE_PAGE = 500
_debt = msgspec.msgpack.Decoder(tuple[int, int])


def owed(tx: Tx, keys: TriggerKeys, limit: int = PAGE) -> list[Item]:
    """Return items that may be missing from the heap; their rows are scheduled under their epochs (INV2).

    Clears the debts of rows that have changed: nothing is pushed for a row that waits or is gone.
    """
    debts = tx.range(*keys.owed.all(), limit=limit)
    names = [str(keys.owed.unpack(debt.key)[0]) for debt in debts]
    rows = tx.get_many([keys.subscription[name] for name in names])
    items = []
    for debt, name, raw in zip(debts, names, rows, strict=True):
        epoch, at = _debt.decode(debt.value)
        row = None if raw is None else subscriptions.decode(raw)
        if isinstance(row, Scheduled) and row.tally.epoch == epoch:
            assert row.next_run == at, f"HEAP-9: {name} has two times under epoch {epoch}"
            assert row.tally.born <= epoch, f"INV2: an item of {name} that its row never had"
            items.append(Item(at, name, epoch))
        else:
            tx.clear(debt.key, quiet=True)
    return items


def clear_debts(tx: Tx, keys: TriggerKeys, items: Sequence[Item]) -> None:
    """Clear the debts of items that are on the heap; debts under a newer epoch stay."""
    debts = tx.get_many([keys.owed[item.name] for item in items])
    for item, debt in zip(items, debts, strict=True):
        if debt is not None and _debt.decode(debt) == (item.epoch, item.at):
            tx.clear(keys.owed[item.name], quiet=True)


def overdue(
    tx: Tx, keys: TriggerKeys, late_us: int, after: bytes = b"", limit: int = PAGE
) -> tuple[list[Item], bytes]:
    """Return a page of the rows that should run by now, and where the next page begins."""
    lo, _ = keys.due.all()
    page = tx.range(
        after + b"\x00" if after else lo, keys.due[(tx.now() - late_us,)], limit=limit, snapshot=True
    )
    items = []
    for row in page:
        at, name = keys.due.unpack(row.key)
        epoch, running = msgspec.msgpack.decode(row.value, type=tuple[int, bool])
        if not running:
            assert isinstance(at, int)
            items.append(Item(at, str(name), epoch))
    return items, page[-1].key if len(page) == limit else b""


def begin_rebuild(tx: Tx, keys: TriggerKeys) -> None:
    """Request a rebuild: the schedulers push the item of every scheduled row, and agree on a heap again."""
    tx.set(keys.heap_rebuild, b"")
    tx.clear(keys.heap_form)
    tx.hint(keys.wakeup)


def rebuild(tx: Tx, keys: TriggerKeys, limit: int = PAGE) -> bool:
    """Rebuild one page, if requested: its rows owe their items again. Return True if there is more."""
    cursor = tx.get(keys.heap_rebuild)
    if cursor is None:
        return False
    lo, hi = keys.subscription.all()
    page = tx.range(cursor + b"\x00" if cursor else lo, hi, limit=limit)
    for stored in page:
        row = subscriptions.decode(stored.value)
        if isinstance(row, Scheduled) and row.tally.ready:
            subscriptions.add_debt(tx, keys, str(keys.subscription.unpack(stored.key)[0]), row)
    if len(page) < limit:
        tx.clear(keys.heap_rebuild)
        return False
    tx.set(keys.heap_rebuild, page[-1].key)
    return True


class StaleItems(NamedTuple):
    """Items that do not announce the current epoch of their row."""

    dead: list[Item]
    # with the item of the row's epoch: if that is on the heap, the old one can go
    old: list[tuple[Item, Item]]
    unknown: list[Item]  # of rows that never existed; they are ignored


def classify(tx: Tx, keys: TriggerKeys, listed: Sequence[Item]) -> StaleItems:
    """Classify items that were listed before this transaction."""
    rows = tx.get_many([keys.subscription[item.name] for item in listed])
    missing = [item for item, raw in zip(listed, rows, strict=True) if raw is None]
    floors = tx.get_many([keys.floor[item.name] for item in missing])
    stale = StaleItems([], [], [])
    for item, floor in zip(missing, floors, strict=True):
        # Its row existed before it was pushed (INV2), was deleted, and its epoch is never used again (INV1).
        is_dead = floor is not None and item.epoch <= msgspec.msgpack.decode(floor, type=int)
        (stale.dead if is_dead else stale.unknown).append(item)
    for item, raw in zip(listed, rows, strict=True):
        if raw is None:
            continue
        row = subscriptions.decode(raw)
        if item.epoch > row.tally.epoch:
            stale.unknown.append(item)
        elif item.epoch < row.tally.epoch and isinstance(row, Scheduled):
            stale.old.append((item, Item(row.next_run, item.name, row.tally.epoch)))
        elif item.epoch < row.tally.epoch:
            stale.dead.append(item)
    return stale


def removable(stale: StaleItems, has: Callable[[Item], bool]) -> list[Item]:
    """Return the items to remove: dead ones, and old ones whose successor is on the heap (INV4)."""
    unknown = {item.id for item in stale.unknown}
    assert all(item.id not in unknown for item in stale.dead), "INV5: an item that is not known to be dead"
    for item, successor in stale.old:
        assert item.epoch < successor.epoch, f"INV4: {item} is the signal of a scheduled row"
    return stale.dead + [item for item, successor in stale.old if has(successor)]
