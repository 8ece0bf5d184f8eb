"""Compaction without Spark: the same content in fewer files. Tests with Spark are in tests/integration."""

import io
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.lots_stage import Stage
from tidemill import crash
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, LotUnknown, WriteMismatch
from tidemill.events import Event
from tidemill.lots import datasets, events, layout, lots
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.lots import MANY_FILES, LotRow
from tidemill.lots.manifest import InputLot, StoredObject
from tidemill.objects.memory import MemoryObjects
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Target
from tidemill.publish.cleaner import KEEP_S, READERS_S, Cleaner
from tidemill.publish.events import LayoutRemoved, LotCompacted
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import SinkWritten
from tidemill.publish.projections import Projections
from tidemill.publish.publisher import Publisher
from tidemill.runner.compaction import Compacted, Compactor, can_be_fewer
from tidemill.scope import Scope
from tidemill.spark.compaction import Rewritten
from tidemill.spark.lot_writer import Written

LOT = "A00000000000000001"
LONG_US = 10**14
ORDERS = DatasetRow(name="orders", schema="id BIGINT", fingerprint="f" * 32)
INPUT = InputLot(dataset="raw", version="1", lot=LOT, generation=3)


class Layouts:
    """One store, objects in memory, a lot of small files, and a rewriter that needs no Spark."""

    def __init__(self) -> None:
        self.stage = Stage(scan=False)
        self.clock = self.stage.clock
        self.keys = PublishKeys("c")
        self.objects = MemoryObjects(self.clock)
        self.manifests = Manifests(self.objects, self.clock)
        self.chance = random.Random(3)
        self.events: list[Event] = []
        self.store = self.stage.store
        self.store.run(lambda tx: datasets.declare(tx, self.keys.lots, ORDERS))
        self.node = self.join("n1")

    def join(self, name: str) -> Node:
        return self.stage.node(name, LONG_US)

    def scope(self, node: Node | None = None) -> Scope:
        return self.stage.scope(node, objects=self.objects, chance=self.chance, emit=self.events.append)

    def attempt(self) -> str:
        return self.scope().new_attempt()

    def publish(self, files: int, *, generation: int = 0, parts: Sequence[str] = ("",)) -> LotRow:
        """Publish a lot with this many files; `parts` are the values of its partition column."""
        publisher = AttemptPublisher(self.scope(self.node))
        target = Target(ORDERS.id, LOT, generation)
        draft = Draft(
            id=self.attempt(),
            author="arc",
            lot=LOT,
            generation=generation,
            targets=(target,),
            inputs=(INPUT,),
        )
        hold = publisher.open(draft)
        self.manifests.write_intents(hold)
        prefix = layout.data_prefix("orders", "1", LOT, draft.id)
        items = [
            self.put(
                f"{prefix}{n}.parquet", [n, n + 1000], {"part": parts[n % len(parts)]} if parts[0] else {}
            )
            for n in range(files)
        ]
        part = self.manifests.write_part(
            hold, "", [written_of(items, {"positive": 2})], alone=True, fingerprints={}
        )
        [row] = self.manifests.finish(hold, [part], {})
        publisher.publish(hold, [row])
        return self.row

    def put(self, key: str, ids: list[int], partition: dict[str, str | None]) -> StoredObject:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
        info = self.objects.put(key, sink.getvalue().to_pybytes())
        return StoredObject(uri=key, size=info.size, rows=len(ids), etag=info.etag, partition=partition)

    def rows(self, items: Sequence[StoredObject]) -> list[int]:
        ids: list[int] = []
        for item in items:
            ids += pq.read_table(io.BytesIO(self.objects.get(item.uri)[0])).column("id").to_pylist()
        return sorted(ids)

    def rewrite(self, dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        groups: dict[tuple[tuple[str, str | None], ...], list[StoredObject]] = {}
        for item in items:
            groups.setdefault(tuple(item.partition.items()), []).append(item)
        new = [
            self.put(f"{prefix}c{n}.parquet", self.rows(group), dict(partition))
            for n, (partition, group) in enumerate(groups.items())
        ]
        before, after = str(self.rows(items)), str(self.rows(new))
        return Rewritten(written=Written(tuple(new), len(self.rows(new))), before=before, after=after)

    def compactor(self, node: Node | None = None, rewrite=None) -> Compactor:
        return Compactor(
            self.scope(node or self.node), rewrite or self.rewrite, projections=Projections(self.scope())
        )

    def clean(self, node: Node | None = None, *, readers_s: float = READERS_S) -> None:
        cleaner = Cleaner(self.scope(node or self.node), grace_s=0.0, readers_s=readers_s)
        while cleaner.clean():
            pass

    @property
    def row(self) -> LotRow:
        row = self.store.run(lambda tx: lots.current(tx, self.keys.lots, ORDERS.id, LOT))
        assert row is not None
        return row

    def marks(self) -> list[str]:
        return self.store.run(lambda tx: lots.fragmented(tx, self.keys.lots, ORDERS.id))

    def listed(self) -> list[StoredObject]:
        return self.manifests.lot_objects(self.row.manifest)

    def data(self) -> set[str]:
        return {info.key for info in self.objects.list("data/")}


def written_of(items: Sequence[StoredObject], checks: dict[str, int]) -> SinkWritten:
    rows = sum(item.rows or 0 for item in items)
    return SinkWritten(dataset=ORDERS.id, objects=tuple(items), rows=rows, checks=checks)


@pytest.mark.rule("LOT-37")
def test_a_compacted_lot_has_fewer_files_the_same_generation_and_no_new_event():
    stage = Layouts()
    before = stage.publish(20)
    old = stage.listed()
    body = stage.manifests.load(before.manifest)
    assert stage.marks() == [LOT]
    compacted = stage.compactor().compact(ORDERS.id, LOT)
    assert isinstance(compacted, Compacted)
    assert (compacted.files_before, compacted.files, compacted.revision) == (20, 1, 1)
    row = stage.row
    assert (row.generation, row.position, row.rows) == (before.generation, before.position, before.rows)
    assert row.size == sum(item.size for item in stage.listed())
    assert row.files == 1
    assert stage.rows(stage.listed()) == stage.rows(old)
    now = stage.manifests.load(row.manifest)
    assert (now.inputs, now.checks) == (body.inputs, body.checks) == ([INPUT], {"positive": 2})
    assert stage.marks() == []
    [event] = stage.store.run(lambda tx: events.read(tx, stage.keys.lots, ORDERS.id, 0, 10))
    assert event.position == before.position
    assert [type(emitted) for emitted in stage.events] == [LotCompacted]
    shown = layout.projected_manifest_key("orders", "1", LOT, now.state)
    assert stage.objects.get(shown)[0] == stage.objects.get(row.manifest)[0]
    assert stage.compactor().compact(ORDERS.id, LOT) is None  # one file cannot become fewer


@pytest.mark.rule("LOT-37")
def test_old_files_are_removed_after_the_grace_period_of_readers():
    stage = Layouts()
    before = stage.publish(20)
    reader = stage.listed()  # reads the old layout
    rows = stage.rows(reader)
    stage.compactor().compact(ORDERS.id, LOT)
    for _ in range(3):
        stage.clean()
        assert stage.rows(reader) == rows
        stage.clock.advance(READERS_S / 4)
    stage.clock.advance(READERS_S / 4)
    stage.clean()
    assert stage.data() == {item.uri for item in stage.listed()}
    assert stage.rows(stage.listed()) == rows
    keys = {info.key for info in stage.objects.list("datasets/")}
    assert before.manifest not in keys
    assert stage.row.manifest in keys
    assert [event.objects for event in stage.events if isinstance(event, LayoutRemoved)] == [21]
    stage.clock.advance(KEEP_S)
    stage.clean()  # the attempts before are swept for the last time
    assert stage.rows(stage.listed()) == rows


@pytest.mark.rule("LOT-37")
def test_only_files_of_the_same_partition_are_merged():
    stage = Layouts()
    stage.publish(20, parts=("a", "b"))
    compacted = stage.compactor().compact(ORDERS.id, LOT)
    assert compacted is not None
    assert compacted.files == 2
    assert sorted(str(item.partition["part"]) for item in stage.listed()) == ["a", "b"]


@pytest.mark.rule("LOT-37")
def test_a_lot_that_cannot_have_fewer_files_is_examined_once():
    stage = Layouts()
    stage.publish(MANY_FILES, parts=[str(n) for n in range(MANY_FILES)])
    assert stage.marks() == [LOT]
    assert stage.compactor().compact(ORDERS.id, LOT) is None
    assert stage.marks() == []
    with pytest.raises(LotUnknown):
        stage.compactor().compact(ORDERS.id, "A00000000000000009")
    big = StoredObject(uri="x", size=1 << 40)
    assert not can_be_fewer([big, big, StoredObject(uri="y", size=1)], 1 << 27)


@pytest.mark.rule("LOT-37")
def test_other_content_is_refused_and_the_lot_stays_unchanged():
    stage = Layouts()
    before = stage.publish(20)

    def losing(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        return stage.rewrite(dataset, items[1:], prefix)

    with pytest.raises(WriteMismatch, match="38 rows, expected 40"):
        stage.compactor(rewrite=losing).compact(ORDERS.id, LOT)
    assert stage.row == before
    assert not stage.store.run(lambda tx: attempts.open_ids(tx, stage.keys))

    def wrong_digest(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        rewritten = stage.rewrite(dataset, items, prefix)
        return Rewritten(written=rewritten.written, before=rewritten.before, after="40:1:2")

    with pytest.raises(WriteMismatch, match="do not have the same rows"):
        stage.compactor(rewrite=wrong_digest).compact(ORDERS.id, LOT)
    assert stage.row == before
    stage.clean()
    assert stage.data() == {item.uri for item in stage.listed()}


@pytest.mark.rule("LOT-37")
def test_a_publication_during_a_compaction_wins_and_so_does_the_first_of_two_compactions():
    stage = Layouts()
    stage.publish(20)

    def overtaken(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        rewritten = stage.rewrite(dataset, items, prefix)
        stage.publish(3, generation=1)
        return rewritten

    assert stage.compactor(rewrite=overtaken).compact(ORDERS.id, LOT) is None
    assert (stage.row.generation, stage.row.revision, stage.row.files) == (1, 0, 3)
    assert stage.marks() == []
    assert not stage.store.run(lambda tx: attempts.open_ids(tx, stage.keys))
    other = stage.compactor(stage.join("n2"))
    old = msgspec.structs.replace(stage.row, generation=0)
    assert Publisher(stage.scope()).begin_compaction(old, [], "t-old") is None  # it was replaced

    def concurrent(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        assert other.compact(ORDERS.id, LOT) is None  # a live compactor works on it
        return stage.rewrite(dataset, items, prefix)

    compacted = stage.compactor(rewrite=concurrent).compact(ORDERS.id, LOT)
    assert compacted is not None
    assert stage.row.revision == 1


@pytest.mark.rule("LOT-37")
def test_a_compactor_that_lost_its_lease_changes_nothing():
    stage = Layouts()
    before = stage.publish(20)
    other = stage.join("n2")

    def paused(dataset: DatasetRow, items: Sequence[StoredObject], prefix: str) -> Rewritten:
        rewritten = stage.rewrite(dataset, items, prefix)
        stage.stage.kill(stage.node)
        assert stage.compactor(other).compact(ORDERS.id, LOT) is not None
        return rewritten

    with pytest.raises(LeaseLost):
        stage.compactor(rewrite=paused).compact(ORDERS.id, LOT)
    assert stage.row.revision == 1
    assert stage.row.position == before.position
    stage.clean(other, readers_s=0.0)
    assert stage.data() == {item.uri for item in stage.listed()}


@pytest.mark.slow
@pytest.mark.rule("LOT-37")
def test_after_a_crash_at_any_point_the_lot_is_complete_and_the_next_run_finishes():
    def run(stage: Layouts, node: Node) -> None:
        stage.compactor(node).compact(ORDERS.id, LOT)
        stage.clean(node, readers_s=0.0)

    def state(stage: Layouts) -> tuple[object, ...]:
        row = stage.row
        return row.generation, row.position, row.rows, row.files, row.revision, stage.rows(stage.listed())

    undisturbed = Layouts()
    undisturbed.publish(20)
    visits: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash, "point", lambda name: visits.update([name]))
        run(undisturbed, undisturbed.node)
    steps = {name.rpartition(".")[0] for name in visits}
    assert steps >= {
        "publish.compact-open",
        "publish.intent",
        "publish.compact-digest",
        "publish.part-manifest",
        "publish.compact-commit",
        "publish.project-lot",
        "publish.retire-data",
        "publish.retire-manifest",
        "publish.retired",
    }
    for point, count in sorted(visits.items()):
        for visit in range(1, count + 1):
            stage = Layouts()
            stage.publish(20)
            rows = stage.rows(stage.listed())
            with crash.armed(point, visit=visit), pytest.raises(crash.Crashed):
                run(stage, stage.node)
            assert stage.rows(stage.listed()) == rows, point  # complete at every moment
            stage.stage.kill(stage.node)
            node = stage.join("n2")
            stage.clean(node, readers_s=0.0)
            run(stage, node)
            assert state(stage) == state(undisturbed), point
            assert stage.data() == {item.uri for item in stage.listed()}, point
            assert not stage.store.run(lambda tx, keys=stage.keys: attempts.open_ids(tx, keys)), point
            left = stage.store.run(lambda tx, keys=stage.keys: lots.retired(tx, keys.lots, LONG_US))
            assert (left, stage.marks()) == ([], []), point


def test_the_digest_is_stored_and_damaged_files_are_not_compacted():
    stage = Layouts()
    stage.publish(20)
    first = stage.compactor(rewrite=stage.rewrite)

    row = stage.row
    other = f"{'f' * 8}:of other rows"
    row = stage.store.run(lambda tx: lots.set_digest(tx, stage.keys.lots, row, other))
    with pytest.raises(WriteMismatch, match="differ from the published rows"):
        first.compact(ORDERS.id, LOT)
    stage.store.run(lambda tx: lots.set_digest(tx, stage.keys.lots, row, "other-columns:of other rows"))
    assert first.compact(ORDERS.id, LOT) is not None  # the digest of another schema is ignored


def test_an_unreadable_manifest_does_not_prevent_the_removal_of_others() -> None:
    stage = Layouts()
    olds = []
    for generation in range(2):
        olds.append(stage.publish(20, generation=generation))
        assert stage.compactor().compact(ORDERS.id, LOT) is not None
    stage.objects.put(olds[0].manifest, b"{")
    stage.clean(stage.node, readers_s=0.0)
    left = stage.store.run(lambda tx: lots.retired(tx, stage.keys.lots, LONG_US))
    assert [row.manifest for row in left] == [olds[0].manifest]
    assert olds[1].manifest not in {info.key for info in stage.objects.list("datasets/")}
    assert stage.rows(stage.listed())
