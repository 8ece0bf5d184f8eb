"""Failed parts are reported and retried, by any node; completed parts are kept."""

import pytest

from tests.unit.arcs_stage import ArcStage, lapse
from tidemill.arcs import lot_requests, lot_status
from tidemill.arcs import lots as arc_lots
from tidemill.arcs.events import ArcLotMissing
from tidemill.arcs.rows import CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.arcs.states import ArcState
from tidemill.arcs.work import LotEnd
from tidemill.errors import ArcLotConflict, DiskFull, ObjectUnavailable
from tidemill.lots.manifest import ManifestState
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned
from tidemill.publish.events import AttemptAdopted
from tidemill.triggers.subscriptions import Waiting


@pytest.mark.rule("LOT-18")
@pytest.mark.rule("LOT-11")
@pytest.mark.rule("LOT-19")
def test_a_retry_runs_only_failed_parts_and_then_their_leftovers_are_removed():
    stage = ArcStage()
    spec = stage.clean()
    lot = stage.append([1, 2], [3, 4], [5, 6])
    stage.parts.failing[3] = 1
    first = stage.worker(stage.living("a")).work(spec, lot)
    assert first.ended is LotEnd.PARTIAL
    assert len(first.failed) == 1
    assert "3 is bad" in first.error
    assert stage.rows(stage.cleaned, lot) is None
    status = stage.standing(spec, lot)
    assert isinstance(status.row, PartialLot)
    assert status.row.failed == first.failed
    assert stage.run(lot_status.failed, stage.keys, spec.id)[0].row == status.row

    # nothing of it is touched while a retry may reuse it, whatever the time
    before = stage.keys_under("data/")
    stage.clock.advance(7 * 24 * 3600)
    cleaner = stage.cleaner(stage.living("c"))
    assert not cleaner.clean()
    assert stage.keys_under("data/") == before
    failed_data = [key for key in before if key.startswith("data/name=cleaned/") and "part-0" in key]
    assert failed_data

    ask = stage.ask(spec, lot)
    assert stage.run(lot_requests.pending, stage.keys) == [ask] == [stage.ask(spec, lot)]
    ran = len(stage.parts.ran)
    stage.parts.memory = None  # not even the port has to remember: finished parts have their manifests
    outcome = stage.worker(stage.living("b")).make_requested(spec, ask)
    assert outcome.ended is LotEnd.COMPLETE
    assert stage.parts.ran[ran:] == [(first.attempt, first.failed[0])]
    assert outcome.attempt == first.attempt
    assert stage.run(lot_requests.pending, stage.keys) == []
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4, 5, 6]
    assert stage.run(lot_status.failed, stage.keys, spec.id) == []
    assert stage.orphans() != []
    cleaner.clean()
    stage.clock.advance(24 * 3600)
    cleaner.clean()
    assert stage.orphans() == []
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ArcLotConflict):
        stage.ask(spec, lot)


@pytest.mark.rule("LOT-18")
def test_a_retry_with_other_code_reuses_nothing_and_abandons_the_old_attempt():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1, 2], [3, 4])
    stage.parts.failing[3] = 1
    worker = stage.worker(node)
    first = worker.work(spec, lot)
    assert first.ended is LotEnd.PARTIAL
    second = worker.work(stage.clean(code="v2"), lot)
    assert second.ended is LotEnd.COMPLETE
    assert second.attempt != first.attempt
    assert stage.rows(stage.cleaned, lot) == [10, 20, 30, 40]
    assert isinstance(stage.run(attempts.read, stage.keys.publish, first.attempt), Abandoned)
    assert [part for attempt, part in stage.parts.ran if attempt == second.attempt] == sorted(
        part for _, part in stage.parts.ran if _ == first.attempt
    )
    stage.cleaner(node, keep_s=0).clean()
    assert stage.orphans() == []


def test_a_retry_after_an_input_was_published_again_reuses_nothing():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1, 2], [3, 4])
    stage.parts.failing[3] = 1
    worker = stage.worker(node)
    first = worker.work(spec, lot)
    stage.correct(lot, 1, [9])
    second = worker.work(spec, lot)
    assert (second.ended, second.generation) == (LotEnd.COMPLETE, 0)  # it was never published
    assert second.attempt != first.attempt
    assert stage.rows(stage.cleaned, lot) == [9]
    root = stage.manifests.load(stage.rows_of(stage.cleaned)[0].manifest)
    assert [source.generation for source in root.inputs] == [1]


@pytest.mark.rule("LOT-12")
def test_a_failed_replay_is_not_a_gap_and_the_lot_stays_as_it_was():
    stage = ArcStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    lot = stage.append([1, 3])
    worker.work(spec, lot)
    stage.parts.failing[3] = 1
    failed = worker.work(spec, lot, replay=True)
    assert (failed.ended, failed.generation) == (LotEnd.PARTIAL, 1)
    status = stage.standing(spec, lot)
    assert (status.state, status.generation, status.replaying) == (ArcState.COMPLETE, 0, True)
    assert stage.rows(stage.cleaned, lot) == [1, 3]
    (trouble,) = stage.run(lot_status.failed, stage.keys, spec.id)
    assert (trouble.state, trouble.generation, trouble.replaying) == (ArcState.PARTIAL, 1, True)
    outcome = worker.make_requested(spec, stage.ask(spec, lot))
    assert (outcome.ended, outcome.generation) == (LotEnd.COMPLETE, 1)
    status = stage.standing(spec, lot)
    assert (status.state, status.generation, status.replaying) == (ArcState.COMPLETE, 1, False)
    assert stage.run(lot_status.listed, stage.keys, spec.id) == [status]


@pytest.mark.rule("LOT-11")
@pytest.mark.rule("LOT-19")
def test_a_partial_lot_that_is_cleaned_up_is_missing_and_can_be_retried():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1, 2], [3])
    stage.parts.failing[3] = 1
    worker = stage.worker(node)
    first = worker.work(spec, lot)
    stage.ask(spec, lot)
    gone = stage.run(arc_lots.clean, stage.keys, spec.id, lot)
    assert isinstance(gone, MissingLot)
    assert stage.run(lot_requests.pending, stage.keys) == []
    assert stage.standing(spec, lot).state is ArcState.MISSING
    assert isinstance(stage.run(attempts.read, stage.keys.publish, first.attempt), Abandoned)
    stage.cleaner(node).clean()
    assert [key for key in stage.keys_under("data/") if "name=orders" not in key] == []
    left = [key for key in stage.keys_under("datasets/") if "name=orders" not in key]
    assert [stage.manifests.load(key).state for key in left] == [ManifestState.REMOVED] * 2
    with pytest.raises(ArcLotConflict):
        stage.run(arc_lots.clean, stage.keys, spec.id, lot)
    second = worker.make_requested(spec, stage.ask(spec, lot))
    assert second.ended is LotEnd.COMPLETE
    assert second.attempt != first.attempt
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3]
    row = stage.standing(spec, lot).row
    assert isinstance(row, CompleteLot)
    assert row.tries == 2


@pytest.mark.rule("LOT-12")
def test_a_lot_whose_input_cannot_be_read_is_missing_and_a_run_passes_it():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    bad, good = stage.append([1]), stage.append([2])
    manifest = stage.rows_of(stage.orders)[0].manifest
    body, _ = stage.objects.get(manifest)
    stage.objects.put(manifest, body[:20])
    worker = stage.worker(node)
    assert ended(stage.drain(spec, worker, node)) == [LotEnd.MISSING, LotEnd.COMPLETE]
    row = stage.standing(spec, bad).row
    assert isinstance(row, MissingLot)
    assert manifest in row.error
    assert isinstance(stage.row(spec.id), Waiting)
    assert [type(event) for event in stage.told if isinstance(event, ArcLotMissing)] == [ArcLotMissing]
    stage.objects.put(manifest, body)
    assert worker.make_requested(spec, stage.ask(spec, bad)).ended is LotEnd.COMPLETE
    assert stage.table(stage.cleaned) == {bad: [1], good: [2]}
    # at the end of a run, and for a lot that is partial, whose parts are kept
    stage.parts.failing[3] = 1
    partial = stage.append([3, 4])
    stage.drain(spec, worker, node)
    assert isinstance(stage.row(spec.id), Waiting)  # a run ends with a lot that fails as with any other
    manifest = stage.rows_of(stage.orders)[2].manifest
    body, _ = stage.objects.get(manifest)
    stage.objects.delete(manifest)
    assert worker.make_requested(spec, stage.ask(spec, partial)).ended is LotEnd.PARTIAL
    stage.objects.put(manifest, body)
    assert worker.make_requested(spec, stage.ask(spec, partial)).ended is LotEnd.COMPLETE
    assert worker.work(spec, "A00000000000000099").ended is LotEnd.MISSING


@pytest.mark.rule("LOT-20")
def test_an_attempt_with_damaged_objects_is_abandoned_and_a_new_one_is_made():
    for damage in ("gone", "cut", "manifest"):
        stage = ArcStage()
        spec = stage.clean()
        lot = stage.append([1, 2], [3, 4])
        stage.parts.failing[3] = 1
        first = stage.worker(stage.living("a")).work(spec, lot)
        if damage == "manifest":
            (key,) = [k for k in stage.keys_under("datasets/name=odd/") if "state=complete" in k]
        else:
            key = next(k for k in stage.keys_under("data/name=cleaned/") if "part-1" in k)
        body, _ = stage.objects.get(key)
        stage.objects.delete(key) if damage == "gone" else stage.objects.put(key, body[: len(body) // 2])
        worker = stage.worker(stage.living("b"))
        outcome = worker.work(spec, lot)
        assert outcome.ended is LotEnd.COMPLETE
        assert outcome.attempt != first.attempt
        assert isinstance(stage.run(attempts.read, stage.keys.publish, first.attempt), Abandoned)
        assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]
        stage.cleaner(stage.living("c"), keep_s=0).clean()
        assert stage.orphans() == []


def test_an_error_not_caused_by_the_lot_leaves_it_running_and_the_same_node_continues():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1, 2], [3, 4])
    stage.parts.between = unavailable
    worker = stage.worker(node)
    with pytest.raises(ObjectUnavailable):
        worker.work(spec, lot)
    assert isinstance(stage.standing(spec, lot).row, RunningLot)
    assert stage.worker(stage.living("m")).work(spec, lot).ended is LotEnd.ELSEWHERE
    assert worker.work(spec, lot).ended is LotEnd.COMPLETE
    assert [type(event) for event in stage.told if isinstance(event, AttemptAdopted)] == [AttemptAdopted]
    assert stage.rows(stage.odd, lot) == [1, 3]


def test_a_lot_whose_parts_failed_because_of_an_outage_is_not_given_up():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1, 3], [2, 4])
    stage.parts.failing[4] = 1
    stage.parts.outage = DiskFull("no space")
    worker = stage.worker(node)
    with pytest.raises(DiskFull):
        worker.work(spec, lot)
    row = stage.standing(spec, lot).row
    assert isinstance(row, RunningLot)
    assert [status.lot for status in worker.left()] == [lot]
    ran = len(stage.parts.ran)
    assert worker.work(spec, lot).ended is LotEnd.COMPLETE
    assert len(stage.parts.ran) == ran + 1, "only the part that failed runs again"
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]
    stage.cleaner(stage.living("c"), keep_s=0).clean()
    assert stage.orphans() == []


def test_a_lot_fails_if_one_of_its_parts_failed_for_another_reason_than_an_outage():
    stage = ArcStage()
    spec = stage.clean()
    lot = stage.append([1, 3], [2, 4])
    stage.parts.failing |= {3: 1, 4: 1}
    stage.parts.outage = DiskFull("no space")
    outcome = stage.worker(stage.living()).work(spec, lot)
    assert outcome.ended is LotEnd.PARTIAL
    assert len(outcome.failed) == 2


def test_a_retry_that_ended_in_an_error_is_found_by_its_own_node_and_by_others_when_that_is_gone():
    stage = ArcStage()
    spec, node = stage.clean(), stage.node("n")
    lot = stage.append([1, 2], [3, 4])
    stage.parts.failing[3] = 1
    worker, other = stage.worker(node), stage.worker(stage.living("m"))
    worker.work(spec, lot)
    left_lots = []

    def break_off(task) -> None:
        left_lots.append((worker.left(), other.left()))  # it is at work on it
        unavailable(task)

    stage.parts.between = break_off
    ask = stage.ask(spec, lot)
    with pytest.raises(ObjectUnavailable):
        worker.make_requested(spec, ask)
    assert left_lots == [([], [])]
    assert [(status.arc, status.lot) for status in worker.left()] == [(spec.id, lot)]
    assert other.left() == []
    lapse(stage)
    assert [status.lot for status in other.left()] == [lot]
    assert other.work(spec, lot).ended is LotEnd.COMPLETE
    assert other.left() == []


def ended(outcomes) -> list[LotEnd]:
    return [outcome.ended for outcome in outcomes]


def unavailable(task) -> None:
    raise ObjectUnavailable("no answer")
