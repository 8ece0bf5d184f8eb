"""The loop of a runner: one turn of its node's work after the other, until it has caught up or is stopped.

A node that loses its lease joins the node list again, under a higher epoch. The loop then drops the work of
the old epoch (`NodeWork`) and creates it again under the new one.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tidemill.arcs.keys import ArcKeys
from tidemill.clock import backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, StoreError
from tidemill.publish.projections import Projections, ProjectionThread
from tidemill.runner.backlog import Backlog
from tidemill.runner.failures import Failures
from tidemill.runner.loop_state import LoopState
from tidemill.runner.node_work import Engine, NodeWork
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program
from tidemill.runner.run_threads import RunThreads
from tidemill.runner.run_totals import RunTotals
from tidemill.scope import Scope
from tidemill.triggers import runs
from tidemill.triggers.events import RunLapsed
from tidemill.triggers.keys import TriggerKeys
from tidemill.views.steps.keys import StepKeys

PAUSE_S = 0.5
"""How long a turn that found nothing to do waits for a wakeup."""

AWAY_S = 5.0
THREADS = 8


def _fine() -> None:
    """For a loop whose worker is another process."""


class Loop:
    """One runner's loop over one program.

    Args:
        scope: what the runner works with; each epoch of its node gets its own copy.
        presence: keeps our entry in the node list.
        program: what to run.
        engine: what computes.
        check: raises an error when the worker, or our entry in the node list, has ended for good.
        projections: whether to show states as names in object storage.
    """

    def __init__(
        self,
        scope: Scope,
        presence: Presence,
        program: Program,
        engine: Engine,
        *,
        check: Callable[[], None] = _fine,
        projections: bool = True,
    ) -> None:
        self._scope = scope
        self._presence = presence
        self.program = program
        self._engine = engine
        self._check = check
        shown = ProjectionThread(Projections(scope)) if projections else None
        self.state = LoopState(threads=RunThreads(THREADS), projections=shown)
        self._backlog = Backlog(scope, program, self.state)
        self._failures = Failures(scope, self.state)
        self._work: NodeWork | None = None
        self._failed_turns = 0  # in a row, because the store did not answer

    def run(self, *, watch: bool, stop: threading.Event | None = None) -> RunTotals:
        """Run until everything that has arrived is processed, or has failed too often.

        - watch: run until stopped instead.
        """
        state, threads = self.state, self.state.threads
        state.watching = watch
        state.stop = stop or state.stop
        cluster = self._scope.cluster
        wakeups = [TriggerKeys(cluster).wakeup, ArcKeys(cluster).wakeup]
        with self._scope.store.watch(wakeups) as watching:
            unsubscribe = watching.notify(threads.wakeup.set)
            try:
                while not state.stop.is_set():
                    threads.wakeup.clear()
                    did = self._turn()
                    threads.check()
                    if state.projections is not None:
                        state.projections.check()
                    self._check()
                    if did:
                        continue
                    # A run that ended since the turn began may have published what nobody was woken for.
                    if not watch and self._backlog.is_empty() and not threads.wakeup.is_set():
                        break
                    self._scope.clock.wait(threads.wakeup, PAUSE_S)
            finally:
                unsubscribe()
        return state.totals

    def _turn(self) -> bool:
        """Run one turn. A runner that watches survives a store that does not answer."""
        try:
            did = self.turn()
            self._failed_turns = 0
            return did
        except StoreError as error:
            if not self.state.watching:
                raise
            self._failed_turns += 1
            pause_s = backoff(self._failed_turns, self._scope.chance, first_s=0.05, most_s=AWAY_S)
            self._failures.report("turn", error, pause_s, self._failed_turns)
            self._scope.clock.wait(self.state.stop, pause_s)
            return False

    def turn(self) -> bool:
        """Do what can be done at once, and start the rest in threads; False if there was nothing."""
        if not self._presence.alive():
            return False
        work = self.work()
        try:
            return work.turn()
        except LeaseLost:
            return False  # we joined again, or the runner is over: the next turn knows

    def work(self) -> NodeWork:
        """Return the work of our node under its current epoch."""
        node = self._presence.node
        if self._work is None or self._work.node.epoch != node.epoch:
            self._end_earlier_runs(node)
            self.close()
            self._work = NodeWork(replace(self._scope, node=node), self.program, self._engine, self.state)
        return self._work

    def _end_earlier_runs(self, node: Node) -> None:
        """End the runs that earlier epochs of this node left."""
        keys, after = StepKeys(self._scope.cluster), b""
        while True:
            step = partial(runs.lapse, keys=keys.triggers, cluster=keys.cluster, node=node, after=after)
            ended, after = self._scope.store.run(step)
            for name in ended:
                self._scope.emit(RunLapsed(name=name, epoch=0))
            if not after:
                return

    def end(self, timeout_s: float = 30.0, *, drop: bool = False) -> bool:
        """Start nothing more, and wait for the runs that are under way; False if some still are.

        Long jobs end early: compaction ends after the lot that it works on.

        - drop: leave out projections that wait to be written.
        """
        self.state.ending = True
        ended = self.state.threads.stop(timeout_s)
        self.close()
        if self.state.projections is not None:
            self.state.projections.end(drop=drop)
            self.state.projections.check()
        return ended

    def close(self) -> None:
        """Close the sources."""
        if self._work is not None:
            self._work.close()
