"""A runner in one process: hands that make parts, a loop that starts runs, one Spark session for both."""

import random
import threading
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.events import Emit, ignore
from tidemill.futures.signing import ClusterKey
from tidemill.objects import Objects
from tidemill.runner.compacting import on_spark
from tidemill.runner.hands import Hands
from tidemill.runner.loop import Loop, Tally
from tidemill.runner.making import Tools, make_part
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.presence import Presence
from tidemill.runner.program import Program
from tidemill.spark.sessions import interrupt
from tidemill.spark.storage import Storage
from tidemill.store import Store
from tidemill.views.spark.full import FullViews
from tidemill.views.spark.tables import Tables
from tidemill.views.steps.inputs import Inputs, ManifestReader
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        self.hands = Hands(
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
        self.loop = Loop(
            store,
            keys,
            objects,
            presence,
            program,
            parts,
            _views(spark, storage, store, keys, program, clock),
            check=self._check,
            clock=clock,
            chance=chance,
            emit=emit,
            rewrite=on_spark(spark, storage),
        )

    def _lend(self, stop: threading.Event) -> Tally:
        while not self._clock.wait(stop, 0.5):
            self._check()
        return self.loop.tally

    def _check(self) -> None:
        self.presence.check()
        self.hands.check()
        self.loop.lines.check()

    def run(self, *, watch: bool, starts: bool = True, stop: threading.Event | None = None) -> Tally:
        """Run. What stands for the death of this process is raised, with everything dropped as it is.

        - watch: stay for what arrives.
        - starts: start runs, or only make parts of runs that others have started.
        """
        self.hands.start()
        try:
            if starts:
                tally = self.loop.watch(stop) if watch else self.loop.catch_up(stop)
            else:
                tally = self._lend(stop or threading.Event())
            self.loop.end()
            self.hands.check()
        except Exception:
            self.hands.stop()
            self.loop.leave()
            raise
        except BaseException:
            self.hands.abandon()
            self.loop.end(5.0)
            raise
        self.hands.drain()
        return tally


def _views(
    spark: "SparkSession",
    storage: Storage,
    store: Store,
    keys: StepKeys,
    program: Program,
    clock: Clock,
) -> FullViews:
    """What computes the steps of the program's views."""
    manifests = ManifestReader(storage.objects)
    code = {view.name: view for group in program.groups.values() for view in group.views}
    return FullViews(
        lambda: spark,
        Tables(storage, manifests, clock),
        Inputs(store, keys.lots, manifests),
        program.datasets,
        code,
        [group.spec for group in program.groups.values()],
    )
