"""Files that are gone: their rows are deleted after a while, and those of other files stay."""

from pathlib import Path

import pytest

from tests.unit.sources_stage import SOURCE, SourceStage, ids
from tests.unit.test_sources_arrivals import arrival_of
from tidemill import crash
from tidemill.cluster.nodes import Node
from tidemill.errors import BadSource
from tidemill.sources import gone_files, taken_files
from tidemill.sources.file_source import LEAST_FORGET_S, FilePolicy
from tidemill.sources.folder import folder
from tidemill.sources.gone_files import GoneFiles

DAY_S = LEAST_FORGET_S
AFTER_S = 3 * DAY_S


@pytest.fixture
def stage(tmp_path: Path) -> SourceStage:
    return SourceStage(tmp_path / "in")


def forget(stage: SourceStage, node: Node | None = None, *, by_content: bool = False) -> int:
    """Make a pass, as a runner does; return how many files were forgotten."""
    scope = stage.scope(node or stage.node("n1"))
    return GoneFiles(SOURCE, stage.source.listing(), AFTER_S, scope, by_content=by_content).forget()


def window_numbers(stage: SourceStage) -> list[int]:
    rows = stage.store.run(lambda tx: tx.range(*stage.keys.window.under(SOURCE)))
    return [int(str(stage.keys.window.unpack(row.key)[1])) for row in rows]


def remove(stage: SourceStage, *paths: str) -> None:
    for path in paths:
        (stage.root / path).unlink()


@pytest.mark.rule("CLU-22")
def test_the_row_of_a_file_goes_when_the_file_is_gone_and_was_read_long_ago(
    stage: SourceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gone_files, "PAGE", 2)
    for number in range(5):
        stage.put(f"{number}.json", number)
    stage.run()
    remove(stage, "0.json", "3.json")
    assert forget(stage) == 0
    assert len(stage.taken()) == 5
    stage.clock.advance(AFTER_S)
    assert forget(stage) == 2
    assert [*stage.taken()] == ["1.json", "2.json", "4.json"]
    stage.put("0.json", 0)
    stage.put("1.json", 1)
    stage.run()
    assert ids(stage.published()) == [0, 0, 1, 2, 3, 4]
    assert window_numbers(stage) == [1, 2]


def test_a_window_goes_with_its_last_file(stage: SourceStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_files, "PAGE", 2)
    for number in range(7):
        stage.put(f"{number}.json", number)
        stage.run()
    remove(stage, *(f"{number}.json" for number in range(6)))
    stage.clock.advance(AFTER_S)
    stage.put("young.json", 8)
    stage.run()
    remove(stage, "young.json")
    assert forget(stage) == 6
    assert [*stage.taken()] == ["6.json", "young.json"]
    assert window_numbers(stage) == [7, 8]


def test_nothing_is_forgotten_while_the_folder_is_empty(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.run()
    remove(stage, "a.json")
    stage.clock.advance(AFTER_S)
    assert forget(stage) == 0  # the disk may not be mounted
    assert [*stage.taken()] == ["a.json"]


def test_a_file_that_the_listing_leaves_out_is_not_gone(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.put("b.json", 2)
    stage.run()
    stage.source = folder(f"{stage.root}/b*.json")
    stage.clock.advance(AFTER_S)
    assert forget(stage) == 0


def test_one_node_makes_a_pass_per_day(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.put("b.json", 2)
    stage.run()
    stage.clock.advance(AFTER_S)
    assert forget(stage) == 0
    remove(stage, "a.json")
    assert forget(stage, stage.node("n2")) == 0
    stage.clock.advance(DAY_S)
    assert forget(stage, stage.node("n2")) == 1


def test_a_row_that_changed_stays(stage: SourceStage) -> None:
    stage.put("a.json", 1)
    stage.run()
    row = stage.taken()["a.json"]
    older = taken_files.TakenFile("older", row.size, row.window)
    keys = stage.keys
    assert stage.store.run(lambda tx: taken_files.forget(tx, keys, SOURCE, {"a.json": older})) == set()
    assert stage.store.run(lambda tx: taken_files.forget(tx, keys, SOURCE, {"a.json": row})) == {"a.json"}


def test_a_content_is_forgotten_with_its_first_file(tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in", dedupe="content")
    stage.put("a.json", 1)
    stage.run()
    stage.put("copy.json", 1)
    stage.put("other.json", 2)
    stage.run()
    remove(stage, "copy.json")
    stage.clock.advance(AFTER_S)
    assert forget(stage, by_content=True) == 1
    stage.put("copy.json", 1)
    stage.run()
    assert ids(stage.published()) == [1, 2]  # the content is known while its first file is
    remove(stage, "a.json")
    stage.clock.advance(DAY_S)
    assert forget(stage, by_content=True) == 1
    assert len(stage.store.run(lambda tx: tx.range(*stage.keys.content.under(SOURCE)))) == 1
    assert window_numbers(stage) == [1, 2]


@pytest.mark.parametrize("step", ["sources.forget", "sources.forget-windows"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_node_that_dies_while_it_forgets_loses_nothing(stage: SourceStage, step: str, when: str) -> None:
    for number in range(2):
        stage.put(f"{number}.json", number)
        stage.run()
    remove(stage, "0.json")
    stage.clock.advance(AFTER_S)
    with crash.armed(f"{step}.{when}"), pytest.raises(crash.Crashed):
        forget(stage)
    stage.clock.advance(DAY_S)
    forget(stage, stage.node("n2"))
    assert [*stage.taken()] == ["1.json"]
    assert window_numbers(stage) == [2]
    stage.run("n2")
    assert ids(stage.published()) == [0, 1]


def test_a_runner_forgets_files_while_it_polls(tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in", forget_after_s=AFTER_S)
    stage.put("a.json", 1)
    stage.put("b.json", 2)
    arrival = arrival_of(stage)
    arrival.poll()
    remove(stage, "a.json")
    stage.clock.advance(AFTER_S)
    arrival.poll()
    assert [*stage.taken()] == ["b.json"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 3600.0, float("inf"), float("nan")])
def test_a_time_that_is_too_short_is_refused(seconds: float) -> None:
    with pytest.raises(BadSource, match="forget_after_s"):
        FilePolicy(forget_after_s=seconds)
