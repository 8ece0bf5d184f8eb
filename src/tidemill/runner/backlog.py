"""The backlog: the work that a runner still has to do before it has caught up."""

from functools import partial

from tidemill.arcs import barriers, lot_requests
from tidemill.arcs.keys import ArcKeys
from tidemill.runner import upkeep
from tidemill.runner.certifier import Certification
from tidemill.runner.loop_state import LoopState
from tidemill.runner.program import Program
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import schedules, subscriptions, templates
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Waiting
from tidemill.views.steps.keys import StepKeys

FAR_US = 60_000_000
"""A runner that catches up waits for runs that are due within this time. If a barrier or the run's cadence
delays a run for longer, the runner reports that run as due later, and ends.
"""

CLOSING = "intervals"
"""The name under which failures to close intervals are reported."""


class Backlog:
    """Finds the work that is left: work that is due now, and work that is due later."""

    def __init__(
        self, scope: Scope, program: Program, state: LoopState, certification: Certification
    ) -> None:
        self._store = scope.store
        self._keys, self._arc_keys = StepKeys(scope.cluster), ArcKeys(scope.cluster)
        self._program = program
        self._state = state
        self._certification = certification

    def is_empty(self) -> bool:
        """Return whether nothing is left to do: all new data has been processed, or has failed too often.

        Other nodes may have processed some of the data. This method also records in the totals which runs are
        due later.
        """
        state, patient = self._state, self._state.may_start
        if state.threads.busy - upkeep.NAMES or not self._certification.is_done():
            return False
        totals = state.totals
        if any(not totals.settled.get(name) and patient(name) for name in self._program.sources):
            return False
        if totals.failures.get(CLOSING) and state.is_patient(CLOSING):
            return False
        if any(patient(arc) for arc, _ in totals.unfinished):
            return False
        rows, now = self._store.run(lambda tx: (self._rows(tx), tx.now()))
        later = {}
        for name, row in rows.items():
            if not state.selects(name):
                continue
            if isinstance(row, Waiting):
                opens_us = self._store.run(partial(self._opens_us, row=row))
                if opens_us is not None:
                    later[name] = opens_us / 1e6
            if row is not None and row.tally.dead and row.tally.deaths:  # its process died without a report
                totals.failures.setdefault(name, [row.tally.why])
            if not isinstance(row, Scheduled) or row.tally.parked or not patient(name):
                continue
            failed = row.tally.failures > row.tally.deaths
            if row.run is not None or failed or row.next_run <= now + FAR_US:
                return False
            later[name] = (row.next_run - now) / 1e6
        for name, left_us in self._graces_us().items():
            if patient(name):
                if left_us <= FAR_US:
                    return False
                later[name] = min(left_us / 1e6, later.get(name, left_us / 1e6))
        totals.later = later
        return not self._store.run(self._requested)

    def _rows(self, tx: Tx) -> dict[str, AnyRow | None]:
        """Return the rows of all subscriptions of the program, including those of its templates."""
        names = [*self._program.arcs, *self._program.groups]
        rows = {name: subscriptions.read(tx, self._keys.triggers, name) for name in names}
        for template in self._program.template_arcs.templates:
            rows |= templates.children(tx, self._keys.triggers, template)
        return rows

    def _opens_us(self, tx: Tx, row: Waiting) -> int | None:
        """Return how long until a waiting subscription may run again; None if it has nothing to process."""
        return schedules.opens_us(tx, self._keys.triggers, self._keys.lots, row.tally)

    def _graces_us(self) -> dict[str, int]:
        specs = barriers.with_grace(arc.spec for arc in self._program.all_arcs().values())
        return self._store.run(lambda tx: barriers.remaining_us(tx, self._arc_keys, specs)) if specs else {}

    def _requested(self, tx: Tx) -> bool:
        """Return whether a requested lot has not been made yet."""
        return any(
            lot_requests.pending(tx, self._arc_keys, limit=1, arc=name)
            and not lot_requests.paused(tx, self._arc_keys, name)
            for name in self._program.all_arcs()
            if self._state.may_start(name)
        )
