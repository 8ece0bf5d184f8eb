"""Arcs over several tables of intervals: a lot is made when every source has closed it, in any order."""

import itertools
import random

import pytest

from tests.unit.life_stage import LifeStage
from tidemill.arcs import lot_status
from tidemill.arcs.lot_requests import RequestKind
from tidemill.arcs.work import LotEnd
from tidemill.triggers.subscriptions import Waiting

LOTS = [f"20230101PT5M{n:03}" for n in range(5)]


@pytest.mark.rule("LOT-28")
def test_a_lot_waits_until_every_source_has_closed_the_interval_and_does_not_spin():
    stage = LifeStage()
    spec, node = stage.join(), stage.living()
    worker = stage.worker(node)
    stage.subscribe(spec.id, *spec.reads)
    for number, lot in enumerate(LOTS[:3]):
        stage.lot_of(stage.clicks, lot, number)
    assert [outcome.ended for outcome in stage.drain(spec, worker, node)] == [LotEnd.WAITING] * 3
    assert isinstance(stage.row(spec.id), Waiting)  # woken by what it waits for, and by nothing else
    assert stage.run(lot_status.listed, stage.keys, spec.id) == []  # neither missing nor partial
    assert stage.parts.ran == []
    stage.lot_of(stage.rates, LOTS[1], 100)
    assert [(outcome.lot, outcome.ended) for outcome in stage.drain(spec, worker, node)] == [
        (LOTS[1], LotEnd.COMPLETE)
    ]
    assert stage.rows(stage.joined, LOTS[1]) == [1, 100]
    stage.lot_of(stage.rates, LOTS[0], 200)
    stage.lot_of(stage.rates, LOTS[2])
    assert len(stage.drain(spec, worker, node)) == 2
    assert stage.table(stage.joined) == {LOTS[1]: [1, 100], LOTS[0]: [0, 200], LOTS[2]: [2]}
    assert isinstance(stage.row(spec.id), Waiting)


@pytest.mark.rule("LOT-28")
@pytest.mark.parametrize("seed", range(12))
def test_each_lot_is_made_once_in_any_order_of_closing_sources(seed):
    chance = random.Random(seed)
    stage = LifeStage(scan=False)
    spec, node = stage.join(), stage.living()
    worker = stage.worker(node)
    stage.subscribe(spec.id, *spec.reads)
    closings = list(itertools.product((stage.clicks, stage.rates), LOTS))
    chance.shuffle(closings)
    for dataset, lot in closings:
        stage.lot_of(dataset, lot, LOTS.index(lot))
        if chance.random() < 0.4:
            stage.drain(spec, worker, node)
    stage.drain(spec, worker, node)
    assert stage.table(stage.joined) == {lot: [n, n] for n, lot in enumerate(LOTS)}
    assert sorted(event.lot for event in stage.events(stage.joined)) == LOTS
    assert isinstance(stage.row(spec.id), Waiting)


@pytest.mark.rule("LOT-30")
def test_a_correction_of_one_source_makes_that_lot_again_and_does_not_wait_for_the_other_source():
    stage = LifeStage()
    spec, node = stage.join(), stage.living()
    worker = stage.worker(node)
    stage.subscribe(spec.id, *spec.reads)
    for lot in LOTS[:2]:
        stage.lot_of(stage.clicks, lot, 1)
        stage.lot_of(stage.rates, lot, 2)
    stage.drain(spec, worker, node)
    stage.lot_of(stage.rates, LOTS[0], 20, generation=1)
    again = [outcome for outcome in stage.drain(spec, worker, node) if outcome.ended is not LotEnd.DONE]
    assert [(outcome.lot, outcome.ended, outcome.generation) for outcome in again] == [
        (LOTS[0], LotEnd.COMPLETE, 1)
    ]
    assert stage.rows(stage.joined, LOTS[0]) == [1, 20]
    assert stage.rows(stage.joined, LOTS[1]) == [1, 2]


def test_a_backfill_of_a_waiting_lot_is_withdrawn_and_the_lot_is_made_with_its_last_source():
    stage = LifeStage()
    spec, node = stage.join(), stage.living()
    worker = stage.worker(node)
    stage.subscribe(spec.id, *spec.reads)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    stage.drain(spec, worker, node)
    ask = stage.enter(spec, LOTS[0], RequestKind.BACKFILL)
    assert worker.make_requested(spec, ask).ended is LotEnd.WAITING
    assert stage.work_off(spec, worker) == []
    stage.lot_of(stage.rates, LOTS[0], 2)
    assert [outcome.ended for outcome in stage.drain(spec, worker, node)] == [LotEnd.COMPLETE]
    # of no source at all: somebody named a lot that nobody has
    assert worker.work(spec, LOTS[4]).ended is LotEnd.MISSING
