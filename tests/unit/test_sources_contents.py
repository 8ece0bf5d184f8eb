"""Sources that recognize copies by their content: each content is read once, and none is lost."""

import shutil
from pathlib import Path

import pytest

from tests.unit.sources_stage import SOURCE, SourceStage, ids
from tests.unit.test_sources_arrivals import arrival_of
from tidemill import crash
from tidemill.crash import Crashed
from tidemill.errors import BadSource
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.publish.parts import PartTask
from tidemill.sources.events import FileSkipped
from tidemill.sources.folder import folder
from tidemill.sources.source import SourceTarget
from tidemill.testing.threads import together


@pytest.fixture
def stage(tmp_path: Path) -> SourceStage:
    return SourceStage(tmp_path / "in", dedupe="content")


def contents(stage: SourceStage) -> int:
    """Return how many rows of contents the store has."""
    return len(stage.store.run(lambda tx: tx.range(*stage.keys.content.under(SOURCE))))


def test_without_dedupe_a_copy_counts_again(tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in")
    stage.put("a.json", 1, 2)
    stage.put("copy.json", 1, 2)
    stage.run()
    assert ids(stage.published()) == [1, 1, 2, 2]
    assert contents(stage) == 0


@pytest.mark.rule("CLU-22")
def test_a_copy_is_not_read_again_and_is_reported_once(stage: SourceStage) -> None:
    stage.put("a.json", 1, 2)
    stage.run()
    stage.put("copy.json", 1, 2)
    stage.put("more/copy.json", 1, 2)
    stage.put("new.json", 3)
    ingestion = stage.run()
    assert ids(stage.published()) == [1, 2, 3]
    skipped = {event.path: event.why for event in stage.heard(FileSkipped)}
    why = "it has the same content as a.json, which was read before"
    assert skipped == {"copy.json": why, "more/copy.json": why}
    stage.told.clear()
    ingestion.discover()
    stage.run("n2")
    assert stage.heard(FileSkipped) == []
    assert ids(stage.published()) == [1, 2, 3]
    assert contents(stage) == 2


def test_of_several_copies_in_one_listing_one_is_read(stage: SourceStage) -> None:
    for name in ("a.json", "b.json", "c.json"):
        stage.put(name, 7)
    arrival = arrival_of(stage)
    polled = arrival.poll()
    assert not polled.settled  # the copies wait until the first file is published
    assert stage.heard(FileSkipped) == []
    assert arrival.poll().settled
    assert [event.path for event in stage.heard(FileSkipped)] == ["b.json", "c.json"]
    assert ids(stage.published()) == [7]


@pytest.mark.rule("LOT-35")
def test_a_copy_is_read_if_the_first_file_disappears_before_it_is_read(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.put("b.json", 2)
    stage.put("copy.json", 1)

    def lose(_: PartTask) -> None:
        if (stage.root / "a.json").exists():
            (stage.root / "a.json").unlink()

    ingestion = stage.ingestion(before=lose)
    ingestion.discover()
    ingestion.ingest()
    assert ids(stage.published()) == [2]
    stage.run("n2")
    assert ids(stage.published()) == [1, 2]


def test_a_copy_of_a_file_that_cannot_be_read_waits_and_does_not_block_the_run(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.put("copy.json", 1)

    def fail(_: PartTask) -> None:
        raise OSError("a bad disk")

    ingestion = stage.ingestion(before=fail)
    first = ingestion.discover()
    assert first is not None
    assert first.copies_waiting
    ingestion.ingest()
    second = ingestion.discover()
    assert second is not None
    assert not second.copies_waiting
    stage.clock.advance(60)
    stage.run("n2")
    stage.run("n2")
    assert ids(stage.published()) == [1]
    assert [event.path for event in stage.heard(FileSkipped)] == ["copy.json"]


def test_a_file_that_changes_while_its_digest_is_computed_is_taken_later(
    stage: SourceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put("a.json", 1)
    ingestion = stage.ingestion()
    listing = type(stage.source.listing())
    read = listing.open

    def open_and_change(self: object, path: str) -> object:
        content = read(self, path)  # type: ignore[arg-type]
        stage.put("a.json", 1, 2, age_s=5)
        return content

    monkeypatch.setattr(listing, "open", open_and_change)
    result = ingestion.discover()
    assert result is not None
    assert result.taken == 0
    monkeypatch.undo()
    stage.run("n2")
    assert ids(stage.published()) == [1, 2]


def test_a_file_that_changes_back_is_a_copy_of_itself(tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in", dedupe="content", on_change="take")
    for age_s, number in ((30, 1), (20, 2), (10, 1)):
        stage.put("a.json", number, age_s=age_s)
        stage.run()
    assert ids(stage.published()) == [1, 2]


@pytest.mark.rule("LOT-35")
def test_a_content_that_was_replaced_before_it_was_read_is_not_taken_for_read(tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in", dedupe="content", on_change="take")
    stage.put("a.json", 1, age_s=30)
    stage.put("b.json", 2, age_s=30)
    stage.ingestion("n1").discover()
    stage.put("a.json", 3, 4, age_s=20)  # before its window is read
    stage.ingestion("n2").discover()

    def check_versions(task: PartTask) -> None:
        """Fail as the task of a window does."""
        listed = task.inputs[0].objects
        current = stage.source.listing().stat([item.uri for item in listed])
        if [file.version if file else "" for file in current] != [item.etag for item in listed]:
            raise OSError("a file has changed")

    stage.ingestion("n3", before=check_versions).ingest()
    stage.run("n3")
    assert ids(stage.published()) == [2, 3, 4]
    stage.put("copy.json", 1)  # the content that nothing has read
    stage.run("n4")
    assert ids(stage.published()) == [1, 2, 3, 4]


@pytest.mark.rule("CLU-22")
def test_two_nodes_that_find_two_copies_take_one(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    other = SourceStage(stage.root.parent / "other", stage.store, dedupe="content")
    shutil.copy(stage.root / "a.json", other.root / "b.json")
    together(stage.ingestion("n1").discover, other.ingestion("n2").discover)
    assert sum(window.about.files for window in stage.open_windows()) == 1
    assert contents(stage) == 1


@pytest.mark.parametrize("point", ["sources.take.before", "sources.take.after"])
def test_a_node_that_dies_while_it_takes_copies_loses_and_doubles_nothing(
    stage: SourceStage, point: str
) -> None:
    stage.put("a.json", 1)
    stage.run()
    stage.put("copy.json", 1)
    stage.put("b.json", 2)
    ingestion = stage.ingestion("n2")
    with crash.armed(point), pytest.raises(Crashed):
        ingestion.discover()
    stage.run("n3")
    assert ids(stage.published()) == [1, 2]


def test_a_large_window_fits_into_a_transaction(stage: SourceStage) -> None:
    for number in range(450):
        stage.put(f"{number:03}-{'x' * 200}.json", number)
    stage.run()
    assert ids(stage.published()) == list(range(450))


def test_dedupe_is_refused_for_a_dataset_with_a_key_and_for_other_values() -> None:
    dataset = DatasetRow(name="orders", kind=Kind.KEYED, key=("id",), deletes=True, schema="id BIGINT")
    target = SourceTarget(pipeline="shop", dataset=dataset, schema=dataset.schema, where="here")
    with pytest.raises(BadSource, match="orders has a key"):
        folder("in/*.json", dedupe="content").check(target)
    folder("in/*.json").check(target)
    with pytest.raises(BadSource, match="dedupe='name'"):
        folder("in/*.json", dedupe="name")
