"""Projections: object names that repeat the state in the store, and can be written again from it."""

import pytest

from tests.unit.arcs_stage import ArcStage, repair_projections
from tidemill.lots import layout
from tidemill.lots.manifest import ManifestState
from tidemill.lots.states import LotState
from tidemill.publish.projections import Projections


def shown(stage: ArcStage) -> list[str]:
    return [key for key in stage.keys_under("") if "attempt=" not in key]


@pytest.fixture
def stage() -> ArcStage:
    return ArcStage()


@pytest.fixture
def projections(stage: ArcStage) -> Projections:
    return Projections(stage.scope())


@pytest.mark.rule("LOT-22")
@pytest.mark.rule("LOT-21")
def test_an_arcs_state_is_one_name_for_each_lot_while_it_runs_and_after(stage, projections):
    spec, worker = stage.clean(), stage.worker(stage.living(), projections=projections)
    lots = [stage.append([1, 2], [3]), stage.append([5])]
    during = []
    stage.parts.between = lambda task: during.append([key for key in shown(stage) if key.endswith(".arc")])
    stage.parts.failing[5] = 1
    for lot in lots:
        worker.work(spec, lot)
    names = [layout.arc_key("shop", "1", "clean", lot, "complete") for lot in lots]
    assert during[0] == [names[0].replace("complete", "running")]
    assert [key for key in shown(stage) if key.endswith(".arc")] == [
        names[0],
        names[1].replace("complete", "partial"),
    ]
    worker.make_requested(spec, stage.ask(spec, lots[1]))
    assert [key for key in shown(stage) if key.endswith(".arc")] == names


@pytest.mark.rule("LOT-23")
@pytest.mark.rule("LOT-22")
def test_outdated_projections_are_written_again_from_the_store(stage, projections):
    spec = stage.clean()
    worker = stage.worker(stage.living(), projections=projections)
    lots = [stage.append([1, 2], [3]), stage.append([2]), stage.append()]
    for lot in lots:
        worker.work(spec, lot)
    right = shown(stage)
    states = {
        layout.parse_key(key)["lot"]: layout.parse_key(key)["state"] for key in right if "name=odd" in key
    }
    assert states == dict(zip(lots, ["complete", "empty", "empty"], strict=True))
    for dataset in (stage.cleaned, stage.odd):
        for row in stage.rows_of(dataset):
            name = layout.projected_manifest_key(*dataset.parts, row.lot, ManifestState(row.state.value))
            assert stage.objects.get(name)[0] == stage.objects.get(row.manifest)[0]
    stage.objects.delete_many(right[::2])
    stage.objects.put(layout.arc_key("shop", "1", "clean", lots[0], "missing"), b"")
    for state in ("partial", "removed"):
        stray = layout.projected_manifest_key("odd", "1", lots[1], ManifestState(state))
        stage.objects.put(stray, b"{}")
    repair_projections(stage, projections, spec)
    assert shown(stage) == right


def test_the_later_state_stays_when_two_write_at_once(stage, projections, monkeypatch):
    lot = stage.append([1])
    worker = stage.worker(stage.living())
    spec = stage.clean()
    worker.work(spec, lot)
    put = stage.objects.put

    def slow(key, body):
        monkeypatch.setattr(stage.objects, "put", put)
        worker.work(spec, lot, replay=True)  # another generation is published before our put lands
        return put(key, body)

    monkeypatch.setattr(stage.objects, "put", slow)
    projections.lot(stage.cleaned, lot)
    row = stage.rows_of(stage.cleaned)[0]
    assert row.generation == 1
    name = layout.projected_manifest_key("cleaned", "1", lot, ManifestState.COMPLETE)
    assert stage.objects.get(name)[0] == stage.objects.get(row.manifest)[0]


def test_a_lot_whose_manifest_is_gone_or_that_is_not_there_has_no_name(stage, projections):
    lot = stage.append([1])
    row = stage.rows_of(stage.orders)[0]
    projections.lot(stage.orders, lot)
    assert len(shown(stage)) == 1
    stage.objects.delete(row.manifest)
    projections.lot(stage.orders, lot)
    assert shown(stage) == []
    projections.lot(stage.orders, "A00000000000000099")
    stage.add(stage.orders, lot, 1, state=LotState.REMOVED, manifest="gone")
    projections.lot(stage.orders, lot)
    assert shown(stage) == []
