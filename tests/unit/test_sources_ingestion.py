"""From files to lots: each file is in exactly one lot, no matter which nodes list, work and die."""

import itertools
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.sources_stage import BAD, ORDERS, SOURCE, SourceStage, ids
from tidemill import crash
from tidemill.cluster.keeper import Keeper
from tidemill.crash import Crashed
from tidemill.errors import LeaseLost, ObjectUnavailable
from tidemill.lots import wall_clock
from tidemill.lots.datasets import Kind
from tidemill.publish.parts import PartTask
from tidemill.sources import taken_files, windows
from tidemill.sources.events import (
    FileChanged,
    FilesDiscovered,
    FileSkipped,
    FilesLeftOut,
    RecordsQuarantined,
    WindowFailed,
    WindowPublished,
    WindowTaken,
)
from tidemill.sources.windows import FailedWindow, HeldWindow, ListedWindow


@pytest.fixture
def stage(tmp_path: Path) -> SourceStage:
    return SourceStage(tmp_path / "in", settle_s=2)


@pytest.mark.rule("CLU-22")
def test_a_file_is_taken_once_across_listings_and_restarts(stage: SourceStage) -> None:
    stage.put("a.json", 1, 2)
    stage.put("x/b.json", 3)
    stage.run()
    assert ids(stage.published()) == [1, 2, 3]
    stage.put("c.json", 4)
    stage.run()
    stage.run("another")
    assert ids(stage.published()) == [1, 2, 3, 4]
    assert [event.lot for event in stage.stage.events(ORDERS)] == [f"A{n:017}" for n in (1, 2)]
    assert stage.open_windows() == []
    assert set(stage.taken()) == {"a.json", "x/b.json", "c.json"}
    stage.stage.check()


def test_a_jump_of_the_clock_does_not_settle_a_file_that_is_still_written(stage: SourceStage) -> None:
    lot_keys = stage.keys.publish.lots
    stage.store.run(lambda tx: wall_clock.observe(tx, lot_keys))
    stage.put("a.json", 1, age_s=0)
    stage.clock.wall_s += 7 * 24 * 3600
    arrival = stage.ingestion()
    assert arrival.discover().taken == 0
    stage.clock.wall_s -= 7 * 24 * 3600
    stage.clock.advance(3)
    assert arrival.discover().taken == 1


@pytest.mark.rule("LOT-35")
def test_a_file_is_acknowledged_in_the_transaction_that_publishes_its_lot(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    work = stage.ingestion()
    work.discover()
    states = []
    for point in ("publish.commit.before", "publish.commit.after"):
        with crash.armed(point), pytest.raises(Crashed):
            work.ingest()
        row = stage.store.run(lambda tx: windows.read(tx, stage.keys, SOURCE, 1))
        assert row is not None
        states.append((row.state.value, len(stage.stage.events(ORDERS))))
        work = stage.ingestion()  # the node starts again
    assert states == [("held", 0), ("published", 1)]


@pytest.mark.rule("LOT-35")
def test_a_window_whose_ingestion_failed_because_of_an_outage_is_ingested_by_the_same_node(
    stage: SourceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("a.json", 1, 2)
    work = stage.ingestion()
    work.discover()
    with monkeypatch.context() as away:
        away.setattr(work._assembler, "assemble", _fails)
        with pytest.raises(ObjectUnavailable):
            work.ingest()
    (window,) = stage.open_windows()
    assert isinstance(window, HeldWindow)
    assert stage.ingestion("other").ingest() == 0, "another node does not take it from a live node"
    with monkeypatch.context() as away:
        away.setattr(work._assembler, "assemble", _fails)
        with pytest.raises(ObjectUnavailable):
            work.ingest()
    assert work.ingest() == 1
    assert ids(stage.published()) == [1, 2]
    assert stage.open_windows() == []
    stage.stage.check()


def _fails(*_: object, **__: object) -> None:
    raise ObjectUnavailable("it restarts")


@pytest.mark.rule("CLU-22")
def test_two_threads_of_a_node_do_not_ingest_one_window(
    stage: SourceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("a.json", 1)
    work = stage.ingestion()
    work.discover()
    assemble, others = work._assembler.assemble, []

    def in_the_middle(*arguments: Any, **options: Any) -> Any:
        others.append(work.ingest())
        return assemble(*arguments, **options)

    monkeypatch.setattr(work._assembler, "assemble", in_the_middle)
    assert work.ingest() == 1
    assert others == [0]
    assert ids(stage.published()) == [1]


def test_ingestion_emits_events(stage: SourceStage) -> None:
    stage.put("a.json", body='{"id":1}\n{"id":2}\nnonsense\n')
    stage.run()
    (discovered,) = stage.heard(FilesDiscovered)
    (window,) = stage.heard(WindowTaken)
    (published,) = stage.heard(WindowPublished)
    assert (discovered.files, discovered.windows, discovered.size) == (1, 1, 27)
    assert (window.window, window.node, window.files, window.over) == (1, "n1", 1, False)
    assert (published.lot, published.position, published.rows) == ("A00000000000000001", 1, 2)
    (quarantined,) = stage.heard(RecordsQuarantined)
    assert (quarantined.dataset, quarantined.records) == ("orders_quarantine", 1)


def test_bad_records_become_a_quarantine_lot_with_the_same_id(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.run()
    assert stage.stage.events(BAD) == []  # nothing was wrong, so there is no lot
    stage.put("b.json", body='{"id":2}\n{"id":\n')
    stage.run()
    assert ids(stage.published()) == [1, 2]
    assert stage.published(BAD) == [["b.json", 2, '{"id":']]
    assert [event.lot for event in stage.stage.events(BAD)] == ["A00000000000000002"]


def test_a_window_with_only_bad_records_is_an_empty_lot(stage: SourceStage) -> None:
    stage.put("a.json", body="nonsense\n")
    stage.run()
    assert [event.state.value for event in stage.stage.events(ORDERS)] == ["empty"]
    assert [event.state.value for event in stage.stage.events(BAD)] == ["complete"]


# --- which files


def test_recent_and_empty_files_wait(stage: SourceStage) -> None:
    stage.put("young.json", 1, age_s=0.5)
    stage.put("empty.json", body="")
    work = stage.ingestion()
    looked = work.discover()
    assert looked is not None
    assert (looked.listed, looked.taken) == (2, 0)
    assert looked.waiting_s == 2
    stage.clock.advance(2)
    looked = work.discover()
    assert looked is not None
    assert (looked.taken, looked.waiting_s) == (1, None)
    stage.put("empty.json", 5)
    stage.run("n2")
    assert ids(stage.published()) == [1, 5]


def test_a_growing_file_waits_even_if_its_time_is_old(stage: SourceStage) -> None:
    work = stage.ingestion()
    for step in range(3):
        stage.put("slow.json", *range(step + 1), age_s=0)
        looked = work.discover()
        assert looked is not None
        assert looked.taken == 0
        stage.clock.advance(1)
    stage.clock.advance(1)
    assert work.discover().taken == 1  # type: ignore[union-attr]


def test_a_file_under_a_hidden_name_is_taken_when_it_is_renamed(stage: SourceStage) -> None:
    stage.put(".a.json", 1)
    stage.put("b.json.tmp", 2)
    stage.run()
    assert stage.published() == []
    (stage.root / ".a.json").rename(stage.root / "a.json")
    (stage.root / "b.json.tmp").rename(stage.root / "b.json")
    stage.run()
    assert ids(stage.published()) == [1, 2]


def test_a_file_that_changed_after_it_was_taken_is_reported_once(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    work = stage.run()
    stage.put("a.json", 1, 2)
    work.discover()
    stage.run("another")  # another node does not report it again
    assert [(event.path, event.taken) for event in stage.heard(FileChanged)] == [("a.json", False)]
    assert ids(stage.published()) == [1]
    stage.put("a.json", 1, 2, 3)
    work.discover()
    assert len(stage.heard(FileChanged)) == 2


def test_a_changed_file_is_taken_again_with_on_change_take(tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in", on_change="take")
    stage.put("a.json", 1)
    stage.run()
    stage.put("a.json", 2, 3)
    stage.run()
    stage.run()
    assert ids(stage.published()) == [1, 2, 3]
    assert [event.taken for event in stage.heard(FileChanged)] == [True]


def test_a_file_without_read_permission_waits_and_is_reported_once(
    stage: SourceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("locked.json", 1)
    stage.put("open.json", 2)
    may_read = os.access
    monkeypatch.setattr(os, "access", lambda path, *how, **more: "locked" not in str(path))
    work = stage.ingestion()
    work.discover()
    work.discover()
    assert [(event.path, event.why) for event in stage.heard(FileSkipped)] == [
        ("locked.json", "this process is not allowed to read it")
    ]
    monkeypatch.setattr(os, "access", may_read)
    work.discover()
    work.ingest()
    assert ids(stage.published()) == [1, 2]


def test_a_remembered_page_is_read_again_after_a_while(stage: SourceStage) -> None:
    """If a row is deleted elsewhere, the node notices it only after a while."""
    stage.put("a.json", 1)
    work = stage.run()
    work.discover()  # nothing was new
    stage.store.run(lambda tx: taken_files.release(tx, stage.keys, SOURCE, ["a.json"], 1))
    assert work.discover().taken == 0  # type: ignore[union-attr]
    stage.clock.advance(301)
    assert work.discover().taken == 1  # type: ignore[union-attr]


def test_windows_are_bounded_by_files_bytes_and_rows(tmp_path: Path) -> None:
    few_files = SourceStage(tmp_path / "few", max_files=3)
    for number in range(8):
        few_files.put(f"{number}.json", number)
    discovery = few_files.ingestion().discover()
    assert discovery is not None
    assert len(discovery.windows) == 3
    small = SourceStage(tmp_path / "small", max_bytes=25)
    for number in range(4):
        small.put(f"{number}.json", 1)
    small.put("large.json", *range(20))  # larger than any window: it gets its own
    assert [window.about.files for window in small.open_windows()] == []
    small.run()
    assert len(small.stage.events(ORDERS)) == 3


@pytest.mark.rule("LOT-43")
def test_no_transaction_grows_with_the_files(tmp_path: Path) -> None:
    """Long paths fill a transaction by bytes; each window still fits, and so does its publication."""
    stage = SourceStage(tmp_path / "in")
    deep = "/".join(["d" * 200] * 4)
    (stage.root / deep).mkdir(parents=True)
    for number in range(700):
        (stage.root / deep / f"{number:03}.json").write_text(f'{{"id":{number}}}\n')
        os.utime(stage.root / deep / f"{number:03}.json", (1, 1))
    work = stage.ingestion()
    looked = work.discover()
    assert looked is not None
    assert looked.taken == 700
    assert len(looked.windows) == 2
    work.ingest()
    assert ids(stage.published()) == list(range(700))


# --- files that change while they are read


def test_files_that_change_or_disappear_before_they_are_read_are_taken_again(stage: SourceStage) -> None:
    for name in ("changes", "goes", "stays"):
        stage.put(f"{name}.json", len(name))

    def disturb(task: PartTask) -> None:
        if len(task.inputs[0].objects) == 3:
            stage.put("changes.json", 70, 71)
            (stage.root / "goes.json").unlink()
            raise OSError("a file changed")

    work = stage.ingestion(before=disturb)
    work.discover()
    assert work.ingest() == 1
    assert ids(stage.published()) == [5]
    (left,) = stage.heard(FilesLeftOut)
    assert left.paths == ["changes.json", "goes.json"]
    assert set(stage.taken()) == {"stays.json"}
    stage.run()
    assert ids(stage.published()) == [5, 70, 71]


def test_a_window_without_any_file_left_is_dropped(stage: SourceStage) -> None:
    stage.put("a.json", 1)

    def disturb(task: PartTask) -> None:
        (stage.root / "a.json").unlink()
        raise OSError("gone")

    work = stage.ingestion(before=disturb)
    work.discover()
    assert work.ingest() == 1
    assert (stage.open_windows(), stage.taken(), stage.published()) == ([], {}, [])
    row = stage.store.run(lambda tx: windows.read(tx, stage.keys, SOURCE, 1))
    assert row is not None
    assert row.state.value == "dropped"


def test_a_window_that_cannot_be_read_waits_and_is_retried(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    broken = True

    def disturb(task: PartTask) -> None:
        if broken:
            raise OSError("Spark is away")

    work = stage.ingestion(before=disturb)
    work.discover()
    assert work.ingest() == 0
    (failed,) = stage.open_windows()
    assert isinstance(failed, FailedWindow)
    assert (failed.kind, failed.message) == ("OSError", "Spark is away")
    (event,) = stage.heard(WindowFailed)
    assert event.wait_s == 30
    stage.put("b.json", 2)  # does not wait for the failed window
    broken = False
    work.discover()
    work.ingest()
    assert ids(stage.published()) == [2]
    stage.clock.advance(30)
    work.ingest()
    assert ids(stage.published()) == [1, 2]
    assert stage.open_windows() == []


# --- several nodes


@pytest.mark.rule("CLU-21")
def test_the_windows_of_a_dead_node_are_taken_over_with_their_attempts(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    dead = stage.node("dead")
    work = stage.ingestion(dead)
    work.discover()
    with crash.armed("publish.part-manifest.after"), pytest.raises(Crashed):
        work.ingest()
    (window,) = stage.open_windows()
    assert isinstance(window, HeldWindow)
    other = stage.ingestion("other")
    assert other.ingest() == 0  # its node is alive
    stage.stage.kill(dead)
    assert other.ingest() == 1
    events = stage.heard(WindowTaken)
    assert [(event.node, event.over) for event in events] == [("dead", False), ("other", True)]
    assert events[0].attempt == events[1].attempt
    assert ids(stage.published()) == [1]


@pytest.mark.rule("CLU-21")
@pytest.mark.parametrize("damage", ["gone", "cut", "manifest"])
def test_a_damaged_attempt_of_a_dead_node_is_abandoned_and_the_window_is_read_again(
    stage: SourceStage, damage: str
) -> None:
    stage.put("a.json", 1)
    dead = stage.node("dead")
    work = stage.ingestion(dead)
    work.discover()
    with crash.armed("publish.commit.before"), pytest.raises(Crashed):
        work.ingest()
    stage.stage.kill(dead)
    keys = [info.key for info in stage.objects.list("") if f"name={ORDERS.name}/" in info.key]
    wanted = "state=complete" if damage == "manifest" else "part-0.parquet"
    (key,) = [key for key in keys if wanted in key]
    body, _ = stage.objects.get(key)
    stage.objects.delete(key) if damage == "gone" else stage.objects.put(key, body[: len(body) // 2])
    assert stage.ingestion("other").ingest() == 1
    first, *_, last = stage.heard(WindowTaken)
    assert first.attempt != last.attempt
    assert ids(stage.published()) == [1]


def test_a_node_does_not_take_over_its_own_window_under_the_same_epoch(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    node = stage.node("n")
    work = stage.ingestion(node)
    work.discover()
    with crash.armed("publish.intent.before"), pytest.raises(Crashed):
        work.ingest()
    assert stage.ingestion(node).ingest() == 0
    assert stage.ingestion(stage.node("n")).ingest() == 1


def test_a_stale_node_publishes_nothing_after_its_window_was_taken_over(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    dead = stage.node("dead")

    def sleep(task: PartTask) -> None:
        stage.stage.kill(dead)
        stage.run("other")

    work = stage.ingestion(dead, before=sleep)
    work.discover()
    with pytest.raises(LeaseLost):
        work.ingest()
    assert ids(stage.published()) == [1]
    assert len(stage.stage.events(ORDERS)) == 1


def test_two_nodes_do_not_list_at_the_same_time(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    keepers = [Keeper(stage.store, name, clock=stage.clock, chance=stage.chance) for name in ("n1", "n2")]
    works = [stage.ingestion(keeper.holder, keeper=keeper) for keeper in keepers]
    lease = keepers[0].acquire(stage.keys.discovery_lease(SOURCE))
    assert works[1].discover() is None
    keepers[0].release(lease)  # type: ignore[arg-type]
    looked = works[1].discover()
    assert looked is not None
    assert looked.taken == 1
    assert works[0].discover() is not None


def test_a_node_that_lost_the_lease_takes_nothing(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    keeper = Keeper(stage.store, "n1", clock=stage.clock, chance=stage.chance)
    work = stage.ingestion("n1", keeper=keeper)
    lease = keeper.acquire(stage.keys.discovery_lease(SOURCE))
    stage.clock.advance(60)
    with pytest.raises(LeaseLost):
        work._discovery.discover(fence=lease.fence)  # type: ignore[union-attr]
    assert stage.taken() == {}


@pytest.mark.rule("LOT-40")
def test_windows_for_a_dataset_with_a_key_are_published_in_order(stage: SourceStage) -> None:
    stage.spec = msgspec.structs.replace(stage.spec, kind=Kind.KEYED, key=("id",))
    broken = True

    def disturb(task: PartTask) -> None:
        if broken:
            raise OSError("away")

    work = stage.ingestion(before=disturb)
    for number in range(3):
        stage.put(f"{number}.json", number)
        work.discover()
    assert work.ingest_window(2) is False  # an earlier window comes first
    assert work.ingest() == 0
    broken = False
    stage.clock.advance(60)
    assert work.ingest() == 3
    assert [row[1]["id"] for row in stage.published()] == [0, 1, 2]


# --- crashes


def _points(tmp_path: Path) -> list[str]:
    stage = SourceStage(tmp_path / "probe")
    stage.put("a.json", body='{"id":1}\nnonsense\n')
    with crash.recorded() as points:
        stage.run()
    return sorted(point for point in points if point.startswith(("sources.", "publish.")))


@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-35")
def test_a_crash_before_or_after_any_durable_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    points = _points(tmp_path)
    assert {"sources.take.before", "sources.begin.after", "publish.commit.before"} <= set(points)
    for number, (point, visit) in enumerate(itertools.product(points, (1, 2))):
        stage = SourceStage(tmp_path / f"s{number}", max_files=2)
        for file in range(5):
            stage.put(f"{file}.json", body=f'{{"id":{file}}}\nbad {file}\n')
        with crash.armed(point, visit=visit):
            try:
                stage.run()
            except Crashed:
                pass
            else:
                assert visit == 2
        stage.put("late.json", 9)
        stage.run()
        assert ids(stage.published()) == [0, 1, 2, 3, 4, 9], point
        assert len(stage.published(BAD)) == 5, point
        assert stage.open_windows() == []
        stage.stage.check()


def test_a_crash_while_files_are_left_out_or_a_window_fails_loses_nothing(tmp_path: Path) -> None:
    for number, point in enumerate(
        f"sources.{step}.{when}" for step in ("leave-out", "fail") for when in ("before", "after")
    ):
        stage = SourceStage(tmp_path / f"s{number}")
        stage.put("a.json", 1)
        stage.put("b.json", 2)

        def disturb(task: PartTask, stage: SourceStage = stage, point: str = point) -> None:
            if "leave-out" in point:
                stage.put("a.json", 11)
            raise OSError("disturbed")

        work = stage.ingestion(before=disturb)
        work.discover()
        with crash.armed(point), pytest.raises(Crashed):
            work.ingest()
        stage.clock.advance(3600)
        for _ in range(3):
            stage.run()
        assert ids(stage.published()) == ([2, 11] if "leave-out" in point else [1, 2]), point


def test_listed_windows_are_found_by_any_node(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.ingestion("lister").discover()
    (window,) = stage.open_windows()
    assert isinstance(window, ListedWindow)
    assert stage.ingestion("worker").ingest(most=1) == 1
    assert stage.ingestion("worker").ingest_window(99) is False
