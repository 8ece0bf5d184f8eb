"""Find the runs that a node may start now, from the heap and the subscriptions' rows (HEAP-7, HEAP-15).

Items that cannot start a run do not count towards the limit, so they do not delay other items. They are the
items of paused, dead or running subscriptions, items of an old epoch, and items that are due later in this
minute.
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

    - due: the runs; the one that has been due the longest is first.
    - next_at: when to query again (store time, µs); None to wait until woken.
    - lag_us: how long the oldest run has been due.
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

    def due(self, limit: int = 100, matches: Callable[[str], bool] = lambda _: True) -> DueRuns:
        """Return at most `limit` runs that may start now.

        Other nodes find the same runs; `runs.start` decides which node gets a run.

        - matches: filters by name before the limit applies; a runner excludes the runs of other pipelines.
        """
        now = self._store.run(lambda tx: tx.now())
        due: list[Due] = []
        oldest, next_at = now, None
        page: list[Item] = []
        for item in self._heap.listed(0, NEVER):
            if item.at > now:
                next_at = item.at
                break
            if not matches(item.name):
                continue
            page.append(item)
            if len(page) == PAGE:
                oldest, later = self._add_startable(page, due, oldest, now)
                next_at = _earliest(next_at, later)
                page = []
                if len(due) >= limit:
                    break
        if page:
            oldest, later = self._add_startable(page, due, oldest, now)
            next_at = _earliest(next_at, later)
        return DueRuns(due[:limit], now if len(due) > limit else next_at, now - oldest)

    def _add_startable(
        self, page: list[Item], due: list[Due], oldest: int, now: int
    ) -> tuple[int, int | None]:
        """Add the runs that can start to `due`.

        Return the oldest of their times, and the earliest time of runs that are due later.
        """

        def read(tx: Tx) -> list[bytes | None]:
            return tx.get_many([self._keys.subscription[item.name] for item in page])

        later: int | None = None
        for item, raw in zip(page, self._store.run(read), strict=True):
            row = None if raw is None else subscriptions.decode(raw)
            if not isinstance(row, Scheduled) or row.tally.epoch != item.epoch:
                continue
            if runs.startable(row, item.epoch, now):
                due.append(Due(item.name, item.epoch, running=False))
                oldest = min(oldest, row.next_run)
            elif row.next_run > now:
                later = _earliest(later, row.next_run)
        return oldest, later


def _earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)
