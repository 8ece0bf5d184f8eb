"""The jobs of a loop: what it begins in its lines because it is due, and sees to its end.

Whatever takes time is one of them: a run of an arc or of a group of views, a look at a source, a lot that was
asked for, or one that somebody left. Each has a name, under which it is begun once at a time.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidemill.arcs import asks
from tidemill.arcs.asks import Ask
from tidemill.arcs.work import FULL_BACKOFF_S, Ended, Outcome
from tidemill.clock import backoff
from tidemill.errors import LeaseLost
from tidemill.runner.life import Life
from tidemill.runner.trouble import PATIENCE
from tidemill.sources.source import POLL_EVERY_S
from tidemill.triggers import runs
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.events import RunStarted
from tidemill.triggers.runs import Due

if TYPE_CHECKING:
    from tidemill.runner.loop import Loop

LEFT_EVERY_S = 2.0
SPARE = 2
"""Lines that are left to what arrives, however much was asked for."""

IDLE = frozenset({Ended.DONE, Ended.ELSEWHERE, Ended.FULL, Ended.WAITING})
"""Ends of work on a lot in which nothing was made."""


class Jobs:
    """One loop's jobs. Each of `poll` to `go_on` begins those of its kind, and says whether there were any.

    Args:
        loop: whose lines they run in.
        due: finds the runs that are due.
    """

    def __init__(self, loop: "Loop", due: DueQuery) -> None:
        self._loop = loop
        self._due = due
        self._store, self._keys, self._arc_keys = loop.store, loop.keys, loop.arc_keys
        self._lines, self._tally, self._trouble = loop.lines, loop.tally, loop.trouble
        self._clock = loop.clock
        self.unfinished: set[tuple[str, str]] = set()  # lots that were asked for, whose work broke off
        self._poll_at: dict[str, float] = {}
        self._ask_at: dict[str, float] = {}
        self._left_at = 0.0

    # --- beginning what is due

    def poll(self, life: Life) -> bool:
        """Look at sources."""
        now, did = self._clock.monotonic(), False
        for name in self._loop.program.sources:
            if now >= self._poll_at.get(name, 0.0):
                self._poll_at[name] = now + POLL_EVERY_S
                did |= self._lines.begin(name, partial(self._poll_one, life, name))
        return did

    def start(self, life: Life) -> bool:
        """Runs that are due."""
        did = False
        for one in self._due.due(
            wanted=lambda name: self._loop.program.knows(name) and self._trouble.is_patient(name)
        ).due:
            did |= self._lines.begin(one.name, partial(self._run_one, life, one))
        return did

    def work_off(self, life: Life) -> bool:
        """Begin what was asked for, as far as there is room; some lines are left to what arrives."""
        now, did, arcs = self._clock.monotonic(), False, self._loop.program.all_arcs()
        for ask in self._workable():
            if now >= self._ask_at.get(ask.arc, 0.0):
                make = partial(life.arcs.work_off, arcs[ask.arc].spec, ask)
                work = partial(self._ordered_one, ask.arc, ask.lot, make)
                did |= self._lines.begin(f"{ask.arc} {ask.lot}", work, spare=SPARE)
        return did

    def _workable(self) -> list[Ask]:
        """What was asked for and can be begun, of arcs that we have not given up on."""
        specs = [
            one.spec for name, one in self._loop.program.all_arcs().items() if self._trouble.is_patient(name)
        ]
        return self._store.run(lambda tx: asks.workable(tx, self._arc_keys, specs))

    def end_graces(self, life: Life) -> bool:
        """Lots that have waited long enough for their last source."""
        now, did = self._clock.monotonic(), False
        for spec, lot in self._loop.graces.over():
            if now >= self._ask_at.get(spec.id, 0.0) and self._trouble.is_patient(spec.id):
                work = partial(life.arcs.end_grace, spec, lot)
                did |= self._lines.begin(f"{spec.id} {lot}", partial(self._ordered_one, spec.id, lot, work))
        return did

    def go_on(self, life: Life) -> bool:
        """Lots that run by nobody, and that no run is at: a retry's, whose node is gone."""
        now, did = self._clock.monotonic(), False
        if now < self._left_at:
            return False
        self._left_at = now + LEFT_EVERY_S
        busy = self._lines.busy
        for one in life.arcs.left():
            if one.arc not in busy and self._loop.program.knows(one.arc):
                did |= self._lines.begin(
                    f"{one.arc} {one.lot}", partial(self._work_one, life, one.arc, one.lot)
                )
        return did

    # --- in lines

    def _run_one(self, life: Life, due: Due) -> None:
        keys = self._keys
        ticket = None
        try:
            arc = self._loop.program.arc(due.name)  # a template's child is made before its first run begins
            if arc is None and due.name not in self._loop.program.groups:
                return  # its dataset is not there any more
            ticket = self._store.run(
                lambda tx: runs.start(
                    tx, keys.triggers, keys.lots, keys.cluster, life.node, due.name, due.epoch
                )
            )
            if ticket is None:
                return  # somebody else was faster
            behind = sum(ticket.heads[one] - ticket.progress[one] for one in ticket.progress)
            self._loop.emit(RunStarted(name=due.name, epoch=due.epoch, behind=behind))
            if arc is not None:
                self._tally.add(life.arcs.run(arc.spec, ticket))
            else:
                stepped = life.groups.run(ticket, self._loop.stops)
                self._tally.steps[due.name] = self._tally.steps.get(due.name, 0) + stepped.jobs
            self._tally.failures.pop(due.name, None)
        except LeaseLost:
            self._trouble.let_go(ticket)
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._trouble.failed(due.name, error, ticket)

    def _poll_one(self, life: Life, name: str) -> None:
        """Take what is new at a source, and work on what was taken, by us or by somebody who is gone."""
        try:
            polled = life.arrivals[name].poll()
            self._tally.failures[name] = list(polled.failed) * PATIENCE
            self._tally.files += polled.taken
            self._tally.settled[name] = polled.settled
            self._poll_at[name] = self._clock.monotonic() + polled.wait_s
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._trouble.failed(name, error)
            failures = len(self._tally.failures[name])
            pause_s = backoff(failures, self._loop.chance, first_s=0.5, most_s=60.0)
            self._poll_at[name] = self._clock.monotonic() + pause_s

    def _ordered_one(self, arc: str, lot: str, work: Callable[[], Outcome]) -> None:
        """A lot outside of its subscription's runs: one that was asked for, or whose grace is over."""
        try:
            outcome = work()
            if outcome.ended in (Ended.ELSEWHERE, Ended.FULL):  # others are at it: not at once again
                self._ask_at[arc] = self._clock.monotonic() + FULL_BACKOFF_S
            elif outcome.ended not in IDLE:
                self._tally.add([outcome])
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told; the lot is found again as one that nobody works on
            self.unfinished.add((arc, lot))
            self._trouble.failed(arc, error)

    def _work_one(self, life: Life, arc: str, lot: str) -> None:
        try:
            program = self._loop.program.arc(arc)
            if program is None:
                return
            outcome = life.arcs.work(program.spec, lot)
            if outcome.ended not in IDLE:
                self._tally.add([outcome])
            if (arc, lot) in self.unfinished and outcome.ended is not Ended.FULL:
                self.unfinished.discard((arc, lot))
                self._tally.failures.pop(arc, None)
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._trouble.failed(arc, error)
