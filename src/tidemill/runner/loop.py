"""The loop of a runner: pull what is due, start it, and see it to its end (HEAP-20).

Each turn wakes the subscribers of what was published, closes intervals that are over, polls sources, starts
runs that are due and works off what was asked for: retries, replays, backfills. Everything that takes time is
given to a line. Nothing here needs a leader: every step is a transaction that is refused to all but one.
"""

import random
import threading
from collections.abc import Callable
from functools import partial

from tidemill.arcs.keys import ArcKeys
from tidemill.clock import Clock, backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, ObjectError, StoreError
from tidemill.events import Emit, ignore
from tidemill.objects import Objects
from tidemill.publish.projections import Projections
from tidemill.runner.compacting import Rewrite
from tidemill.runner.graces import Graces
from tidemill.runner.jobs import SPARE, Jobs
from tidemill.runner.life import Life
from tidemill.runner.lines import Lines
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program
from tidemill.runner.projecting import Projecting
from tidemill.runner.settling import CLOSING, Settling
from tidemill.runner.tally import Tally
from tidemill.runner.trouble import Trouble
from tidemill.runner.upkeep import Upkeep
from tidemill.scope import Scope
from tidemill.spark.table_checks import Evaluate
from tidemill.store import Store
from tidemill.triggers import runs
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.events import RunLapsed
from tidemill.triggers.heap import Heap
from tidemill.triggers.scheduler import Scheduler, open_heap
from tidemill.views.steps.keys import StepKeys
from tidemill.views.steps.stepper import Compute

PAUSE_S = 0.5
"""How long a turn that found nothing waits for a hint."""

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
        self.objects = objects
        self.presence = presence
        self.program = program
        self.parts = parts
        self.clock = clock
        self.chance = chance
        self.emit = emit
        self.tally = Tally()
        self.trouble = Trouble(
            store,
            keys,
            self.tally,
            watching=lambda: self.watching,
            dead=lambda: self.dead,
            chance=chance,
            emit=emit,
        )
        self.lines = Lines(lines)
        self._check = check
        self.compute = compute
        self.grace_s = grace_s
        scope = Scope(
            store=store,
            cluster=keys.lots.cluster,
            objects=objects,
            node=presence.node,
            clock=clock,
            chance=chance,
            emit=emit,
        )
        self.projections = Projections(scope) if projections else None
        self.projecting = Projecting(self.projections) if self.projections is not None else None
        if heap is None:
            heap = open_heap(scope)
        self._scheduler = Scheduler(scope, heap)
        self.jobs = Jobs(self, DueQuery(scope, heap))
        self._settling = Settling(self)
        self._life: Life | None = None
        self._ending = False
        self.dead = False  # taken for killed: writes nothing any more
        self.watching = False
        self._close_at = 0.0
        self._away = 0  # turns in a row in which the store did not answer
        self.rewrite = rewrite
        self.evaluate = evaluate
        self.graces = Graces(
            store, self.arc_keys, lambda: [one.spec for one in self.program.all_arcs().values()]
        )
        self._stop = threading.Event()
        self.upkeep = Upkeep(
            store,
            keys.lots,
            lambda: list(self.program.all_datasets()),
            parts,
            self.lines,
            spare=SPARE,
            stops=self.stops,
            tell=self.trouble.tell,
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
                    if not watch and self._settling.settled() and not self.lines.ended.is_set():
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
            self.trouble.tell("turn", error, pause_s, self._away)
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

    def stops(self) -> bool:
        """Is no more to be begun?"""
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
            did |= self.jobs.poll(life)
            did |= self.jobs.start(life)
            did |= self.jobs.work_off(life)
            did |= self.jobs.end_graces(life)
            did |= self.jobs.go_on(life)
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
        return self._scheduler.tick() == 0.0

    def _close(self, life: Life) -> bool:
        if self.clock.monotonic() < self._close_at:
            return False
        try:
            closed = life.closer.close_due()
        except ObjectError as error:  # told, and tried again; other work goes on
            pause_s = self.trouble.failed(CLOSING, error)
            self._close_at = self.clock.monotonic() + pause_s
            return False
        self.tally.failures.pop(CLOSING, None)
        self.tally.closed += closed
        return closed > 0
