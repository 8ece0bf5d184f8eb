"""Wake rows: schedule all subscribers of a published dataset, in pages (HEAP-20).

A publication writes one wake row per dataset, however many subscribers there are. Every scheduler turns wake
rows into cursors and advances the cursors page by page. If a wake row is written while its cursor advances,
the wake row stays until the cursor has reached the end, and then starts another round. So the schedulers
reach the last subscriber however fast publications follow each other, and no dataset waits forever.

No wake-up is lost. The transaction that sets a cursor clears its wake row. The transaction that schedules a
page of subscribers also advances the cursor, and decides from the heads that it reads. It skips a running
subscriber, because the transaction that ends the run reads the heads too. The two transactions are ordered:
both read the subscriber's row, and the one that ends the run writes it.
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
"""The maximum number of subscribers in one transaction. Each needs at most four writes."""

TEMPLATES = b"\x00"
"""The prefix of a cursor that has not passed the templates yet. No subscription's name begins with it."""

WAKE_ROWS = 100


def wake(tx: Tx, keys: TriggerKeys, dataset: DatasetId) -> None:
    """Write the wake row of a dataset, in the transaction that publishes."""
    tx.set(keys.wake[dataset.parts], b"", quiet=True)
    tx.hint(keys.wakeup)


def page_wakes(tx: Tx, keys: TriggerKeys, lots: LotKeys, limit: int = PAGE) -> bool:
    """Wake a page of subscribers; return True if there may be more."""
    cursors = tx.range(*keys.waking.all(), limit=WAKE_ROWS)
    if not cursors:
        if not _begin_round(tx, keys):
            return False
        cursors = tx.range(*keys.waking.all(), limit=WAKE_ROWS)
    for cursor in cursors:
        if limit <= 0:
            break
        limit -= _advance(tx, keys, lots, cursor, limit)
    return True


def _advance(tx: Tx, keys: TriggerKeys, lots: LotKeys, cursor: Row, limit: int) -> int:
    """Wake the next subscribers after a cursor; return their number.

    First come the templates that match the dataset, because their children are subscribers.
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
    """Turn wake rows into cursors. Begin where the last round ended, so that every dataset gets its turn."""
    lo, hi = keys.wake.all()
    last = tx.get(keys.round)
    rows = tx.range(last + b"\x00", hi, limit=WAKE_ROWS) if last else []
    if not rows:
        rows = tx.range(lo, hi, limit=WAKE_ROWS)
    for row in rows:
        tx.clear(row.key, quiet=True)
        name, version = keys.wake.unpack(row.key)
        tx.set(keys.waking[name, version], b"", quiet=True)
    if rows:
        tx.set(keys.round, rows[-1].key, quiet=True)
    return bool(rows)


def _wake_page(tx: Tx, keys: TriggerKeys, lots: LotKeys, names: list[str]) -> None:
    values = tx.get_many([keys.subscription[name] for name in names])
    rows = {
        name: subscriptions.decode(raw) for name, raw in zip(names, values, strict=True) if raw is not None
    }
    wakeable = {name: row for name, row in rows.items() if _can_wake(row)}
    sources = sorted({source for row in wakeable.values() for source in row.tally.terms.sources})
    heads = events.heads(tx, lots, sources) if sources else {}
    for name, row in wakeable.items():
        _wake(tx, keys, lots, name, row, heads)


def _can_wake(row: AnyRow) -> bool:
    return isinstance(row, Waiting) or (row.held and row.run is None)


def _wake(
    tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, row: AnyRow, heads: dict[DatasetId, int]
) -> None:
    following = subscriptions.decide(tx, lots, row.tally, heads)
    if isinstance(row, Waiting) and not isinstance(following, Nothing):
        new = subscriptions.next_row(tx, row.tally, following)
        subscriptions.transition(tx, keys, name, row, [SubscriptionEdge.WAKE], new)
    elif isinstance(row, Scheduled) and isinstance(following, Now) and row.next_run > tx.now():
        # The time of the subscription changes, so it needs a new epoch: each epoch has one time.
        tally = msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1)
        new = subscriptions.next_row(tx, tally, following)
        subscriptions.transition(tx, keys, name, row, [SubscriptionEdge.HASTEN], new)
