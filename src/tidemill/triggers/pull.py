"""Pulling: what a runner may start now, found on the heap and checked by the rows (HEAP-7, HEAP-15).

Items that nothing can start (paused, dead, running, of an old epoch, not yet due to the second) are left out
before the limit counts, so that however many of them there are, others are not kept waiting behind them.
"""

from collections.abc import Callable

import msgspec

from tidemill.store import Store, Tx
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.runs import Due
from tidemill.triggers.subscriptions import Scheduled

PAGE = 500  # rows per transaction


class Pulled(msgspec.Struct, frozen=True):
    """What may be started, longest due first; when to look again (store time, µs; None: when woken); and how
    long the oldest of them has been due, which is the lag (µs).
    """

    due: list[Due]
    next_at: int | None
    lag_us: int


class Pull:
    """A runner's way to find work on its cluster's heap."""

    def __init__(self, store: Store, keys: TriggerKeys, heap: Heap) -> None:
        self._store = store
        self._keys = keys
        self._heap = heap

    def due(self, limit: int = 100, wanted: Callable[[str], bool] = lambda _: True) -> Pulled:
        """What may be started now, at most so many. Others see the same: `runs.start` decides who has it.

        - wanted: by name; a runner leaves out what belongs to other pipelines, before the limit counts.
        """
        now = self._store.run(lambda tx: tx.now())
        found: list[Due] = []
        oldest, next_at = now, None
        page: list[Item] = []
        for item in self._heap.listed(0, NEVER):
            if item.at > now:
                next_at = item.at
                break
            if not wanted(item.name):
                continue
            page.append(item)
            if len(page) == PAGE:
                oldest, later = self._startable(page, found, oldest, now)
                next_at = _sooner(next_at, later)
                page = []
                if len(found) >= limit:
                    break
        if page:
            oldest, later = self._startable(page, found, oldest, now)
            next_at = _sooner(next_at, later)
        return Pulled(found[:limit], now if len(found) > limit else next_at, now - oldest)

    def _startable(self, page: list[Item], found: list[Due], oldest: int, now: int) -> tuple[int, int | None]:
        """Add what can be started; the oldest time among it, and the soonest of those whose time is to
        come.
        """

        def read(tx: Tx) -> list[bytes | None]:
            return tx.get_many([self._keys.subscription[item.name] for item in page])

        later: int | None = None
        for item, raw in zip(page, self._store.run(read), strict=True):
            row = None if raw is None else subscriptions.decode(raw)
            if not isinstance(row, Scheduled) or row.tally.epoch != item.epoch:
                continue
            if runs.startable(row, item.epoch, now):
                found.append(Due(item.name, item.epoch, running=False))
                oldest = min(oldest, row.next_run)
            elif row.next_run > now:
                later = _sooner(later, row.next_run)
        return oldest, later


def _sooner(one: int | None, other: int | None) -> int | None:
    return min((time for time in (one, other) if time is not None), default=None)
