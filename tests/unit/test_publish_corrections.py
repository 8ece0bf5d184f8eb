"""Corrections: a lot is replaced or removed, and only its dependents are made again."""

import pytest

from tests.unit.life_stage import LifeStage
from tests.unit.lots_stage import FIVE_MINUTES
from tidemill.arcs.work import LotEnd
from tidemill.errors import BadLotId, CorrectionRefused, LotConflict, LotUnknown
from tidemill.lots import lots as lot_rows
from tidemill.lots import staging
from tidemill.lots.datasets import Kind
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.staging import Staged
from tidemill.lots.states import LotState
from tidemill.publish.attempts import Hold
from tidemill.publish.parts import PartSink
from tidemill.publish.publisher import Publisher


def publisher(stage: LifeStage) -> Publisher:
    """Of a process that corrects; it is gone after its ttl."""
    return Publisher(stage.scope(stage.node("corrector")))


def begun(stage: LifeStage, by: Publisher, dataset: DatasetId, lot: str, *, remove: bool = False) -> Hold:
    return by.begin_correction(dataset, lot, stage.scope().new_attempt(), remove=remove)


def replace(stage: LifeStage, lot: str, *rows: int) -> int:
    by = publisher(stage)
    hold = begun(stage, by, stage.orders, lot)
    stage.manifests.write_intents(hold)
    return by.publish(hold, [stage.written(hold, rows)]).positions[0]


def remove(stage: LifeStage, lot: str) -> int:
    by = publisher(stage)
    hold = begun(stage, by, stage.orders, lot, remove=True)
    return by.publish(hold, [stage.manifests.write_removal(hold, "wrong")]).positions[0]


@pytest.mark.rule("LOT-30")
def test_a_corrected_lot_is_made_again_by_its_dependents_and_nothing_else_is():
    stage = LifeStage()
    other = stage.clean(
        name="other", reads=(stage.odd,), code="sum", sinks=(PartSink(dataset=stage.dataset("far")),)
    )
    stage.parts.code["sum"] = lambda rows: {"summed": [sum(rows)], "far": [sum(rows)]}
    unrelated = stage.join()
    specs = [stage.clean(), stage.sum(), other, unrelated]
    for spec in specs:
        stage.subscribe(spec.id, *spec.reads)
    node = stage.living()
    worker = stage.worker(node)
    lots = [stage.append([1, 2]), stage.append([3, 4]), stage.append([5])]
    for spec in specs:
        stage.drain(spec, worker, node)
    ran = len(stage.parts.ran)
    assert replace(stage, lots[1], 30) == 4
    again = [outcome for spec in specs for outcome in stage.drain(spec, worker, node)]
    assert [
        (outcome.arc.partition("/")[2], outcome.lot, outcome.ended, outcome.generation) for outcome in again
    ] == [
        ("clean", lots[1], LotEnd.COMPLETE, 1),
        ("sum", lots[1], LotEnd.COMPLETE, 1),
        ("other", lots[1], LotEnd.COMPLETE, 1),
    ]
    assert len(stage.parts.ran) == ran + 2  # of an empty lot nothing is run
    assert stage.table(stage.cleaned) == {lots[0]: [1, 2], lots[1]: [30], lots[2]: [5]}
    assert stage.rows(stage.odd, lots[1]) == []
    assert stage.rows(stage.summed, lots[1]) == [30]
    # which generations it was made from is in its manifest
    row = next(row for row in stage.rows_of(stage.summed) if row.lot == lots[1])
    assert [(source.dataset, source.generation) for source in stage.manifests.load(row.manifest).inputs] == [
        ("cleaned", 1)
    ]


@pytest.mark.rule("LOT-30")
def test_a_removed_lot_is_empty_downstream_and_can_get_rows_again():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    worker = stage.worker(node)
    lot = stage.append([1, 2])
    stage.drain(spec, worker, node)
    data = stage.keys_under("data/")
    remove(stage, lot)
    row = stage.run(lot_rows.current, stage.lots, stage.orders, lot)
    assert (row.state, row.generation, row.rows) == (LotState.REMOVED, 1, 0)
    assert stage.rows(stage.cleaned, lot) == [1, 2]  # until its dependents have followed
    stage.drain(spec, worker, node)
    assert stage.rows(stage.cleaned, lot) == []
    with pytest.raises(CorrectionRefused):
        begun(stage, publisher(stage), stage.orders, lot, remove=True)
    replace(stage, lot, 7)
    stage.drain(spec, worker, node)
    assert stage.rows(stage.cleaned, lot) == [7]
    stage.cleaner(stage.living("c"), keep_s=0).clean()
    assert stage.orphans() == []
    assert set(data) <= set(stage.keys_under("data/"))  # nothing of a generation goes because another came


@pytest.mark.rule("LOT-30")
def test_of_two_that_correct_a_lot_at_once_the_second_is_refused_and_leaves_nothing():
    stage = LifeStage()
    lot = stage.append([1])
    by = publisher(stage)
    first, second = (begun(stage, by, stage.orders, lot) for _ in range(2))
    late = stage.written(second, [3])
    by.publish(first, [stage.written(first, [2])])
    with pytest.raises(LotConflict):
        by.publish(second, [late])
    by.abandon(second, "too late")
    stage.cleaner(stage.living("c"), keep_s=0).clean()
    assert stage.rows(stage.orders, lot) == [2]
    assert stage.orphans() == []


def test_an_impossible_correction_is_refused_before_anything_is_written():
    stage = LifeStage()
    by = publisher(stage)
    keyed = stage.dataset("keyed", kind=Kind.KEYED, key=("id",), deletes=True)
    stage.add(keyed, "A00000000000000001")
    with pytest.raises(CorrectionRefused, match="has a key"):
        begun(stage, by, keyed, "A00000000000000001")
    with pytest.raises(LotUnknown):
        begun(stage, by, stage.orders, "A00000000000000009")
    with pytest.raises(BadLotId):
        begun(stage, by, stage.orders, "20230101PT5M000")
    stage.run(staging.begin, stage.lots, stage.clicks)
    turn = stage.run(staging.read, stage.lots, stage.clicks).lot
    with pytest.raises(LotUnknown) as caught:
        begun(stage, by, stage.clicks, turn)
    assert "not closed" in caught.value.hint
    assert stage.orphans() == []


@pytest.mark.rule("LOT-30")
def test_late_data_joins_the_interval_that_is_open_and_leaves_closed_lots_as_they_are():
    stage = LifeStage()
    interval = stage.run(staging.begin, stage.lots, stage.clicks)
    on_time = stage.run(staging.stage, stage.lots, stage.clicks, Staged(uri="a", digest="d", rows=1))
    assert on_time.lot == interval.lot
    stage.clock.advance(FIVE_MINUTES.seconds)
    lot = LotId.parse(interval.lot)
    stage.run(staging.seal, stage.lots, stage.clicks, lot)
    late = stage.run(staging.stage, stage.lots, stage.clicks, Staged(uri="b", digest="d", rows=1))
    assert late.lot == str(lot.next())  # rows of yesterday too: a lot is when they arrived
    page = stage.run(staging.page, stage.lots, stage.clicks, lot)
    assert [row.append.uri for row in page] == ["a"]
