"""Views and time: they are woken when a row passes a temporal filter, or at their cadence (DBSP-22)."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.leases import LongLeaseClock
from tidemill.clock import SYSTEM
from tidemill.triggers import alarms
from tidemill.views.steps.keys import alarm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = dt.datetime(2024, 3, 29, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


class World:
    """A pipeline whose wall clock is set by the test."""

    def __init__(self, home: Path, spark: "SparkSession") -> None:
        self.clock = LongLeaseClock(SYSTEM)
        self.pipeline = tm.Pipeline("p", home=home, spark=spark, clock=self.clock)

    def at(self, moment: dt.datetime) -> None:
        """Let time pass until this moment, on both clocks; the first call sets the wall clock."""
        shift_s = moment.timestamp() - SYSTEM.wall()
        if self.clock.wall_shift_s:
            self.clock.monotonic_shift_s += max(0.0, shift_s - self.clock.wall_shift_s)
        self.clock.wall_shift_s = shift_s

    def alarm(self, group: str) -> dt.datetime | None:
        """When the group is to be woken by time."""
        site = self.pipeline.context
        at = site.store.run(lambda tx: alarms.next_at(tx, site.keys.triggers, alarm_of("p", group)))
        return None if at is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=at)

    def run(self) -> None:
        report = self.pipeline.run()
        assert report.ok, report


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession") -> Iterator[World]:
    created = World(tmp_path / "home", spark)
    with created.pipeline:
        yield created


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.df().collect()), key=repr)


@pytest.mark.rule("DBSP-22")
def test_a_view_is_woken_at_the_moment_at_which_a_row_passes_its_filter(world: World) -> None:
    """A day is cut off from behind, an hour from ahead, a date by midnight; nothing is published then."""
    pipeline = world.pipeline
    events = pipeline.dataset("events", "id INT, at TIMESTAMP, day DATE")
    recent = pipeline.view(
        "recent", "SELECT id FROM events WHERE at > now() - INTERVAL 1 DAY", refresh="full"
    )
    due = pipeline.view(
        "due", "SELECT count(*) AS n FROM events WHERE now() + INTERVAL 1 HOUR >= at", refresh="full"
    )
    over = pipeline.view("over", "SELECT id FROM events WHERE day < current_date()", refresh="full")
    world.at(NOON)
    events.append(
        [
            (1, NOON - 23 * HOUR, NOON.date()),
            (2, NOON, NOON.date()),
            (3, NOON + 2 * HOUR, NOON.date() + dt.timedelta(days=1)),
            (4, None, None),
        ]
    )
    world.run()
    assert rows(recent) == [(1,), (2,), (3,)]
    assert rows(due) == [(2,)]
    assert rows(over) == []
    assert world.alarm("main") == NOON + HOUR, "row 1 is a day old, and row 3 an hour ahead"
    before = recent.position
    world.at(NOON + HOUR - dt.timedelta(seconds=30))
    world.run()
    assert recent.position == before, "it is not woken early"
    world.at(NOON + HOUR)
    world.run()
    assert recent.position == before + 1
    assert (rows(recent), rows(due), rows(over)) == ([(2,), (3,)], [(3,)], [])
    (gone,) = recent.changes(after=before).collect()
    assert (gone["id"], gone["_weight"]) == (1, -1)
    assert world.alarm("main") == dt.datetime(2024, 3, 30, tzinfo=dt.UTC), "then a day is over"
    world.at(NOON + 100 * HOUR)
    world.run()
    assert (rows(recent), rows(due), rows(over)) == ([], [(3,)], [(1,), (2,), (3,)])
    assert world.alarm("main") is None, "no row has anything to pass any more"


@pytest.mark.rule("DBSP-22")
def test_what_asks_the_clock_in_another_way_is_recomputed_at_its_cadence(world: World) -> None:
    pipeline = world.pipeline
    events = pipeline.dataset("events", "id INT, at TIMESTAMP")
    age = pipeline.view(
        "age",
        "SELECT id, hour(now()) AS h FROM events",
        group="slow",
        pace=tm.Pace(cadence="PT1H"),
        refresh="full",
    )
    idle = pipeline.view("idle", "SELECT id, hour(now()) AS h FROM events", group="idle", refresh="full")
    world.at(NOON)
    events.append([(1, NOON)])
    world.run()
    assert rows(age) == rows(idle) == [(1, 12)]
    alarm = world.alarm("slow")
    assert alarm is not None
    assert dt.timedelta(0) <= alarm - (NOON + HOUR) < dt.timedelta(minutes=5)
    assert world.alarm("idle") is None
    steps = age.position
    world.at(NOON + HOUR / 2)
    world.run()
    assert (age.position, idle.position) == (steps, steps), "half an hour is no time"
    world.at(NOON + 1.5 * HOUR)
    world.clock.monotonic_shift_s += 1.5 * 3600
    world.run()
    assert rows(age) == [(1, 13)]
    assert rows(idle) == [(1, 12)], "nobody said how often"
