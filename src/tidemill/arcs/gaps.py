"""Gaps: expected lots that were not published, and the cause of each (LOT-32).

    gaps = expected − lots that are complete or empty

The state of a gap comes from the arc that makes the table. If the arc only waits for an input, the search
continues upstream, table by table, until it finds the table where the gap began.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial

import msgspec

from tidemill.arcs import barriers, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.inventory import Inventory
from tidemill.arcs.rows import MissingLot, PartialLot, RunningLot
from tidemill.arcs.states import ArcState
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.store import Tx
from tidemill.triggers import listing
from tidemill.triggers.listing import TriggerState
from tidemill.triggers.terms import AfterGrace

MAX_EXPLAINED = 1000
"""The maximum number of lots per arc for which a report explains what went wrong."""

SKIPPED = "skipped this lot"
"""The explanation of a gap ends with these words if only a backfill can fill the gap."""

PAGE = 500


class GapState(StrEnum):
    """The state of a lot that was not published."""

    ABSENT = "absent"  # work on it has not begun
    RUNNING = "running"
    PARTIAL = "partial"
    MISSING = "missing"
    DEAD = "dead"  # its arc failed too often and no longer runs


class Cause(msgspec.Struct, frozen=True):
    """Where a gap began: the table without the lot, the arc that makes the table, and the reason."""

    table: str
    arc: str
    state: GapState
    why: str


class Gap(msgspec.Struct, frozen=True):
    """An expected lot that was not published. In the table where the gap began, the lot has the same id.

    >>> cause = Cause("orders", "", GapState.ABSENT, "no file arrived")
    >>> Gap("clean_orders", "20260131PT1H014", GapState.ABSENT, cause).cause.table
    'orders'
    """

    table: str
    lot: str
    state: GapState
    cause: Cause


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of expected, complete and empty lots of a table, and its gaps in order of their lots.

    - requested: the number of lots that a replay, a backfill or a retry requests, and that no node has begun.
      A lot that is replayed exists, so it is not a gap.

    >>> Coverage(table="orders", expected=24, complete=20, empty=4, gaps=()).counts["missing"]
    0
    """

    table: str
    expected: int
    complete: int
    empty: int
    gaps: tuple[Gap, ...]
    requested: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of gaps in each state."""
        counts = dict.fromkeys((state.value for state in GapState), 0)
        for gap in self.gaps:
            counts[gap.state.value] += 1
        return counts


class _ArcStatus(msgspec.Struct, frozen=True):
    """Why an arc has not made its lots, according to its subscription."""

    state: GapState
    why: str
    paused: bool = False


class Gaps:
    """Finds the gaps of tables in one inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._arc_statuses: dict[str, _ArcStatus] = {}
        self._reasons: dict[tuple[str, str], str] = {}
        self._arcs_with_reasons: set[str] = set()
        self._waiting: dict[str, dict[str, str]] = {}
        self._causes: dict[tuple[str, str, GapState, str], Cause] = {}

    def of(self, table: DatasetId) -> Coverage:
        """Return the gaps of one table."""
        inventory = self._inventory
        expected = inventory.expected(table)
        published = inventory.published(table)
        missing = sorted(lot for lot in expected if lot not in published)
        spec = inventory.makers.get(table)
        if spec is not None and missing:
            self._load_reasons(spec, missing)
        gaps = []
        for lot in missing:
            cause = self._cause(table, lot)
            state = cause.state if spec is None or cause.arc == spec.name else GapState.ABSENT
            gaps.append(Gap(table.name, lot, state, cause))
        states = list(published.values())
        return Coverage(
            table=table.name,
            expected=len(expected),
            complete=states.count(LotState.COMPLETE),
            empty=states.count(LotState.EMPTY),
            gaps=tuple(gaps),
            requested=0 if spec is None else len(inventory.requested(spec.id)),
        )

    def _cause(self, table: DatasetId, lot: str) -> Cause:
        """Find where the gap at this lot began, going upstream."""
        inventory, spec = self._inventory, self._inventory.makers.get(table)
        if spec is None:
            return self._make_cause(table.name, "", GapState.ABSENT, "its interval is over but not closed")
        unfinished = inventory.unfinished(spec.id).get(lot)
        missing = inventory.missing_inputs(spec, lot)
        begun = unfinished is not None and (unfinished[0] is not ArcState.MISSING or not missing)
        if unfinished is not None and (begun or spec.after_grace is AfterGrace.SKIP):
            self._load_reasons(spec, [lot])
            why = self._reasons.get((spec.id, lot), "")
            if lot in inventory.requested(spec.id):
                why = f"{why}; it is requested again" if why else "it is requested again"
            return self._make_cause(table.name, spec.name, GapState(unfinished[0].value), why)
        for source in missing:
            if lot in inventory.expected(source):
                return self._cause(source, lot)
        if missing:
            present = ", ".join(source.name for source in spec.reads if source not in missing)
            why = self._why_waiting(spec).get(lot, f"{present} has this lot, {missing[0].name} does not")
            return self._make_cause(missing[0].name, "", GapState.ABSENT, why)
        status = self._arc_status(spec)
        if lot in inventory.requested(spec.id) and not status.paused:
            return self._make_cause(table.name, spec.name, GapState.ABSENT, "requested, but not started yet")
        return self._make_cause(table.name, spec.name, status.state, status.why)

    def _make_cause(self, table: str, arc: str, state: GapState, why: str) -> Cause:
        """Return the same object for equal causes, because many lots can share a cause."""
        return self._causes.setdefault((table, arc, state, why), Cause(table, arc, state, why))

    def _why_waiting(self, spec: ArcSpec) -> dict[str, str]:
        """Explain why lots wait at a barrier, up to a limit; the store is read once for each arc."""
        if spec.id not in self._waiting:
            now = self._inventory.store.run(lambda tx: tx.now())
            awaited = self._inventory.store.run(
                partial(barriers.awaited_lots, keys=self._inventory.keys, spec=spec, limit=MAX_EXPLAINED)
            )
            self._waiting[spec.id] = {lot.lot: barriers.explain(lot, spec, now) for lot in awaited}
        return self._waiting[spec.id]

    def _arc_status(self, spec: ArcSpec) -> _ArcStatus:
        """Return why an arc has not made a lot although it has the inputs."""
        if spec.id not in self._arc_statuses:
            self._arc_statuses[spec.id] = self._inventory.store.run(partial(self._read_arc_status, spec=spec))
        return self._arc_statuses[spec.id]

    def _read_arc_status(self, tx: Tx, spec: ArcSpec) -> _ArcStatus:
        keys = self._inventory.keys.publish
        trigger = listing.read(tx, keys.triggers, keys.lots, spec.id)
        if trigger is None:
            return _ArcStatus(GapState.ABSENT, f"arc {spec.name} has never run")
        match trigger.state:
            case TriggerState.DEAD:
                return _ArcStatus(GapState.DEAD, f"arc {spec.name} {trigger.why}")
            case TriggerState.PAUSED:
                return _ArcStatus(GapState.ABSENT, f"arc {spec.name} is paused", paused=True)
            case TriggerState.RUNNING:
                why = f"is running {trigger.why}"
            case TriggerState.WAITING:
                why = f"waits: {trigger.why}" if any(trigger.behind.values()) else SKIPPED
            case TriggerState.SCHEDULED:
                why = f"is scheduled: {trigger.why}"
            case TriggerState.DUE | TriggerState.UNREADY:
                again = f" again, after {trigger.failures} failures" if trigger.failures else ""
                why = f"is scheduled{again}"
        return _ArcStatus(GapState.ABSENT, f"arc {spec.name} {why}")

    def _load_reasons(self, spec: ArcSpec, lots: Iterable[str]) -> None:
        """Read why lots that an arc began are not finished, up to a limit; reads only once for each arc."""
        if spec.id in self._arcs_with_reasons:
            return
        self._arcs_with_reasons.add(spec.id)
        unfinished = self._inventory.unfinished(spec.id)
        begun = [(lot, unfinished[lot][1]) for lot in sorted({*lots, *unfinished}) if lot in unfinished]
        for first in range(0, min(len(begun), MAX_EXPLAINED), PAGE):
            self._read_reasons(spec.id, begun[first : first + PAGE])

    def _read_reasons(self, arc: str, page: Sequence[tuple[str, int]]) -> None:
        keys = self._inventory.keys

        def read(tx: Tx) -> dict[str, str]:
            values = tx.get_many([keys.lot[arc, lot, generation] for lot, generation in page])
            return {
                lot: self._reason(tx, rows.decode(raw))
                for (lot, _), raw in zip(page, values, strict=True)
                if raw is not None
            }

        for lot, reason in self._inventory.store.run(read).items():
            self._reasons[arc, lot] = reason

    def _reason(self, tx: Tx, row: rows.AnyLot) -> str:
        match row:
            case RunningLot():
                alive = rows.is_held(tx, self._inventory.keys, row)
                return f"on {row.node}" if alive else f"its node {row.node} is gone; a runner will resume it"
            case PartialLot():
                failed = f"{len(row.failed)} parts failed: " if row.failed else ""
                return failed + row.error
            case MissingLot():
                return row.error
            case _:
                return ""
