"""The work of a runner's node, under one epoch of it: find what is due, and start it in a run thread.

Each turn wakes the subscribers of what was published, closes intervals that are over, polls sources, starts
runs that are due, and makes lots that were requested: retries, replays, backfills. Everything that takes time
gets a thread, under a name that only one job has at a time. Nothing here needs a leader: each step is a
transaction, and the store refuses it to all nodes but one.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tidemill.arcs import barriers, lot_requests
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lot_requests import LotRequest
from tidemill.arcs.work import FULL_BACKOFF_S, ArcWork, LotEnd, LotOutcome
from tidemill.clock import backoff
from tidemill.cluster.keeper import Keeper
from tidemill.errors import LeaseLost, ObjectError, StoreError
from tidemill.publish.intervals import IntervalCloser
from tidemill.runner.backlog import CLOSING
from tidemill.runner.compaction import Rewrite
from tidemill.runner.failures import Failures
from tidemill.runner.loop_state import PATIENCE, LoopState
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.program import ArcProgram, Program
from tidemill.runner.upkeep import SPARE, Upkeep
from tidemill.scope import Scope
from tidemill.sources.source import POLL_EVERY_S, Arrival, SourceRuntime
from tidemill.spark.table_checks import Evaluate
from tidemill.triggers import runs
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.events import RunStarted
from tidemill.triggers.runs import Due, Ticket
from tidemill.triggers.scheduler import Scheduler, open_heap
from tidemill.views.steps.keys import StepKeys
from tidemill.views.steps.stepper import Compute, GroupStep

RESUME_EVERY_S = 2.0

IDLE = frozenset({LotEnd.DONE, LotEnd.ELSEWHERE, LotEnd.FULL, LotEnd.WAITING})
"""Ends of work on a lot in which nothing was made."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computes: on Spark in the product, in process in tests.

    Args:
        parts: runs the parts of arcs and sources.
        compute: computes the steps of views.
        rewrite: rewrites the small files of a lot; None to compact nothing.
        evaluate: evaluates the expressions of checks; None where there are none.
    """

    parts: PartFutures
    compute: Compute
    rewrite: Rewrite | None = None
    evaluate: Evaluate | None = None


class NodeWork:
    """What one runner does as a node, under one epoch of it."""

    def __init__(self, scope: Scope, program: Program, engine: Engine, state: LoopState) -> None:
        self.node = scope.node
        self._scope = scope
        self._program = program
        self._state = state
        self._threads, self._totals = state.threads, state.totals
        self._keys, self._arc_keys = StepKeys(scope.cluster), ArcKeys(scope.cluster)
        self._failures = Failures(scope, state)
        heap = open_heap(scope)
        self._scheduler = Scheduler(scope, heap)
        self._due = DueQuery(scope, heap)
        self.intervals = IntervalCloser(scope)
        self._arcs = ArcWork(scope, engine.parts, projections=state.projections)
        self._groups = GroupStep(scope, program.pipeline, engine.compute)
        self._keeper = Keeper(scope.store, scope.node.id, clock=scope.clock, chance=scope.chance)
        runtime = SourceRuntime(
            scope=scope,
            parts=engine.parts,
            keeper=self._keeper,
            watching=lambda: state.watching,
            evaluate=engine.evaluate,
        )
        self._sources: Mapping[str, Arrival] = {
            name: source.open(runtime) for name, source in program.sources.items()
        }
        if self._sources:
            self._keeper.start()
        self.upkeep = Upkeep(scope, program, engine.parts, engine.rewrite, state, self._failures)
        self._close_at = self._resume_at = 0.0
        self._poll_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}  # by arc, when a lot may be tried again that another node has

    def turn(self) -> bool:
        """Do what takes no time, and start the rest in threads; False if there was nothing to do."""
        did = self._scheduler.tick() == 0.0
        did |= self._close_intervals()
        did |= self._poll_sources()
        did |= self._start_runs()
        did |= self._make_requested_lots()
        did |= self._end_graces()
        did |= self._resume_lots()
        self.upkeep.turn()
        return did

    def close(self) -> None:
        """Close the sources, so that other nodes can take over."""
        try:
            for source in self._sources.values():
                with contextlib.suppress(LeaseLost, StoreError):  # then its leases expire
                    source.close()
        finally:
            if self._sources:
                self._keeper.stop()

    # --- intervals

    def _close_intervals(self) -> bool:
        if self._scope.clock.monotonic() < self._close_at:
            return False
        try:
            closed = self.intervals.close_due()
        except ObjectError as error:  # reported and tried again; other work continues
            self._close_at = self._scope.clock.monotonic() + self._failures.add(CLOSING, error)
            return False
        self._totals.failures.pop(CLOSING, None)
        self._totals.closed += closed
        return closed > 0

    # --- sources

    def _poll_sources(self) -> bool:
        """Start a poll of each source whose pause is over."""
        now, did = self._scope.clock.monotonic(), False
        for name in self._program.sources:
            if now >= self._poll_at.get(name, 0.0):
                self._poll_at[name] = now + POLL_EVERY_S
                did |= self._threads.start(name, partial(self._poll, name))
        return did

    def _poll(self, name: str) -> None:
        """Take what has arrived at a source, and publish what was taken, by us or by a node that is gone."""
        try:
            polled = self._sources[name].poll()
            self._totals.failures[name] = list(polled.failed) * PATIENCE
            self._totals.files += polled.taken
            self._totals.settled[name] = polled.settled
            self._poll_at[name] = self._scope.clock.monotonic() + polled.wait_s
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._failures.add(name, error)
            failures = len(self._totals.failures[name])
            pause_s = backoff(failures, self._scope.chance, first_s=0.5, most_s=60.0)
            self._poll_at[name] = self._scope.clock.monotonic() + pause_s

    # --- runs of arcs and groups of views

    def _start_runs(self) -> bool:
        """Start the runs that are due."""
        did = False
        query = self._due.due(wanted=lambda name: self._program.knows(name) and self._state.is_patient(name))
        for due in query.due:
            did |= self._threads.start(due.name, partial(self._run, due))
        return did

    def _run(self, due: Due) -> None:
        """Run an arc over its new lots, or a group of views over its new steps."""
        ticket = None
        try:
            arc = self._program.arc(due.name)  # an arc of a template is made before its first run
            if arc is None and due.name not in self._program.groups:
                return  # its dataset is gone
            ticket = self._start(due)
            if ticket is None:
                return  # another node was faster
            if arc is not None:
                self._totals.add(self._arcs.run(arc.spec, ticket))
            else:
                stepped = self._groups.run(ticket, self._state.stops)
                self._totals.steps[due.name] = self._totals.steps.get(due.name, 0) + stepped.jobs
            self._totals.failures.pop(due.name, None)
        except LeaseLost:
            self._failures.release(ticket)
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._failures.add(due.name, error, ticket)

    def _start(self, due: Due) -> Ticket | None:
        keys = self._keys
        ticket = self._scope.store.run(
            lambda tx: runs.start(tx, keys.triggers, keys.lots, keys.cluster, self.node, due.name, due.epoch)
        )
        if ticket is not None:
            behind = sum(ticket.heads[source] - ticket.progress[source] for source in ticket.progress)
            self._scope.emit(RunStarted(name=due.name, epoch=due.epoch, behind=behind))
        return ticket

    # --- lots outside of the runs of their arcs

    def _make_requested_lots(self) -> bool:
        """Start lots that were requested; some threads are kept for what arrives."""
        now, did, arcs = self._scope.clock.monotonic(), False, self._program.all_arcs()
        for request in self._workable():
            if now >= self._retry_at.get(request.arc, 0.0):
                make = partial(self._arcs.make_requested, arcs[request.arc].spec, request)
                job = partial(self._make_lot, request.arc, request.lot, make)
                did |= self._threads.start(f"{request.arc} {request.lot}", job, spare=SPARE)
        return did

    def _workable(self) -> list[LotRequest]:
        """Lots that were requested and can start, of arcs that have not failed too often."""
        specs = [arc.spec for name, arc in self._program.all_arcs().items() if self._state.is_patient(name)]
        return self._scope.store.run(lambda tx: lot_requests.startable(tx, self._arc_keys, specs))

    def _end_graces(self) -> bool:
        """Start lots that have waited long enough for their last source.

        No subscription is due at the end of a grace, because nothing was published. So each turn reads which
        lots have waited longest: one short range for each arc that has such a policy.
        """
        specs = barriers.with_grace(arc.spec for arc in self._program.all_arcs().values())
        if not specs:
            return False
        now, did = self._scope.clock.monotonic(), False
        for spec, lot in self._scope.store.run(lambda tx: barriers.all_expired(tx, self._arc_keys, specs)):
            if now >= self._retry_at.get(spec.id, 0.0) and self._state.is_patient(spec.id):
                make = partial(self._arcs.end_grace, spec, lot)
                did |= self._threads.start(f"{spec.id} {lot}", partial(self._make_lot, spec.id, lot, make))
        return did

    def _make_lot(self, arc: str, lot: str, make: Callable[[], LotOutcome]) -> None:
        """Make a lot that was requested, or whose grace is over."""
        try:
            outcome = make()
            if outcome.ended in (LotEnd.ELSEWHERE, LotEnd.FULL):  # other nodes work on it: not at once again
                self._retry_at[arc] = self._scope.clock.monotonic() + FULL_BACKOFF_S
            elif outcome.ended not in IDLE:
                self._totals.add([outcome])
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - reported; `_resume_lots` finds the lot again
            self._totals.unfinished.add((arc, lot))
            self._failures.add(arc, error)

    def _resume_lots(self) -> bool:
        """Start running lots that no node works on: such as a retry whose node is gone."""
        now, did = self._scope.clock.monotonic(), False
        if now < self._resume_at:
            return False
        self._resume_at = now + RESUME_EVERY_S
        busy = self._threads.busy
        for left in self._arcs.left():
            if left.arc not in busy and self._program.knows(left.arc):
                did |= self._threads.start(
                    f"{left.arc} {left.lot}", partial(self._resume_lot, left.arc, left.lot)
                )
        return did

    def _resume_lot(self, arc: str, lot: str) -> None:
        try:
            program: ArcProgram | None = self._program.arc(arc)
            if program is None:
                return
            outcome = self._arcs.work(program.spec, lot)
            if outcome.ended not in IDLE:
                self._totals.add([outcome])
            if (arc, lot) in self._totals.unfinished and outcome.ended is not LotEnd.FULL:
                self._totals.unfinished.discard((arc, lot))
                self._totals.failures.pop(arc, None)
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._failures.add(arc, error)
