"""The main loop of a runner: starts due work, waits for a wakeup, and repeats until caught up or stopped.

A node that loses its lease joins the node list again, under a higher epoch. The loop then discards the
`NodeWork` object of the old epoch and creates one for the new epoch.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tidemill.arcs.keys import ArcKeys
from tidemill.clock import backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import ObjectError, StoreError
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
"""How long the loop waits for a wakeup when nothing is due."""

AWAY_S = 5.0
THREADS = 8


def _fine() -> None:
    """Check nothing. Used by a loop whose worker is another process."""


class Loop:
    """Runs one program on one node.

    Args:
        scope: the runner's store, objects, clock and so on; each epoch of its node gets a copy.
        presence: keeps our entry in the node list.
        program: what to run.
        engine: computes parts and steps.
        check: raises an error if the worker, or our entry in the node list, has ended for good.
        projections: whether to show the states of lots as file names in object storage.
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
        self._backlog = Backlog(scope, program, self.state, engine.certification)
        self._failures = Failures(scope, self.state)
        self._work: NodeWork | None = None
        self._failed_passes = 0  # in a row, because the store or the object storage failed

    def run(self, *, watch: bool, stop: threading.Event | None = None) -> RunTotals:
        """Run until all new data is processed, or has failed too often.

        - watch: do not end when all data is processed; run until `stop` is set.
        - stop: set it to end the loop. Without `watch`, the totals then say that the run was interrupted.
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
                    did = False
                    try:
                        if self._presence.alive():
                            did = self.work().start_due()
                        self._failed_passes = 0
                    except (StoreError, ObjectError) as error:  # the heap may be in object storage
                        self._wait_for_storage(error)
                    threads.check()
                    if state.projections is not None:
                        state.projections.check()
                    self._check()
                    if did:
                        continue
                    # A run that ended after `start_due` may have published new lots. Then the wakeup is set.
                    if not watch and self._backlog.is_empty() and not threads.wakeup.is_set():
                        break
                    self._scope.clock.wait(threads.wakeup, PAUSE_S)
                else:
                    state.totals.interrupted = not watch
            finally:
                unsubscribe()
        return state.totals

    def wake(self) -> None:
        """Start another pass now. Any thread may call this."""
        self.state.threads.wakeup.set()

    def _wait_for_storage(self, error: StoreError | ObjectError) -> None:
        """Wait for the store or the object storage, for example until it has restarted.

        Raise the error instead if the runner does not watch for new data.
        """
        if not self.state.watching:
            raise error
        self._failed_passes += 1
        pause_s = backoff(self._failed_passes, self._scope.chance, first_s=0.05, most_s=AWAY_S)
        name = "store" if isinstance(error, StoreError) else "objects"
        self._failures.report(name, error, pause_s, self._failed_passes)
        self._scope.clock.wait(self.state.stop, pause_s)

    def work(self) -> NodeWork:
        """Return the `NodeWork` for the current epoch of our node."""
        node = self._presence.node
        if self._work is None or self._work.node.epoch != node.epoch:
            self._end_earlier_runs(node)
            self.close()
            self._work = NodeWork(replace(self._scope, node=node), self.program, self._engine, self.state)
        return self._work

    def _end_earlier_runs(self, node: Node) -> None:
        """End unfinished runs that this node started in earlier epochs."""
        keys, after = StepKeys(self._scope.cluster), b""
        while True:
            step = partial(
                runs.end_earlier_runs, keys=keys.triggers, cluster=keys.cluster, node=node, after=after
            )
            ended, after = self._scope.store.run(step)
            for name, row in ended.items():
                tally = row.tally
                self._scope.emit(
                    RunLapsed(name=name, epoch=tally.epoch - 1, deaths=tally.deaths, dead=tally.dead)
                )
            if not after:
                return

    def wait(self, timeout_s: float) -> bool:
        """Start nothing more, and wait for the current runs. Return False if some are still running.

        Long jobs end early: an arc, a source and compaction end after their current lot.
        """
        self.state.ending = True
        return self.state.threads.stop(timeout_s)

    def end(self, timeout_s: float = 30.0, *, drop: bool = False) -> bool:
        """Wait for the current runs, and close. Return False if some are still running.

        - drop: discard projections that are not written yet.
        """
        ended = self.wait(timeout_s)
        self.close()
        if self.state.projections is not None:
            self.state.projections.end(drop=drop)
            self.state.projections.check()
        return ended

    def close(self) -> None:
        """Close the sources."""
        if self._work is not None:
            self._work.close()
