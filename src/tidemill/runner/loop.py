"""The loop of a runner: pull what is due, start it, and see it to its end (HEAP-20).

Each turn wakes the subscribers of what was published, closes intervals that are over, polls sources, starts
runs that are due and works off what was asked for: retries, replays, backfills. Everything that takes time is
given to a line. Nothing here needs a leader: every step is a transaction that is refused to all but one.
"""

import contextlib
import random
import threading
from collections.abc import Callable
from functools import partial

from tidemill.arcs import asks
from tidemill.arcs.asks import Ask
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.work import FULL_BACKOFF_S, Ended, Outcome
from tidemill.clock import Clock, backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, ObjectError, StoreError, TidemillError
from tidemill.events import Emit, ignore
from tidemill.objects import Objects
from tidemill.publish import ids
from tidemill.publish.closing import Closer
from tidemill.publish.manifests import Manifests
from tidemill.publish.projections import Projections
from tidemill.runner import upkeep
from tidemill.runner.arrivals import POLL_EVERY_S
from tidemill.runner.compacting import Rewrite
from tidemill.runner.graces import Graces
from tidemill.runner.life import Life
from tidemill.runner.lines import Lines
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program
from tidemill.runner.projecting import Projecting
from tidemill.runner.tally import Tally
from tidemill.runner.upkeep import Upkeep
from tidemill.sources.keys import SourceKeys
from tidemill.spark.evaluating import Evaluate
from tidemill.store import Store, Tx
from tidemill.triggers import runs, schedules, subscriptions, templates
from tidemill.triggers.events import RunFailed, RunLapsed, RunStarted
from tidemill.triggers.heap import Heap
from tidemill.triggers.heaps import usual_heap
from tidemill.triggers.pull import Pull
from tidemill.triggers.runs import Due, Ticket
from tidemill.triggers.subscriptions import AnyRow, Scheduled, Waiting
from tidemill.triggers.tender import Tender
from tidemill.views.steps.keys import StepKeys
from tidemill.views.steps.stepper import Compute

PAUSE_S = 0.5
"""How long a turn that found nothing waits for a hint."""

LEFT_EVERY_S = 2.0
SPARE = 2
"""Lines that are left to what arrives, however much was asked for."""

IDLE = frozenset({Ended.DONE, Ended.ELSEWHERE, Ended.FULL, Ended.WAITING})
"""Ends of work on a lot in which nothing was made."""

PATIENCE = 3
"""How often a run may fail in one catching up before it is left for later. Who watches never gives up."""

MOST_SAID = 20
"""Failures in a row that are remembered of one thing: somebody may watch for months."""

FAR_US = 60_000_000
"""Who catches up waits for what is to run within this time. What its pace, or a barrier, puts off for longer
is left to a later run, and told.
"""

LET_GO_US = 200_000
CLOSING = "intervals"
AWAY_S = 5.0


def _fine() -> None:
    """For a loop whose hands are elsewhere."""


class Loop:
    """One runner's loop over one program.

    Args:
        store: opened.
        keys: the layout of everything.
        objects: where data and manifests are.
        presence: our node.
        program: what to run.
        parts: has the parts of arcs and sources made.
        compute: computes the steps of views.
        check: raises when what we work with, our hands or our entry in the node list, has ended for good.
        lines: how many runs at once.
        heap: the cluster's; left out, in the bucket that the objects lie in, or else in the store.
        rewrite: writes the small files of a lot anew; left out, lots are not compacted here.
        evaluate: tells which rows expressions are true for, for checks of what is received or fetched.
    """

    def __init__(
        self,
        store: Store,
        keys: StepKeys,
        objects: Objects,
        presence: Presence,
        program: Program,
        parts: PartFutures,
        compute: Compute,
        *,
        check: Callable[[], None] = _fine,
        clock: Clock,
        chance: random.Random,
        emit: Emit = ignore,
        lines: int = 8,
        grace_s: float = 600.0,
        projections: bool = True,
        heap: Heap | None = None,
        rewrite: Rewrite | None = None,
        evaluate: Evaluate | None = None,
    ) -> None:
        self.store = store
        self.keys = keys
        self.arc_keys = ArcKeys(keys.lots.cluster)
        self.source_keys = SourceKeys(keys.lots.cluster)
        self.objects = objects
        self.presence = presence
        self.program = program
        self.parts = parts
        self.clock = clock
        self.chance = chance
        self.emit = emit
        self.tally = Tally()
        self.lines = Lines(lines)
        self._check = check
        self.compute = compute
        self.grace_s = grace_s
        self.projections = Projections(store, keys, objects) if projections else None
        self.projecting = Projecting(self.projections) if self.projections is not None else None
        self._closer = Closer(
            store, keys, Manifests(objects, clock), lambda: ids.new_attempt(clock, chance), emit=emit
        )
        if heap is None:
            heap = usual_heap(store, keys.triggers, objects, emit=emit)
        self._tender = Tender(store, keys.lots.cluster, heap, clock=clock, emit=emit)
        self._pull = Pull(store, keys.triggers, heap)
        self._life: Life | None = None
        self._ending = False
        self.dead = False  # taken for killed: writes nothing any more
        self.watching = False
        self._left_at = self._close_at = 0.0
        self._unfinished: set[tuple[str, str]] = set()  # lots that were asked for, whose work broke off
        self._away = 0  # turns in a row in which the store did not answer
        self.rewrite = rewrite
        self.evaluate = evaluate
        self._graces = Graces(
            store, self.arc_keys, lambda: [one.spec for one in self.program.all_arcs().values()]
        )
        self._poll_at: dict[str, float] = {}
        self._ask_at: dict[str, float] = {}
        self._stop = threading.Event()
        self.upkeep = Upkeep(
            store,
            keys.lots,
            lambda: list(self.program.all_datasets()),
            parts,
            self.lines,
            spare=SPARE,
            stops=self._stops,
            tell=self._tell,
            clock=clock,
        )

    # --- running

    def catch_up(self, stop: threading.Event | None = None) -> Tally:
        """Run until everything that has arrived is processed, or will not be without help."""
        return self._run(stop or self._stop, watch=False)

    def watch(self, stop: threading.Event | None = None) -> Tally:
        """Run until told to stop."""
        return self._run(stop or self._stop, watch=True)

    def _run(self, stop: threading.Event, *, watch: bool) -> Tally:
        self.watching = watch
        self._stop = stop  # lines ask it too
        bells = [self.keys.triggers.bell, self.arc_keys.bell]
        with self.store.watch(bells) as bell:
            hush = bell.notify(self.lines.ended.set)
            try:
                while not stop.is_set():
                    self.lines.ended.clear()
                    did = self._turned()
                    self.lines.check()
                    if self.projecting is not None:
                        self.projecting.check()
                    self._check()
                    if did:
                        continue
                    # A line that ended since the turn began may have published what nobody was woken for.
                    if not watch and self.settled() and not self.lines.ended.is_set():
                        break
                    self.clock.wait(self.lines.ended, PAUSE_S)
            finally:
                hush()
        return self.tally

    def _turned(self) -> bool:
        """A turn; who watches outlasts a store that is away."""
        try:
            did = self.turn()
            self._away = 0
            return did
        except StoreError as error:
            if not self.watching:
                raise
            self._away += 1
            pause_s = backoff(self._away, self.chance, first_s=0.05, most_s=AWAY_S)
            self._tell("turn", error, pause_s, self._away)
            self.clock.wait(self._stop, pause_s)
            return False

    def end(self, timeout_s: float = 30.0, *, drop: bool = False) -> bool:
        """Begin nothing any more; wait for the runs that are under way.

        What could go on for long, compaction lot by lot, ends with what it is at.

        - drop: leave out what is only shown.
        """
        self._ending = True
        ended = self.lines.end(timeout_s)
        self.leave()
        if self.projecting is not None:
            self.projecting.end(drop=drop)
            self.projecting.check()
        return ended

    def _stops(self) -> bool:
        return self._ending or self._stop.is_set()

    def leave(self) -> None:
        """Receive and fetch nothing any more."""
        if self._life is not None:
            self._life.close()

    def clean(self) -> None:
        """Remove what ended attempts left, and the futures of their parts."""
        life = self._now()
        while life.cleaner.clean():
            pass
        self.parts.forget_ended()

    # --- one turn

    def turn(self) -> bool:
        """Do what can be done at once, and give the rest to lines; False if there was nothing."""
        if not self.presence.alive():
            return False
        life = self._now()
        try:
            did = self._tend()
            did |= self._close(life)
            did |= self._poll(life)
            did |= self._start(life)
            did |= self._work_off(life)
            did |= self._end_graces(life)
            did |= self._go_on(life)
            self.upkeep.turn(life)
        except LeaseLost:
            return False  # joined again, or over: the next turn knows
        return did

    def _now(self) -> Life:
        """Everything that acts as our node, under its epoch of this moment."""
        node = self.presence.node
        if self._life is None or self._life.node.epoch != node.epoch:
            self._lapse(node)
            if self._life is not None:
                self._life.close()
            self._life = Life(self, node)
        return self._life

    def _lapse(self, node: Node) -> None:
        """End what earlier lives of this node left running."""
        after = b""
        while True:
            step = partial(runs.lapse, keys=self.keys.triggers, cluster=self.keys.cluster, node=node)
            ended, after = self.store.run(partial(step, after=after))
            for name in ended:
                self.emit(RunLapsed(name=name, epoch=0))
            if not after:
                return

    def _tend(self) -> bool:
        """Wake subscribers, see after runs whose node is gone, and push what is due; every runner does."""
        return self._tender.tick() == 0.0

    def _close(self, life: Life) -> bool:
        if self.clock.monotonic() < self._close_at:
            return False
        try:
            closed = self._closer.close_due(life.door)
        except ObjectError as error:  # told, and tried again; other work goes on
            pause_s = self._failed(CLOSING, error, None)
            self._close_at = self.clock.monotonic() + pause_s
            return False
        self.tally.failures.pop(CLOSING, None)
        self.tally.closed += closed
        return closed > 0

    def _start(self, life: Life) -> bool:
        did = False
        for one in self._pull.due(wanted=lambda name: self.program.knows(name) and self._patient(name)).due:
            did |= self.lines.begin(one.name, partial(self._run_one, life, one))
        return did

    def _patient(self, name: str) -> bool:
        return self.watching or len(self.tally.failures.get(name, ())) < PATIENCE

    def _poll(self, life: Life) -> bool:
        now, did = self.clock.monotonic(), False
        for name in self.program.sources:
            if now >= self._poll_at.get(name, 0.0):
                self._poll_at[name] = now + POLL_EVERY_S
                did |= self.lines.begin(name, partial(self._poll_one, life, name))
        return did

    def _work_off(self, life: Life) -> bool:
        """Begin what was asked for, as far as there is room; some lines are left to what arrives."""
        now, did, arcs = self.clock.monotonic(), False, self.program.all_arcs()
        for ask in self._workable():
            if now >= self._ask_at.get(ask.arc, 0.0):
                make = partial(life.arcs.work_off, arcs[ask.arc].spec, ask)
                work = partial(self._ordered_one, ask.arc, ask.lot, make)
                did |= self.lines.begin(f"{ask.arc} {ask.lot}", work, spare=SPARE)
        return did

    def _workable(self) -> list[Ask]:
        """What was asked for and can be begun, of arcs that we have not given up on."""
        specs = [one.spec for name, one in self.program.all_arcs().items() if self._patient(name)]
        return self.store.run(lambda tx: asks.workable(tx, self.arc_keys, specs))

    def _end_graces(self, life: Life) -> bool:
        """Lots that have waited long enough for their last source."""
        now, did = self.clock.monotonic(), False
        for spec, lot in self._graces.over():
            if now >= self._ask_at.get(spec.id, 0.0) and self._patient(spec.id):
                work = partial(life.arcs.end_grace, spec, lot)
                did |= self.lines.begin(f"{spec.id} {lot}", partial(self._ordered_one, spec.id, lot, work))
        return did

    def _go_on(self, life: Life) -> bool:
        """Lots that run by nobody, and that no run is at: a retry's, whose node is gone."""
        now, did = self.clock.monotonic(), False
        if now < self._left_at:
            return False
        self._left_at = now + LEFT_EVERY_S
        busy = self.lines.busy
        for one in life.arcs.left():
            if one.arc not in busy and self.program.knows(one.arc):
                did |= self.lines.begin(
                    f"{one.arc} {one.lot}", partial(self._work_one, life, one.arc, one.lot)
                )
        return did

    # --- in lines

    def _run_one(self, life: Life, due: Due) -> None:
        keys = self.keys
        ticket = None
        try:
            arc = self.program.arc(due.name)  # a template's child is made before its first run begins
            if arc is None and due.name not in self.program.groups:
                return  # its dataset is not there any more
            ticket = self.store.run(
                lambda tx: runs.start(
                    tx, keys.triggers, keys.lots, keys.cluster, life.node, due.name, due.epoch
                )
            )
            if ticket is None:
                return  # somebody else was faster
            behind = sum(ticket.heads[one] - ticket.progress[one] for one in ticket.progress)
            self.emit(RunStarted(name=due.name, epoch=due.epoch, behind=behind))
            if arc is not None:
                self.tally.add(life.arcs.run(arc.spec, ticket))
            else:
                stepped = life.groups.run(ticket, self._stops)
                self.tally.steps[due.name] = self.tally.steps.get(due.name, 0) + stepped.jobs
            self.tally.failures.pop(due.name, None)
        except LeaseLost:
            self._let_go(ticket)
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._failed(due.name, error, ticket)

    def _let_go(self, ticket: Ticket | None) -> None:
        """What we worked with is ours no more. If the run still is, it must not stay ours with nobody at it:
        whoever comes next goes on, at once.
        """
        if ticket is None or self.dead:
            return
        keys = self.keys
        with contextlib.suppress(LeaseLost, StoreError):  # then whoever has it now goes on
            self.store.run(
                lambda tx: runs.fail(
                    tx, keys.triggers, keys.cluster, ticket, backoff_us=LET_GO_US, counted=False
                )
            )

    def _failed(self, name: str, error: Exception, ticket: Ticket | None) -> float:
        """Tell, and put the run off; for how many seconds."""
        said = self.tally.failures.setdefault(name, [])
        said.append(_told(error))
        del said[:-MOST_SAID]
        pause_s = backoff(len(said), self.chance, first_s=0.2, most_s=60.0)
        if ticket is not None:
            keys = self.keys
            pause_us = int(pause_s * 1e6)
            with contextlib.suppress(LeaseLost, StoreError):  # then it runs out with our lease
                self.store.run(
                    lambda tx: runs.fail(
                        tx, keys.triggers, keys.cluster, ticket, backoff_us=pause_us, why=_told(error)
                    )
                )
        self._tell(name, error, pause_s, len(said))
        return pause_s

    def _tell(self, name: str, error: Exception, pause_s: float, failures: int = 1) -> None:
        self.emit(
            RunFailed(
                name=name,
                code=getattr(error, "code", type(error).__name__),
                message=_told(error),
                backoff_s=pause_s,
                failures=failures,
            )
        )

    def _poll_one(self, life: Life, name: str) -> None:
        """Take what is new at a source, and work on what was taken, by us or by somebody who is gone."""
        try:
            polled = life.arrivals[name].poll()
            self.tally.failures[name] = list(polled.failed) * PATIENCE
            self.tally.files += polled.taken
            self.tally.settled[name] = polled.settled
            self._poll_at[name] = self.clock.monotonic() + polled.wait_s
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._failed(name, error, None)
            failures = len(self.tally.failures[name])
            pause_s = backoff(failures, self.chance, first_s=0.5, most_s=60.0)
            self._poll_at[name] = self.clock.monotonic() + pause_s

    def _ordered_one(self, arc: str, lot: str, work: Callable[[], Outcome]) -> None:
        """A lot outside of its subscription's runs: one that was asked for, or whose grace is over."""
        try:
            outcome = work()
            if outcome.ended in (Ended.ELSEWHERE, Ended.FULL):  # others are at it: not at once again
                self._ask_at[arc] = self.clock.monotonic() + FULL_BACKOFF_S
            elif outcome.ended not in IDLE:
                self.tally.add([outcome])
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told; the lot is found again as one that nobody works on
            self._unfinished.add((arc, lot))
            self._failed(arc, error, None)

    def _work_one(self, life: Life, arc: str, lot: str) -> None:
        try:
            program = self.program.arc(arc)
            if program is None:
                return
            outcome = life.arcs.work(program.spec, lot)
            if outcome.ended not in IDLE:
                self.tally.add([outcome])
            if (arc, lot) in self._unfinished and outcome.ended is not Ended.FULL:
                self._unfinished.discard((arc, lot))
                self.tally.failures.pop(arc, None)
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._failed(arc, error, None)

    # --- is there more to come?

    def settled(self) -> bool:
        """Is everything done that has arrived, by us or by others, but for what we have given up on?"""
        if self.lines.busy - upkeep.NAMES:
            return False
        if any(not self.tally.settled.get(name) and self._patient(name) for name in self.program.sources):
            return False
        if self.tally.failures.get(CLOSING) and self._patient(CLOSING):
            return False
        if any(self._patient(arc) for arc, _ in self._unfinished):
            return False
        rows, now = self.store.run(lambda tx: (self._rows(tx), tx.now()))
        later = {}
        for name, row in rows.items():
            if isinstance(row, Waiting):
                opens_us = self.store.run(partial(self._opens_us, row=row))
                if opens_us is not None:
                    later[name] = opens_us / 1e6
            if not isinstance(row, Scheduled) or row.tally.parked or not self._patient(name):
                continue
            if row.run is not None or row.tally.failures or row.next_run <= now + FAR_US:
                return False
            later[name] = (row.next_run - now) / 1e6
        for name, left_us in self._graces.left_us().items():
            if self._patient(name):
                if left_us <= FAR_US:
                    return False
                later[name] = min(left_us / 1e6, later.get(name, left_us / 1e6))
        self.tally.later = later
        return not self.store.run(self._asked)

    def _rows(self, tx: Tx) -> dict[str, AnyRow | None]:
        """The subscriptions of all that is ours: children too that nobody has met yet."""
        names = [*self.program.arcs, *self.program.groups]
        found = {name: subscriptions.read(tx, self.keys.triggers, name) for name in names}
        for template in self.program.children.templates:
            found |= templates.children(tx, self.keys.triggers, template)
        return found

    def _opens_us(self, tx: Tx, row: Waiting) -> int | None:
        """How long it is until the gate opens behind which something waits; None when nothing does."""
        return schedules.opens_us(tx, self.keys.triggers, self.keys.lots, row.tally)

    def _asked(self, tx: Tx) -> bool:
        """Is anything left that was asked for, and that is to be worked off by somebody?"""
        return any(
            asks.asked(tx, self.arc_keys, limit=1, arc=name) and not asks.paused(tx, self.arc_keys, name)
            for name in self.program.all_arcs()
            if self._patient(name)
        )


def _told(error: Exception) -> str:
    return error.message if isinstance(error, TidemillError) else f"{type(error).__name__}: {error}"
