"""Upkeep: delete files and futures that are no longer needed, let old lots expire, and compact lots."""

from functools import partial

from tidemill.arcs import declarations, lot_status
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import ArcUnknown, LeaseLost, LotConflict, StoreError
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.publish.attempts import Draft
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.dropped_datasets import DroppedDatasets
from tidemill.publish.projections import Projections
from tidemill.runner import job_deaths
from tidemill.runner.compaction import Compactor, Rewrite
from tidemill.runner.failures import Failures
from tidemill.runner.keys import RunnerKeys
from tidemill.runner.loop_state import LoopState
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.program import Program
from tidemill.runner.retention import Retention
from tidemill.scope import Scope
from tidemill.spark.java_process import check_java
from tidemill.store import Tx
from tidemill.views.steps.collector import Collector, listed_run_files
from tidemill.views.steps.keys import StepKeys

CLEAN_EVERY_S = 30.0
COLLECT_EVERY_S = 300.0
"""How often to look for objects that steps no longer need.

Listing objects costs requests, and no object is deleted before its grace period is over.
"""

COMPACT_EVERY_S = 10.0
SPARE = 2
"""How many run threads stay free for new data. Requested lots and compaction do not use them."""

CLEAN, COMPACT = "clean", "compact"
NAMES = frozenset({CLEAN, COMPACT})
"""The names of upkeep jobs. A runner that catches up does not wait for them, but reports their failures."""


class Upkeep:
    """The upkeep of one node.

    - rewrite: rewrites the small files of a lot; None to compact nothing.
    """

    def __init__(
        self,
        scope: Scope,
        program: Program,
        parts: PartFutures,
        rewrite: Rewrite | None,
        state: LoopState,
        failures: Failures,
    ) -> None:
        self._scope = scope
        self._program = program
        self._parts = parts
        self._state = state
        self._failures = failures
        self._lots = LotKeys(scope.cluster)
        projections = None if state.projections is None else Projections(scope)
        self._compactor = None if rewrite is None else Compactor(scope, rewrite, projections=projections)
        self._cleaner = Cleaner(
            scope,
            drop=AttemptLeftovers(scope, parts, projections),
            lists=partial(listed_run_files, scope.objects),
        )
        self._collector = Collector(
            scope.store,
            StepKeys(scope.cluster),
            program.pipeline,
            scope.objects,
            emit=scope.emit,
        )
        self._dropped = DroppedDatasets(scope)
        self._retention = Retention(scope)
        self._clean_at = self._compact_at = self._collect_at = 0.0

    def start_due(self) -> None:
        """Start the jobs that are due. Compaction leaves some threads for other work."""
        now, threads = self._scope.clock.monotonic(), self._state.threads
        if now >= self._clean_at:
            self._clean_at = now + CLEAN_EVERY_S
            threads.start(CLEAN, self.clean)
        if self._compactor is not None and now >= self._compact_at:
            self._compact_at = now + COMPACT_EVERY_S
            threads.start(COMPACT, partial(self.compact, self._compactor), spare=SPARE)

    def clean(self) -> None:
        """Delete files and futures of attempts that have ended, and objects that steps have replaced."""
        try:
            while self._cleaner.clean():
                if self._state.stops():
                    return
            while self._dropped.remove():
                if self._state.stops():
                    return
            if self._scope.clock.monotonic() >= self._collect_at:
                self._retention.expire()
                more = self._collector.collect()
                pause_s = CLEAN_EVERY_S if more else COLLECT_EVERY_S
                self._collect_at = self._scope.clock.monotonic() + pause_s
            self._parts.forget_ended()
            self._state.totals.failures.pop(CLEAN, None)
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            self._failures.add_upkeep(CLEAN, error, CLEAN_EVERY_S)

    def compact(self, compactor: Compactor) -> None:
        """Compact the lots that are marked as fragmented. If this fails for a lot, retry it later.

        When the runner is stopping, end after the current lot.
        """
        failed: set[str] = set()
        for dataset in self._program.all_datasets():
            try:
                marked = self._scope.store.run(partial(lots.fragmented, keys=self._lots, dataset=dataset))
            except StoreError as error:
                self._failures.add_upkeep(COMPACT, error, COMPACT_EVERY_S)
                return
            for lot in marked:
                if self._state.stops():
                    return
                name = f"{COMPACT} {dataset} {lot}"
                try:
                    self._compact(compactor, dataset, lot, name)
                except LeaseLost:
                    return
                except Exception as error:  # noqa: BLE001 - reported, and tried again
                    failed.add(name)
                    self._failures.add_upkeep(name, error, COMPACT_EVERY_S)
        failures = self._state.totals.failures
        for name in list(failures):
            if name.partition(" ")[0] == COMPACT and name not in failed:
                del failures[name]

    def _compact(self, compactor: Compactor, dataset: DatasetId, lot: str, name: str) -> None:
        """Compact a lot. If nodes keep dying while they compact it, leave it as it is."""
        scope, node = self._scope, self._scope.node
        keys, cluster = RunnerKeys(scope.cluster), ClusterKeys(scope.cluster)
        deaths = scope.store.run(lambda tx: job_deaths.begin(tx, keys, cluster, node, name))
        if deaths < job_deaths.MOST_COMPACTION_DEATHS:
            try:
                compactor.compact(dataset, lot)
            except (Exception, LeaseLost) as error:
                check_java(error)  # raises `SparkDied`, which ends this process: the mark must stay
                scope.store.run(lambda tx: job_deaths.end(tx, keys, node, name))
                raise
            scope.store.run(lambda tx: job_deaths.end(tx, keys, node, name))
            return

        def give_up(tx: Tx) -> None:
            row = lots.current(tx, self._lots, dataset, lot)
            if row is not None:
                lots.unmark_fragmented(tx, self._lots, row)
            job_deaths.end(tx, keys, node, name)

        scope.store.run(give_up)
        raise LotConflict(
            f"the runner died {deaths} times in a row while it compacted lot {lot} of {dataset}, so the lot"
            " keeps its small files",
            hint=f"to try again, run: tidemill compact {dataset.name} {lot}",
        )


class AttemptLeftovers:
    """Cleans up after an attempt that has ended. The cleaner calls this, perhaps more than once.

    This deletes the futures of the attempt's parts, and corrects the projections of its lots. A publisher
    writes projections right after the publication. If the publisher dies in between, projections are
    outdated: there may be a `running.arc` for a complete lot. The cleaner visits each ended attempt at least
    once (LOT-22, LOT-23).
    """

    def __init__(self, scope: Scope, parts: PartFutures, projections: Projections | None) -> None:
        self._store = scope.store
        self._keys = ArcKeys(scope.cluster)
        self._parts = parts
        self._projections = projections

    def __call__(self, draft: Draft) -> None:
        self._parts.forget(draft.id)
        if self._projections is None:
            return
        for target in draft.targets:
            self._projections.repair_lot(target.dataset, target.lot)
        spec = self._arc(draft.author)
        if spec is not None:
            read = partial(_state, keys=self._keys, arc=spec.id, lot=draft.lot)
            self._projections.repair_arc(spec.pipeline, spec.version, spec.name, draft.lot, read)

    def _arc(self, author: str) -> ArcSpec | None:
        if not author.startswith("arc:"):
            return None
        try:
            return self._store.run(lambda tx: declarations.read(tx, self._keys, author))
        except ArcUnknown:
            return None


def _state(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> str:
    return lot_status.status(tx, keys, arc, lot).state.value
