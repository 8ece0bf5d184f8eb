"""A home that grows: appends with producers, a step of a view for each, upkeep every hour, and deaths.

Everything that is counted is written by the product: the publication of appends, the protocol of steps, the
cleaner, the collector and retention. Two things are simpler than in a real pipeline, so that 10,000 steps
take minutes. The store and the objects are in memory, and time is simulated: one append every five minutes,
a day in a fraction of a second. And a step copies the rows of its input instead of running a query on Spark;
it writes the same objects as a real step: changes, a table that is merged now and then, and state.

The lots of the dataset and the changes of the view are kept for a day. One append and one step in fifty dies
at a random crash point; the next one runs as another node.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import pyarrow as pa

from tidemill import crash
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.lots import datasets, expiry, layout, lots, manifest
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.expiry import KeepPolicy
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import Manifest, ManifestState
from tidemill.lots.producers import Identity, Receipt
from tidemill.objects.memory import MemoryObjects
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import SinkWritten
from tidemill.publish.publisher import Publisher
from tidemill.runner.retention import Retention
from tidemill.scope import Scope
from tidemill.spark.lot_writer import Written, write_table
from tidemill.store import Space, unpack
from tidemill.store.memory import MemoryStore
from tidemill.testing import FakeClock
from tidemill.triggers import runs, subscriptions, wakes
from tidemill.triggers.keys import TriggerKeys
from tidemill.views.steps import groups
from tidemill.views.steps.collector import Collector, listed_run_files
from tidemill.views.steps.commits import StepBatch, StepOutput, StepPart, StepState, WholeReads
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import StepKeys, changes_of, group_id, state_prefix, table_of
from tidemill.views.steps.stepper import Stepper
from tidemill.views.trace.hash_space import GRAINS
from tidemill.views.trace.run_table import AddedRun, MergedRuns, RunCut, RunEntry
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version, write_version

CLUSTER, PIPELINE, VIEW = "growth", "shop", "totals"
EVERY_S = 300.0
HOUR = 12  # appends
DAY_US = 24 * 3600 * 1_000_000
PRODUCERS = 4
DEATH_EVERY = 50
MOST_PARTS = 8
LEASE_US = 10 * DAY_US

T = TypeVar("T")

POINTS = (
    "publish.append-open.after",
    "publish.append-commit.before",
    "publish.append-commit.after",
    "views.open.after",
    "views.commit.before",
    "views.commit.after",
)
"""Where appends and steps die: before and after what they make durable."""


class Census(NamedTuple):
    """What a home holds at one moment."""

    appends: int
    steps: int
    lots: int
    rows: int
    objects: int
    by_kind: dict[str, int]

    @property
    def rows_per_lot(self) -> float:
        return self.rows / self.lots

    @property
    def objects_per_lot(self) -> float:
        return self.objects / self.lots

    def __str__(self) -> str:
        return f"{self.lots:,} live lots, {self.rows:,} rows, {self.objects:,} objects"


class GrowingHome:
    """A store and objects in memory, with one dataset and one view."""

    def __init__(self, seed: int = 7) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock, chance=self.chance)
        self.objects = MemoryObjects(self.clock)
        self.keys = StepKeys(CLUSTER)
        self.triggers = TriggerKeys(CLUSTER)
        self.orders = DatasetId("orders")
        self.appends = self.deaths = self._lives = 0
        self._sequences = dict.fromkeys(range(PRODUCERS), 0)
        self._scope = self._new_life()
        self._declare()

    def grow(self, appends: int) -> None:
        """Append so many lots, with a step for each and upkeep every hour."""
        for _ in range(appends):
            self._surviving(self._append)
            self._surviving(self._step)
            self.appends += 1
            self.clock.advance(EVERY_S)
            if self.appends % HOUR == 0:
                self._keep_up()

    def census(self) -> Census:
        """Count the rows of the store, the objects and the live lots."""
        rows = self.store.run(lambda tx: tx.range(*Space(CLUSTER).all(), snapshot=True))
        return Census(
            appends=self.appends,
            steps=self.store.run(lambda tx: groups.read(tx, self.keys, PIPELINE, VIEW).step),
            lots=len(self.store.run(lambda tx: lots.listed(tx, self.keys.lots, self.orders, limit=10**6))),
            rows=len(rows),
            objects=sum(1 for _ in self.objects.list()),
            by_kind=dict(Counter(str(unpack(row.key)[1]) for row in rows)),
        )

    # --- lives

    def _new_life(self) -> Scope:
        """Join the cluster as a new node, as a restarted process does."""
        self._lives += 1
        node = Node(id=f"node-{self._lives}", epoch=0)
        cluster = ClusterKeys(CLUSTER)
        joined = self.store.run(lambda tx: nodes.join(tx, cluster, node, LEASE_US))
        return Scope(
            store=self.store,
            cluster=CLUSTER,
            objects=self.objects,
            node=joined,
            clock=self.clock,
            chance=self.chance,
        )

    def _surviving(self, work: Callable[[], object]) -> None:
        """Do some work; one time in fifty the process dies in it, and the next one does it again."""
        point = self.chance.choice(POINTS) if self.chance.randrange(DEATH_EVERY) == 0 else ""
        if not point:
            work()
            return
        try:
            with crash.armed(point):
                work()
        except crash.Crashed:
            self.deaths += 1
            dead = self._scope.node
            self.store.run(lambda tx: nodes.leave(tx, ClusterKeys(CLUSTER), dead))
            self._scope = self._new_life()
            work()

    # --- the pipeline

    def _declare(self) -> None:
        spec = GroupSpec(name=VIEW, views=(ViewSpec(name=VIEW, code="1", reads=(self.orders,)),))
        changes = changes_of(PIPELINE, VIEW)

        def declare(tx: "object") -> None:
            datasets.declare(tx, self.keys.lots, DatasetRow(name="orders", schema="id BIGINT"))  # type: ignore[arg-type]
            kept = {table: KeepPolicy(DAY_US) for table in (self.orders, changes)}
            expiry.set_keep(tx, self.keys.lots, PIPELINE, kept)  # type: ignore[arg-type]

        self.store.run(declare)
        self.store.run(lambda tx: groups.declare(tx, self.keys, PIPELINE, spec))
        self.store.run(lambda tx: groups.declare_circuit(tx, self.keys, PIPELINE, "1", "declarer"))

    def _append(self) -> None:
        """Append a row as one of the producers; an append that died is repeated with the same number."""
        producer = self.appends % PRODUCERS
        number = self.appends // PRODUCERS
        append = Identity(f"till-{producer}", number, f"digest-{self.appends}")
        publisher = Publisher(self._scope)
        hold = publisher.begin_append(self.orders, self._scope.new_attempt(), append)
        if isinstance(hold, Receipt):
            return

        def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
            written = self._write(folders[self.orders])
            return [SinkWritten(dataset=self.orders, objects=written.objects, rows=written.rows)]

        (row,) = Manifests(self.objects, self.clock).write_lot(hold, write, {})
        publisher.commit_append(hold, row, append)

    def _write(self, folder: str) -> Written:
        return write_table(pa.table({"id": pa.array([self.appends], pa.int64())}), self.objects, folder)

    def _step(self) -> None:
        """Run the group until it has applied everything."""
        name = group_id(PIPELINE, VIEW)
        while self.store.run(lambda tx: wakes.page_wakes(tx, self.triggers, self.keys.lots)):
            pass
        cluster, scope = ClusterKeys(CLUSTER), self._scope
        row = self.store.run(lambda tx: subscriptions.must_read(tx, self.triggers, name))
        epoch = row.tally.epoch
        self.store.run(lambda tx: runs.end_if_lost(tx, self.triggers, cluster, name, epoch))
        row = self.store.run(lambda tx: subscriptions.must_read(tx, self.triggers, name))
        epoch = row.tally.epoch
        ticket = self.store.run(
            lambda tx: runs.start(tx, self.triggers, self.keys.lots, cluster, scope.node, name, epoch)
        )
        if ticket is not None:
            Stepper(scope, PIPELINE, self._compute).run(ticket)

    # --- a step

    def _compute(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        folder = layout.data_prefix(*changes_of(PIPELINE, VIEW).parts, batch.lot, attempt)
        changes = self._manifest(changes_of(PIPELINE, VIEW), batch, attempt, self._write(folder))
        before = batch.tables.get(VIEW, "")
        parts = [*(manifest.decode(self.objects.get(before)[0]).parts if before else ()), changes]
        if len(parts) > MOST_PARTS:  # merge them
            folder = layout.data_prefix(*table_of(PIPELINE, VIEW).parts, batch.lot, attempt)
            merged = self._manifest(
                table_of(PIPELINE, VIEW), batch, attempt, self._write(folder), part="merged"
            )
            parts = [merged]
        table = self._manifest(table_of(PIPELINE, VIEW), batch, attempt, Written(), parts=parts)
        output = StepOutput(view=VIEW, changes=changes, table=table, rows=1)
        return output, self._state(batch, attempt), WholeReads(datasets=frozenset())

    def _manifest(
        self,
        dataset: DatasetId,
        batch: StepBatch,
        attempt: str,
        written: Written,
        *,
        part: str = "",
        parts: list[str] | None = None,
    ) -> str:
        state = ManifestState.COMPLETE
        key = layout.manifest_key(
            *dataset.parts, batch.lot, state, 0, attempt, part=part, root=parts is not None
        )
        body = Manifest(
            state=state,
            dataset=dataset.name,
            version=dataset.version,
            lot=batch.lot,
            attempt=attempt,
            part=part,
            parts=parts or [],
            objects=list(written.objects),
        )
        self.objects.put(key, manifest.encode(body))
        return key

    def _state(self, batch: StepBatch, attempt: str) -> StepState:
        prefix = state_prefix(PIPELINE, VIEW, batch.lot, attempt)
        version = read_version(self.objects, batch.version) if batch.version else TraceVersion.empty(["t"])
        self.objects.put(prefix + "bundle", b"runs")
        entry = RunEntry(prefix + "bundle", 0, GRAINS - 1, 0, 4, 1, 1)
        old = version.traces.get("t", ())
        merged = []
        if len(old) >= MOST_PARTS:
            cuts = tuple(RunCut(run.file, run.offset, run.low, run.high) for run in old)
            merged = [MergedRuns("t", cuts, RunEntry(prefix + "bundle", 0, GRAINS - 1, 4, 4, 1, 1))]
        applied = version.apply(batch.step, [AddedRun("t", entry)], merged)
        write_version(self.objects, prefix + "version", applied.version)
        return StepState(version=prefix + "version")

    # --- upkeep

    def _keep_up(self) -> None:
        """Do what a runner does regularly."""
        scope = self._scope
        Retention(scope).expire()
        cleaner = Cleaner(scope, lists=lambda key: listed_run_files(self.objects, key))
        while cleaner.clean():
            pass
        collector = Collector(self.store, self.keys, PIPELINE, self.objects)
        while collector.collect():
            pass
