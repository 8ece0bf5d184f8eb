"""A runner in one process: a worker processes parts, and a loop starts runs. Both share one Spark session."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidemill.crash import Crashed
from tidemill.errors import SparkDied
from tidemill.futures.values.signatures import ClusterKey
from tidemill.lots.keys import LotKeys
from tidemill.runner import base_merges, compaction
from tidemill.runner.certifier import Certifier
from tidemill.runner.in_process_worker import InProcessWorker
from tidemill.runner.job_tags import JobTags
from tidemill.runner.loop import Loop
from tidemill.runner.node_work import Engine
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.part_maker import Tools, make_part
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program
from tidemill.runner.run_totals import RunTotals
from tidemill.scope import Scope
from tidemill.spark.java_process import check_java
from tidemill.spark.sessions import interrupt
from tidemill.spark.storage import Storage
from tidemill.spark.table_checks import evaluator
from tidemill.views.spark.step_computer import StepComputer
from tidemill.views.spark.view_sources import ViewSources
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps.inputs import InputReader, ManifestReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE_S = 30.0
"""How long running work may take to end after `stop`, unless the caller passes a grace period."""

CHECK_EVERY_S = 0.2
INTERRUPT_ROUNDS = 5
"""How many times to interrupt running jobs after an error, once a second."""


class Runner:
    """Runs one program until it has caught up with all new data, or is stopped.

    Args:
        scope: the store, objects, clock and event sink to use.
        key: the cluster key.
        presence: keeps our entry in the node list.
        program: what to run.
        spark: the session for parts and steps.
        threads: how many parts to process at the same time.
        selected: the sources, arcs and view groups that may start; None for all.
    """

    def __init__(
        self,
        scope: Scope,
        key: ClusterKey,
        presence: Presence,
        program: Program,
        spark: "SparkSession",
        *,
        threads: int,
        selected: frozenset[str] | None = None,
    ) -> None:
        storage = Storage(scope.objects)
        self.worker = InProcessWorker(
            scope,
            key,
            presence,
            names={resource_of(program.pipeline)},
            threads=threads,
            tools=Tools(spark=spark, storage=storage, program=program),
            interrupt=lambda tag: interrupt(spark, tag),
        )
        self._clock = scope.clock
        self.presence = presence
        self._tags = JobTags(spark)
        self.certifier = Certifier(
            scope,
            lambda: presence.node,
            spark,
            program,
            wake=lambda: self.loop.wake(),  # noqa: PLW0108 - the loop is created below
            is_busy=self._runs_other_work,
        )
        computer = step_computer(scope, spark, storage, program, self._tags, self.certifier)
        engine = Engine(
            parts=PartFutures(scope, key, make_part, check=self._check),
            compute=computer,
            find_input=computer.find_input,
            rewrite=compaction.on_spark(spark, storage, self._tags),
            merge=base_merges.on_spark(spark, storage, self._tags),
            evaluate=evaluator(spark),
            certification=self.certifier,
        )
        self.loop = Loop(scope, presence, program, engine, check=self._check)
        self.loop.state.selected = selected

    def _work_only(self, stop: threading.Event) -> RunTotals:
        """Process parts of runs that other runners started, until stopped."""
        while not self._clock.wait(stop, 0.5):
            self._check()
        return self.loop.state.totals

    def _check(self) -> None:
        check_java()
        self.presence.check()
        self.worker.check()
        self.certifier.check()
        self.loop.state.threads.check()

    def run(
        self,
        *,
        watch: bool,
        starts: bool = True,
        stop: threading.Event | None = None,
        left_s: Callable[[], float] | None = None,
    ) -> RunTotals:
        """Run until everything is processed.

        `SparkDied` and `Crashed`, which simulates the death of this process, are raised at once, without
        cleaning up: the next runner counts the death for each claim. After any other error, such as an
        interrupt, all claims are released and all threads have ended.

        - watch: do not end when everything is processed; run until stopped.
        - starts: start runs; if False, only process parts of runs that other runners started.
        - stop: set it to end early. Work that is already running may finish while `left_s` is positive; after
          that it is interrupted.
        - left_s: returns how many seconds of the grace period are left after `stop`. The grace period may
          become shorter at any time.
        """
        stop = stop or threading.Event()
        try:
            if starts:
                self.certifier.start()
                self._wait_for_suspects(stop)
            self.worker.start()
            totals = self.loop.run(watch=watch, stop=stop) if starts else self._work_only(stop)
            if stop.is_set() and not self._drain(left_s or self._grace()):
                self._stop_after_error()
                return totals
            self.certifier.stop()  # after the steps that wait for certificates
            self.loop.end()
            self.worker.check()
        except (Crashed, SparkDied):
            self.loop.state.dead = True
            self.certifier.abandon()
            self.worker.abandon()
            self.loop.end(5.0)
            raise
        except BaseException:  # an error or an interrupt: end soon, and leave no claim
            self._stop_after_error()
            raise
        self.worker.drain()
        return totals

    def _wait_for_suspects(self, stop: threading.Event) -> None:
        """Start nothing, not even a part of another runner, while a view is compared that may end Spark."""
        while self.certifier.is_exclusive() and not self._clock.wait(stop, CHECK_EVERY_S):
            self._check()

    def _runs_other_work(self) -> bool:
        """Return whether Spark may be busy with something else than comparisons."""
        running = len(self.loop.state.threads.busy) + self.worker.busy
        return running > self.certifier.waiting_steps

    def _grace(self) -> Callable[[], float]:
        """Return a function that tells how much is left of a grace period that begins now."""
        deadline = self._clock.monotonic() + GRACE_S
        return lambda: max(0.0, deadline - self._clock.monotonic())

    def _drain(self, left_s: Callable[[], float]) -> bool:
        """Wait for running work within the grace period; return whether all of it has ended.

        While our own runs are still running, the worker processes their parts. After that, it takes no new
        parts, and finishes those of other runners.
        """
        while not self.loop.wait(min(CHECK_EVERY_S, left_s())):
            self._check()
            if left_s() <= 0:
                return False
        self.worker.start_drain(left_s())
        while not self.worker.wait_drained(CHECK_EVERY_S):
            if left_s() <= 0:
                return False
        return True

    def _stop_after_error(self) -> None:
        self.loop.state.interrupting = True
        self.worker.stop()  # runs that wait for parts now get an error
        self.certifier.stop()
        for _ in range(INTERRUPT_ROUNDS):
            self._tags.interrupt()  # repeated, because a step may start another job
            with contextlib.suppress(Exception):  # the caller raises the first error
                if self.loop.end(1.0, drop=True):
                    return


def step_computer(
    scope: Scope,
    spark: "SparkSession",
    storage: Storage,
    program: Program,
    tags: JobTags,
    certifier: Certifier,
) -> StepComputer:
    """Return the object that computes the steps of a program's views.

    Each step has a job tag, so that it can be interrupted.
    """
    manifests = ManifestReader(storage.objects)
    declared = [view for group in program.groups.values() for view in group.views]
    sources = ViewSources(
        session=lambda: spark,
        tables=ViewTables(storage, manifests, scope.clock),
        inputs=InputReader(scope.store, LotKeys(scope.cluster), manifests),
        datasets=program.datasets,
        views={view.name: view for view in declared},
    )

    @contextlib.contextmanager
    def during(attempt: str) -> Iterator[None]:
        try:
            with tags.marked(attempt):
                yield
        except Exception as error:
            check_java(error)
            raise

    specs = [group.spec for group in program.groups.values()]
    return StepComputer(
        sources,
        specs,
        views=lambda: {view.name: certifier.usable(view) for view in declared},
        confirm=certifier.confirm,
        during=during,
        emit=scope.emit,
    )
