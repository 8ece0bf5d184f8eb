"""Gaps: lots that should be there and are not, what became of each, and where it comes from (LOT-32).

    gaps = expected − distinct lots that are complete or empty

Each is classified by the arc that makes the table. When nothing is wrong there, because an input is not there
either, the cause is looked for upstream, table by table, to the one where it began.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial

import msgspec

from tidemill.arcs import barriers, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.inventory import Census
from tidemill.arcs.rows import MissingLot, PartialLot, RunningLot
from tidemill.arcs.states import ArcState
from tidemill.cluster import nodes
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled
from tidemill.triggers.terms import AfterGrace

MOST_TOLD = 1000
"""Of an arc's lots that are told with what went wrong."""

PAGE = 500


class GapState(StrEnum):
    """What became of a lot that is not there."""

    ABSENT = "absent"  # nothing was done for it yet
    RUNNING = "running"
    PARTIAL = "partial"
    MISSING = "missing"
    DEAD = "dead"  # its arc failed too often, and is not run any more


class Cause(msgspec.Struct, frozen=True):
    """Where a gap began: the table that has not the lot, the arc that makes that, and what is known of it."""

    table: str
    arc: str
    state: GapState
    why: str


class Gap(msgspec.Struct, frozen=True):
    """A lot that is expected and not published. The lot of its cause has the same id.

    >>> cause = Cause("orders", "", GapState.ABSENT, "no file arrived")
    >>> Gap("clean_orders", "20260131PT1H014", GapState.ABSENT, cause).cause.table
    'orders'
    """

    table: str
    lot: str
    state: GapState
    cause: Cause


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Count the expected, complete and empty lots of a table, and list its gaps in order of their lots.

    >>> Coverage(table="orders", expected=24, complete=20, empty=4, gaps=()).counts["missing"]
    0
    """

    table: str
    expected: int
    complete: int
    empty: int
    gaps: tuple[Gap, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many gaps there are of each kind."""
        found = dict.fromkeys((state.value for state in GapState), 0)
        for gap in self.gaps:
            found[gap.state.value] += 1
        return found


class _Line(msgspec.Struct, frozen=True):
    """What an arc's subscription says about lots that it has not made."""

    state: GapState
    why: str


class Gaps:
    """Finds the gaps of tables, over one census."""

    def __init__(self, census: Census) -> None:
        self._census = census
        self._lines: dict[str, _Line] = {}
        self._notes: dict[tuple[str, str], str] = {}
        self._noted: set[str] = set()
        self._waiting: dict[str, dict[str, str]] = {}
        self._causes: dict[tuple[str, str, GapState, str], Cause] = {}

    def of(self, table: DatasetId) -> Coverage:
        """The gaps of one table."""
        census = self._census
        expected = census.expected(table)
        there = census.published(table)
        missing = sorted(lot for lot in expected if lot not in there)
        spec = census.makers.get(table)
        if spec is not None and missing:
            self._note(spec, missing)
        gaps = []
        for lot in missing:
            cause = self._cause(table, lot)
            state = cause.state if spec is None or cause.arc == spec.name else GapState.ABSENT
            gaps.append(Gap(table.name, lot, state, cause))
        states = list(there.values())
        return Coverage(
            table=table.name,
            expected=len(expected),
            complete=states.count(LotState.COMPLETE),
            empty=states.count(LotState.EMPTY),
            gaps=tuple(gaps),
        )

    def _cause(self, table: DatasetId, lot: str) -> Cause:
        """Where the gap at this lot began, walking upstream."""
        census, spec = self._census, self._census.makers.get(table)
        if spec is None:
            return self._told(table.name, "", GapState.ABSENT, "its interval is over, and not closed")
        unfinished = census.unfinished(spec.id).get(lot)
        lacking = census.lacking(spec, lot)
        begun = unfinished is not None and (unfinished[0] is not ArcState.MISSING or not lacking)
        if unfinished is not None and (begun or spec.after_grace is AfterGrace.SKIP):
            self._note(spec, [lot])
            why = self._notes.get((spec.id, lot), "")
            return self._told(table.name, spec.name, GapState(unfinished[0].value), why)
        for source in lacking:
            if lot in census.expected(source):
                return self._cause(source, lot)
        if lacking:
            there = ", ".join(one.name for one in spec.reads if one not in lacking)
            why = self._awaited(spec).get(lot, f"{there} has it, this has not")
            return self._told(lacking[0].name, "", GapState.ABSENT, why)
        line = self._line(spec)
        return self._told(table.name, spec.name, line.state, line.why)

    def _told(self, table: str, arc: str, state: GapState, why: str) -> Cause:
        """One value for one cause, however many lots it has."""
        return self._causes.setdefault((table, arc, state, why), Cause(table, arc, state, why))

    def _awaited(self, spec: ArcSpec) -> dict[str, str]:
        """What is said of lots that wait at a barrier, of so many; read once for each arc."""
        if spec.id not in self._waiting:
            now = self._census.store.run(lambda tx: tx.now())
            found = self._census.store.run(
                partial(barriers.awaited_lots, keys=self._census.keys, spec=spec, limit=MOST_TOLD)
            )
            self._waiting[spec.id] = {one.lot: barriers.explain(one, spec, now) for one in found}
        return self._waiting[spec.id]

    def _line(self, spec: ArcSpec) -> _Line:
        """Why an arc has not made a lot whose inputs are there, by its subscription."""
        if spec.id not in self._lines:
            self._lines[spec.id] = self._census.store.run(partial(self._read_line, spec=spec))
        return self._lines[spec.id]

    def _read_line(self, tx: Tx, spec: ArcSpec) -> _Line:
        row = subscriptions.read(tx, self._census.keys.publish.triggers, spec.id)
        if row is None:
            return _Line(GapState.ABSENT, f"arc {spec.name} was never run")
        if row.tally.dead:
            why = f": {row.tally.why}" if row.tally.why else ""
            return _Line(GapState.DEAD, f"arc {spec.name} failed {row.tally.failures} times{why}")
        if row.tally.paused:
            return _Line(GapState.ABSENT, f"arc {spec.name} is paused")
        if isinstance(row, Scheduled):
            failed = f" again, after {row.tally.failures} failures" if row.tally.failures else ""
            return _Line(GapState.ABSENT, f"arc {spec.name} is to run{failed}")
        return _Line(GapState.ABSENT, f"arc {spec.name} has passed it over")

    def _note(self, spec: ArcSpec, lots: Iterable[str]) -> None:
        """Read what is known of lots that an arc began, in pages; once for each arc, and of so many."""
        if spec.id in self._noted:
            return
        self._noted.add(spec.id)
        unfinished = self._census.unfinished(spec.id)
        wanted = [(lot, unfinished[lot][1]) for lot in sorted({*lots, *unfinished}) if lot in unfinished]
        for first in range(0, min(len(wanted), MOST_TOLD), PAGE):
            self._read_notes(spec.id, wanted[first : first + PAGE])

    def _read_notes(self, arc: str, page: Sequence[tuple[str, int]]) -> None:
        keys = self._census.keys

        def read(tx: Tx) -> dict[str, str]:
            raws = tx.get_many([keys.lot[arc, lot, generation] for lot, generation in page])
            found = {}
            for (lot, _), raw in zip(page, raws, strict=True):
                if raw is not None:
                    found[lot] = self._words(tx, rows.decode(raw))
            return found

        for lot, words in self._census.store.run(read).items():
            self._notes[arc, lot] = words

    def _words(self, tx: Tx, row: rows.AnyLot) -> str:
        match row:
            case RunningLot():
                entry = nodes.read(tx, self._census.keys.publish.cluster, row.node)
                lives = entry is not None and entry.epoch == row.node_epoch and entry.expires_at > tx.now()
                return f"on {row.node}" if lives else f"its node {row.node} is gone: a runner goes on with it"
            case PartialLot():
                failed = f"{len(row.failed)} parts failed: " if row.failed else ""
                return failed + row.error
            case MissingLot():
                return row.error
            case _:
                return ""
