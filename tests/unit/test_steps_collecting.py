"""Collection: of the files of views only those go that nothing lists, and never too early."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.steps_stage import P, StepStage, spec
from tidemill import crash
from tidemill.errors import AttemptUnknown
from tidemill.lots import layout, manifest, wall_clock
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import Manifest, ManifestState, StoredObject
from tidemill.objects.memory import MemoryObjects
from tidemill.publish import attempts
from tidemill.publish.cleaner import KEEP_S, Cleaner
from tidemill.views.steps import commits, groups, pins, retired
from tidemill.views.steps import versions as version_rows
from tidemill.views.steps.collector import GRACE_S, Collector, listed_run_files
from tidemill.views.steps.commits import StepBatch, StepOutput, StepState
from tidemill.views.steps.events import FilesCollected
from tidemill.views.steps.groups import GroupSpec
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.keys import changes_of, group_id, state_prefix, table_of
from tidemill.views.trace.hash_space import GRAINS
from tidemill.views.trace.run_table import AddedRun, MergedRuns, RunCut, RunEntry
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version, write_version


class Files(StepStage):
    """Views whose steps write real manifests, and merge their tables and their state."""

    def __init__(self) -> None:
        super().__init__(scan=False)
        self.objects = MemoryObjects(self.clock)
        self.told: list[FilesCollected] = []
        self.orders = self.dataset("orders")
        self.input = {
            self.objects.put(key, b"input").key
            for key in (
                "data/name=orders/version=1/lot=A1/attempt=a/x.parquet",
                "datasets/name=orders/version=1/lot=A1/state=complete/gen=000000/attempt=a.1/manifest.json",
            )
        }
        self.me = self.node("me", 10**15)

    def files(self, start: str = "") -> set[str]:
        return {info.key for info in self.objects.list(start)}

    def leaf(self, dataset: DatasetId, batch: StepBatch, attempt: str, part: str = "") -> str:
        data = f"{layout.data_prefix(*dataset.parts, batch.lot, attempt)}{part or 'c'}.parquet"
        self.objects.put(data, b"rows")
        return self.manifest(dataset, batch, attempt, part=part, objects=[StoredObject(uri=data, rows=1)])

    def manifest(self, dataset: DatasetId, batch: StepBatch, attempt: str, **fields: Any) -> str:
        body = Manifest(
            state=ManifestState.COMPLETE,
            dataset=dataset.name,
            version=dataset.version,
            lot=batch.lot,
            attempt=attempt,
            **fields,
        )
        key = layout.manifest_key(
            *dataset.parts,
            batch.lot,
            ManifestState.COMPLETE,
            0,
            attempt,
            part=body.part,
            root=bool(body.parts),
        )
        crash.point("test.put.before")
        self.objects.put(key, manifest.encode(body))
        return key

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepOutput | StepState, ...]:
        self.computed.append((batch, attempt))
        outputs = []
        for view in batch.spec.views:
            changes = self.leaf(changes_of(P, view.name), batch, attempt)
            before = batch.tables.get(view.name, "")
            parts = [*(manifest.decode(self.objects.get(before)[0]).parts if before else ()), changes]
            if len(parts) > 3:  # merge: the new manifest does not list the parts that it replaces
                parts = [self.leaf(table_of(P, view.name), batch, attempt, "merge-0")]
            table = self.manifest(table_of(P, view.name), batch, attempt, parts=parts)
            outputs.append(StepOutput(view=view.name, changes=changes, table=table, rows=1))
        return (*outputs, self.state(batch, attempt))

    def state(self, batch: StepBatch, attempt: str) -> StepState:
        prefix = state_prefix(P, batch.spec.name, batch.lot, attempt)
        version = read_version(self.objects, batch.version) if batch.version else TraceVersion.empty(["t"])
        self.objects.put(prefix + "bundle", b"runs")
        old = version.traces.get("t", ())
        merged = []
        if len(old) >= 3:
            cuts = tuple(RunCut(entry.file, entry.offset, entry.low, entry.high) for entry in old)
            merged = [MergedRuns("t", cuts, RunEntry(prefix + "bundle", 0, GRAINS - 1, 4, 4, 1, 1))]
        added = [AddedRun("t", RunEntry(prefix + "bundle", 0, GRAINS - 1, 0, 4, 1, 1))]
        write_version(self.objects, prefix + "version.json", version.apply(batch.step, added, merged).version)
        return StepState(version=prefix + "version.json")

    def go(self, steps: int, group: str = "g") -> None:
        for _ in range(steps):
            self.publish(self.orders)
            self.settle(self.me, group)
            self.clock.advance(1)

    def collector(self, **fields: Any) -> Collector:
        return Collector(self.store, self.keys, P, self.objects, emit=self.told.append, **fields)

    def collect(self, collector: Collector | None = None) -> None:
        collector = collector or self.collector()
        while collector.collect():
            pass

    def clean(self) -> None:
        scope = self.scope(self.node("cleaner"))
        cleaner = Cleaner(scope, lists=lambda key: listed_run_files(self.objects, key))
        while cleaner.clean():
            pass

    def needed(self, *roots: str) -> set[str]:
        """Return the keys of all objects that reading these tables needs."""
        reader = ManifestReader(self.objects)
        keys = set(roots)
        for root in roots:
            parts = reader.load(root).parts
            keys |= set(parts) | {item.uri for leaf in reader.leaves(root) for item in leaf.objects}
        return keys

    def heads(self, name: str = "g") -> tuple[list[str], list[str]]:
        """Return the tables and version files of the last two steps with outputs."""
        rows = [row for row in self.rows_of_group(name) if row.outputs]
        tables = [output.table for row in rows[-2:] for output in row.outputs]
        return tables, [row.version for row in rows[-2:] if row.version]

    def all_changes(self, name: str = "g") -> set[str]:
        manifests = {output.changes for row in self.rows_of_group(name) for output in row.outputs}
        return manifests | {
            item.uri for key in manifests for item in ManifestReader(self.objects).objects(key)
        }


@pytest.fixture
def stage() -> Files:
    files = Files()
    files.declare(spec("g", files.orders))
    return files


def expected(stage: Files) -> set[str]:
    """Return the files that stay after collection: those of the last two lists, changes, and input."""
    tables, versions = stage.heads()
    state = {file for version in versions for file in read_version(stage.objects, version).files()}
    rest = {key for key in stage.files() if "/state=removed/" in key}
    return stage.needed(*tables) | set(versions) | state | stage.all_changes() | stage.input | rest


@pytest.mark.rule("DBSP-37")
@pytest.mark.rule("DBSP-28")
def test_files_that_no_list_names_are_removed_and_input_and_changes_stay(stage: Files) -> None:
    stage.go(12)
    before = stage.files()
    stage.collect()
    assert stage.files() == before  # all of it is younger than the grace
    stage.clock.advance(GRACE_S)
    stage.go(2)  # young files stay
    young = {info.key for info in stage.objects.list() if info.modified_at > stage.clock.wall() - GRACE_S}
    stage.collect()
    assert stage.files() == expected(stage) | young
    assert stage.files() < before | young
    stage.clock.advance(GRACE_S)
    stage.collect()
    assert stage.files() == expected(stage)
    assert sum(event.files for event in stage.told) == len(before | young) - len(stage.files())
    assert all(event.size > 0 for event in stage.told)
    stage.go(3)  # later steps still work
    stage.clock.advance(2 * GRACE_S)
    stage.collect(stage.collector(page=3))  # in very small pages
    assert stage.files() == expected(stage)
    stage.clean()  # the cleaner removes nothing else
    assert stage.files() == expected(stage)


@pytest.mark.rule("DBSP-37")
def test_a_clock_that_jumps_ahead_for_a_moment_makes_no_file_old(stage: Files) -> None:
    stage.go(8)
    stage.run(wall_clock.observe, stage.keys.lots)
    before = {info.key for info in stage.objects.list()}
    stage.clock.wall_s += 7 * 24 * 3600
    stage.collect()
    assert {info.key for info in stage.objects.list()} == before
    stage.clock.wall_s -= 7 * 24 * 3600
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    assert {info.key for info in stage.objects.list()} < before


def test_pinned_files_stay_until_the_pin_expires(stage: Files) -> None:
    stage.go(3)
    table = stage.group("g").tables["g"]
    stage.run(pins.take, stage.keys, P, [table])
    version = stage.group("g").version
    stage.run(pins.take, stage.keys, P, [version], int(3 * GRACE_S) * pins.SECOND_US)
    pinned = stage.needed(table)
    stage.go(9)
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    assert pinned <= stage.files()
    assert {version} | read_version(stage.objects, version).files() <= stage.files()
    assert not pinned <= expected(stage)
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    assert pinned <= stage.files()
    assert version not in stage.files()  # its pin has ended
    for _ in range(3):
        stage.clock.advance(0.9 * pins.PIN_US / pins.SECOND_US)
        stage.run(pins.take, stage.keys, P, [table])  # extends the pin
    stage.clock.advance(pins.PIN_US / pins.SECOND_US)
    stage.collect()
    assert pinned <= stage.files()
    stage.clock.advance(pins.PIN_US / pins.SECOND_US)
    stage.collect()
    assert stage.files() == expected(stage)
    assert stage.run(lambda tx: tx.range(*stage.keys.pin.under(P))) == []


@pytest.mark.rule("DBSP-37", "DBSP-23", "DBSP-30")
def test_the_files_of_a_version_stay_until_it_is_discarded(stage: Files) -> None:
    stage.go(4)
    pinned = stage.group("g")
    assert stage.run(version_rows.commit_version, stage.keys, P, pinned) == 1
    kept = stage.needed(*pinned.tables.values()) | {pinned.version}
    kept |= read_version(stage.objects, pinned.version).files()
    stage.go(9)
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    assert kept <= stage.files(), "the head has moved, and the version can be read"
    assert not kept <= expected(stage)
    assert stage.run(version_rows.commit_version, stage.keys, P, stage.group("g")) == 2
    stage.collect()
    assert kept <= stage.files()
    stage.run(version_rows.open_version, stage.keys, P, "g", 2)
    stage.collect()
    assert stage.files() == expected(stage), "version 2 is the head"


@pytest.mark.rule("DBSP-37")
def test_files_of_an_open_attempt_stay_and_are_removed_after_it_ended(stage: Files) -> None:
    stage.go(5)
    stage.publish(stage.orders)
    other = stage.node("slow", 10**15)
    ticket = stage.begin(other, "g")
    stage.run(commits.next_record, stage.keys, P, ticket, "g")
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    hold = stage.run(commits.open_step, stage.keys, ticket, batch, "slow")
    stage.compute(batch, hold.draft.id)
    written = {key for key in stage.files() if "attempt=slow/" in key}
    stage.clock.advance(KEEP_S)
    stage.collect()
    assert written
    assert written <= stage.files()  # although they are old
    stage.kill(other)
    stage.look(group_id(P, "g"))
    stage.settle(stage.me, "g")  # abandons the other attempt
    stage.clean()
    assert not written & stage.files()
    stage.clock.advance(KEEP_S)
    stage.clean()  # removes the attempt's row
    again = stage.compute(batch, hold.draft.id)  # the zombie still writes
    with pytest.raises(AttemptUnknown):
        stage.run(attempts.read, stage.keys, "slow")
    written = {key for key in stage.files() if "attempt=slow/" in key and "/state=removed/" not in key}
    late = {key for key in written if "/version=changes/" not in key}  # the folders of changes are kept
    assert again
    assert late
    stage.collect()
    assert late <= stage.files()  # younger than the grace
    stage.clock.advance(GRACE_S + 1)
    stage.collect()
    assert not late & stage.files()


@pytest.mark.rule("DBSP-37")
def test_nothing_is_removed_while_the_current_list_is_unreadable(stage: Files) -> None:
    stage.go(6)
    stage.clock.advance(2 * GRACE_S)
    table, version = stage.group("g").tables["g"], stage.group("g").version
    bodies = {key: stage.objects.get(key)[0] for key in (table, version)}
    before = stage.files()
    for key in bodies:
        stage.objects.put(key, b"{ broken")
    stage.collect()
    assert stage.files() == before
    stage.objects.delete(table)
    stage.collect()
    assert stage.files() == before - {table}
    for key, body in bodies.items():
        stage.objects.put(key, body)
    stage.collect()
    assert stage.files() == expected(stage) < before


def test_files_of_a_retired_view_are_removed_except_its_last_table(stage: Files) -> None:
    stage.declare(spec("g", stage.orders), spec("h", stage.orders), circuit="2")
    for _ in range(6):
        stage.publish(stage.orders)
        stage.settle(stage.me, "g", "h")
    last = stage.group("h").tables["h"]
    needed = stage.needed(last)
    stage.run(groups.remove, stage.keys, P, "h")
    assert stage.run(retired.to_collect, stage.keys, P) == [("", "h"), ("h", "")]
    stage.collect()  # too early: the marks stay
    assert len(stage.run(retired.to_collect, stage.keys, P)) == 2
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    of_h = {key for key in stage.files() if "shop%2Fh/" in key}
    assert of_h == needed  # it is retired, and can be read
    assert stage.run(retired.to_collect, stage.keys, P) == []
    stage.declare(spec("g", stage.orders), spec("h", stage.orders, code="2"), circuit="3")
    for _ in range(5):
        stage.publish(stage.orders)
        stage.settle(stage.me, "g", "h")
    stage.run(groups.declare, stage.keys, P, spec("g", stage.orders, code="2"))
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    assert stage.needed(stage.group("h").tables["h"]) | stage.all_changes("h") <= stage.files()
    assert stage.all_changes("g") <= stage.files()


def test_changes_stay_after_the_attempts_that_wrote_them_were_forgotten(stage: Files) -> None:
    together = GroupSpec(name="g", views=(*spec("g", stage.orders).views, *spec("h", stage.orders).views))
    stage.declare(together, circuit="2")
    stage.go(4)
    changes = stage.all_changes()
    stage.declare(spec("g", stage.orders), circuit="3")  # `h` is marked, and declared again
    stage.declare(together, circuit="4")
    stage.go(1)
    stage.clock.advance(KEEP_S + 1)
    stage.clean()
    attempt = stage.keys.attempt
    assert stage.store.run(lambda tx: tx.range(*attempt.all())) == []
    stage.collect()
    assert changes <= stage.files()


@pytest.mark.parametrize("apart", [True, False])
def test_dropping_a_retired_view_removes_its_last_table(stage: Files, *, apart: bool) -> None:
    both = [spec("g", stage.orders), spec("h", stage.orders)]
    together = GroupSpec(name="g", views=tuple(group.views[0] for group in both))
    stage.declare(*(both if apart else [together]), circuit="2")
    for _ in range(4):
        stage.publish(stage.orders)
        stage.settle(stage.me, "g", *(["h"] if apart else []))
    if apart:
        stage.run(groups.remove, stage.keys, P, "h")
    else:
        stage.declare(spec("g", stage.orders), circuit="3")
    stage.clock.advance(2 * GRACE_S)
    stage.collect()
    (last,) = stage.run(retired.listed, stage.keys, P)
    assert stage.needed(last.table) <= stage.files()
    assert stage.run(retired.drop, stage.keys, P, "h")
    assert not stage.run(retired.drop, stage.keys, P, "h"), "once"
    stage.collect()
    left = {key for key in stage.files() if "shop%2Fh/" in key}
    assert not {key for key in left if apart or "/version=changes/" not in key}
    assert stage.run(retired.to_collect, stage.keys, P) == []
    assert stage.needed(stage.group("g").tables["g"]) <= stage.files()


@pytest.mark.rule("DBSP-37")
@pytest.mark.parametrize("point", ["views.collect.before", "views.collect.after", "test.put.before"])
def test_a_crash_during_a_step_or_a_collection_loses_nothing(stage: Files, point: str) -> None:
    for visit in (1, 2, 3):
        stage.go(4)
        stage.clock.advance(2 * GRACE_S)
        with crash.armed(point, visit=visit):
            try:
                stage.publish(stage.orders)
                stage.settle(stage.me, "g")
                stage.clock.advance(2 * GRACE_S)
                stage.collect()
            except crash.Crashed:
                stage.kill(stage.me)
                stage.look(group_id(P, "g"))
                stage.me = stage.node(f"life {visit}", 10**15)
        tables, versions = stage.heads()
        files = stage.files()
        assert stage.needed(*tables) | set(versions) | stage.all_changes() <= files
        assert all(read_version(stage.objects, version).files() <= files for version in versions)
    stage.go(2)
    stage.clean()
    stage.clock.advance(2 * GRACE_S)
    stage.clean()
    stage.collect()
    assert stage.files() == expected(stage)


@pytest.mark.rule("DBSP-37")
@pytest.mark.parametrize("seed", range(3))
def test_steps_and_pins_between_the_pages_of_a_collection_lose_nothing(stage: Files, seed: int) -> None:
    """Groups commit and readers pin tables between the pages of a collection."""
    chance = random.Random(seed)
    pinned: list[tuple[float, str]] = []

    def interfere() -> None:
        if chance.random() < 0.3:
            stage.go(1)
        if chance.random() < 0.2 and stage.group("g").tables:
            table = stage.group("g").tables["g"]
            stage.run(pins.take, stage.keys, P, [table])
            pinned.append((stage.clock.monotonic(), table))
        stage.clock.advance(chance.choice([0, 1, GRACE_S / 3]))

    collector = stage.collector(page=4)
    listing: Callable[..., Any] = stage.objects.list
    deleting = stage.objects.delete_many

    def slow_list(*args: Any, **fields: Any) -> Any:
        page = list(listing(*args, **fields))
        interfere()
        return iter(page)

    def slow_delete(keys: Any) -> None:
        page = list(keys)
        interfere()
        deleting(page)

    stage.go(4)
    stage.objects.list = slow_list  # type: ignore[method-assign]
    stage.objects.delete_many = slow_delete  # type: ignore[method-assign]
    for _ in range(40):
        collector.collect(pages=3)
        stage.objects.list = listing  # type: ignore[method-assign]
        tables, versions = stage.heads()
        pinned_tables = [
            table for at, table in pinned if stage.clock.monotonic() < at + pins.PIN_US / pins.SECOND_US
        ]
        files = stage.files()
        assert stage.needed(*tables, *pinned_tables) | stage.all_changes() <= files
        assert all(read_version(stage.objects, version).files() <= files for version in versions)
        stage.objects.list = slow_list  # type: ignore[method-assign]
    assert stage.told
