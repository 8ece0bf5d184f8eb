"""Alarms: a source advances at its time, which gives its view group a step."""

import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tests.unit.test_triggers_heap import DAY_US, HeapStage
from tidemill.lots.keys import DatasetId
from tidemill.triggers import alarms
from tidemill.triggers.subscriptions import Waiting
from tidemill.views.steps import groups
from tidemill.views.steps.commits import StepAlarm, StepBatch, StepPart
from tidemill.views.steps.keys import alarm_of

SOURCE = DatasetId("views:shop/g", "alarm")


@pytest.mark.rule("DBSP-22")
@pytest.mark.parametrize("kind", ["store", "objects"])
def test_an_alarm_wakes_once_at_its_time_and_can_be_set_again(kind: str) -> None:
    stage = HeapStage(kind)
    stage.run(alarms.declare, stage.lots, SOURCE)
    stage.attach("s", SOURCE)
    stage.work()
    begin = stage.store.run(lambda tx: tx.wall())
    stage.run(alarms.set_at, stage.triggers, SOURCE, begin + 100_000_000)
    stage.run(alarms.set_at, stage.triggers, SOURCE, begin + 60_000_000)
    stage.clock.advance(59)
    assert stage.work() == []
    stage.clock.advance(1)
    assert stage.work() == ["s"]
    stage.clock.advance(1000)
    assert stage.work() == [], "the time it had before is over as well"
    assert stage.row("s").tally.progress == (1,)
    stage.run(alarms.set_at, stage.triggers, SOURCE, begin)
    assert stage.work() == ["s"], "a time that is over counts at once"
    stage.run(alarms.set_at, stage.triggers, SOURCE, begin + 10**12)
    stage.run(alarms.set_at, stage.triggers, SOURCE, None)
    stage.clock.advance(10**7)
    assert stage.work() == []
    assert isinstance(stage.row("s"), Waiting)


@pytest.mark.rule("DBSP-22")
def test_a_group_has_a_step_at_its_alarm_and_the_step_sets_the_next_one() -> None:
    stage = StepStage()
    orders = stage.dataset()
    alarm = alarm_of(P, "g")
    stage.declare(spec("g", orders, alarm), spec("other", orders))
    node = stage.node("n", DAY_US * 100)
    begin = stage.store.run(lambda tx: tx.wall())
    left = [begin + 50_000_000, begin + 90_000_000, None]

    def compute(batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        stage.computed.append((batch, attempt))
        return (*outputs(batch, attempt), StepAlarm(at=left.pop(0)))

    def ring() -> list[DatasetId]:
        due = stage.run(alarms.due, stage.triggers)
        return [source for source in due if stage.run(alarms.fire, stage.triggers, stage.lots, source)]

    assert stage.step(node, "g", compute=compute) is not None
    stage.settle(node, "other")
    assert ring() == []
    stage.clock.advance(55)
    assert ring() == [alarm]
    stage.publish(orders)
    assert stage.step(node, "g", compute=compute) is not None
    (batch, _) = stage.computed[-1]
    assert batch.moved == {orders, alarm}, "what was published meanwhile is in the same step"
    assert batch.now >= begin + 50_000_000
    stage.settle(node, "other")
    passed = len(stage.computed)
    stage.clock.advance(55)
    assert ring() == [alarm]
    assert stage.step(node, "g", compute=compute) is not None
    assert stage.computed[-1][0].moved == {alarm}
    stage.settle(node, "g", "other")
    assert len(stage.computed) == passed + 1, "nobody else has anything to compute for it"
    stage.clock.advance(10**6)
    assert ring() == []
    stage.check()


def test_a_group_that_is_removed_has_no_alarm() -> None:
    stage = StepStage()
    stage.declare(spec("g", stage.dataset(), alarm_of(P, "g")))
    stage.run(alarms.set_at, stage.triggers, alarm_of(P, "g"), 1)
    assert stage.run(groups.remove, stage.keys, P, "g")
    assert stage.run(alarms.due, stage.triggers) == []
