"""Inventory: the lots that tables have, and the lots they should have (LOT-32).

The inventory reads only the store, in large pages. A report on a hundred thousand lots takes a few dozen
short transactions and reads no objects. The store can change between these transactions. So the inventory
reads expected lots first, then running ones, then published ones. A lot that completes in between is then not
reported as a gap.

An output lot of an arc has the same id as its input lot. So if an input has or should have a lot, the table
that the arc writes should have that lot too. Other tables should have every interval that has ended, from the
first one on. If each append to a table is a lot, then only the published lots are expected: an append number
that was never published is not a gap. A removed or expired lot is no longer expected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec

from tidemill.arcs import rows as arc_rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import CompleteLot
from tidemill.arcs.states import ArcState
from tidemill.errors import DatasetUnknown
from tidemill.lots import datasets, expiry, ids, lots, staging, wall_clock
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.store import Store, Tx

PAGE = 5000
ABSENT_PAGE = 200
LATE_S = 60.0
"""The lot of an interval is expected this many seconds after the interval has ended: closing takes time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Span(msgspec.Struct, frozen=True):
    """A range of lot ids, including both ends; an empty end means no limit."""

    first: str = ""
    last: str = ""


ALL = Span()


class Inventory:
    """The existing and the expected lots of tables that arcs connect.

    Args:
        specs: the arcs that make tables from others.
        span: the lots to look at.
        late_s: the lot of an interval is expected this many seconds after the interval has ended.
    """

    def __init__(
        self,
        store: Store,
        keys: ArcKeys,
        specs: Iterable[ArcSpec],
        span: Span = ALL,
        *,
        late_s: float = LATE_S,
    ) -> None:
        self.store = store
        self.keys = keys
        self.span = span
        self.makers: Mapping[DatasetId, ArcSpec] = {
            sink.dataset: spec for spec in specs for sink in spec.sinks
        }
        self._late_us = int(late_s * 1e6)
        self._expected: dict[DatasetId, frozenset[str]] = {}
        self._published: dict[DatasetId, dict[str, LotState]] = {}
        self._unfinished: dict[str, dict[str, tuple[ArcState, int]]] = {}
        self._requested: dict[str, frozenset[str]] = {}

    # --- expected lots

    def expected(self, table: DatasetId) -> frozenset[str]:
        """Return the lots that this table should have."""
        if table not in self._expected:
            spec = self.makers.get(table)
            if spec is None:
                self._expected[table] = self._written(table)
            else:
                readable: frozenset[str] = frozenset().union(*map(self._readable, spec.reads))
                self._expected[table] = readable - self._expired(table, spec, readable)
        return self._expected[table]

    def _expired(self, table: DatasetId, spec: ArcSpec, expected: frozenset[str]) -> set[str]:
        """Return the lots that the arc has completed, and that have expired in its table (LOT-39)."""
        lot_keys = self.keys.publish.lots
        if not self.store.run(lambda tx: expiry.read(tx, lot_keys, table).position):
            return set()
        absent = sorted(expected - self.published(table).keys())
        expired: set[str] = set()
        for first in range(0, len(absent), ABSENT_PAGE):
            page = absent[first : first + ABSENT_PAGE]
            newest = self.store.run(
                lambda tx, page=page: [arc_rows.newest(tx, self.keys, spec.id, lot) for lot in page]  # type: ignore[misc]
            )
            made = zip(page, newest, strict=True)
            expired |= {lot for lot, last in made if last is not None and isinstance(last[1], CompleteLot)}
        return expired

    def _readable(self, table: DatasetId) -> frozenset[str]:
        expected = self.expected(table)
        if table not in self.makers:
            return expected
        return expected | {
            lot for lot, state in self.published(table).items() if state is not LotState.REMOVED
        }

    def _written(self, table: DatasetId) -> frozenset[str]:
        published = self.published(table)
        removed = {lot for lot, state in published.items() if state is LotState.REMOVED}
        return frozenset((published.keys() | self._intervals(table)) - removed)

    def _intervals(self, table: DatasetId) -> set[str]:
        """Return the intervals that should be closed by now; none for a table without intervals."""

        def read(tx: Tx) -> tuple[Unit | None, str, str, int]:
            try:
                unit = datasets.read(tx, self.keys.publish.lots, table).unit
            except DatasetUnknown:
                return None, "", "", 0
            interval = staging.read(tx, self.keys.publish.lots, table)
            first = lots.briefs(tx, self.keys.publish.lots, table, limit=1)
            wall_us = wall_clock.believed(tx, self.keys.publish.lots)
            return unit, first[0].lot if first else "", "" if interval is None else interval.lot, wall_us

        unit, begin, current, wall_us = self.store.run(read)
        if unit is None or not (begin or current):
            return set()
        begin = max(min(lot for lot in (begin, current) if lot), self.span.first)
        # The end is the current interval, or the first one that has not been over for long enough.
        late = unit.at(_EPOCH + timedelta(microseconds=max(0, wall_us - self._late_us)))
        end = max(str(late), current)
        if self.span.last:  # not more than the span, which may be short and long ago
            end = min(end, str(LotId.parse(self.span.last).next()))
        if begin >= end:
            return set()
        intervals = set(ids.texts_between(LotId.parse(begin), LotId.parse(end)))
        intervals.discard(end)
        return intervals

    # --- existing lots

    def published(self, table: DatasetId) -> Mapping[str, LotState]:
        """Return the published lots with their states."""
        if table not in self._published:
            if table in self.makers:  # running lots must be read before published ones
                self.unfinished(self.makers[table].id)
            self._published[table] = {brief.lot: brief.state for page in self._pages(table) for brief in page}
        return self._published[table]

    def has_lot(self, table: DatasetId, lot: str) -> bool:
        """Return whether a lot was published: complete, empty or removed."""
        return lot in self.published(table)

    def _pages(self, table: DatasetId) -> Iterator[Sequence[lots.LotBrief]]:
        after, first = "", self.span.first
        while True:
            read = partial(lots.briefs, keys=self.keys.publish.lots, dataset=table, limit=PAGE)
            page = self.store.run(partial(read, after=after, first=first, last=self.span.last))
            yield page
            if len(page) < PAGE:
                return
            after = page[-1].lot

    def unfinished(self, arc: str) -> Mapping[str, tuple[ArcState, int]]:
        """Return the lots of an arc whose newest generation is running, partial or missing.

        The values are the state and the number of that generation.
        """
        if arc not in self._unfinished:
            unfinished: dict[str, tuple[ArcState, int]] = {}
            for space, running in ((self.keys.trouble, False), (self.keys.running, True)):
                lo, hi = space.under(arc)
                while True:
                    rows = self.store.run(
                        lambda tx, lo=lo, hi=hi: tx.range(lo, hi, limit=PAGE, snapshot=True)  # type: ignore[misc]
                    )
                    for row in rows:
                        _, lot, generation = space.unpack(row.key)
                        assert isinstance(generation, int)
                        state = ArcState.RUNNING if running else ArcState(row.value.decode())
                        unfinished[str(lot)] = (state, generation)
                    if len(rows) < PAGE:
                        break
                    lo = rows[-1].key + b"\x00"
            self._unfinished[arc] = unfinished
        return self._unfinished[arc]

    def requested(self, arc: str) -> frozenset[str]:
        """Return the lots of an arc that users have requested, and that no node has begun."""
        if arc not in self._requested:
            lots: set[str] = set()
            lo, hi = self.keys.request.under(arc)
            while True:
                rows = self.store.run(
                    lambda tx, lo=lo: tx.range(lo, hi, limit=PAGE, snapshot=True)  # type: ignore[misc]
                )
                lots.update(str(self.keys.request.unpack(row.key)[1]) for row in rows)
                if len(rows) < PAGE:
                    break
                lo = rows[-1].key + b"\x00"
            self._requested[arc] = frozenset(lots)
        return self._requested[arc]

    def missing_inputs(self, spec: ArcSpec, lot: str) -> Sequence[DatasetId]:
        """Return the inputs of an arc that do not have this lot."""
        return [source for source in spec.reads if not self.has_lot(source, lot)]
