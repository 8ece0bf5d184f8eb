"""How many lots of an arc are under way, and whether there is room for one more."""

import msgspec

from tidemill.arcs import rows
from tidemill.arcs.keys import ArcKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled

MOST_RUNNING = 1000
SOON_US = 5_000_000
"""A run that is due within this has a place kept for it; one that waits for its cadence has not."""


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """What living nodes work on of one arc: lots of its subscription and retries, and lots of batches.

    `awaited`: the subscription has something to run for, now or soon.
    """

    live: int = 0
    batches: dict[str, int] = {}
    awaited: bool = False

    def has_room(self, most: int, batch: str = "", at_once: int = 0) -> bool:
        """May one more lot be begun? A batch leaves one place to what arrives, if anything has."""
        bulk = sum(self.batches.values())
        if not batch:
            return self.live + bulk < most
        if at_once and self.batches.get(batch, 0) >= at_once:
            return False
        return bulk + max(self.live, int(self.awaited)) < most

    def joined(self, batch: str) -> "Crowd":
        """With one more lot."""
        if not batch:
            return msgspec.structs.replace(self, live=self.live + 1)
        return msgspec.structs.replace(self, batches=self.batches | {batch: self.batches.get(batch, 0) + 1})


def crowd(tx: Tx, keys: ArcKeys, arc: str, *, beside: tuple[str, int] | None = None) -> Crowd:
    """What living nodes work on of an arc, as this transaction sees it; all but one lot, if it is given."""
    live, batches = 0, dict[str, int]()
    for row in tx.range(*keys.running.under(arc), limit=MOST_RUNNING):
        holder = rows.decode_holder(row.value)
        if keys.running.unpack(row.key)[1:] == beside:
            continue
        if not rows.lives(tx, keys, holder.node, holder.node_epoch):
            continue
        if holder.batch:
            batches[holder.batch] = batches.get(holder.batch, 0) + 1
        else:
            live += 1
    own = subscriptions.read(tx, keys.publish.triggers, arc)
    awaited = isinstance(own, Scheduled) and not own.tally.parked and own.next_run <= tx.now() + SOON_US
    return Crowd(live=live, batches=batches, awaited=awaited)
