"""Push missing items to the heap, and remove stale items from it.

**Push** (HEAP-9, R1). A transaction that schedules a row under a new epoch also writes a debt: a record that
the row's item must be pushed to the heap. The scheduler reads the debts (`owed`), pushes the items, and
clears the debts (`clear_debts`), in three separate steps. If a scheduler dies in between, the debt stays, and
the next scheduler pushes the item again, to the same place. If the heap is lost, `overdue` finds rows that
should run but do not, and their items are pushed again. `rebuild` pushes the items of all rows (HEAP-17).

**Prune** (HEAP-10). The scheduler removes items that can no longer start a run. The order makes this safe:
the scheduler lists the heap first, and reads the rows afterwards. Every item on the list had a row before the
item was pushed (INV2). If the row is missing now, it was deleted, and the item is dead. In the other order,
an item pushed in between would seem to have no row, and a scheduled subscription would lose its item. An item
of an older epoch is removed if its row is waiting, or if the item of the row's current epoch is already on
the heap. That way, a scheduled row always has an item (INV4).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.errors import InvariantBroken
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.heap import Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Scheduled

PAGE = 400
PRUNE_PAGE = 500
_debt = msgspec.msgpack.Decoder(tuple[int, int])


def owed(tx: Tx, keys: TriggerKeys, limit: int = PAGE) -> list[Item]:
    """Return items that may be missing from the heap.

    The row of each item is scheduled under the epoch of that item (INV2). Debts of rows that have changed
    since are cleared: nothing is pushed for a row that is waiting or was deleted.
    """
    debts = tx.range(*keys.owed.all(), limit=limit)
    names = [str(keys.owed.unpack(debt.key)[0]) for debt in debts]
    rows = tx.get_many([keys.subscription[name] for name in names])
    items = []
    for debt, name, raw in zip(debts, names, rows, strict=True):
        epoch, at = _debt.decode(debt.value)
        row = None if raw is None else subscriptions.decode(raw)
        if isinstance(row, Scheduled) and row.tally.epoch == epoch:
            if row.next_run != at:
                raise InvariantBroken(f"HEAP-9: {name} has two start times in epoch {epoch}")
            if row.tally.born > epoch:
                raise InvariantBroken(f"INV2: {name} never had epoch {epoch}")
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
    """Return a page of items that are overdue and not running, and where the next page begins."""
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
    """Request a rebuild: schedulers push the item of every scheduled row.

    They also record again which heap the cluster uses.
    """
    tx.set(keys.heap_rebuild, b"")
    tx.clear(keys.heap_form)
    tx.hint(keys.wakeup)


def rebuild(tx: Tx, keys: TriggerKeys, limit: int = PAGE) -> bool:
    """If a rebuild was requested, write a debt for each scheduled row on the next page.

    Return True if there are more pages.
    """
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
    """Items whose epoch is not the current epoch of their row."""

    dead: list[Item]
    # each with the item of the row's current epoch; if that is on the heap, the old item can be removed
    old: list[tuple[Item, Item]]
    unknown: list[Item]  # their rows or epochs never existed; they are ignored


def classify(tx: Tx, keys: TriggerKeys, listed: Sequence[Item]) -> StaleItems:
    """Classify items that were listed before this transaction."""
    rows = tx.get_many([keys.subscription[item.name] for item in listed])
    missing = [item for item, raw in zip(listed, rows, strict=True) if raw is None]
    floors = tx.get_many([keys.floor[item.name] for item in missing])
    stale = StaleItems([], [], [])
    for item, floor in zip(missing, floors, strict=True):
        # The row existed before the item was pushed (INV2). If the row was deleted, the item is dead, because
        # the epoch is never used again (INV1).
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
    """Return the items to remove: dead items, and old items whose successor is on the heap (INV4)."""
    unknown = {item.id for item in stale.unknown}
    if any(item.id in unknown for item in stale.dead):
        raise InvariantBroken("INV5: an unknown item was treated as dead")
    for item, successor in stale.old:
        if item.epoch >= successor.epoch:
            raise InvariantBroken(f"INV4: the epoch of {item} is not lower than that of its successor")
    return stale.dead + [item for item, successor in stale.old if has(successor)]
