"""Make one lot of an arc, from the input's event to publication, or all lots of a run (LOT-20).

    plan      find the generations of the input lots and their objects, and choose the parts to make
    begin     in one transaction: mark the lot as running, open or take over an attempt, list its parts
    assemble  write the intents, run the parts, write the manifests
    publish   in one transaction: publish the lot of every sink, mark the arc's lot as complete, end the run
    or fail   in one transaction: mark the lot as partial, keep the attempt for a retry, end the run, so that
              later lots do not wait for this one

A process may die at any point. Another node then finds a running lot whose node is gone, or the same node
finds a lot that it began in an earlier epoch. The node takes over the lot and the attempt, and reuses the
parts that already have a manifest. Some errors are not caused by the lot, such as unavailable storage or a
lost lease. The lot is then still running, the error is raised, and the runner tries again.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from tidemill.arcs import barriers, base_input, lot_plan, lot_requests, lot_status, lots, parts, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.events import ArcLotMissing, ArcLotPartial, report_begun, report_published
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lot_requests import LotRequest, RequestKind
from tidemill.arcs.lot_sequence import LotSequence, LotTurn
from tidemill.arcs.lot_status import LotStatus
from tidemill.arcs.lots import BeginRefused, BegunLot, LotPlan, MakeOptions
from tidemill.arcs.states import ArcState, PartState, part_state, rollup
from tidemill.cluster import nodes
from tidemill.errors import AttemptDamaged, LotConflict, ManifestUnreadable, ObjectMissing
from tidemill.lots import events as lot_events
from tidemill.lots.keys import DatasetId
from tidemill.publish.assembly import Assembled, Assembler, tasks_of
from tidemill.publish.attempts import Published
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import Parts
from tidemill.publish.projections import ProjectionWriter
from tidemill.publish.publisher import Publisher
from tidemill.publish.transaction import Ending
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import runs
from tidemill.triggers.runs import Ticket
from tidemill.triggers.terms import AfterGrace

ROUNDS = 10
"""How often a lot is planned again because an input changed while it was planned."""

MOST_LOTS = 100
"""The maximum number of lots in one run. Each has its own state, and the last one ends the run (LOT-27)."""

FULL_BACKOFF_S = 1.0


class LotEnd(StrEnum):
    """How the work on a lot ended."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    MISSING = "missing"
    DONE = "done"  # it was already complete
    ELSEWHERE = "elsewhere"  # another node works on it
    WAITING = "waiting"  # an input does not have it yet: its event or the end of the grace period continues
    FULL = "full"  # the arc already works on as many lots as it may: try again later


class LotOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the work on a lot ended; `failed` names the parts that failed."""

    arc: str
    lot: str
    ended: LotEnd
    generation: int = 0
    attempt: str = ""
    positions: dict[DatasetId, int] = {}
    rows: dict[DatasetId, int] = {}
    parts: int = 0
    failed: tuple[str, ...] = ()
    error: str = ""


class ArcWork:
    """Makes the lots of arcs, as one node. Several threads may use it at once.

    Args:
        scope: the node.
        parts: runs parts; see `tidemill.publish.parts`.
        projections: writes states to object storage; without it they are rebuilt on demand.
    """

    def __init__(self, scope: Scope, parts: Parts, *, projections: ProjectionWriter | None = None) -> None:
        self._scope = scope
        self._keys = ArcKeys(scope.cluster)
        self._projections = projections
        self._publisher = Publisher(scope)
        self._manifests = Manifests(scope.objects, scope.clock)
        self._assembler = Assembler(scope, parts)
        self._busy: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    # --- several lots

    def run(
        self,
        spec: ArcSpec,
        ticket: Ticket,
        stop: Callable[[], bool] = lambda: False,
        *,
        most: int = MOST_LOTS,
    ) -> list[LotOutcome]:
        """Make the lots that a started subscription has not seen yet, in the order of their events (LOT-27).

        As many lots as the arc allows are made at the same time. Each lot ends after all earlier ones, so the
        sinks get the lots in the order of the input.

        The transaction that ends the last lot also ends the run. The run continues after a lot that fails. If
        the arc has reached its limit of running lots, the run ends early and starts again a little later. An
        error leaves the run open: the caller marks the run as failed, or lets it expire. If parts failed only
        because storage did not respond or a disk was full, this raises that error, and the lot has not
        failed.

        - stop: called before each lot; True ends the run before this lot.
        """
        page = self._events(spec, ticket, most)
        if not page:
            self._scope.step(
                "arcs.finish", lambda tx: self._finish(tx, Ending(ticket, dict(ticket.progress)))
            )
            return []
        sequence = LotSequence(ticket, page)

        def make(number: int) -> LotOutcome | None:
            with sequence.turn(number) as turn:
                if sequence.broken is not None:
                    return None
                if sequence.stopped_at is not None or stop():
                    sequence.stop(number)  # a later lot may have stopped the run: this one is not made yet
                    return None
                outcome = self._make(spec, sequence.lot(number), turn, MakeOptions())
                if outcome.ended is LotEnd.FULL:
                    sequence.stop(number)
                return outcome

        with ThreadPoolExecutor(min(spec.max_concurrent, len(page)), thread_name_prefix="lots") as pool:
            futures = [pool.submit(make, number) for number in range(len(page))]
        if sequence.broken is not None:
            raise sequence.broken
        outcomes = [future.result() for future in futures]
        if sequence.stopped_at is not None:
            reached = sequence.progress_before(sequence.stopped_at)
            self._scope.step("arcs.give-up", lambda tx: self._stop(tx, ticket, reached))
        return [outcome for outcome in outcomes if outcome is not None]

    def _events(
        self, spec: ArcSpec, ticket: Ticket, most: int
    ) -> list[tuple[DatasetId, lot_events.LotEvent]]:
        def page(tx: Tx) -> list[tuple[DatasetId, lot_events.LotEvent]]:
            events = []
            for source in spec.reads:
                after, head = ticket.progress[source], ticket.heads[source]
                base = base_input.first_event(tx, self._keys, spec, after)
                events += [(source, base)] if base is not None else []
                rows = lot_events.read(tx, self._keys.publish.lots, source, after, min(most, head - after))
                events += [(source, row) for row in rows]
            return events

        return self._scope.store.run(page)[:most]

    def _stop(self, tx: Tx, ticket: Ticket, progress: dict[DatasetId, int]) -> None:
        if progress == ticket.progress:
            keys = self._keys.publish
            pause_us = int(FULL_BACKOFF_S * 1e6)
            runs.fail(tx, keys.triggers, keys.cluster, ticket, backoff_us=pause_us, counted=False)
        else:
            self._finish(tx, Ending(ticket, progress))

    def make_requested(self, spec: ArcSpec, request: LotRequest) -> LotOutcome:
        """Make a requested lot, unless it is already made."""
        options = MakeOptions(
            replay=request.options.kind is RequestKind.REPLAY,
            generation=request.generation,
            batch=request.options.batch,
            parallel=request.options.parallel,
        )
        outcome = self._make(spec, request.lot, LotTurn(), options)
        if outcome.ended in (LotEnd.DONE, LotEnd.WAITING):
            self._scope.step("arcs.withdraw", lambda tx: lot_requests.withdraw(tx, self._keys, request))
        return outcome

    def end_grace(self, spec: ArcSpec, lot: str) -> LotOutcome:
        """End the grace period of a lot: make the lot from the inputs that have it, or give it up (LOT-28).

        Does nothing if the last input has closed the lot in the meantime, or another node was faster.
        """
        if spec.after_grace is AfterGrace.PARTIAL:
            return self._make(spec, lot, LotTurn(), MakeOptions())

        def step(tx: Tx) -> rows.MissingLot | None:
            nodes.check(tx, self._keys.publish.cluster, self._scope.node)
            return barriers.skip(tx, self._keys, spec, lot)

        row = self._scope.step("arcs.skip", step)
        if row is None:
            return LotOutcome(arc=spec.id, lot=lot, ended=LotEnd.DONE)
        self._scope.emit(ArcLotMissing(arc=spec.id, lot=lot, generation=0, error=row.error))
        self._show(spec, lot)
        return LotOutcome(arc=spec.id, lot=lot, ended=LotEnd.MISSING, error=row.error)

    def left(self) -> list[LotStatus]:
        """Return running lots that no node works on: their node is gone, or an error ended our work on them.

        The next run of a subscription finds the lots of the subscription again. This method finds the other
        lots, such as retries.
        """
        left: list[LotStatus] = []
        after: bytes | None = None
        while True:
            page, after = self._scope.store.run(
                lambda tx, after=after: lot_status.stale(tx, self._keys, after, node=self._scope.node)  # type: ignore[misc]
            )
            with self._lock:
                left += [status for status in page if (status.arc, status.lot) not in self._busy]
            if after is None:
                return left

    # --- one lot

    def work(
        self, spec: ArcSpec, lot: str, *, ending: Ending | None = None, replay: bool = False
    ) -> LotOutcome:
        """Make one lot from its current inputs.

        - ending: the run that ends with this lot, unless the outcome is `FULL`.
        - replay: make it again although it is complete, as its next generation.
        """
        return self._make(spec, lot, LotTurn(ending), MakeOptions(replay=replay))

    def _make(self, spec: ArcSpec, lot: str, turn: LotTurn, options: MakeOptions) -> LotOutcome:
        with self._alone(spec.id, lot) as alone:
            if not alone:
                return self._elsewhere(spec, lot, turn)
            began: BegunLot | BeginRefused = BeginRefused.CHANGED
            for _ in range(ROUNDS):
                inputs = self._scope.store.run(
                    lambda tx: lot_plan.inputs(tx, self._keys, spec, lot, replay=options.replay)
                )
                if inputs.is_complete or (inputs.skipped and options.generation is None):
                    return self._passed(spec, lot, LotEnd.DONE, turn)
                if inputs.rows and not inputs.enough:
                    if self._scope.step("arcs.wait", lambda tx: barriers.wait(tx, self._keys, spec, lot)):
                        return self._passed(spec, lot, LotEnd.WAITING, turn)
                    continue  # the last input has published it by now
                if not inputs.rows:
                    error = f"{', '.join(map(str, inputs.missing))} has no lot {lot}"
                    plan = LotPlan(spec=spec, lot=lot, inputs=(), options=options)
                    return self._missed(plan, error, turn)
                try:
                    plan = lot_plan.plan(self._manifests, spec, lot, inputs, options=options)
                except (ManifestUnreadable, ObjectMissing) as unreadable:
                    plan = LotPlan(spec=spec, lot=lot, inputs=inputs.lots, options=options)
                    return self._missed(plan, str(unreadable), turn)
                began = self._begin(plan)
                if began is not BeginRefused.CHANGED:
                    break
            if isinstance(began, BeginRefused):
                return self._refused(spec, lot, began, turn)
            return self._assemble(plan, began, turn)

    @contextmanager
    def _alone(self, arc: str, lot: str) -> Iterator[bool]:
        """Ensure that two threads of a node never work on one lot; yield False if another thread does."""
        key = (arc, lot)
        with self._lock:
            free = key not in self._busy
            self._busy.add(key)
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._busy.discard(key)

    def _begin(self, plan: LotPlan) -> BegunLot | BeginRefused:
        attempt = self._scope.new_attempt()
        began = self._scope.step(
            "arcs.begin", lambda tx: lots.begin(tx, self._keys, self._scope.node, plan, attempt, idle=True)
        )
        if isinstance(began, BegunLot):
            report_begun(self._scope.emit, began, len(plan.parts))
            self._show(plan.spec, plan.lot)
        return began

    def _assemble(self, plan: LotPlan, began: BegunLot, turn: LotTurn) -> LotOutcome:
        generation = began.hold.draft.generation
        tasks = parts.tasks(plan.spec, plan.lot, generation, plan.inputs, plan.parts)
        try:
            assembled = self._assembler.assemble(
                began.hold, tasks_of(began.hold, tasks), adopted=began.opened.adopted
            )
        except (AttemptDamaged, ManifestUnreadable) as error:
            if not began.opened.adopted:
                raise
            began = self._renew(began, plan.part_names, str(error))
            assembled = self._assembler.assemble(began.hold, tasks_of(began.hold, tasks))
        if self._rollup(plan, assembled) is not ArcState.COMPLETE:
            first = assembled.failed[0]
            if first.outage is not None and all(end.outage is not None for end in assembled.failed):
                raise first.outage  # the next run resumes the attempt, and runs its failed parts again
            why = f"part {first.task.part}: {first.kind}: {first.message}"
            return self._fail(plan.spec, began, tuple(end.task.part for end in assembled.failed), why, turn)
        try:
            published = self._publisher.publish(
                began.hold,
                assembled.rows,
                move=lambda tx, _: lots.complete(tx, self._keys, began.hold, barrier=plan.spec.has_barrier),
                ending=turn.wait(),
            )
        except LotConflict as conflict:  # another arc writes the same lots
            return self._fail(plan.spec, began, (), str(conflict), turn)
        return self._completed(plan, began, assembled, published)

    def _rollup(self, plan: LotPlan, assembled: Assembled) -> ArcState:
        """Derive the state of the lot from its parts (LOT-13)."""
        states = [part_state(state) for part in assembled.parts for state in part.states]
        failed = len(assembled.failed) * len(plan.spec.sinks)
        return rollup(states + [PartState.PARTIAL] * failed)

    def _renew(self, began: BegunLot, names: Sequence[str], why: str) -> BegunLot:
        attempt = self._scope.new_attempt()
        renewed = self._scope.step(
            "arcs.renew", lambda tx: lots.renew(tx, self._keys, began, names, attempt, why)
        )
        report_begun(self._scope.emit, renewed, len(names))
        return renewed

    def _completed(
        self, plan: LotPlan, began: BegunLot, assembled: Assembled, published: Published
    ) -> LotOutcome:
        """Report a published lot."""
        spec, draft = plan.spec, began.hold.draft
        positions = {
            target.dataset: position
            for target, position in zip(draft.targets, published.positions, strict=True)
            if position
        }
        rows = {row.dataset: row.rows for row in assembled.rows}
        report_published(self._scope.emit, draft, positions, rows)
        self._show(spec, draft.lot, *positions)
        return LotOutcome(
            arc=spec.id,
            lot=draft.lot,
            ended=LotEnd.COMPLETE,
            generation=draft.generation,
            attempt=draft.id,
            positions=positions,
            rows=rows,
            parts=len(plan.parts),
        )

    def _fail(
        self, spec: ArcSpec, began: BegunLot, failed: tuple[str, ...], error: str, turn: LotTurn
    ) -> LotOutcome:
        draft = began.hold.draft
        ending = turn.wait()

        def fail_and_finish(tx: Tx) -> None:
            lots.fail(tx, self._keys, began.hold, failed, error)
            self._finish(tx, ending)

        self._scope.step("arcs.fail", fail_and_finish)
        self._scope.emit(
            ArcLotPartial(
                arc=spec.id, lot=draft.lot, generation=draft.generation, failed=list(failed), error=error
            )
        )
        self._show(spec, draft.lot)
        return LotOutcome(
            arc=spec.id,
            lot=draft.lot,
            ended=LotEnd.PARTIAL,
            generation=draft.generation,
            attempt=draft.id,
            failed=failed,
            error=error,
        )

    def _missed(self, plan: LotPlan, error: str, turn: LotTurn) -> LotOutcome:
        spec, lot, ending = plan.spec, plan.lot, turn.wait()

        def miss_and_finish(tx: Tx) -> rows.AnyLot | BeginRefused:
            row = lots.miss(tx, self._keys, self._scope.node, plan, error)
            self._finish(tx, ending)
            return row

        row = self._scope.step("arcs.miss", miss_and_finish)
        if isinstance(row, BeginRefused):
            ended = LotEnd.DONE if row is BeginRefused.COMPLETE else LotEnd.ELSEWHERE
            return LotOutcome(arc=spec.id, lot=lot, ended=ended)
        self._show(spec, lot)
        newest = self._scope.store.run(lambda tx: rows.newest(tx, self._keys, spec.id, lot))
        generation = 0 if newest is None else newest[0]
        if row.state is ArcState.PARTIAL:
            self._scope.emit(
                ArcLotPartial(arc=spec.id, lot=lot, generation=generation, failed=[], error=error)
            )
        else:
            self._scope.emit(ArcLotMissing(arc=spec.id, lot=lot, generation=generation, error=error))
        ended = LotEnd(row.state.value)
        return LotOutcome(arc=spec.id, lot=lot, ended=ended, generation=generation, error=error)

    def _refused(self, spec: ArcSpec, lot: str, why: BeginRefused, turn: LotTurn) -> LotOutcome:
        if why in (BeginRefused.FULL, BeginRefused.CHANGED):
            return LotOutcome(arc=spec.id, lot=lot, ended=LotEnd.FULL)
        if why is BeginRefused.RUNNING:
            return self._elsewhere(spec, lot, turn)
        return self._passed(spec, lot, LotEnd.DONE, turn)

    def _elsewhere(self, spec: ArcSpec, lot: str, turn: LotTurn) -> LotOutcome:
        """Skip a lot that another node works on.

        But if that node makes the lot from older inputs, try again later. Otherwise no node would make the
        lot from the current inputs.
        """
        if self._scope.store.run(lambda tx: lots.is_outdated(tx, self._keys, spec, lot)):
            return LotOutcome(arc=spec.id, lot=lot, ended=LotEnd.FULL)
        return self._passed(spec, lot, LotEnd.ELSEWHERE, turn)

    def _passed(self, spec: ArcSpec, lot: str, ended: LotEnd, turn: LotTurn) -> LotOutcome:
        """Skip a lot that this node does not make: it is done, it waits, or another node holds its lease."""
        ending = turn.wait()
        if ending is not None:
            self._scope.step("arcs.pass", lambda tx: self._finish(tx, ending))
        return LotOutcome(arc=spec.id, lot=lot, ended=ended)

    # --- steps

    def _finish(self, tx: Tx, ending: Ending | None) -> None:
        if ending is not None:
            keys = self._keys.publish
            runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ending.ticket, ending.target)

    def _show(self, spec: ArcSpec, lot: str, *sinks: DatasetId) -> None:
        if self._projections is None:
            return
        for dataset in sinks:
            self._projections.lot(dataset, lot)
        self._projections.arc(
            spec.pipeline,
            spec.version,
            spec.name,
            lot,
            lambda tx: lot_status.status(tx, self._keys, spec.id, lot).state.value,
        )
