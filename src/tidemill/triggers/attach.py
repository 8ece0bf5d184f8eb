"""Attaching in two phases: a row that is not ready, its first item on the heap, ready (HEAP-13).

Nobody starts a row that is not ready. Whoever attaches and is answered knows that the signal is on the heap;
one that dies on the way leaves a row that is collected after a grace, and attaching again goes on where it
was left.
"""

from collections.abc import Mapping

import msgspec

from tidemill import crash
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge
from tidemill.triggers.subscriptions import AnyRow, Scheduled
from tidemill.triggers.terms import Terms

GRACE_US = 600_000_000
"""How long an attaching may take before its row is taken for abandoned."""


def attach(
    store: Store,
    keys: TriggerKeys,
    lots: LotKeys,
    heap: Heap,
    name: str,
    terms: Terms,
    progress: Mapping[DatasetId, int] | None = None,
) -> AnyRow:
    """Make a subscription whose first item is on the heap, or find it. Arguments as for `subscribe`."""
    row = store.run(lambda tx: begin(tx, keys, lots, name, terms, progress))
    crash.point("attach.row.after")
    if row.tally.ready:
        return row
    assert isinstance(row, Scheduled), f"INV3: {name} was born {row.state}"
    heap.push([Item(row.next_run, name, row.tally.epoch)])
    crash.point("attach.push.after")
    return store.run(lambda tx: ready(tx, keys, lots, name, terms, row.tally.epoch, progress))


def begin(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    progress: Mapping[DatasetId, int] | None = None,
) -> AnyRow:
    """The row, scheduled (INV3) and not ready; one that is there is returned as it is."""
    old = subscriptions.read(tx, keys, name)
    row = subscriptions.subscribe(tx, keys, lots, name, terms, progress, attach=True, ready=False)
    if old is None:
        tx.set(keys.unready[tx.now(), name], msgspec.msgpack.encode(row.tally.epoch), quiet=True)
    return row


def ready(
    tx: Tx,
    keys: TriggerKeys,
    lots: LotKeys,
    name: str,
    terms: Terms,
    epoch: int,
    progress: Mapping[DatasetId, int] | None = None,
) -> AnyRow:
    """Its item is on the heap. One that was collected meanwhile begins again, and is pushed by the sweep."""
    row = subscriptions.read(tx, keys, name)
    if row is None:
        return subscriptions.subscribe(tx, keys, lots, name, terms, progress, attach=True)
    if row.tally.ready:
        return row
    if row.tally.epoch != epoch:  # collected, and attached again by somebody who is at it
        return row
    new = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, ready=True))
    return subscriptions.enter(tx, keys, name, row, [SubscriptionEdge.READY], new)


def collect(tx: Tx, keys: TriggerKeys, grace_us: int = GRACE_US, limit: int = 100) -> list[str]:
    """Take away rows that have not become ready within the grace (GC); their names."""
    lo, _ = keys.unready.all()
    taken = []
    for found in tx.range(lo, keys.unready[(tx.now() - grace_us,)], limit=limit):
        name = str(keys.unready.unpack(found.key)[1])
        tx.clear(found.key, quiet=True)
        row = subscriptions.read(tx, keys, name)
        began = msgspec.msgpack.decode(found.value, type=int)
        if row is not None and not row.tally.ready and row.tally.epoch == began:
            subscriptions.take_away(tx, keys, name, row, SubscriptionEdge.COLLECT)
            taken.append(name)
    return taken
