"""One lot of an arc, from its input's event to its publication (LOT-20).

    plan     the input lots' generations, their objects, and the parts these make
    begin    one transaction: the lot runs, an attempt is opened or adopted, its parts are listed
    make     intents, parts through the port, manifests
    publish  one transaction: the attempt is the lot of every sink, the arc's lot complete, the run finished
    or fail  one transaction: the lot partial, the attempt parked, the run finished: progress passes the lot

A process may die anywhere. Whoever comes next finds the lot running by a node that is gone, or by itself in
an earlier life, takes it over and adopts the attempt: parts that have their manifests are not made again.
What fails for reasons that are nobody's fault (storage that does not answer, a lost lease) leaves the lot
running, and is raised: the runner tries again.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from tidemill.arcs import asks, barriers, lots, parts, planning, rows, standings, telling
from tidemill.arcs.asks import Ask, AskKind
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.events import ArcLotMissing, ArcLotPartial
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.line import Line, Turn
from tidemill.arcs.lots import Began, Refused
from tidemill.arcs.planning import Ordered, Plan
from tidemill.arcs.standings import Standing
from tidemill.arcs.states import ArcState, PartState, part_state, rollup
from tidemill.cluster import nodes
from tidemill.errors import AttemptDamaged, LotConflict, ManifestUnreadable, ObjectMissing
from tidemill.lots import events as lot_events
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.publish.assembly import Assembled, Assembler, tasks_of
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import Parts
from tidemill.publish.projections import Showing
from tidemill.publish.publisher import Publisher
from tidemill.publish.transaction import Ending
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import runs
from tidemill.triggers.runs import Ticket
from tidemill.triggers.terms import AfterGrace

ROUNDS = 10
"""Of planning anew because an input was published again meanwhile."""

MOST_LOTS = 100
"""Of one run: each has its own state, and the last one ends the run (LOT-27)."""

FULL_BACKOFF_S = 1.0


class Ended(StrEnum):
    """How the work on a lot ended."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    MISSING = "missing"
    DONE = "done"  # it was complete already
    ELSEWHERE = "elsewhere"  # somebody else works on it
    WAITING = (
        "waiting"  # for a source that has not closed it: its event, or the end of a grace, brings it back
    )
    FULL = "full"  # the arc works on as many lots as it may: try again later


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a lot; `failed` names parts."""

    arc: str
    lot: str
    ended: Ended
    generation: int = 0
    attempt: str = ""
    positions: dict[DatasetId, int] = {}
    rows: dict[DatasetId, int] = {}
    parts: int = 0
    failed: tuple[str, ...] = ()
    error: str = ""


class ArcWork:
    """Works on lots of arcs, for one life of one node. Several threads may use it at once.

    - parts: where parts run; see `tidemill.publish.parts`.
    - projections: shows states as names in object storage; left out, they are rebuilt on demand.
    """

    def __init__(self, scope: Scope, parts: Parts, *, projections: Showing | None = None) -> None:
        self._scope = scope
        self._keys = ArcKeys(scope.cluster)
        self._projections = projections
        self._publisher = Publisher(scope)
        self._manifests = Manifests(scope.objects, scope.clock)
        self._assembler = Assembler(scope, parts)
        self._busy: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    # --- several lots

    def run(self, spec: ArcSpec, ticket: Ticket, *, most: int = MOST_LOTS) -> list[Outcome]:
        """What a started subscription has not seen yet, in the order of the events (LOT-27).

        As many lots as the arc may have under way are made beside each other; each ends behind those before
        it, so that its sinks have them in the order of the input whatever each of them took.

        The last lot ends the run, in the transaction that ends the lot. A lot that fails is passed. When the
        arc may not work on more lots, the run ends where it is, and is tried again a little later. What is
        raised leaves the run as it is: the caller fails it, or lets it lapse.
        """
        page = self._events(spec, ticket, most)
        if not page:
            self._scope.step(
                "arcs.finish", lambda tx: self._finish(tx, Ending(ticket, dict(ticket.progress)))
            )
            return []
        line = Line(ticket, page)
        with ThreadPoolExecutor(min(spec.max_concurrent, len(page)), thread_name_prefix="lots") as pool:
            lots_ = [pool.submit(self._in_line, spec, line, number) for number in range(len(page))]
        if line.broken is not None:
            raise line.broken
        found = [one.result() for one in lots_]
        if line.stopped_at is not None:
            reached = line.progress_before(line.stopped_at)
            self._scope.step("arcs.give-up", lambda tx: self._stop(tx, ticket, reached))
        return [one for one in found if one is not None]

    def _in_line(self, spec: ArcSpec, line: Line, number: int) -> Outcome | None:
        """One lot of a run. It is made beside the others, and ends behind those before it."""
        with line.place(number) as turn:
            if line.stopped_at is not None or line.broken is not None:
                return None
            outcome = self._work_on(spec, line.lot(number), turn, Ordered())
            if outcome.ended is Ended.FULL:
                line.stop(number)
            return outcome

    def _events(
        self, spec: ArcSpec, ticket: Ticket, most: int
    ) -> list[tuple[DatasetId, lot_events.LotEvent]]:
        def page(tx: Tx) -> list[tuple[DatasetId, lot_events.LotEvent]]:
            found = []
            for source in spec.reads:
                after, head = ticket.progress[source], ticket.heads[source]
                rows = lot_events.read(tx, self._keys.publish.lots, source, after, min(most, head - after))
                found += [(source, row) for row in rows]
            return found

        return self._scope.store.run(page)[:most]

    def _stop(self, tx: Tx, ticket: Ticket, progress: dict[DatasetId, int]) -> None:
        if progress == ticket.progress:
            keys = self._keys.publish
            pause_us = int(FULL_BACKOFF_S * 1e6)
            runs.fail(tx, keys.triggers, keys.cluster, ticket, backoff_us=pause_us, counted=False)
        else:
            self._finish(tx, Ending(ticket, progress))

    def work_off(self, spec: ArcSpec, asked: Ask) -> Outcome:
        """Make what was asked for. A lot that was made meanwhile is not made again."""
        ordered = Ordered(
            replay=asked.order.kind is AskKind.REPLAY,
            generation=asked.generation,
            batch=asked.order.batch,
            at_once=asked.order.at_once,
        )
        outcome = self._work_on(spec, asked.lot, Turn(), ordered)
        if outcome.ended in (Ended.DONE, Ended.WAITING):
            self._scope.step("arcs.withdraw", lambda tx: asks.withdraw(tx, self._keys, asked))
        return outcome

    def end_grace(self, spec: ArcSpec, lot: str) -> Outcome:
        """Do what follows for a lot whose grace is over (LOT-28): make it of what is there, or give it up.

        Nothing, when its last source has closed it meanwhile, or somebody was faster.
        """
        if spec.after_grace is AfterGrace.PARTIAL:
            return self._work_on(spec, lot, Turn(), Ordered())

        def step(tx: Tx) -> rows.Missing | None:
            nodes.check(tx, self._keys.publish.cluster, self._scope.node)
            return barriers.skip(tx, self._keys, spec, lot)

        row = self._scope.step("arcs.skip", step)
        if row is None:
            return Outcome(arc=spec.id, lot=lot, ended=Ended.DONE)
        self._scope.emit(ArcLotMissing(arc=spec.id, lot=lot, generation=0, error=row.error))
        self._show(spec, lot)
        return Outcome(arc=spec.id, lot=lot, ended=Ended.MISSING, error=row.error)

    def left(self) -> list[Standing]:
        """Running lots on which nobody works: their node is gone, or it is this one, and the work ended in an
        error. Lots of a subscription's run are met again by its next run; this finds all others, such as
        retries. To be looked at now and then, and worked on as any lot.
        """
        found: list[Standing] = []
        after: bytes | None = None
        while True:
            page, after = self._scope.store.run(
                lambda tx, after=after: standings.stale(tx, self._keys, after, node=self._scope.node)  # type: ignore[misc]
            )
            with self._lock:
                found += [one for one in page if (one.arc, one.lot) not in self._busy]
            if after is None:
                return found

    # --- one lot

    def work(self, spec: ArcSpec, lot: str, *, ending: Ending | None = None, replay: bool = False) -> Outcome:
        """One lot, from its inputs as they are now to the end.

        - ending: the run that this lot is the last of; it is finished with the lot unless that is `FULL`.
        - replay: make it once more although it is complete, as its next generation.
        """
        return self._work_on(spec, lot, Turn(ending), Ordered(replay=replay))

    def _work_on(self, spec: ArcSpec, lot: str, turn: Turn, order: Ordered) -> Outcome:
        with self._alone(spec.id, lot) as alone:
            if not alone:
                return self._elsewhere(spec, lot, turn)
            began: Began | Refused = Refused.CHANGED
            for _ in range(ROUNDS):
                inputs = self._scope.store.run(
                    lambda tx: planning.inputs(tx, self._keys, spec, lot, replay=order.replay)
                )
                if inputs.done or (inputs.skipped and order.generation is None):
                    return self._passed(spec, lot, Ended.DONE, turn)
                if inputs.rows and not inputs.enough:
                    if self._scope.step("arcs.wait", lambda tx: barriers.wait(tx, self._keys, spec, lot)):
                        return self._passed(spec, lot, Ended.WAITING, turn)
                    continue  # the last source has closed it meanwhile
                if not inputs.rows:
                    why = f"there is no lot {lot} of {', '.join(map(str, inputs.lacking))}"
                    return self._missed(spec, lot, (), why, turn, order)
                try:
                    plan = planning.plan(self._manifests, spec, lot, inputs, order=order)
                except (ManifestUnreadable, ObjectMissing) as error:
                    return self._missed(spec, lot, inputs.lots, str(error), turn, order)
                began = self._begin(plan)
                if began is not Refused.CHANGED:
                    break
            if isinstance(began, Refused):
                return self._refused(spec, lot, began, turn)
            return self._make(plan, began, turn)

    @contextmanager
    def _alone(self, arc: str, lot: str) -> Iterator[bool]:
        """Two threads of a node never work on one lot; whoever is alone may take over what the node left."""
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

    def _begin(self, plan: Plan) -> Began | Refused:
        attempt = self._scope.new_attempt()
        wanted = plan.wanted
        began = self._scope.step(
            "arcs.begin", lambda tx: lots.begin(tx, self._keys, self._scope.node, wanted, attempt, idle=True)
        )
        if isinstance(began, Began):
            telling.begun(self._scope.emit, began, len(plan.parts))
            self._show(wanted.spec, wanted.lot)
        return began

    def _make(self, plan: Plan, began: Began, turn: Turn) -> Outcome:
        wanted = plan.wanted
        spec, lot = wanted.spec, wanted.lot
        generation = began.hold.draft.generation
        tasks = parts.tasks(spec, lot, generation, wanted.inputs, plan.parts)
        try:
            made = self._assembler.assemble(
                began.hold, tasks_of(began.hold, tasks), adopted=began.opened.adopted
            )
        except (AttemptDamaged, ManifestUnreadable) as error:
            if not began.opened.adopted:
                raise
            began = self._renew(began, wanted.parts, str(error))
            made = self._assembler.assemble(began.hold, tasks_of(began.hold, tasks))
        if self._rolled_up(plan, made) is ArcState.COMPLETE:
            try:
                return self._publish(plan, began, made, turn)
            except LotConflict as conflict:  # another arc writes the same lots
                return self._fail(spec, began, (), str(conflict), turn)
        first = made.failed[0]
        why = f"part {first.task.part}: {first.kind}: {first.message}"
        return self._fail(spec, began, tuple(end.task.part for end in made.failed), why, turn)

    def _rolled_up(self, plan: Plan, made: Assembled) -> ArcState:
        """What the parts' manifests make of the lot (LOT-13)."""
        states = [part_state(state) for part in made.parts for state in part.states]
        sinks = len(plan.wanted.spec.sinks)
        return rollup(states + [PartState.PARTIAL] * (len(made.failed) * sinks))

    def _renew(self, began: Began, names: Sequence[str], why: str) -> Began:
        attempt = self._scope.new_attempt()
        renewed = self._scope.step(
            "arcs.renew", lambda tx: lots.renew(tx, self._keys, began, names, attempt, why)
        )
        telling.begun(self._scope.emit, renewed, len(names))
        return renewed

    def _publish(self, plan: Plan, began: Began, made: Assembled, turn: Turn) -> Outcome:
        hold, spec = began.hold, plan.wanted.spec
        ending = turn.ending()
        published = self._publisher.publish(
            hold,
            made.rows,
            move=lambda tx, _: lots.complete(tx, self._keys, hold, barrier=spec.has_barrier),
            ending=ending,
        )
        draft = hold.draft
        positions = {
            target.dataset: position
            for target, position in zip(draft.targets, published.positions, strict=True)
            if position
        }
        rows = {row.dataset: row.rows for row in made.rows}
        telling.published(self._scope.emit, draft, positions, rows)
        self._show(spec, draft.lot, *positions)
        return Outcome(
            arc=spec.id,
            lot=draft.lot,
            ended=Ended.COMPLETE,
            generation=draft.generation,
            attempt=draft.id,
            positions=positions,
            rows=rows,
            parts=len(plan.parts),
        )

    def _fail(self, spec: ArcSpec, began: Began, failed: tuple[str, ...], error: str, turn: Turn) -> Outcome:
        draft = began.hold.draft
        ending = turn.ending()

        def both(tx: Tx) -> None:
            lots.fail(tx, self._keys, began.hold, failed, error)
            self._finish(tx, ending)

        self._scope.step("arcs.fail", both)
        self._scope.emit(
            ArcLotPartial(
                arc=spec.id, lot=draft.lot, generation=draft.generation, failed=list(failed), error=error
            )
        )
        self._show(spec, draft.lot)
        return Outcome(
            arc=spec.id,
            lot=draft.lot,
            ended=Ended.PARTIAL,
            generation=draft.generation,
            attempt=draft.id,
            failed=failed,
            error=error,
        )

    def _missed(
        self,
        spec: ArcSpec,
        lot: str,
        inputs: Sequence[InputLot],
        error: str,
        turn: Turn,
        order: Ordered,
    ) -> Outcome:
        ending = turn.ending()

        def both(tx: Tx) -> rows.AnyLot | Refused:
            answer = lots.miss(
                tx,
                self._keys,
                self._scope.node,
                spec,
                lot,
                inputs,
                error,
                replay=order.replay,
                asked=order.generation,
            )
            self._finish(tx, ending)
            return answer

        answer = self._scope.step("arcs.miss", both)
        if isinstance(answer, Refused):
            ended = Ended.DONE if answer is Refused.COMPLETE else Ended.ELSEWHERE
            return Outcome(arc=spec.id, lot=lot, ended=ended)
        self._show(spec, lot)
        standing = self._scope.store.run(lambda tx: rows.newest(tx, self._keys, spec.id, lot))
        generation = 0 if standing is None else standing[0]
        if answer.state is ArcState.PARTIAL:
            self._scope.emit(
                ArcLotPartial(arc=spec.id, lot=lot, generation=generation, failed=[], error=error)
            )
        else:
            self._scope.emit(ArcLotMissing(arc=spec.id, lot=lot, generation=generation, error=error))
        ended = Ended(answer.state.value)
        return Outcome(arc=spec.id, lot=lot, ended=ended, generation=generation, error=error)

    def _refused(self, spec: ArcSpec, lot: str, why: Refused, turn: Turn) -> Outcome:
        if why in (Refused.FULL, Refused.CHANGED):
            return Outcome(arc=spec.id, lot=lot, ended=Ended.FULL)
        if why is Refused.RUNNING:
            return self._elsewhere(spec, lot, turn)
        return self._passed(spec, lot, Ended.DONE, turn)

    def _elsewhere(self, spec: ArcSpec, lot: str, turn: Turn) -> Outcome:
        """Somebody else works on the lot. It is passed, unless they make it from what its inputs were before:
        then nobody would make it from what they are, so it is tried again later.
        """
        if self._scope.store.run(lambda tx: lots.overtaken(tx, self._keys, spec, lot)):
            return Outcome(arc=spec.id, lot=lot, ended=Ended.FULL)
        return self._passed(spec, lot, Ended.ELSEWHERE, turn)

    def _passed(self, spec: ArcSpec, lot: str, ended: Ended, turn: Turn) -> Outcome:
        """The lot needs nothing of us: done, or in the hands of somebody whose lease says so."""
        ending = turn.ending()
        if ending is not None:
            self._scope.step("arcs.pass", lambda tx: self._finish(tx, ending))
        return Outcome(arc=spec.id, lot=lot, ended=ended)

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
            lambda tx: standings.standing(tx, self._keys, spec.id, lot).state.value,
        )
