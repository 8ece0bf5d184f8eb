"""A wall clock that jumps: intervals, schedules and `now()` follow the new time only after it has held."""

import pytest

from tests.unit.lots_stage import FIVE_MINUTES, Stage
from tests.unit.steps_stage import P, StepStage, spec
from tidemill.errors import IntervalConflict
from tidemill.events import Event
from tidemill.lots import staging, wall_clock
from tidemill.lots.datasets import Kind
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.staging import Staged
from tidemill.lots.wall_clock import AHEAD_US, CONFIRM_US
from tidemill.publish.events import WallClockJumped
from tidemill.publish.intervals import IntervalCloser
from tidemill.triggers import alarms, schedules
from tidemill.triggers.schedules import Schedule
from tidemill.views.steps import records

MINUTE_S = 60
WEEK_S = 7 * 86_400


class ClockStage(Stage):
    """A dataset with intervals of five minutes, and a node that closes them."""

    def __init__(self) -> None:
        super().__init__()
        self.orders = self.dataset(unit=FIVE_MINUTES)
        self.emitted: list[Event] = []
        self.closer = IntervalCloser(self.scope(self.node("n", 10**15), emit=self.emitted.append))

    def append(self) -> staging.Receipt:
        return self.run(staging.stage, self.lots, self.orders, Staged(uri="x", digest="y", rows=1))

    def close(self) -> int:
        closed = 0
        while count := self.closer.close_due():
            closed += count
        return closed

    def jumps(self) -> list[WallClockJumped]:
        return [event for event in self.emitted if isinstance(event, WallClockJumped)]

    def is_hidden(self, receipt: staging.Receipt) -> bool:
        return receipt.visible_at > (self.clock.wall_s + 2 * 300) * 1e6


@pytest.mark.rule("LOT-42")
def test_a_clock_that_is_a_week_ahead_for_a_moment_closes_nothing_and_hides_no_append() -> None:
    stage = ClockStage()
    first = stage.append()
    stage.close()
    stage.clock.wall_s += WEEK_S
    assert stage.close() <= 1, "at most the interval that ends within the tolerance"
    during = stage.append()
    stage.clock.wall_s -= WEEK_S
    after = stage.append()
    assert LotId.parse(during.lot) <= LotId.parse(first.lot).next()
    assert not stage.is_hidden(during)
    assert not stage.is_hidden(after)
    (jump,) = stage.jumps()
    assert jump.shift_s == pytest.approx(WEEK_S)
    assert jump.message == "the wall clock is 7 days ahead of the expected time"
    stage.clock.advance(600)
    assert stage.close() >= 1
    assert stage.run(wall_clock.pending, stage.lots) is None


@pytest.mark.rule("LOT-42")
def test_a_dataset_that_is_declared_during_a_jump_begins_now() -> None:
    stage = ClockStage()
    stage.close()
    stage.clock.wall_s += WEEK_S
    other = stage.dataset("other", unit=FIVE_MINUTES)
    lot = LotId.parse(stage.run(staging.begin, stage.lots, other).lot)
    stage.clock.wall_s -= WEEK_S
    assert staging.wall_us(lot.start) <= stage.clock.wall_s * 1e6 + AHEAD_US


def test_a_jump_that_lasts_is_accepted_and_missed_intervals_close() -> None:
    stage = ClockStage()
    stage.append()
    stage.close()
    stage.clock.wall_s += 3600  # the machine was off for an hour, which lease time does not count
    before = stage.close()
    for _ in range(CONFIRM_US // (MINUTE_S * 1_000_000) - 1):
        stage.clock.advance(MINUTE_S)
        before += stage.close()
    assert before < 6
    assert len(stage.jumps()) == 1, "reported once"
    stage.clock.advance(MINUTE_S)
    assert before + stage.close() >= 12
    assert stage.run(wall_clock.pending, stage.lots) is None


def test_accepting_a_jump_applies_it_at_once() -> None:
    stage = ClockStage()
    stage.append()
    stage.close()
    stage.clock.wall_s += 3600
    stage.close()
    jump = stage.run(wall_clock.pending, stage.lots)
    assert jump is not None
    assert (jump.shift_us, jump.accepted_in_us) == (3600 * 1_000_000, CONFIRM_US)
    stage.run(wall_clock.accept, stage.lots)
    assert stage.run(wall_clock.pending, stage.lots) is None
    assert stage.close() >= 10


def test_a_jump_that_changes_must_last_again() -> None:
    stage = ClockStage()
    stage.close()
    stage.clock.wall_s += WEEK_S
    stage.close()
    stage.clock.advance(CONFIRM_US // 1_000_000 - 1)
    stage.clock.wall_s += WEEK_S
    stage.close()
    stage.clock.advance(2)
    stage.close()
    assert stage.run(wall_clock.pending, stage.lots) is not None
    assert len(stage.jumps()) == 2


def test_a_clock_that_drifts_or_is_set_back_is_followed() -> None:
    stage = ClockStage()
    stage.close()
    for _ in range(20):
        stage.clock.advance(300)
        stage.clock.wall_s += 200
        stage.close()
    assert stage.jumps() == []
    assert stage.run(wall_clock.believed, stage.lots) == int(stage.clock.wall_s * 1e6)
    stage.clock.wall_s -= WEEK_S
    stage.close()
    (jump,) = stage.jumps()
    assert "7 days behind" in jump.message
    assert stage.run(wall_clock.believed, stage.lots) == int(stage.clock.wall_s * 1e6)
    stage.clock.advance(CONFIRM_US // 1_000_000)
    stage.close()
    stage.clock.wall_s += WEEK_S  # the new offset was accepted, so this is another jump
    stage.close()
    assert len(stage.jumps()) == 2


def ahead() -> ClockStage:
    """A stage whose intervals of the next hour were closed by a wrong clock that was accepted."""
    stage = ClockStage()
    stage.append()
    stage.close()
    stage.clock.wall_s += 3600
    stage.run(wall_clock.accept, stage.lots)
    stage.close()
    stage.clock.wall_s -= 3600
    stage.run(wall_clock.accept, stage.lots)
    return stage


def rewind(stage: ClockStage, limit: int = 300) -> None:
    while stage.run(staging.rewind, stage.lots, stage.orders, limit):
        pass


def test_a_dataset_that_ran_ahead_is_rewound_and_every_append_becomes_visible_once() -> None:
    stage = ahead()
    hidden = [stage.append() for _ in range(5)]
    assert all(stage.is_hidden(receipt) for receipt in hidden)
    rewind(stage, limit=2)
    assert not stage.is_hidden(stage.append())
    rewind(stage)
    stage.clock.advance(400)
    stage.close()
    filled = {row.lot: (row.generation, row.rows) for row in stage.rows_of(stage.orders) if row.rows}
    assert list(filled.values()) == [(0, 1), (1, 6)], "the first lot, and the lot of the present"
    stage.clock.advance(2 * 3600)
    stage.append()
    stage.clock.advance(600)
    stage.close()
    rows = stage.rows_of(stage.orders)
    assert sum(row.rows for row in rows) == 8
    assert [row.lot for row in rows] == sorted({row.lot for row in rows})
    assert sum(row.generation for row in rows) == 1, "an empty lot is not published again without appends"


def test_appends_to_a_lot_that_was_corrected_before_its_interval_go_to_the_next_one() -> None:
    stage = ahead()
    rewind(stage)
    receipt = stage.append()
    stage.add(stage.orders, receipt.lot, 1, rows=7)
    stage.clock.advance(400)
    stage.close()
    stage.clock.advance(300)
    stage.close()
    rows = {row.lot: (row.generation, row.rows) for row in stage.rows_of(stage.orders)}
    assert rows[receipt.lot] == (1, 7)
    assert rows[str(LotId.parse(receipt.lot).next())] == (1, 1)


def test_a_rewind_stops_at_a_lot_with_rows_and_refuses_a_dataset_with_a_key() -> None:
    stage = ahead()
    lot = LotId.parse(stage.append().lot)
    before = LotId.parse([row.lot for row in stage.rows_of(stage.orders)][-1])
    assert before.next() == lot
    stage.add(stage.orders, str(before), 1, rows=7)
    rewind(stage)
    interval = stage.run(staging.read, stage.lots, stage.orders)
    assert interval is not None
    assert interval.lot == str(lot)
    keyed = stage.dataset("keyed", unit=FIVE_MINUTES, kind=Kind.KEYED, key=("id",), deletes=True)
    stage.run(staging.begin, stage.lots, keyed)
    with pytest.raises(IntervalConflict, match="it has a key"):
        stage.run(staging.rewind, stage.lots, keyed)


def test_a_dataset_that_is_not_ahead_is_not_rewound() -> None:
    stage = ClockStage()
    stage.append()
    before = stage.run(staging.read, stage.lots, stage.orders)
    rewind(stage)
    assert stage.run(staging.read, stage.lots, stage.orders) == before
    stage.clock.advance(300)
    stage.close()
    assert [row.rows for row in stage.rows_of(stage.orders)] == [1]


def test_schedules_and_alarms_do_not_follow_a_jump() -> None:
    stage = ClockStage()
    stage.close()
    entry = stage.run(
        schedules.declare, stage.triggers, stage.lots, Schedule(name="tick", expression="0 * * * *")
    )
    source = DatasetId("now g")
    stage.run(alarms.declare, stage.lots, source)
    stage.run(alarms.set_at, stage.triggers, source, entry.next_at)
    stage.clock.wall_s += WEEK_S
    assert stage.run(schedules.fire, stage.triggers, stage.lots, "tick").written == 0
    assert not stage.run(alarms.fire, stage.triggers, stage.lots, source)
    changed = Schedule(name="tick", expression="30 * * * *")
    declared = stage.run(schedules.declare, stage.triggers, stage.lots, changed)
    stage.clock.wall_s -= WEEK_S
    assert declared.next_at <= (stage.clock.wall_s + 2 * 3600) * 1e6
    stage.clock.advance(2 * 3600)
    assert stage.run(schedules.fire, stage.triggers, stage.lots, "tick").written == 1
    assert stage.run(alarms.fire, stage.triggers, stage.lots, source)


def test_now_in_views_does_not_follow_a_jump() -> None:
    stage = StepStage()
    stage.run(wall_clock.observe, stage.keys.lots)
    orders = stage.dataset("orders")
    stage.clock.wall_s += WEEK_S
    stage.declare(spec("g", orders))
    stage.publish(orders)
    stage.run(records.write_record_now, stage.keys, P, "n")
    stage.clock.wall_s -= WEEK_S
    assert stage.records()[-1].now <= stage.clock.wall_s * 1e6 + AHEAD_US
