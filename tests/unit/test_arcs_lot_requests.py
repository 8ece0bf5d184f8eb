"""Retries, replays and backfills: one queue with limits, for any runner, each lot once."""

import pytest

from tests.unit.life_stage import LifeStage
from tests.unit.lots_stage import SECOND_US
from tidemill.arcs import lot_requests, running_lots
from tidemill.arcs.lot_requests import RequestKind
from tidemill.arcs.rows import CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.arcs.running_lots import RunningLots
from tidemill.arcs.states import ArcState
from tidemill.arcs.work import LotEnd, LotOutcome
from tidemill.errors import ArcLotConflict
from tidemill.lots import lots as lot_rows
from tidemill.triggers import subscriptions


@pytest.mark.rule("LOT-31")
def test_a_replay_is_the_next_generation_and_readers_have_the_one_before_until_it_is_published():
    stage = LifeStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    lot = stage.append([1, 2], [3])
    worker.work(spec, lot)
    before = stage.keys_under("data/name=cleaned/")
    ask = stage.enter(spec, lot, RequestKind.REPLAY)
    assert (ask.generation, ask.options.kind) == (1, RequestKind.REPLAY)
    during = []
    stage.parts.between = lambda task: during.append(stage.rows(stage.cleaned, lot))
    outcome = worker.make_requested(stage.clean(code="v2"), ask)
    assert (outcome.ended, outcome.generation) == (LotEnd.COMPLETE, 1)
    assert during == [[1, 2, 3]]  # while it ran, what was there stayed
    assert stage.rows(stage.cleaned, lot) == [10, 20, 30]
    stage.cleaner(stage.living("c"), keep_s=0).clean()
    assert set(before) <= set(stage.keys_under("data/name=cleaned/"))  # whoever pinned it still finds it
    assert stage.orphans() == []
    assert stage.run(lot_requests.pending, stage.keys) == []
    old = stage.run(lot_rows.resolve, stage.lots, stage.cleaned, lot, 0)
    assert old.rows == 3


@pytest.mark.rule("LOT-31")
def test_the_requested_generation_follows_from_the_kind_and_the_state_of_the_lot():
    run = RunningLot(attempt="a", node="n", node_epoch=1, since=0)
    rows = {
        "none": None,
        "running": (1, run),
        "partial": (1, PartialLot(attempt="a", failed=(), error="", at=0, tries=1)),
        "missing": (0, MissingLot(error="", at=0, tries=1)),
        "complete": (2, CompleteLot(attempt="a", inputs=(), at=0, tries=1)),
    }
    generations = {
        (kind.value, name): lot_requests.requested_generation(row, kind)
        for kind in RequestKind
        for name, row in rows.items()
    }
    assert {place: generation for place, generation in generations.items() if generation is not None} == {
        ("retry", "partial"): 1,
        ("retry", "missing"): 0,
        ("backfill", "none"): 0,
        ("backfill", "partial"): 1,
        ("backfill", "missing"): 0,
        ("replay", "partial"): 1,
        ("replay", "missing"): 0,
        ("replay", "complete"): 3,
    }
    stage = LifeStage()
    with pytest.raises(ArcLotConflict):
        stage.ask(stage.clean(), "A00000000000000001")
    assert stage.enter(stage.clean(), "A00000000000000001", RequestKind.REPLAY) is None


def test_a_replay_that_two_runners_have_read_is_made_once():
    stage = LifeStage()
    spec = stage.clean()
    first, other = stage.worker(stage.living("a")), stage.worker(stage.living("b"))
    lot = stage.append([1])
    first.work(spec, lot)
    ask = stage.enter(spec, lot, RequestKind.REPLAY)
    assert stage.enter(spec, lot, RequestKind.REPLAY, "another") == ask  # asking twice is asking once
    assert first.make_requested(spec, ask).ended is LotEnd.COMPLETE
    assert other.make_requested(spec, ask).ended is LotEnd.DONE  # the row it has read is gone
    assert [event.generation for event in stage.events(stage.cleaned)] == [0, 1]
    # one that an input's new generation overtook is not made on top of it
    ask = stage.enter(spec, lot, RequestKind.REPLAY)
    stage.correct(lot, 1, [5])
    assert first.work(spec, lot).generation == 2
    assert other.make_requested(spec, ask).ended is LotEnd.DONE
    assert [event.generation for event in stage.events(stage.cleaned)] == [0, 1, 2]


@pytest.mark.rule("LOT-31")
def test_a_replay_with_an_unreadable_input_is_reported_and_the_lot_stays_as_it_was():
    stage = LifeStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    lot = stage.append([1])
    worker.work(spec, lot)
    manifest = stage.rows_of(stage.orders)[0].manifest
    body, _ = stage.objects.get(manifest)
    stage.objects.delete(manifest)
    failed = worker.make_requested(spec, stage.enter(spec, lot, RequestKind.REPLAY))
    assert (failed.ended, failed.generation) == (LotEnd.MISSING, 1)
    status = stage.standing(spec, lot)
    assert (status.state, status.generation, status.replaying) == (ArcState.COMPLETE, 0, True)
    assert stage.rows(stage.cleaned, lot) == [1]
    assert stage.run(lot_requests.pending, stage.keys) == []
    stage.objects.put(manifest, body)
    assert worker.make_requested(spec, stage.ask(spec, lot)).generation == 1


@pytest.mark.rule("LOT-31")
def test_a_batch_runs_at_most_its_limit_of_lots_and_leaves_room_for_new_lots():
    stage = LifeStage()
    spec = stage.clean(max_concurrent=4)
    lots = [stage.append([n]) for n in range(6)]
    first = stage.worker(stage.living("a"))
    for lot in lots:
        first.work(spec, lot)
    for lot in lots:
        stage.enter(spec, lot, RequestKind.REPLAY, "batch", parallel=2)
    page = stage.run(lot_requests.startable, stage.keys, [spec])
    assert [request.lot for request in page] == lots[:2]
    late = stage.run(lot_requests.pending, stage.keys)[2]
    most: list[dict[str, int]] = []

    def look(task) -> None:
        most.append(stage.run(running_lots.running_lots, stage.keys, spec.id).batches)
        if len(most) == 1:  # within the first, the second; within that, one too many
            stage.parts.between = look
            assert stage.worker(stage.living("b")).make_requested(spec, page[1]).ended is LotEnd.COMPLETE
        else:
            assert stage.worker(stage.living("c")).make_requested(spec, late).ended is LotEnd.FULL
            assert stage.run(lot_requests.startable, stage.keys, [spec]) == []

    stage.parts.between = look
    assert first.make_requested(spec, page[0]).ended is LotEnd.COMPLETE
    assert most == [{"batch": 1}, {"batch": 2}]
    assert [outcome.ended for outcome in stage.work_off(spec, first)] == [LotEnd.COMPLETE] * 4
    assert [row.generation for row in stage.rows_of(stage.cleaned)] == [1] * 6


@pytest.mark.parametrize(
    ("crowd", "live", "bulk"),
    [
        (RunningLots(), True, True),
        (RunningLots(awaited=True), True, True),
        (RunningLots(live=1, awaited=True), True, True),
        (RunningLots(batches={"x": 1}), True, True),
        (RunningLots(batches={"x": 1}, awaited=True), True, False),
        (RunningLots(live=1, batches={"x": 1}), False, False),
        (RunningLots(live=2), False, False),
    ],
)
def test_a_batch_leaves_room_for_one_lot_while_the_subscription_has_something_to_run(crowd, live, bulk):
    assert crowd.has_room(2) is live
    assert crowd.has_room(2, "batch", 5) is bulk
    assert crowd.with_one_more("").live == crowd.live + 1
    assert crowd.with_one_more("x").batches["x"] == crowd.batches.get("x", 0) + 1


def test_new_lots_go_before_a_backfill_of_an_arc_that_makes_one_lot_at_a_time():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    old = [stage.append([n]) for n in range(3)]
    stage.subscribe(spec.id, stage.orders)
    stage.run(subscriptions.pause, stage.triggers, spec.id)
    stage.run(subscriptions.resume, stage.triggers, stage.lots, spec.id, "none")  # they count as seen
    for lot in old:
        stage.enter(spec, lot, RequestKind.BACKFILL)
    new = stage.append([10])
    stage.page_all()
    worker = stage.worker(node)
    assert stage.run(lot_requests.startable, stage.keys, [spec]) == []
    assert [outcome.lot for outcome in stage.drain(spec, worker, node)] == [new]
    assert [outcome.lot for outcome in stage.work_off(spec, worker)] == old
    assert stage.table(stage.cleaned) == {new: [10], old[0]: [0], old[1]: [1], old[2]: [2]}


def test_a_run_that_finds_no_room_waits_and_never_counts_as_failed():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders, most_failures=2)
    lot = stage.append([1])
    stage.drain(spec, stage.worker(node), node)
    ask = stage.enter(spec, lot, RequestKind.REPLAY)

    def live(task) -> None:
        new = stage.append([2])
        for _ in range(5):
            stage.page_all()
            assert [outcome.ended for outcome in run_once(stage, spec, node)] == [LotEnd.FULL]
            stage.clock.advance(2)
        assert stage.rows(stage.cleaned, new) is None

    stage.parts.between = live
    assert stage.worker(stage.living("other")).make_requested(spec, ask).ended is LotEnd.COMPLETE
    row = stage.row(spec.id)
    assert (row.tally.failures, row.tally.dead) == (0, False)
    assert [outcome.ended for outcome in stage.drain(spec, stage.worker(node), node)] == [LotEnd.COMPLETE]


def run_once(stage: LifeStage, spec, node) -> list[LotOutcome]:
    ticket = stage.start(node, spec.id)
    assert ticket is not None
    return stage.worker(node).run(spec, ticket)


@pytest.mark.rule("LOT-38")
def test_a_paused_arc_begins_nothing_and_its_requests_and_new_lots_wait():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    worker = stage.worker(node)
    stage.subscribe(spec.id, stage.orders)
    first = stage.append([1])
    stage.drain(spec, worker, node)
    stage.run(subscriptions.pause, stage.triggers, spec.id)
    second = stage.append([2])
    stage.enter(spec, first, RequestKind.REPLAY)
    assert stage.drain(spec, worker, node) == []
    assert stage.run(lot_requests.startable, stage.keys, [spec]) == []
    assert stage.run(lot_requests.paused, stage.keys, spec.id)
    stage.run(subscriptions.resume, stage.triggers, stage.lots, spec.id)
    assert [outcome.lot for outcome in stage.drain(spec, worker, node)] == [second]
    assert [(outcome.lot, outcome.generation) for outcome in stage.work_off(spec, worker)] == [(first, 1)]


def test_the_batch_of_a_lot_stays_with_it_when_another_node_takes_it_over():
    stage = LifeStage()
    spec = stage.clean()
    lot = stage.append([1])
    stage.worker(stage.living("z")).work(spec, lot)
    ask = stage.enter(spec, lot, RequestKind.REPLAY, "batch", 1)
    dying = stage.worker(stage.node("dying", 10 * SECOND_US))

    class Died(BaseException):
        pass

    def die(task) -> None:
        raise Died

    stage.parts.between = die
    with pytest.raises(Died):
        dying.make_requested(spec, ask)
    assert stage.run(running_lots.running_lots, stage.keys, spec.id).batches == {"batch": 1}
    stage.clock.advance(20)
    heir = stage.worker(stage.living("heir"))
    assert [status.lot for status in heir.left()] == [lot]
    stage.parts.between = lambda task: running.append(
        stage.run(running_lots.running_lots, stage.keys, spec.id).batches
    )
    running: list[dict[str, int]] = []
    assert heir.work(spec, lot).generation == 1
    assert running == [{"batch": 1}]
    assert stage.run(running_lots.running_lots, stage.keys, spec.id).batches == {}


def test_a_run_that_waits_for_its_cadence_keeps_no_place_and_one_that_is_due_soon_does():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    worker = stage.worker(node)
    stage.subscribe(spec.id, stage.orders, cadence_us=60 * SECOND_US)
    lot = stage.append([1])
    stage.drain(spec, worker, node)
    stage.enter(spec, lot, RequestKind.REPLAY)
    stage.append([2])
    stage.page_all()
    assert len(stage.run(lot_requests.startable, stage.keys, [spec])) == 1
    stage.clock.advance(57)
    assert stage.run(lot_requests.startable, stage.keys, [spec]) == []


def test_a_retry_does_not_wait_for_a_large_batch(monkeypatch):
    monkeypatch.setattr(lot_requests, "PAGE", 3)
    stage = LifeStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    lots = [stage.append([n]) for n in range(6)]
    stage.parts.failing[5] = 1
    for lot in lots:
        worker.work(spec, lot)
    for lot in lots[:5]:
        stage.enter(spec, lot, RequestKind.REPLAY, parallel=1)
    retry = stage.ask(spec, lots[5])
    assert stage.run(lot_requests.startable, stage.keys, [spec]) == [retry]
    assert worker.make_requested(spec, retry).ended is LotEnd.COMPLETE
    assert [outcome.lot for outcome in stage.work_off(spec, worker)] == lots[:5]
