"""A runner in one process: a worker that makes parts, a loop that starts runs, one Spark session for both."""

import contextlib
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.crash import Crashed
from tidemill.errors import ViewRefused
from tidemill.events import Emit, ignore
from tidemill.futures.values.signatures import ClusterKey
from tidemill.objects import Objects
from tidemill.runner.compacting import on_spark
from tidemill.runner.in_process_worker import InProcessWorker
from tidemill.runner.loop import Loop
from tidemill.runner.making import Tools, make_part
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program, ViewProgram
from tidemill.runner.tags import Tags
from tidemill.runner.tally import Tally
from tidemill.spark.sessions import interrupt, kept
from tidemill.spark.storage import Storage
from tidemill.spark.table_checks import evaluator
from tidemill.store import Store
from tidemill.views.certify import certificates
from tidemill.views.spark.alarms import Alarmed
from tidemill.views.spark.full import FullViews
from tidemill.views.spark.incremental import IncrementalViews
from tidemill.views.spark.tables import Tables
from tidemill.views.steps.commits import Batch, Part
from tidemill.views.steps.inputs import Inputs, ManifestReader
from tidemill.views.steps.keys import StepKeys
from tidemill.views.steps.stepper import Compute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDING_TRIES = 5
"""Seconds that runs have to end in when they are broken off."""


class Runner:
    """Runs one program until it is told to stop, or has caught up."""

    def __init__(
        self,
        store: Store,
        keys: StepKeys,
        objects: Objects,
        key: ClusterKey,
        presence: Presence,
        program: Program,
        spark: "SparkSession",
        *,
        threads: int,
        clock: Clock,
        chance: random.Random,
        emit: Emit = ignore,
    ) -> None:
        cluster = keys.lots.cluster
        storage = Storage(objects)
        self.worker = InProcessWorker(
            store,
            cluster,
            key,
            presence,
            names={resource_of(program.pipeline)},
            threads=threads,
            objects=objects,
            tools=Tools(spark=spark, storage=storage, objects=objects, program=program),
            interrupt=lambda tag: interrupt(spark, tag),
            clock=clock,
            chance=chance,
            emit=emit,
        )
        parts = PartFutures(
            store,
            cluster,
            key,
            make_part,
            objects=objects,
            check=self._check,
            clock=clock,
            chance=chance,
        )
        self._clock = clock
        self.presence = presence
        self._tags = Tags(spark)
        views = _views(spark, storage, store, keys, program, clock, emit)
        self.loop = Loop(
            store,
            keys,
            objects,
            presence,
            program,
            parts,
            Steps(spark, views, self._tags),
            check=self._check,
            clock=clock,
            chance=chance,
            emit=emit,
            rewrite=on_spark(spark, storage, self._tags),
            evaluate=evaluator(spark),
        )

    def _lend(self, stop: threading.Event) -> Tally:
        while not self._clock.wait(stop, 0.5):
            self._check()
        return self.loop.tally

    def _check(self) -> None:
        self.presence.check()
        self.worker.check()
        self.loop.lines.check()

    def run(self, *, watch: bool, starts: bool = True, stop: threading.Event | None = None) -> Tally:
        """Run. What stands for the death of this process is raised, with everything dropped as it is; after
        anything else that ends it, an interruption say, nothing is left claimed and no thread is left.

        - watch: stay for what arrives.
        - starts: start runs, or only make parts of runs that others have started.
        """
        self.worker.start()
        try:
            if starts:
                tally = self.loop.watch(stop) if watch else self.loop.catch_up(stop)
            else:
                tally = self._lend(stop or threading.Event())
            self.loop.end()
            self.worker.check()
        except Crashed:
            self.loop.dead = True
            self.worker.abandon()
            self.loop.end(5.0)
            raise
        except BaseException:  # an error, or somebody interrupts us: end soon, with nothing left claimed
            self._break_off()
            raise
        self.worker.drain()
        return tally

    def _break_off(self) -> None:
        self.worker.stop()  # whoever waits for parts is told
        for _ in range(ENDING_TRIES):
            self._tags.interrupt()  # again, because the next job of a step is not interrupted with this one
            with contextlib.suppress(Exception):  # what ended us is raised, not what follows from it
                if self.loop.end(1.0, drop=True):
                    return


class Steps:
    """Computes the steps of views under a tag of their own each, so that they can be interrupted."""

    def __init__(self, spark: "SparkSession", compute: Compute, tags: Tags) -> None:
        self._spark = spark
        self._compute = compute
        self._tags = tags

    def __call__(self, batch: Batch, attempt: str) -> tuple[Part, ...]:
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


def _views(
    spark: "SparkSession",
    storage: Storage,
    store: Store,
    keys: StepKeys,
    program: Program,
    clock: Clock,
    emit: Emit,
) -> Compute:
    """What computes the steps of the program's views."""
    manifests = ManifestReader(storage.objects)
    declared = [view for group in program.groups.values() for view in group.views]
    code = {view.name: _trusted(store, keys.lots.cluster, view) for view in declared}
    tables, inputs = Tables(storage, manifests, clock), Inputs(store, keys.lots, manifests)
    specs = [group.spec for group in program.groups.values()]
    full = FullViews(lambda: spark, tables, inputs, program.datasets, code, specs)
    views = IncrementalViews(lambda: spark, full, tables, inputs, program.datasets, code, emit=emit)
    clocks = {name: view.clock for name, view in code.items() if view.clock is not None}
    if not clocks:
        return views
    return Alarmed(views, lambda: spark, tables, inputs, program.datasets, code, clocks)


def _trusted(store: Store, cluster: str, view: ViewProgram) -> ViewProgram:
    """The view, without its circuit if that did not give what its query gives (DBSP-19)."""
    if view.circuit is None:
        return view
    digest = certificates.digest_of(view.code, view.circuit)
    found = store.run(lambda tx: certificates.read(tx, cluster, digest))
    return view if found is None or found.equal else replace(view, circuit=None)
