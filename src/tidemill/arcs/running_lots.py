"""The running lots of an arc: how many there are, and whether one more may begin."""

import msgspec

from tidemill.arcs import rows
from tidemill.arcs.keys import ArcKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled

MOST_RUNNING = 1000
SOON_US = 5_000_000
"""Batches keep room for a run that is due within this time, but not for one that is due later."""


class RunningLots(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the lots of one arc that live nodes work on.

    - live: the number of lots for its subscription and for retries.
    - batches: the number of lots for replays and backfills, by batch.
    - awaited: whether the subscription has lots to make, now or soon.
    """

    live: int = 0
    batches: dict[str, int] = {}
    awaited: bool = False

    def has_room(self, most: int, batch: str = "", parallel: int = 0) -> bool:
        """Return whether one more lot may begin. A batch leaves room for one lot of the subscription."""
        bulk = sum(self.batches.values())
        if not batch:
            return self.live + bulk < most
        if parallel and self.batches.get(batch, 0) >= parallel:
            return False
        return bulk + max(self.live, int(self.awaited)) < most

    def with_one_more(self, batch: str) -> "RunningLots":
        """Return the counts with one more lot."""
        if not batch:
            return msgspec.structs.replace(self, live=self.live + 1)
        return msgspec.structs.replace(self, batches=self.batches | {batch: self.batches.get(batch, 0) + 1})


def running_lots(tx: Tx, keys: ArcKeys, arc: str, *, except_: tuple[str, int] | None = None) -> RunningLots:
    """Count the lots of an arc that live nodes work on, excluding one given (lot, generation)."""
    live, batches = 0, dict[str, int]()
    for row in tx.range(*keys.running.under(arc), limit=MOST_RUNNING):
        holder = rows.decode_holder(row.value)
        if keys.running.unpack(row.key)[1:] == except_:
            continue
        if not rows.is_alive(tx, keys, holder.node, holder.node_epoch):
            continue
        if holder.batch:
            batches[holder.batch] = batches.get(holder.batch, 0) + 1
        else:
            live += 1
    subscription = subscriptions.read(tx, keys.publish.triggers, arc)
    awaited = (
        isinstance(subscription, Scheduled)
        and not subscription.tally.parked
        and subscription.next_run <= tx.now() + SOON_US
    )
    return RunningLots(live=live, batches=batches, awaited=awaited)
