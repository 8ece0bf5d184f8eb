"""A new arc makes one lot from the base lot of its input, exactly once (LOT-39)."""

import itertools
from collections import Counter

import pytest

from tests.unit.arcs_stage import lapse
from tests.unit.test_base_lots import Based
from tests.unit.test_retention import KEYS
from tidemill import crash
from tidemill.arcs import lots as arc_lots
from tidemill.arcs import rows
from tidemill.arcs.work import LotEnd
from tidemill.lots import base_lot
from tidemill.runner.retention import lower_bound
from tidemill.triggers import subscriptions

STEPS = ("arcs.begin", "publish.intent", "publish.part-manifest", "publish.commit")


@pytest.fixture
def stage() -> Based:
    return Based()


def cleaned(stage: Based) -> Counter[int]:
    """Return the rows of the table that the arc writes."""
    table = stage.table(stage.cleaned)
    return Counter(number for rows in table.values() for number in rows or ())


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize("merged", [False, True])
def test_a_new_arc_sees_the_rows_of_expired_lots_once(stage: Based, merged: bool) -> None:
    lots = stage.days(6)
    assert stage.expire()["orders"].lots == 4
    if merged:
        assert stage.merge() is not None
    stage.subscribe_arc()
    outcomes = stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert [outcome.lot for outcome in outcomes] == [lots[3], *lots[4:]], "the base lot comes first"
    assert cleaned(stage) == Counter(stage.all_numbers())
    later = stage.append([100])
    (outcome,) = stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert outcome.lot == later
    assert cleaned(stage) == Counter(stage.all_numbers())


@pytest.mark.rule("LOT-39", "LOT-20")
@pytest.mark.parametrize("point", [f"{step}.{side}" for step in STEPS for side in ("before", "after")])
def test_wherever_a_node_dies_the_rows_of_the_base_lot_arrive_once(point: str) -> None:
    for visit in itertools.count(1):
        stage = Based()
        stage.days(6)
        stage.expire()
        stage.subscribe_arc()
        died, first = False, stage.node("first")
        with crash.armed(point, visit=visit):
            try:
                stage.drain(stage.spec, stage.worker(first), first)
            except crash.Crashed:
                died = True
        if not died:
            assert visit > 1, "the point was reached"
            return
        lapse(stage)
        assert stage.merge() is not None, "a merge replaces the files meanwhile"
        outcomes = stage.drain(stage.spec, stage.worker(stage.me), stage.me)
        assert {outcome.ended for outcome in outcomes} <= {LotEnd.COMPLETE, LotEnd.DONE}
        assert cleaned(stage) == Counter(stage.all_numbers())


@pytest.mark.rule("LOT-39")
def test_no_lot_expires_until_the_lot_from_the_base_lot_is_finished(stage: Based) -> None:
    lots = stage.days(6)
    stage.expire()
    stage.subscribe_arc()
    bound = stage.run(lower_bound, KEYS, stage.keys, stage.orders, keep_rows=True)
    assert bound.position == 0
    stage.parts.failing = {0: 1}
    outcomes = stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert [outcome.ended for outcome in outcomes] == [LotEnd.PARTIAL, LotEnd.COMPLETE, LotEnd.COMPLETE]
    stage.days(3)
    assert "which it makes from the base lot" in stage.expire()["orders"].held_by
    worker = stage.worker(stage.me)
    stage.drain(stage.spec, worker, stage.me)
    assert worker.make_requested(stage.spec, stage.ask(stage.spec, lots[3])).ended is LotEnd.COMPLETE
    assert cleaned(stage) == Counter(stage.all_numbers())
    assert stage.expire()["orders"].lots > 0
    assert stage.run(rows.newest, stage.keys, stage.spec.id, lots[3]) is None, "nothing can make it again"
    assert cleaned(stage) == Counter(stage.all_numbers())


@pytest.mark.rule("LOT-39")
def test_the_lot_from_the_base_lot_is_up_to_date(stage: Based) -> None:
    lots = stage.days(6)
    stage.expire()
    stage.subscribe_arc()
    stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert not stage.run(arc_lots.is_outdated, stage.keys, stage.spec, lots[3])


@pytest.mark.rule("LOT-39")
def test_an_arc_that_has_seen_the_lots_does_not_see_the_base_lot(stage: Based) -> None:
    stage.subscribe_arc()
    worker = stage.worker(stage.me)
    stage.days(6)
    stage.drain(stage.spec, worker, stage.me)
    before = cleaned(stage)
    assert stage.expire()["orders"].lots == 4
    stage.run(subscriptions.remove, stage.keys.publish.triggers, stage.spec.id)
    stage.subscribe_arc()
    outcomes = stage.drain(stage.spec, worker, stage.me)
    assert {outcome.ended for outcome in outcomes} == {LotEnd.DONE}
    assert cleaned(stage) == before, "it is not new: its table has events"


@pytest.mark.rule("LOT-39")
def test_a_base_lot_without_rows_gives_an_empty_lot(stage: Based) -> None:
    stage.days(6, [])
    stage.expire()
    assert stage.run(base_lot.read, stage.lots, stage.orders).last
    stage.subscribe_arc()
    outcomes = stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert {outcome.ended for outcome in outcomes} == {LotEnd.COMPLETE}
    assert len(outcomes) == 3
