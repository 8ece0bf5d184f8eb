"""Count the lots of tables: by state, with rows and bytes.

A table may have a hundred thousand lots. So a table is counted again only after it changed, and a large table
is counted in a background thread: answers show the last count, and when it was made.
"""

import contextlib
import threading
from functools import partial

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.lots import events, expiry, lots
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx
from tidemill.ui.model.answers import LotTotals

PAGE = 5_000
AT_ONCE = 2_000
"""Tables with at most this many events are counted at once."""

AGAIN_S = 30.0
"""A large table that changes all the time is counted again after this many seconds."""


class TableTotals:
    """The last counts of all tables. Several threads may share it."""

    def __init__(self, store: Store, keys: LotKeys, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: dict[DatasetId, tuple[tuple[int, int], LotTotals]] = {}
        self._counting: set[DatasetId] = set()

    def of(self, table: DatasetId) -> LotTotals | None:
        """Return the counts of a table; None while a large table is counted for the first time."""
        version = self._store.run(partial(self._version, table=table))
        with self._lock:
            known = self._counted.get(table)
        if known is not None and known[0] == version:
            return known[1]
        if version[0] - version[1] <= AT_ONCE:
            return self._count(table, version)
        if known is None or self._clock.wall() - known[1].at > AGAIN_S:
            self._start(table, version)
        return None if known is None else known[1]

    def wait(self, table: DatasetId) -> LotTotals:
        """Count a table now, if it changed, and return the counts."""
        version = self._store.run(partial(self._version, table=table))
        with self._lock:
            known = self._counted.get(table)
        return known[1] if known is not None and known[0] == version else self._count(table, version)

    def _version(self, tx: Tx, table: DatasetId) -> tuple[int, int]:
        """Return the newest and the oldest position of a table. They change with every change of its lots."""
        return events.head(tx, self._keys, table), expiry.read(tx, self._keys, table).position

    def _start(self, table: DatasetId, version: tuple[int, int]) -> None:
        with self._lock:
            if table in self._counting:
                return
            self._counting.add(table)

        def count() -> None:
            with contextlib.suppress(TidemillError):  # the next request tries again
                self._count(table, version)

        threading.Thread(target=count, name="tidemill-count", daemon=True).start()

    def _count(self, table: DatasetId, version: tuple[int, int]) -> LotTotals:
        try:
            states: dict[str, int] = {}
            rows = size = 0
            after = ""
            while True:
                page = self._store.run(
                    partial(lots.briefs, keys=self._keys, dataset=table, after=after, limit=PAGE)
                )
                for brief in page:
                    states[brief.state.value] = states.get(brief.state.value, 0) + 1
                    rows += brief.rows
                    size += brief.size
                if len(page) < PAGE:
                    break
                after = page[-1].lot
            totals = LotTotals(states=states, rows=rows, size=size, at=self._clock.wall())
            with self._lock:
                self._counted[table] = (version, totals)
            return totals
        finally:
            with self._lock:
                self._counting.discard(table)
