"""Create a subscription in two phases, with its first item on the heap (HEAP-13).

`attach` writes a row that is not ready, pushes its item to the heap, and marks the row ready. No run starts
before the row is ready. When `attach` returns, the item is on the heap. If the caller dies earlier, the
scheduler deletes the row after a grace period; a second call of `attach` continues where the first one
stopped. `attach` is for programs that create subscriptions themselves. Pipelines do not need it: they
subscribe in the transaction that declares an arc or a view, and the scheduler pushes the item.
"""

from collections.abc import Mapping

import msgspec

from tidemill import crash
from tidemill.errors import InvariantBroken
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionEdge
from tidemill.triggers.subscriptions import SCHEDULED, AnyRow, Creation, Scheduled
from tidemill.triggers.terms import Terms

GRACE_US = 600_000_000
"""How long `attach` may take before the scheduler deletes its row."""


def attach(
    store: Store,
    keys: TriggerKeys,
    lots: LotKeys,
    heap: Heap,
    name: str,
    terms: Terms,
    progress: Mapping[DatasetId, int] | None = None,
) -> AnyRow:
    """Create a subscription, or return the existing one, with its first item on the heap.

    The arguments are those of `subscribe`.
    """
    row = store.run(lambda tx: begin(tx, keys, lots, name, terms, progress))
    crash.point("attach.row.after")
    if row.tally.ready:
        return row
    if not isinstance(row, Scheduled):
        raise InvariantBroken(
            f"INV3: {name} was created in state {row.state.value} instead of state scheduled"
        )
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
    """Write the row, scheduled (INV3) and not ready; return an existing row unchanged."""
    old = subscriptions.read(tx, keys, name)
    row = subscriptions.subscribe(
        tx, keys, lots, name, terms, progress, creation=Creation(scheduled=True, ready=False)
    )
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
    """Mark a row ready, because its item is on the heap.

    If the row was deleted in between, create it again; then the scheduler pushes its item.
    """
    row = subscriptions.read(tx, keys, name)
    if row is None:
        return subscriptions.subscribe(tx, keys, lots, name, terms, progress, creation=SCHEDULED)
    if row.tally.ready:
        return row
    if row.tally.epoch != epoch:  # deleted, and attached again by another caller, who will mark it ready
        return row
    new = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, ready=True))
    return subscriptions.transition(tx, keys, name, row, [SubscriptionEdge.READY], new)


def collect(tx: Tx, keys: TriggerKeys, grace_us: int = GRACE_US, limit: int = 100) -> list[str]:
    """Delete rows that did not become ready within the grace period; return their names."""
    lo, _ = keys.unready.all()
    deleted = []
    for unready in tx.range(lo, keys.unready[(tx.now() - grace_us,)], limit=limit):
        name = str(keys.unready.unpack(unready.key)[1])
        tx.clear(unready.key, quiet=True)
        row = subscriptions.read(tx, keys, name)
        epoch = msgspec.msgpack.decode(unready.value, type=int)
        if row is not None and not row.tally.ready and row.tally.epoch == epoch:
            subscriptions.delete(tx, keys, name, row, SubscriptionEdge.COLLECT)
            deleted.append(name)
    return deleted
