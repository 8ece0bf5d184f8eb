"""Find the work that is due for a runner's node, and start each job in a run thread.

Each pass (`NodeWork.start_due`) wakes the subscribers of new lots, closes intervals that are over, polls
sources, starts runs that are due, and makes lots that were requested by retries, replays and backfills. Each
job that takes time gets a thread and a name, and no two jobs with the same name run at the same time. None of
this needs a leader: each step is a transaction, and the store lets only one node commit it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from tidemill.arcs import barriers, lot_requests
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lot_requests import LotRequest
from tidemill.arcs.work import FULL_BACKOFF_S, ArcWork, LotEnd, LotOutcome
from tidemill.clock import backoff
from tidemill.cluster.keeper import Keeper
from tidemill.errors import LeaseLost, ObjectError, SourceUnavailable, StoreError
from tidemill.publish.intervals import IntervalCloser
from tidemill.runner import job_deaths
from tidemill.runner.backlog import CLOSING
from tidemill.runner.base_merges import Merge
from tidemill.runner.certifier import Certification, NoCertification, NotCertified
from tidemill.runner.compaction import Rewrite
from tidemill.runner.failures import Failures
from tidemill.runner.keys import RunnerKeys
from tidemill.runner.loop_state import PATIENCE, LoopState
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.program import ArcProgram, Program
from tidemill.runner.run_threads import RunJob
from tidemill.runner.upkeep import SPARE, Upkeep
from tidemill.scope import Scope
from tidemill.sources.source import POLL_EVERY_S, Arrival, SourceRuntime
from tidemill.spark.table_checks import Evaluate
from tidemill.triggers import runs
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.events import RunEnded, RunStarted
from tidemill.triggers.runs import Due, Ticket
from tidemill.triggers.scheduler import Scheduler, open_heap
from tidemill.views.steps.keys import StepKeys
from tidemill.views.steps.stepper import Compute, FindInput, Stepper

RESUME_EVERY_S = 2.0

IDLE = frozenset({LotEnd.DONE, LotEnd.ELSEWHERE, LotEnd.FULL, LotEnd.WAITING})
"""Outcomes which mean that work on a lot produced nothing."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Computes parts, steps, compactions and checks: with Spark in production, without it in tests.

    Args:
        parts: runs the parts of arcs and sources.
        compute: computes the steps of views.
        rewrite: rewrites the small files of a lot; None to compact nothing.
        merge: merges expired lots into base lots; None to merge nothing.
        evaluate: evaluates the expressions of checks; None if there are no expressions.
        certification: says whether views are still compared with plain Spark.
        find_input: finds the row on which a view fails; None to find no rows.
    """

    parts: PartFutures
    compute: Compute
    rewrite: Rewrite | None = None
    merge: Merge | None = None
    evaluate: Evaluate | None = None
    certification: Certification = field(default_factory=NoCertification)
    find_input: FindInput | None = None


class NodeWork:
    """Finds and starts the work of one node under one of its epochs."""

    def __init__(self, scope: Scope, program: Program, engine: Engine, state: LoopState) -> None:
        self.node = scope.node
        self._scope = scope
        self._program = program
        self._state = state
        self._threads, self._totals = state.threads, state.totals
        self._keys, self._arc_keys = StepKeys(scope.cluster), ArcKeys(scope.cluster)
        self._runner_keys = RunnerKeys(scope.cluster)
        self._failures = Failures(scope, state)
        heap = open_heap(scope)
        self._scheduler = Scheduler(scope, heap)
        self._due = DueQuery(scope, heap)
        self.intervals = IntervalCloser(scope)
        self._arcs = ArcWork(scope, engine.parts, projections=state.projections)
        self._groups = Stepper(scope, program.pipeline, engine.compute, find_input=engine.find_input)
        self._keeper = Keeper(
            scope.store, scope.node.id, clock=scope.clock, chance=scope.chance, timing=scope.timing
        )
        runtime = SourceRuntime(
            scope=scope,
            parts=engine.parts,
            keeper=self._keeper,
            watching=lambda: state.watching,
            stops=state.stops,
            evaluate=engine.evaluate,
            arrived=self._arrived,
        )
        self._poll_at: dict[str, float] = {}
        self._changed: set[str] = set()  # sources with new data since the start of their last poll
        self._sources: Mapping[str, Arrival] = {
            name: source.open(runtime) for name, source in program.sources.items()
        }
        if self._sources:
            self._keeper.start()
        self.upkeep = Upkeep(
            scope, program, engine.parts, engine.rewrite, engine.merge, state, self._failures
        )
        self._close_at = self._resume_at = 0.0
        self._deaths: dict[str, int] = {}  # by source: deaths in a row that no success has reset
        self._retry_at: dict[str, float] = {}  # by arc: when to retry a lot that another node works on

    def start_due(self) -> bool:
        """Start everything that is due, in threads. Return False if nothing was due or the lease is lost.

        Waking subscribers and closing intervals take little time, so this method does both itself.
        """
        try:
            did = self._scheduler.tick() == 0.0
            did |= self._close_intervals()
            jobs = chain(
                self._source_polls(),
                self._due_runs(),
                self._requested_lots(),
                self._ended_graces(),
                self._abandoned_lots(),
            )
            for job in jobs:
                did |= self._threads.start(job.name, job.run, spare=job.spare)
            self.upkeep.start_due()
            return did
        except LeaseLost:
            return False  # the next pass finds out whether the node has joined again or the runner ends

    def close(self) -> None:
        """Close the sources, so that other nodes can take them over."""
        try:
            for name, source in self._sources.items():
                with contextlib.suppress(LeaseLost, StoreError):  # in that case the source's leases expire
                    source.close()
                    self._scope.store.run(
                        lambda tx, name=name: job_deaths.end(tx, self._runner_keys, self.node, name)  # type: ignore[misc]
                    )
        finally:
            if self._sources:
                self._keeper.stop()

    # --- intervals

    def _close_intervals(self) -> bool:
        if self._scope.clock.monotonic() < self._close_at:
            return False
        try:
            closed = self.intervals.close_due()
        except ObjectError as error:  # reported and retried; other work continues
            self._close_at = self._scope.clock.monotonic() + self._failures.add(CLOSING, error)
            return False
        self._totals.failures.pop(CLOSING, None)
        self._totals.closed += closed
        return closed > 0

    # --- sources

    def _source_polls(self) -> Iterator[RunJob]:
        """Yield a polling job for each source whose pause is over."""
        now = self._scope.clock.monotonic()
        for name in filter(self._state.selects, self._program.sources):
            if now >= self._poll_at.get(name, 0.0):
                self._poll_at[name] = now + POLL_EVERY_S
                yield RunJob(name, partial(self._poll, name))

    def _arrived(self, name: str) -> None:
        """Make the next poll of a source due now. Any thread may call this."""
        self._changed.add(name)
        self._poll_at[name] = 0.0
        self._threads.wakeup.set()

    def _poll(self, name: str) -> None:
        """Poll a source: take new data and publish it. Also publish data that a dead node has taken."""
        self._changed.discard(name)
        try:
            fetches = self._program.sources[name].source.fetches
            if fetches:
                self._refuse_deadly(name)
            polled = self._sources[name].poll()
            if fetches and polled.fetched and self._deaths.pop(name, 0):
                self._scope.store.run(lambda tx: job_deaths.succeed(tx, self._runner_keys, self.node, name))
            self._totals.failures[name] = list(polled.failed) * PATIENCE
            self._totals.files += polled.files
            self._totals.settled[name] = polled.settled
            wait_s = 0.0 if name in self._changed else polled.wait_s
            self._poll_at[name] = self._scope.clock.monotonic() + wait_s
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._failures.add(name, error)
            failures = len(self._totals.failures[name])
            pause_s = backoff(failures, self._scope.chance, first_s=0.5, most_s=60.0)
            self._poll_at[name] = self._scope.clock.monotonic() + pause_s

    def _refuse_deadly(self, name: str) -> None:
        """Mark the source as polled by this node. Raise an error if nodes keep dying when they poll it."""
        deaths = self._scope.store.run(
            lambda tx: job_deaths.begin(tx, self._runner_keys, self._keys.cluster, self.node, name)
        )
        self._deaths[name] = deaths
        if deaths >= job_deaths.MOST_DEATHS:
            raise SourceUnavailable(
                f"the runner died {deaths} times in a row while it polled this source, so this source is no"
                " longer polled",
                hint="fix the cause, then run `tidemill retry`",
            )

    # --- runs of arcs and groups of views

    def _due_runs(self) -> Iterator[RunJob]:
        """Yield the runs that are due."""
        query = self._due.due(matches=lambda name: self._program.knows(name) and self._state.may_start(name))
        for due in query.due:
            yield RunJob(due.name, partial(self._run, due))

    def _run(self, due: Due) -> None:
        """Run an arc on its new lots, or step a group of views."""
        ticket = None
        try:
            arc = self._program.arc(due.name)  # an arc of a template is created before its first run
            if arc is None and due.name not in self._program.groups:
                return  # its dataset no longer exists
            ticket = self._start(due)
            if ticket is None:
                return  # another node was faster
            if arc is not None:
                self._totals.add(self._arcs.run(arc.spec, ticket, self._state.stops))
            else:
                stepped = self._groups.run(ticket, self._state.stops)
                self._totals.steps[due.name] = self._totals.steps.get(due.name, 0) + stepped.jobs
            self._totals.failures.pop(due.name, None)
            self._scope.emit(RunEnded(name=due.name, epoch=due.epoch))
        except (LeaseLost, NotCertified):
            self._failures.release(ticket)
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._failures.add(due.name, error, ticket)

    def _start(self, due: Due) -> Ticket | None:
        keys = self._keys
        ticket = self._scope.store.run(
            lambda tx: runs.start(tx, keys.triggers, keys.lots, keys.cluster, self.node, due.name, due.epoch)
        )
        if ticket is not None:
            behind = [ticket.heads[source] - ticket.progress[source] for source in ticket.progress]
            event = RunStarted(
                name=due.name, epoch=due.epoch, behind=sum(behind), most=max(behind, default=0)
            )
            self._scope.emit(event)
        return ticket

    # --- lots outside of the runs of their arcs

    def _requested_lots(self) -> Iterator[RunJob]:
        """Yield a job for each requested lot. These jobs leave some threads free for new data."""
        now, arcs = self._scope.clock.monotonic(), self._program.all_arcs()
        for request in self._workable():
            if now >= self._retry_at.get(request.arc, 0.0):
                make = partial(self._arcs.make_requested, arcs[request.arc].spec, request)
                job = partial(self._make_lot, request.arc, request.lot, make)
                yield RunJob(f"{request.arc} {request.lot}", job, spare=SPARE)

    def _workable(self) -> list[LotRequest]:
        """Return the requested lots that can start now, except for arcs that have failed too often."""
        specs = [arc.spec for name, arc in self._program.all_arcs().items() if self._state.may_start(name)]
        return self._scope.store.run(lambda tx: lot_requests.startable(tx, self._arc_keys, specs))

    def _ended_graces(self) -> Iterator[RunJob]:
        """Yield a job for each lot that has waited for its last source until its grace period ended.

        Nothing is published when a grace period ends, so no subscription becomes due. Instead, each pass
        reads a short range for each arc with a grace period: the lots that have waited longest.
        """
        specs = barriers.with_grace(arc.spec for arc in self._program.all_arcs().values())
        if not specs:
            return
        now = self._scope.clock.monotonic()
        for spec, lot in self._scope.store.run(lambda tx: barriers.all_expired(tx, self._arc_keys, specs)):
            if now >= self._retry_at.get(spec.id, 0.0) and self._state.may_start(spec.id):
                make = partial(self._arcs.end_grace, spec, lot)
                yield RunJob(f"{spec.id} {lot}", partial(self._make_lot, spec.id, lot, make))

    def _make_lot(self, arc: str, lot: str, make: Callable[[], LotOutcome]) -> None:
        """Make a lot that was requested, or whose grace period is over."""
        try:
            outcome = make()
            if outcome.ended in (LotEnd.ELSEWHERE, LotEnd.FULL):  # other nodes work on it: try again later
                self._retry_at[arc] = self._scope.clock.monotonic() + FULL_BACKOFF_S
            elif outcome.ended not in IDLE:
                self._totals.add([outcome])
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - reported; `_abandoned_lots` finds the lot again
            self._totals.unfinished.add((arc, lot))
            self._failures.add(arc, error)

    def _abandoned_lots(self) -> Iterator[RunJob]:
        """Yield a job for each running lot that no node works on, such as a retry whose node has died."""
        now = self._scope.clock.monotonic()
        if now < self._resume_at:
            return
        self._resume_at = now + RESUME_EVERY_S
        busy = self._threads.busy
        for left in self._arcs.left():
            if left.arc not in busy and self._program.knows(left.arc) and self._state.selects(left.arc):
                yield RunJob(f"{left.arc} {left.lot}", partial(self._resume_lot, left.arc, left.lot))

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
