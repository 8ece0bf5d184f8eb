"""Waking: every subscriber of what was published learns of it, in pages (HEAP-20).

A publication leaves one row per dataset, however many subscribe to it, and reads nothing for it. Whoever
pages (every runner does) turns such marks into cursors, and moves the cursors on; a mark that is set again
while a cursor is under way stays until the cursor has come to its end, and then begins another round. So the
last subscriber is reached however fast publications follow each other, and no dataset waits for ever.

Why no wake-up is lost: a mark is cleared in the transaction that sets its cursor, a cursor moves in the
transaction that schedules its page, and each subscriber is decided by the heads as that transaction sees
them. A subscriber whose run is under way is passed over, because its finish reads the heads as well, and is
ordered with the page by the row that both of them read and the finish writes.
"""

import msgspec

from tidemill.lots import events
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Row, Tx
from tidemill.triggers import subscriptions, templates
from tidemill.triggers.due import Nothing, Now
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Waiting

PAGE = 100
"""Subscribers per transaction, each with at most four writes."""

TEMPLATES = b"\x00"
"""How a cursor begins that is still among the templates; no subscription is called so."""

MARKS = 100


def wake(tx: Tx, keys: TriggerKeys, dataset: DatasetId) -> None:
    """Something was published here, in this transaction."""
    tx.set(keys.wake[dataset.parts], b"", quiet=True)
    tx.hint(keys.wakeup)


def page_wakes(tx: Tx, keys: TriggerKeys, lots: LotKeys, limit: int = PAGE) -> bool:
    """Wake a page of subscribers; True when there may be more to do."""
    cursors = tx.range(*keys.waking.all(), limit=MARKS)
    if not cursors:
        if not _begin_round(tx, keys):
            return False
        cursors = tx.range(*keys.waking.all(), limit=MARKS)
    for cursor in cursors:
        if limit <= 0:
            break
        limit -= _move_on(tx, keys, lots, cursor, limit)
    return True


def _move_on(tx: Tx, keys: TriggerKeys, lots: LotKeys, cursor: Row, limit: int) -> int:
    """Wake the next subscribers behind a cursor; how many they were.

    Before the first of them come the templates that match the dataset: their children are subscribers.
    """
    name, version = (str(part) for part in keys.waking.unpack(cursor.key))
    position = cursor.value
    if not position or position.startswith(TEMPLATES):
        after = position.removeprefix(TEMPLATES).decode()
        last = templates.instantiate_for(tx, keys, lots, DatasetId(name, version), after, limit)
        if last is not None:
            tx.set(cursor.key, TEMPLATES + last.encode(), quiet=True)
            return limit
        position = b""
    lo, hi = keys.subscriber.under(name, version)
    if position:
        lo = keys.subscriber[name, version, position.decode()] + b"\x00"
    page = tx.range(lo, hi, limit=limit)
    names = [str(keys.subscriber.unpack(row.key)[2]) for row in page]
    _wake_page(tx, keys, lots, names)
    if len(page) < limit:
        tx.clear(cursor.key, quiet=True)
    else:
        tx.set(cursor.key, names[-1].encode(), quiet=True)
    return len(page)


def _begin_round(tx: Tx, keys: TriggerKeys) -> bool:
    """Turn marks into cursors: those behind the last round's end first, so that none waits for ever."""
    lo, hi = keys.wake.all()
    last = tx.get(keys.round)
    marks = tx.range(last + b"\x00", hi, limit=MARKS) if last else []
    if not marks:
        marks = tx.range(lo, hi, limit=MARKS)
    for mark in marks:
        tx.clear(mark.key, quiet=True)
        name, version = keys.wake.unpack(mark.key)
        tx.set(keys.waking[name, version], b"", quiet=True)
    if marks:
        tx.set(keys.round, marks[-1].key, quiet=True)
    return bool(marks)


def _wake_page(tx: Tx, keys: TriggerKeys, lots: LotKeys, names: list[str]) -> None:
    found = tx.get_many([keys.subscription[name] for name in names])
    rows = {
        name: subscriptions.decode(raw) for name, raw in zip(names, found, strict=True) if raw is not None
    }
    open_rows = {name: row for name, row in rows.items() if _may_wake(row)}
    sources = sorted({source for row in open_rows.values() for source in row.tally.terms.sources})
    heads = events.heads(tx, lots, sources) if sources else {}
    for name, row in open_rows.items():
        _wake_one(tx, keys, lots, name, row, heads)


def _may_wake(row: AnyRow) -> bool:
    return isinstance(row, Waiting) or (row.held and row.run is None)


def _wake_one(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, row: AnyRow, heads: dict[DatasetId, int]
) -> None:
    following = subscriptions.decide(tx, lots, row.tally, heads)
    if isinstance(row, Waiting) and not isinstance(following, Nothing):
        new = subscriptions.settled(tx, row.tally, following)
        subscriptions.enter(tx, keys, name, row, [SubscriptionEdge.WAKE], new)
    elif isinstance(row, Scheduled) and isinstance(following, Now) and row.next_run > tx.now():
        # It has another time now, and one epoch has one time.
        tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1)
        new = subscriptions.settled(tx, tally, following)
        subscriptions.enter(tx, keys, name, row, [SubscriptionEdge.HASTEN], new)
