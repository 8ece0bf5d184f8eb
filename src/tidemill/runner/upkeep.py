"""Upkeep: delete files and futures that are no longer needed, let old lots expire, compact and merge lots."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidemill.arcs import declarations, lot_status
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import ArcUnknown, LeaseLost, LotConflict, StoreError
from tidemill.lots import base_lot, lots
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.publish.attempts import Draft
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.dropped_datasets import DroppedDatasets
from tidemill.publish.projections import Projections
from tidemill.runner import base_merges, job_deaths
from tidemill.runner.base_merges import BaseMerger, Merge
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
    - merge: merges expired lots into base lots; None to merge nothing.
    """

    def __init__(
        self,
        scope: Scope,
        program: Program,
        parts: PartFutures,
        rewrite: Rewrite | None,
        merge: Merge | None,
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
        self._merger = None if merge is None else BaseMerger(scope, merge)
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
        """Compact the lots that are marked as fragmented, and merge expired lots into base lots.

        If this fails for a lot, retry it later. When the runner is stopping, end after the current lot.
        """
        failed: set[str] = set()
        for dataset in self._program.all_datasets():
            try:
                jobs = self._rewrites(compactor, dataset)
            except StoreError as error:
                self._failures.add_upkeep(COMPACT, error, COMPACT_EVERY_S)
                return
            for job in jobs:
                if self._state.stops():
                    return
                try:
                    self._rewrite(job)
                except LeaseLost:
                    return
                except Exception as error:  # noqa: BLE001 - reported, and tried again
                    failed.add(job.name)
                    self._failures.add_upkeep(job.name, error, COMPACT_EVERY_S)
        failures = self._state.totals.failures
        for name in list(failures):
            if name.partition(" ")[0] == COMPACT and name not in failed:
                del failures[name]

    def _rewrites(self, compactor: Compactor, dataset: DatasetId) -> "list[_Rewrite]":
        """Return the files of a dataset to write again: fragmented lots, and the base lot."""
        marked, is_due = self._scope.store.run(
            lambda tx: (
                lots.fragmented(tx, self._lots, dataset),
                self._merger is not None and base_merges.is_due(tx, self._lots, dataset),
            )
        )
        jobs = [
            _Rewrite(
                name=f"{COMPACT} {dataset} {lot}",
                run=partial(compactor.compact, dataset, lot),
                give_up=partial(self._leave_fragmented, dataset=dataset, lot=lot),
                consequence=f"it compacted lot {lot} of {dataset}, so the lot keeps its small files",
                hint=f"to try again, run: tidemill compact {dataset.name} {lot}",
            )
            for lot in marked
        ]
        if self._merger is not None and is_due:
            jobs.append(
                _Rewrite(
                    name=f"{COMPACT} {dataset} {base_lot.LOT}",
                    run=partial(self._merger.merge, dataset),
                    consequence=f"it merged the expired lots of {dataset}, so they keep their files",
                    hint="to try again, run: tidemill vacuum",
                )
            )
        return jobs

    def _leave_fragmented(self, tx: Tx, dataset: DatasetId, lot: str) -> None:
        row = lots.current(tx, self._lots, dataset, lot)
        if row is not None:
            lots.unmark_fragmented(tx, self._lots, row)

    def _rewrite(self, job: "_Rewrite") -> None:
        """Write files again. If nodes keep dying while they do this, leave the files as they are."""
        scope, node, name = self._scope, self._scope.node, job.name
        keys, cluster = RunnerKeys(scope.cluster), ClusterKeys(scope.cluster)
        deaths = scope.store.run(lambda tx: job_deaths.begin(tx, keys, cluster, node, name))
        if deaths < job_deaths.MOST_COMPACTION_DEATHS:
            try:
                job.run()
            except (Exception, LeaseLost) as error:
                check_java(error)  # raises `SparkDied`, which ends this process: the mark must stay
                scope.store.run(lambda tx: job_deaths.end(tx, keys, node, name))
                raise
            scope.store.run(lambda tx: job_deaths.end(tx, keys, node, name))
            return

        def give_up(tx: Tx) -> None:
            if job.give_up is not None:
                job.give_up(tx)
                job_deaths.end(tx, keys, node, name)

        scope.store.run(give_up)
        raise LotConflict(f"the runner died {deaths} times in a row while {job.consequence}", hint=job.hint)


@dataclass(frozen=True, kw_only=True)
class _Rewrite:
    """Files to write again.

    - give_up: keeps the job from being started again. Without it, the count of deaths does so.
    - consequence, hint: for the error after too many deaths.
    """

    name: str
    run: Callable[[], object]
    give_up: Callable[[Tx], None] | None = None
    consequence: str
    hint: str


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
