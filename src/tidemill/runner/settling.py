"""Settling: is there more to come for a loop that catches up?"""

from functools import partial
from typing import TYPE_CHECKING

from tidemill.arcs import asks
from tidemill.runner import upkeep
from tidemill.store import Tx
from tidemill.triggers import schedules, subscriptions, templates
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Waiting

if TYPE_CHECKING:
    from tidemill.runner.loop import Loop

FAR_US = 60_000_000
"""Who catches up waits for what is to run within this time. What its pace, or a barrier, puts off for longer
is left to a later run, and told.
"""

CLOSING = "intervals"
"""The name under which the closing of intervals fails."""


class Settling:
    """Looks at what one loop has to do, now and later."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self._store, self._keys, self._arc_keys = loop.store, loop.keys, loop.arc_keys
        self._lines, self._tally, self._trouble = loop.lines, loop.tally, loop.trouble

    def settled(self) -> bool:
        """Is everything done that has arrived, by us or by others, but for what we have given up on?"""
        if self._lines.busy - upkeep.NAMES:
            return False
        if any(
            not self._tally.settled.get(name) and self._trouble.is_patient(name)
            for name in self._loop.program.sources
        ):
            return False
        if self._tally.failures.get(CLOSING) and self._trouble.is_patient(CLOSING):
            return False
        if any(self._trouble.is_patient(arc) for arc, _ in self._loop.jobs.unfinished):
            return False
        rows, now = self._store.run(lambda tx: (self._rows(tx), tx.now()))
        later = {}
        for name, row in rows.items():
            if isinstance(row, Waiting):
                opens_us = self._store.run(partial(self._opens_us, row=row))
                if opens_us is not None:
                    later[name] = opens_us / 1e6
            if not isinstance(row, Scheduled) or row.tally.parked or not self._trouble.is_patient(name):
                continue
            if row.run is not None or row.tally.failures or row.next_run <= now + FAR_US:
                return False
            later[name] = (row.next_run - now) / 1e6
        for name, left_us in self._loop.graces.left_us().items():
            if self._trouble.is_patient(name):
                if left_us <= FAR_US:
                    return False
                later[name] = min(left_us / 1e6, later.get(name, left_us / 1e6))
        self._tally.later = later
        return not self._store.run(self._asked)

    def _rows(self, tx: Tx) -> dict[str, AnyRow | None]:
        """The subscriptions of all that is ours: children too that nobody has met yet."""
        names = [*self._loop.program.arcs, *self._loop.program.groups]
        found = {name: subscriptions.read(tx, self._keys.triggers, name) for name in names}
        for template in self._loop.program.children.templates:
            found |= templates.children(tx, self._keys.triggers, template)
        return found

    def _opens_us(self, tx: Tx, row: Waiting) -> int | None:
        """How long it is until the gate opens behind which something waits; None when nothing does."""
        return schedules.opens_us(tx, self._keys.triggers, self._keys.lots, row.tally)

    def _asked(self, tx: Tx) -> bool:
        """Is anything left that was asked for, and that is to be worked off by somebody?"""
        return any(
            asks.asked(tx, self._arc_keys, limit=1, arc=name) and not asks.paused(tx, self._arc_keys, name)
            for name in self._loop.program.all_arcs()
            if self._trouble.is_patient(name)
        )
