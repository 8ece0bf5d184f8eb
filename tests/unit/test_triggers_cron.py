"""Cron expressions, and schedules as sources."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tests.unit.test_triggers_heap import HeapStage
from tidemill.errors import BadSchedule
from tidemill.triggers import schedules
from tidemill.triggers.cron import SHORT, Cron, next_after, zone_of
from tidemill.triggers.events import CronMissed
from tidemill.triggers.schedules import Schedule, source
from tidemill.triggers.subscriptions import Waiting
from tidemill.triggers.terms import CatchUp

MADRID = ZoneInfo("Europe/Madrid")
UTC_ZONE = ZoneInfo("UTC")


def times(text: str, after: str, number: int, zone: ZoneInfo = UTC_ZONE) -> list[str]:
    cron, moment, moments = Cron.parse(text), datetime.fromisoformat(after).astimezone(UTC), []
    for _ in range(number):
        moment = next_after(cron, zone, moment)
        moments.append(moment.astimezone(zone).strftime("%Y-%m-%d %H:%M"))
    return moments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["2026-01-31 10:01", "2026-01-31 10:02"]),
        ("*/20 * * * *", ["2026-01-31 10:20", "2026-01-31 10:40"]),
        ("5/30 10,12 * * *", ["2026-01-31 10:05", "2026-01-31 10:35"]),
        ("0 6 * * mon-fri", ["2026-02-02 06:00", "2026-02-03 06:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 1 jan *", ["2027-01-01 00:00", "2028-01-01 00:00"]),
        ("0 0 13 * 5", ["2026-02-06 00:00", "2026-02-13 00:00"]),  # the 13th, or a Friday
        ("0 0 * * 7", ["2026-02-01 00:00", "2026-02-08 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("@HOURLY", ["2026-01-31 11:00", "2026-01-31 12:00"]),
    ],
)
def test_the_next_times_of_an_expression(text: str, expected: list[str]) -> None:
    assert times(text, "2026-01-31T10:00:00+00:00", 2) == expected


def test_when_clocks_change_a_daily_time_occurs_once_and_hourly_times_follow_elapsed_hours() -> None:
    # forward on 2026-03-29 at 02:00, back on 2026-10-25 at 03:00
    assert times("30 2 * * *", "2026-03-28T12:00:00+00:00", 2, MADRID) == [
        "2026-03-29 03:30",
        "2026-03-30 02:30",
    ]
    assert times("30 2 * * *", "2026-10-24T12:00:00+00:00", 2, MADRID) == [
        "2026-10-25 02:30",
        "2026-10-26 02:30",
    ]
    for begin in ("2026-03-28T23:30:00+00:00", "2026-10-24T22:30:00+00:00"):
        moment, moments = datetime.fromisoformat(begin), []
        for _ in range(6):
            moment = next_after(Cron.parse("0 * * * *"), MADRID, moment)
            moments.append(moment)
        assert {b - a for a, b in pairwise(moments)} == {timedelta(hours=1)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "* * * * monday",
        "@reboot",
        "² * * * *",
    ],
)
def test_an_invalid_expression_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        Cron.parse(text)
    assert caught.value.hint


def test_an_impossible_day_and_an_unknown_zone_are_refused() -> None:
    with pytest.raises(BadSchedule, match="matches no date"):
        times("0 0 30 2 *", "2026-01-31T10:00:00+00:00", 1)
    for name in ("Europe/Atlantis", "", "../etc/passwd", "/"):
        with pytest.raises(BadSchedule, match="no time zone"):
            zone_of(name)
    assert all(Cron.parse(text) for text in SHORT)


def declared(stage: HeapStage, catch_up: CatchUp = CatchUp.LATEST) -> Schedule:
    schedule = Schedule(name="tick", expression="*/5 * * * *", catch_up=catch_up)
    stage.run(schedules.declare, stage.triggers, stage.lots, schedule)
    return schedule


@pytest.mark.rule("HEAP-16")
@pytest.mark.parametrize("kind", ["store", "objects"])
def test_a_schedule_is_a_source_like_any_other(kind: str) -> None:
    stage = HeapStage(kind)
    orders = stage.dataset()
    declared(stage)
    stage.attach("hourly report", source("tick"), orders)
    assert stage.work() == []
    assert isinstance(stage.row("hourly report"), Waiting)
    ran = 0
    for _ in range(60):  # half an hour
        stage.clock.advance(30)
        ran += len(stage.work())
    assert ran == 6
    assert stage.row("hourly report").tally.progress == (6, 0)
    stage.publish(orders)
    assert stage.work() == ["hourly report"]
    assert stage.run(schedules.remove, stage.triggers, "tick")
    assert not stage.run(schedules.remove, stage.triggers, "tick")
    stage.clock.advance(3600)
    assert stage.work() == []


@pytest.mark.rule("HEAP-16")
def test_of_two_schedulers_that_find_the_same_time_one_fires_it() -> None:
    stage = HeapStage("store")
    declared(stage)
    stage.clock.advance(300)
    assert stage.run(schedules.due, stage.triggers) == ["tick"]
    fired = [stage.run(schedules.fire, stage.triggers, stage.lots, "tick") for _ in range(2)]
    assert [(each.written, each.left_out) for each in fired] == [(1, 0), (0, 0)]


@pytest.mark.rule("HEAP-15")
@pytest.mark.parametrize(("policy", "written"), [(CatchUp.ALL, 288), (CatchUp.LATEST, 1), (CatchUp.NONE, 0)])
def test_missed_times_are_handled_by_policy(policy: CatchUp, written: int) -> None:
    stage = HeapStage("store")
    declared(stage, policy)
    stage.attach("s", source("tick"))
    stage.work()
    stage.clock.advance(86_400 + 50)
    assert stage.work() == (["s"] if written else [])
    assert stage.row("s").tally.progress == (written,)
    missed = sum(event.left_out for event in stage.told if isinstance(event, CronMissed))
    assert missed == 288 - written
    stage.clock.advance(51)
    assert stage.work() == ["s"]


def test_a_schedule_that_was_missed_for_days_is_gone_through_in_pages() -> None:
    stage = HeapStage("store")
    declared(stage)
    stage.attach("s", source("tick"))
    stage.clock.advance(15 * 86_400)
    while stage.run(schedules.due, stage.triggers):
        stage.run(schedules.fire, stage.triggers, stage.lots, "tick")
    assert stage.work() == ["s"]
    assert stage.row("s").tally.progress == (1,)


def test_a_wall_clock_that_is_set_back_fires_nothing_twice() -> None:
    stage = HeapStage("store")
    declared(stage)
    stage.attach("s", source("tick"))
    stage.clock.advance(301)
    assert stage.work() == ["s"]
    stage.clock.wall_s -= 280
    for _ in range(4):
        stage.clock.advance(60)
        assert stage.work() == []
    stage.clock.advance(5 * 60)
    assert stage.work() == ["s"]


def test_an_expression_that_changes_holds_from_then_on_and_one_that_is_none_changes_nothing() -> None:
    stage = HeapStage("store")
    first = stage.run(schedules.find, stage.triggers, "tick")
    assert first is None
    schedule = declared(stage)
    entry = stage.run(schedules.find, stage.triggers, "tick")
    assert stage.run(schedules.declare, stage.triggers, stage.lots, schedule) == entry
    with pytest.raises(BadSchedule):
        stage.run(
            schedules.declare, stage.triggers, stage.lots, Schedule(name="tick", expression="every minute")
        )
    assert stage.run(schedules.find, stage.triggers, "tick") == entry
    other = Schedule(name="tick", expression="@daily", zone="Europe/Madrid")
    changed = stage.run(schedules.declare, stage.triggers, stage.lots, other)
    assert changed.next_at > entry.next_at
