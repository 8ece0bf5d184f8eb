"""The sweep: what is owed to the heap gets there, however often somebody dies on the way (HEAP-9, R1).

Whatever makes a row scheduled under a new epoch leaves a row of what is owed, in its own transaction. The
sweep reads those (`owed`), pushes, and clears what it has pushed (`pushed`), in three steps of their own: one
that dies in between leaves the row, and the next one pushes again, to the same place.

A heap that was lost, whole or in part, is noticed by `overdue`: a row whose time has come and that nobody
runs is pushed again, whatever is known of it. `rebuild` pushes them all at once (HEAP-17).
"""

from collections.abc import Sequence

import msgspec

from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.heap import Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Scheduled

PAGE = 400
_debt = msgspec.msgpack.Decoder(tuple[int, int])


def owed(tx: Tx, keys: TriggerKeys, limit: int = PAGE) -> list[Item]:
    """Items that may not be on the heap, each of a row that is scheduled under its epoch (INV2).

    What is owed by a row that has moved on is forgotten: nothing is pushed for one that waits or is gone.
    """
    debts = tx.range(*keys.owed.all(), limit=limit)
    names = [str(keys.owed.unpack(debt.key)[0]) for debt in debts]
    rows = tx.get_many([keys.subscription[name] for name in names])
    found = []
    for debt, name, raw in zip(debts, names, rows, strict=True):
        epoch, at = _debt.decode(debt.value)
        row = None if raw is None else subscriptions.decode(raw)
        if isinstance(row, Scheduled) and row.tally.epoch == epoch:
            assert row.next_run == at, f"HEAP-9: {name} has two times under epoch {epoch}"
            assert row.tally.born <= epoch, f"INV2: an item of {name} that its row never had"
            found.append(Item(at, name, epoch))
        else:
            tx.clear(debt.key, quiet=True)
    return found


def pushed(tx: Tx, keys: TriggerKeys, items: Sequence[Item]) -> None:
    """These are on the heap: they are owed no longer. What is owed under a newer epoch stays."""
    debts = tx.get_many([keys.owed[item.name] for item in items])
    for item, debt in zip(items, debts, strict=True):
        if debt is not None and _debt.decode(debt) == (item.epoch, item.at):
            tx.clear(keys.owed[item.name], quiet=True)


def overdue(
    tx: Tx, keys: TriggerKeys, late_us: int, after: bytes = b"", limit: int = PAGE
) -> tuple[list[Item], bytes]:
    """Rows whose time came so long ago that they should run by now, a page; and where the next page
    begins.
    """
    lo, _ = keys.due.all()
    page = tx.range(
        after + b"\x00" if after else lo, keys.due[(tx.now() - late_us,)], limit=limit, snapshot=True
    )
    found = []
    for row in page:
        at, name = keys.due.unpack(row.key)
        epoch, running = msgspec.msgpack.decode(row.value, type=tuple[int, bool])
        if not running:
            assert isinstance(at, int)
            found.append(Item(at, str(name), epoch))
    return found, page[-1].key if len(page) == limit else b""


def begin_rebuild(tx: Tx, keys: TriggerKeys) -> None:
    """Have every scheduled row pushed again, by whoever tends; the heap's form is open until then."""
    tx.set(keys.heap_rebuild, b"")
    tx.clear(keys.heap_form)
    tx.hint(keys.bell)


def rebuild(tx: Tx, keys: TriggerKeys, limit: int = PAGE) -> bool:
    """A page of a rebuild, if one is asked for: its rows owe their items again. True when there is more."""
    cursor = tx.get(keys.heap_rebuild)
    if cursor is None:
        return False
    lo, hi = keys.subscription.all()
    page = tx.range(cursor + b"\x00" if cursor else lo, hi, limit=limit)
    for found in page:
        row = subscriptions.decode(found.value)
        if isinstance(row, Scheduled) and row.tally.ready:
            subscriptions.owe(tx, keys, str(keys.subscription.unpack(found.key)[0]), row)
    if len(page) < limit:
        tx.clear(keys.heap_rebuild)
        return False
    tx.set(keys.heap_rebuild, page[-1].key)
    return True
