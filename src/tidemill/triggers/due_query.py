"""The due query: which runs a node may start now, by the heap and the rows (HEAP-7, HEAP-15).

Items that can start nothing (paused, dead, running, of an old epoch, due later in this minute) do not count
towards the limit. However many of them there are, they do not delay others.
"""

from collections.abc import Callable

import msgspec

from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.runs import Due
from tidemill.triggers.subscriptions import Scheduled

PAGE = 500  # rows per transaction


class DueRuns(msgspec.Struct, frozen=True):
    """The runs that may start.

    - due: longest due first.
    - next_at: when to query again (store time, µs); None: when woken.
    - lag_us: how long the oldest of them has been due.
    """

    due: list[Due]
    next_at: int | None
    lag_us: int


class DueQuery:
    """Finds due runs on the cluster's heap."""

    def __init__(self, scope: Scope, heap: Heap) -> None:
        self._store = scope.store
        self._keys = TriggerKeys(scope.cluster)
        self._heap = heap

    def due(self, limit: int = 100, wanted: Callable[[str], bool] = lambda _: True) -> DueRuns:
        """Return the runs that may start now, at most `limit`. Other nodes see the same.

        `runs.start` decides which node gets a run.

        - wanted: by name; a runner excludes the runs of other pipelines, before the limit counts.
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
        return DueRuns(found[:limit], now if len(found) > limit else next_at, now - oldest)

    def _startable(self, page: list[Item], found: list[Due], oldest: int, now: int) -> tuple[int, int | None]:
        """Add the runs that can start to `found`.

        Return the oldest time among them, and the soonest among those whose time is to come.
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
