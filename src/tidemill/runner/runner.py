"""A runner in one process: a worker that makes parts, a loop that starts runs, one Spark session for both."""

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.crash import Crashed
from tidemill.errors import ViewRefused
from tidemill.futures.values.signatures import ClusterKey
from tidemill.lots.keys import LotKeys
from tidemill.runner.compaction import on_spark
from tidemill.runner.in_process_worker import InProcessWorker
from tidemill.runner.job_tags import JobTags
from tidemill.runner.loop import Loop
from tidemill.runner.node_work import Engine
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.part_maker import Tools, make_part
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program, ViewProgram
from tidemill.runner.run_totals import RunTotals
from tidemill.scope import Scope
from tidemill.spark.sessions import interrupt, kept
from tidemill.spark.storage import Storage
from tidemill.spark.table_checks import evaluator
from tidemill.views.certify import certificates
from tidemill.views.spark.alarms import Alarmed
from tidemill.views.spark.incremental import IncrementalViews
from tidemill.views.spark.recompute import FullViews
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps.commits import StepBatch, StepPart
from tidemill.views.steps.inputs import InputReader, ManifestReader
from tidemill.views.steps.stepper import Compute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDING_TRIES = 5
"""Seconds that runs have to end in when they are broken off."""


class Runner:
    """Runs one program until it is stopped, or has caught up.

    Args:
        scope: what the runner works with.
        key: the cluster key.
        presence: keeps our entry in the node list.
        program: what to run.
        spark: the session for parts and steps.
        threads: how many parts to make at once.
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
    ) -> None:
        storage = Storage(scope.objects)
        self.worker = InProcessWorker(
            scope,
            key,
            presence,
            names={resource_of(program.pipeline)},
            threads=threads,
            tools=Tools(spark=spark, storage=storage, objects=scope.objects, program=program),
            interrupt=lambda tag: interrupt(spark, tag),
        )
        self._clock = scope.clock
        self.presence = presence
        self._tags = JobTags(spark)
        engine = Engine(
            parts=PartFutures(scope, key, make_part, check=self._check),
            compute=TaggedSteps(spark, _views(scope, spark, storage, program), self._tags),
            rewrite=on_spark(spark, storage, self._tags),
            evaluate=evaluator(spark),
        )
        self.loop = Loop(scope, presence, program, engine, check=self._check)

    def _work_only(self, stop: threading.Event) -> RunTotals:
        """Make parts of runs that other runners have started, until stopped."""
        while not self._clock.wait(stop, 0.5):
            self._check()
        return self.loop.state.totals

    def _check(self) -> None:
        self.presence.check()
        self.worker.check()
        self.loop.state.threads.check()

    def run(self, *, watch: bool, starts: bool = True, stop: threading.Event | None = None) -> RunTotals:
        """Run until everything is processed.

        An error that means that this process is dead (`Crashed`) is raised at once, and nothing is cleaned
        up. After any other error, such as an interruption, no claim and no thread is left.

        - watch: run until stopped instead.
        - starts: start runs, or only make parts of runs that other runners have started.
        """
        self.worker.start()
        try:
            if starts:
                totals = self.loop.run(watch=watch, stop=stop)
            else:
                totals = self._work_only(stop or threading.Event())
            self.loop.end()
            self.worker.check()
        except Crashed:
            self.loop.state.dead = True
            self.worker.abandon()
            self.loop.end(5.0)
            raise
        except BaseException:  # an error or an interruption: end soon, with nothing left claimed
            self._break_off()
            raise
        self.worker.drain()
        return totals

    def _break_off(self) -> None:
        self.worker.stop()  # runs that wait for parts get an error
        for _ in range(ENDING_TRIES):
            self._tags.interrupt()  # again: the next job of a step is not interrupted with this one
            with contextlib.suppress(Exception):  # raise the first error, not one that follows from it
                if self.loop.end(1.0, drop=True):
                    return


class TaggedSteps:
    """Computes the steps of views, each under a job tag, so that it can be interrupted."""

    def __init__(self, spark: "SparkSession", compute: Compute, tags: JobTags) -> None:
        self._spark = spark
        self._compute = compute
        self._tags = tags

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        try:
            with self._tags.marked(attempt), kept(self._spark):
                return self._compute(batch, attempt)
        except (
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # a function's own: signals reach the main thread alone
            raise ViewRefused(
                f"a function of the views of group {batch.spec.name!r} ended with {type(error).__name__}",
                hint="it returns one DataFrame, or raises an Exception",
            ) from error


def _views(scope: Scope, spark: "SparkSession", storage: Storage, program: Program) -> Compute:
    """Return the computation of the steps of the program's views."""
    manifests = ManifestReader(storage.objects)
    declared = [view for group in program.groups.values() for view in group.views]
    code = {view.name: _trusted(scope, view) for view in declared}
    tables, inputs = (
        ViewTables(storage, manifests, scope.clock),
        InputReader(scope.store, LotKeys(scope.cluster), manifests),
    )
    specs = [group.spec for group in program.groups.values()]
    full = FullViews(lambda: spark, tables, inputs, program.datasets, code, specs)
    views = IncrementalViews(lambda: spark, full, tables, inputs, program.datasets, code, emit=scope.emit)
    clocks = {name: view.clock for name, view in code.items() if view.clock is not None}
    if not clocks:
        return views
    return Alarmed(views, lambda: spark, tables, inputs, program.datasets, code, clocks)


def _trusted(scope: Scope, view: ViewProgram) -> ViewProgram:
    """Return the view, without its circuit if that gave other rows than its query (DBSP-19)."""
    if view.circuit is None:
        return view
    digest = certificates.digest_of(view.code, view.circuit)
    certificate = scope.store.run(lambda tx: certificates.read(tx, scope.cluster, digest))
    return view if certificate is None or certificate.equal else replace(view, circuit=None)
