"""Schedules, cadence and failures in a row through a pipeline on Spark, with a wall clock that is turned."""

import json
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.clocks import JumpingClock
from tidemill.cli import main
from tidemill.errors import DeclarationError
from tidemill.events import Event
from tidemill.pipeline.status import status_of
from tidemill.triggers import schedules, subscriptions
from tidemill.triggers.due import NEVER
from tidemill.triggers.events import CronMissed, RunStarted
from tidemill.triggers.store_heap import StoreHeap
from tidemill.views.steps import groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

HOUR_S = 3600.0


class TurnedClock(JumpingClock):
    """A clock whose hands can be set, forward and back: what hangs on the wall is nobody's lease."""

    def __init__(self, *hands: int) -> None:
        super().__init__()
        self.hands = datetime(*hands, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]

    def wall(self) -> float:
        return self.hands

    def pass_time(self, seconds: float) -> None:
        """Let time pass, on both clocks: if only the hands moved, they would have jumped."""
        self.hands += seconds
        self.skip(seconds)


def bag(pipeline: tm.Pipeline, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in pipeline[name].df().collect())


def row_of(pipeline: tm.Pipeline, name: str) -> subscriptions.AnyRow | None:
    keys = pipeline.context.keys.triggers
    return pipeline.context.store.run(lambda tx: subscriptions.read(tx, keys, name))


def declare(home: Path, spark: "SparkSession", clock: TurnedClock, **pace: Any) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark, clock=clock)
    orders = shop.dataset("orders", "id BIGINT")

    @shop.arc(reads=orders, writes="daily", pace=tm.Pace(**pace))
    def daily(df: "DataFrame") -> "DataFrame":
        return df

    return shop


@pytest.mark.rule("HEAP-16")
@pytest.mark.rule("HEAP-15")
def test_an_arc_with_a_schedule_runs_at_its_times_alone_whatever_the_wall_clock_does(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    home, clock = tmp_path / "home", TurnedClock(2026, 1, 31, 5)
    events: list[Event] = []
    with declare(home, spark, clock, cron="30 6 * * *", zone="Europe/Madrid") as shop:
        orders = shop["orders"]
        assert isinstance(orders, tm.Dataset)
        orders.append([(1,)])
        orders.append([(2,)])
        report = shop.run()
        assert report.ok
        assert report.arcs == ()
        assert report.later == {"daily": HOUR_S / 2}, "06:30 in Madrid is 05:30"
        assert main(["triggers", "--home", str(home), "--json"]) == 0
        (trigger,) = json.loads(capsys.readouterr().out)["triggers"]
        assert (trigger["name"], trigger["state"], trigger["behind"]["orders@1"]) == (
            "arc:shop/daily",
            "waiting",
            2,
        )
        assert "at the next time of its schedule" in trigger["why"]

        clock.pass_time(HOUR_S)  # its time comes: one run, for all that has come by then
        assert [(arc.arc, arc.complete) for arc in shop.run(emit=events.append).arcs] == [("daily", 2)]
        assert len([event for event in events if isinstance(event, RunStarted)]) == 1
        orders.append([(3,)])
        assert shop.run().arcs == (), "what comes behind it waits for the next"

        clock.hands -= 2 * HOUR_S  # turned back: a time that has passed does not count again
        assert shop.run().arcs == ()
        clock.pass_time(3 * HOUR_S)
        report = shop.run()
        assert report.arcs == ()
        assert report.later == {"daily": 22.5 * HOUR_S}

        clock.pass_time(72 * HOUR_S)  # three times without a runner: one run makes up for them
        events.clear()
        assert [(arc.arc, arc.complete) for arc in shop.run(emit=events.append).arcs] == [("daily", 1)]
        assert [event.left_out for event in events if isinstance(event, CronMissed)] == [2]
        assert bag(shop, "daily") == Counter([(1,), (2,), (3,)])

    # another policy: what was missed is not made up for
    with declare(home, spark, clock, cron="30 6 * * *", zone="Europe/Madrid", catch_up="none") as shop:
        orders = shop["orders"]
        assert isinstance(orders, tm.Dataset)
        orders.append([(4,)])
        clock.pass_time(24 * HOUR_S)
        report = shop.run()
        assert report.arcs == ()
        assert list(report.later) == ["daily"]

    # without a schedule it runs as before, at what it has not seen; a schedule that is gone fires no more
    with declare(home, spark, clock) as shop:
        assert [(arc.arc, arc.complete) for arc in shop.run().arcs] == [("daily", 1)]
        assert bag(shop, "daily") == Counter([(1,), (2,), (3,), (4,)])
        keys = shop.context.keys.triggers
        assert shop.context.store.run(lambda tx: schedules.listed(tx, keys)) == []
        row = row_of(shop, "arc:shop/daily")
        assert row is not None
        assert row.tally.terms.gate is None


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        ({"cron": "61 * * * *"}, "'61' is not a valid minute"),
        ({"cron": "daily"}, "has 1 fields, but needs 5"),
        ({"cron": "0 0 31 2 *"}, "matches no date in the next 9 years"),
        ({"cron": "@daily", "zone": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
        ({"zone": "Europe/Madrid"}, "needs cron="),
        ({"cron": "@daily", "debounce": 5}, "cron= and debounce= cannot be combined"),
        ({"cadence": 0}, "cadence=0"),
        ({"cadence": "PT0S"}, "cadence='PT0S'"),
        ({"debounce": 9, "max_wait": 5}, "max_wait=5 is less than debounce=9"),
        ({"catch_up": "some"}, "catch_up='some'"),
        ({"most_failures": -1}, "most_failures=-1"),
    ],
)
def test_a_pace_that_cannot_be_is_refused_with_its_line(pace: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=r"test_pipeline_schedules\.py:\d+: ") as refused:
        tm.Pace(**pace)
    assert words in refused.value.message


def views(home: Path, spark: "SparkSession", clock: TurnedClock, **groups_: dict[str, Any]) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark, clock=clock)
    shop.dataset("orders", "id BIGINT")
    for name, pace in groups_.items():
        sql = "SELECT count(*) AS n FROM orders"
        shop.view(name, sql, refresh="full", group=name.rstrip("0123456789"), pace=tm.Pace(**pace))
    return shop


@pytest.mark.rule("HEAP-1")
@pytest.mark.rule("HEAP-14")
@pytest.mark.rule("HEAP-16")
def test_groups_of_views_have_the_shortest_pace_of_their_views_and_lose_it_with_the_last_of_them(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    home, clock = tmp_path / "home", TurnedClock(2026, 1, 31, 5)
    paces: dict[str, dict[str, Any]] = {
        "slow1": {"cadence": "PT2H"},
        "slow2": {"cadence": "PT1H", "most_failures": 3},
        "nightly1": {"cron": "@daily"},
    }
    with views(home, spark, clock, **paces) as shop:
        orders = shop["orders"]
        assert isinstance(orders, tm.Dataset)
        orders.append([(1,)])
        report = shop.run()
        assert report.ok
        assert report.steps.keys() == {"slow"}
        assert list(report.later) == ["nightly"]
        assert report.later["nightly"] == 19 * HOUR_S
        row = row_of(shop, "views:shop/slow")
        assert row is not None
        assert (row.tally.terms.cadence_us, row.tally.terms.most_failures) == (3_600_000_000, 3)
        assert bag(shop, "slow1") == Counter([(1,)])

        orders.append([(2,)])
        report = shop.run()
        assert report.steps == {}
        assert HOUR_S - 600 < report.later["slow"] <= HOUR_S, "two starts are a cadence apart"
        clock.skip(HOUR_S)
        assert list(shop.run().steps) == ["slow"]
        assert bag(shop, "slow2") == Counter([(2,)])
        clock.pass_time(20 * HOUR_S)
        assert list(shop.run().steps) == ["nightly"]
        assert bag(shop, "nightly1") == Counter([(2,)])

    with views(home, spark, clock, slow1={}) as shop:
        removed = [stage for stage in shop.plan().describe() if stage["status"] == "removed"]
        assert sorted((stage["what"], stage["name"]) for stage in removed) == [
            ("view", "nightly1"),
            ("view", "slow2"),
            ("views", "nightly"),
        ]
        orders = shop["orders"]
        assert isinstance(orders, tm.Dataset)
        orders.append([(3,)])
        events: list[Event] = []
        assert list(shop.run(emit=events.append).steps) == ["slow"], "its cadence is gone, too"
        assert {event.name for event in events if isinstance(event, RunStarted)} == {"views:shop/slow"}
        assert row_of(shop, "views:shop/nightly") is None
        keys = shop.context.keys
        known = shop.context.store.run(lambda tx: groups.listed(tx, keys, "shop"))
        assert [group.spec.name for group in known] == ["slow"]
        assert shop.context.store.run(lambda tx: schedules.listed(tx, keys.triggers)) == []

    shop = views(home, spark, clock, nightly1={"cron": "@daily"}, nightly2={"cron": "@hourly"})
    with shop, pytest.raises(DeclarationError, match=r"\.py:\d+: .* schedules: '@daily' and '@hourly'"):
        shop.plan()


@pytest.mark.rule("HEAP-15")
def test_a_group_that_fails_too_often_is_dead_until_somebody_says_retry(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    home, broken = tmp_path / "home", threading.Event()

    def moody(df: "DataFrame") -> "DataFrame":
        if broken.is_set() and threading.current_thread() is not threading.main_thread():
            raise OSError("the mood is bad")  # in a step; such an error does not belong to the view alone
        return df

    with tm.Pipeline("shop", home=home, spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT")
        shop.view("moods", moody, reads=orders, full=True, pace=tm.Pace(most_failures=2))
        orders.append([(1,)])
        broken.set()
        _run_broken(shop)
        status = {run.name: run for run in status_of(shop).runs}
        assert status["main"].dead
        assert status["main"].needs_attention

        home_ = ["--home", str(home), "--json"]
        assert main(["triggers", "--state", "dead", *home_]) == 0
        (trigger,) = json.loads(capsys.readouterr().out)["triggers"]
        assert (trigger["name"], trigger["failures"]) == ("views:shop/main", 2)
        assert "the mood is bad" in trigger["why"]
        orders.append([(2,)])
        broken.clear()
        assert shop.run().steps == {}, "dead is dead"

        assert main(["triggers", "retry", "--dead", *home_]) == 0
        assert json.loads(capsys.readouterr().out)["retried"] == ["views:shop/main"]
        assert list(shop.run().steps) == ["main"]
        assert bag(shop, "moods") == Counter([(1,), (2,)])

        # once more, with the pipeline's own word for it; the heap is lost meanwhile
        orders.append([(3,)])
        broken.set()
        _run_broken(shop)
        broken.clear()
        shop.retry("moods")
        heap = StoreHeap(shop.context.store, shop.context.keys.triggers)
        heap.remove([*heap.listed(0, NEVER), *heap.parked()])
        assert main(["triggers", "rebuild", *home_]) == 0
        assert json.loads(capsys.readouterr().out) == {"rebuilding": True}
        for verb, word in (("pause", "paused"), ("resume", "resumed")):
            assert main(["triggers", verb, "views:shop/main", *home_]) == 0
            assert json.loads(capsys.readouterr().out)[word] == ["views:shop/main"]
        assert list(shop.run().steps) == ["main"]
        assert bag(shop, "moods") == Counter([(1,), (2,), (3,)])


def _run_broken(shop: tm.Pipeline) -> None:
    report = shop.run()
    assert not report.ok
    assert "the mood is bad" in report.failures["views:shop/main"]
