"""A census: what there is of the lots of some tables, and what there should be (LOT-32).

It is read from the store alone, in large pages, so that a report over a hundred thousand lots is some dozens
of short transactions and no object is read. It is not of one moment. What is expected is read first, then
what is under way, then what is published: so a lot that comes to its end meanwhile is not told as a gap.

What is expected of a table that an arc makes is whatever is expected of, or there in, what the arc reads,
because an output lot has the id of its input lot. Of a table that is written from outside it is every
interval since its first that is over; where each append is a lot, it is what was appended: numbers that were
never published mean nothing. A lot that somebody took back is not expected any more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec

from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.states import ArcState
from tidemill.errors import DatasetUnknown
from tidemill.lots import datasets, ids, lots, staging
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.store import Store, Tx

PAGE = 5000
LATE_S = 60.0
"""How long an interval may be over before its lot is missed: somebody has to close it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Span(msgspec.Struct, frozen=True):
    """Which lots: from one id to another, both included; an empty one is no bound."""

    first: str = ""
    last: str = ""

    def holds(self, lot: str) -> bool:
        return self.first <= lot and (not self.last or lot <= self.last)


ALL = Span()


class Census:
    """What there is and what there should be of tables that arcs connect.

    Args:
        specs: the arcs, by which a table is made from others.
        span: of lots that are looked at.
        late_s: how long after its end an interval's lot is expected.
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

    # --- what there should be

    def expected(self, table: DatasetId) -> frozenset[str]:
        """The lots that this table should have."""
        if table not in self._expected:
            spec = self.makers.get(table)
            self._expected[table] = (
                self._outside(table) if spec is None else frozenset().union(*map(self._to_read, spec.reads))
            )
        return self._expected[table]

    def _to_read(self, table: DatasetId) -> frozenset[str]:
        expected = self.expected(table)
        if table not in self.makers:
            return expected
        there = {lot for lot, state in self.published(table).items() if state is not LotState.REMOVED}
        return expected | there

    def _outside(self, table: DatasetId) -> frozenset[str]:
        there = self.published(table)
        removed = {lot for lot, state in there.items() if state is LotState.REMOVED}
        return frozenset((there.keys() | self._intervals(table)) - removed)

    def _intervals(self, table: DatasetId) -> set[str]:
        """The intervals that should be closed by now; of a table without intervals none."""

        def read(tx: Tx) -> tuple[Unit | None, str, str, int]:
            try:
                unit = datasets.read(tx, self.keys.publish.lots, table).unit
            except DatasetUnknown:
                return None, "", "", 0
            turn = staging.read(tx, self.keys.publish.lots, table)
            first = lots.briefs(tx, self.keys.publish.lots, table, limit=1)
            return unit, first[0].lot if first else "", "" if turn is None else turn.lot, tx.wall()

        unit, begin, turn, wall_us = self.store.run(read)
        if unit is None or not (begin or turn):
            return set()
        begin = max(min(one for one in (begin, turn) if one), self.span.first)
        # The first interval that is not over for long enough, or that is in turn to be closed.
        late = unit.at(_EPOCH + timedelta(microseconds=max(0, wall_us - self._late_us)))
        end = max(str(late), turn)
        if begin >= end:
            return set()
        found = set(ids.texts_between(LotId.parse(begin), LotId.parse(end)))
        found.discard(end)
        return found if not self.span.last else {one for one in found if one <= self.span.last}

    # --- what there is

    def published(self, table: DatasetId) -> Mapping[str, LotState]:
        """The lots that are there, and what each is."""
        if table not in self._published:
            if table in self.makers:  # what is under way is read before what is published
                self.unfinished(self.makers[table].id)
            found: dict[str, LotState] = {}
            for page in self._pages(table):
                found.update({one.lot: one.state for one in page})
            self._published[table] = found
        return self._published[table]

    def answered(self, table: DatasetId, lot: str) -> bool:
        """Is this lot there, complete or empty, or taken back?"""
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
        """Lots of an arc whose newest generation runs, is partial or is missing, with that generation."""
        if arc not in self._unfinished:
            found: dict[str, tuple[ArcState, int]] = {}
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
                        found[str(lot)] = (state, generation)
                    if len(rows) < PAGE:
                        break
                    lo = rows[-1].key + b"\x00"
            self._unfinished[arc] = found
        return self._unfinished[arc]

    def lacking(self, spec: ArcSpec, lot: str) -> Sequence[DatasetId]:
        """The sources of an arc that have no such lot."""
        return [source for source in spec.reads if not self.answered(source, lot)]
