"""Pause, resume and retry: flags beside the states, which lose no wake-up (HEAP-15, LOT-38).

One that is paused or dead is woken like any other; only its time is never, and its item lies there, so that
it is on the heap and nobody who looks for what is due comes across it.
"""

from typing import Any

import msgspec

from tidemill.lots import events
from tidemill.lots.keys import LotKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Tally, Waiting
from tidemill.triggers.terms import CatchUp


def pause(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Run it no more; a run that is under way comes to its end."""
    row = subscriptions.must_read(tx, keys, name)
    if row.tally.paused:
        return row
    return _flagged(tx, keys, name, row, SubscriptionEdge.PAUSE, paused=True)


def resume(tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str, catch_up: CatchUp | None = None) -> AnyRow:
    """Run it again.

    - catch_up: what of that which was published meanwhile is processed; by its terms if left out. What is
      left out counts as seen.
    """
    row = subscriptions.must_read(tx, keys, name)
    if not row.tally.paused:
        return row
    running = isinstance(row, Scheduled) and row.run is not None
    policy = catch_up or row.tally.terms.catch_up
    if running or policy is CatchUp.ALL:
        return _flagged(tx, keys, name, row, SubscriptionEdge.RESUME, paused=False)
    tally = msgspec.structs.replace(row.tally, paused=False, epoch=row.tally.epoch + 1)
    heads = events.heads(tx, lots, tally.terms.sources)
    keep = 1 if policy is CatchUp.LATEST else 0
    progress = tuple(max(position, heads[one] - keep) for one, position in tally.seen.items())
    tally = msgspec.structs.replace(tally, progress=progress)
    new = subscriptions.settled(tx, tally, subscriptions.decide(tx, lots, tally, heads))
    edges = [SubscriptionEdge.RESUME]
    if new.state is not row.state:
        edges.append(SubscriptionEdge.REST if isinstance(new, Waiting) else SubscriptionEdge.WAKE)
    return subscriptions.enter(tx, keys, name, row, edges, new)


def retry(tx: Tx, keys: TriggerKeys, name: str) -> AnyRow:
    """Arm a dead one again, with its failures forgotten; one that backs off is tried at once."""
    row = subscriptions.must_read(tx, keys, name)
    if isinstance(row, Waiting) or row.run is not None or not (row.tally.failures or row.tally.dead):
        return row
    return _flagged(tx, keys, name, row, SubscriptionEdge.RETRY, dead=False, failures=0)


def _flagged(
    tx: Tx, keys: TriggerKeys, name: str, row: AnyRow, edge: SubscriptionEdge, **flags: Any
) -> AnyRow:
    """The row under other flags, at the time that follows from them: a new time is a new epoch (HEAP-9)."""
    tally: Tally = msgspec.structs.replace(row.tally, **flags)
    if isinstance(row, Waiting) or row.run is not None or not tally.ready:
        new: AnyRow = msgspec.structs.replace(row, tally=tally)
    else:
        tally = msgspec.structs.replace(tally, epoch=tally.epoch + 1)
        new = Scheduled(tally, subscriptions.earliest(tally, tx.now()))
    return subscriptions.enter(tx, keys, name, row, [edge], new)
