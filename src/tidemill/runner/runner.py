"""A runner in one process: a worker that makes parts, a loop that starts runs, one Spark session for both."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.crash import Crashed
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
from tidemill.views.spark.step_computer import StepComputer
from tidemill.views.spark.view_sources import ViewSources
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps.inputs import InputReader, ManifestReader

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
            compute=_step_computer(scope, spark, storage, program, self._tags),
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


def _step_computer(
    scope: Scope, spark: "SparkSession", storage: Storage, program: Program, tags: JobTags
) -> StepComputer:
    """Return what computes the steps of the program's views, each under a job tag to interrupt it by."""
    manifests = ManifestReader(storage.objects)
    declared = [view for group in program.groups.values() for view in group.views]
    sources = ViewSources(
        session=lambda: spark,
        tables=ViewTables(storage, manifests, scope.clock),
        inputs=InputReader(scope.store, LotKeys(scope.cluster), manifests),
        datasets=program.datasets,
        views={view.name: _trusted(scope, view) for view in declared},
    )

    @contextlib.contextmanager
    def during(attempt: str) -> Iterator[None]:
        with tags.marked(attempt), kept(spark):
            yield

    specs = [group.spec for group in program.groups.values()]
    return StepComputer(sources, specs, during=during, emit=scope.emit)


def _trusted(scope: Scope, view: ViewProgram) -> ViewProgram:
    """Return the view, without its circuit if that gave other rows than its query (DBSP-19)."""
    if view.circuit is None:
        return view
    digest = certificates.digest_of(view.code, view.circuit)
    certificate = scope.store.run(lambda tx: certificates.read(tx, scope.cluster, digest))
    return view if certificate is None or certificate.equal else replace(view, circuit=None)
