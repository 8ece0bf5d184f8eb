"""Columns that a window brings are its dataset's from its publication on; of two windows the first wins."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.sources_stage import ORDERS, PlainParts, SourceStage
from tidemill import crash
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow, Drift
from tidemill.publish import attempts
from tidemill.publish.parts import PartDone, PartEnd, PartTask
from tidemill.sources.events import ColumnsDrifted
from tidemill.sources.file_ingestion import FileIngestion
from tidemill.spark.drift import effective, evolved


class DriftingParts(PlainParts):
    """Like `PlainParts`, but the written rows have one more column, unless it exists already."""

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]:
        for end in super().run(tasks):
            assert isinstance(end, PartDone)
            first, *rest = end.written
            if "city" not in end.task.options["schema"]:
                grown = f"{end.task.options['schema']}, city string"
                first = msgspec.structs.replace(first, schema=grown)
            yield msgspec.structs.replace(end, written=(first, *rest))


@dataclasses.dataclass
class Drifts:
    stage: SourceStage
    parts: DriftingParts

    def ingestion(self, node: str = "n1") -> FileIngestion:
        stage = self.stage
        scope = stage.scope(stage.node(node))
        return FileIngestion(stage.spec, stage.source.listing(), scope, self.parts)

    @property
    def dataset(self) -> DatasetRow:
        lots = self.stage.keys.publish.lots
        return self.stage.store.run(lambda tx: datasets.read(tx, lots, ORDERS))

    def declare(self, schema: str) -> None:
        new = effective(DatasetRow(name="orders", schema=schema, drift=Drift.EVOLVE))
        lots = self.stage.keys.publish.lots
        self.stage.store.run(lambda tx: datasets.declare(tx, lots, new, evolved))


@pytest.fixture
def drifts(tmp_path: Path) -> Drifts:
    stage = SourceStage(tmp_path / "in")
    stage.spec = msgspec.structs.replace(stage.spec, drift=Drift.EVOLVE)
    drifts = Drifts(stage, DriftingParts(stage.root, stage.objects, stage.chance))
    lots = stage.keys.publish.lots
    stage.store.run(lambda tx: tx.clear(lots.dataset[ORDERS.parts]))
    drifts.declare("id BIGINT")
    stage.put("a.json", 1)
    return drifts


@pytest.mark.rule("LOT-34")
@pytest.mark.parametrize(
    "point", ["publish.part-manifest.after", "publish.commit.before", "publish.commit.after"]
)
def test_after_a_crash_the_column_and_its_lot_exist_both_or_neither(drifts: Drifts, point: str) -> None:
    work = drifts.ingestion()
    work.discover()
    with crash.armed(point), pytest.raises(crash.Crashed):
        work.ingest()
    published = point.startswith("publish.commit.after")
    assert drifts.dataset.schema == ("id bigint, city string" if published else "id bigint")
    assert bool(drifts.stage.stage.rows_of(ORDERS)) is published
    ran = len(drifts.parts.ran)
    drifts.ingestion().ingest()
    if point.startswith("publish.commit"):  # the attempt is adopted, with its column
        assert len(drifts.parts.ran) == ran
    assert (drifts.dataset.schema, drifts.dataset.revision) == ("id bigint, city string", 1)
    assert len(drifts.stage.stage.rows_of(ORDERS)) == 1


@pytest.mark.rule("LOT-34")
def test_a_window_with_a_conflicting_type_is_read_again_with_the_first_type(drifts: Drifts) -> None:
    drifts.parts.before = lambda _: drifts.declare("id BIGINT, city BIGINT") if not drifts.parts.ran else None
    work = drifts.ingestion()
    work.discover()
    assert work.ingest() == 1
    assert [task.options["schema"] for task in drifts.parts.ran] == ["id bigint", "id bigint, city bigint"]
    assert drifts.dataset.schema == "id bigint, city bigint"
    [row] = drifts.stage.stage.rows_of(ORDERS)
    assert row.attempt == drifts.parts.ran[1].attempt
    keys = drifts.stage.keys.publish
    first = drifts.stage.store.run(lambda tx: attempts.read(tx, keys, drifts.parts.ran[0].attempt))
    assert isinstance(first, attempts.Abandoned)
    assert "city was bigint and cannot become string" in first.why
    assert not [event for event in drifts.stage.told if isinstance(event, ColumnsDrifted)]


@pytest.mark.rule("LOT-34")
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_crash_while_a_window_is_given_up_leaves_it_to_another_attempt(drifts: Drifts, side: str) -> None:
    drifts.parts.before = lambda _: drifts.declare("id BIGINT, city BIGINT") if not drifts.parts.ran else None
    work = drifts.ingestion()
    work.discover()
    with crash.armed(f"sources.give-up.{side}"), pytest.raises(crash.Crashed):
        work.ingest()
    assert drifts.stage.stage.rows_of(ORDERS) == []
    drifts.ingestion().ingest()
    assert drifts.dataset.schema == "id bigint, city bigint"
    [row] = drifts.stage.stage.rows_of(ORDERS)
    assert row.attempt == drifts.parts.ran[-1].attempt != drifts.parts.ran[0].attempt
    assert drifts.stage.open_windows() == []
