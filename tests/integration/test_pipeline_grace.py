"""An arc over several tables, through a real runner: what it does when its grace is over (LOT-28)."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tests.leases import LongLeaseClock
from tidemill.pipeline.status import status_of
from tidemill.testing.fake_clock import ShiftedClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declare(home: Path, spark: "SparkSession", clock: ShiftedClock) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark, clock=clock)
    clicks = shop.dataset("clicks", "id BIGINT", lots="PT1H")
    raw = shop.dataset("raw", "id BIGINT", lots="PT1H")

    @shop.arc(reads=raw, writes="rates")
    def rate(df: "DataFrame") -> "DataFrame":
        return df

    def both(left: "DataFrame", right: "DataFrame") -> "DataFrame":
        return left.selectExpr("id", "'click' AS of").union(right.selectExpr("id", "'rate' AS of"))

    soon = shop.arc(reads=[clicks, "rates"], writes="soon", grace="PT10M", after_grace="partial", name="soon")
    soon(both)
    never = shop.arc(reads=[clicks, "rates"], writes="never", grace=600, after_grace="skip", name="never")
    never(both)
    shop.arc(reads=[clicks, "rates"], writes="patient", name="patient")(both)
    return shop


def rows(shop: tm.Pipeline, table: str) -> list[tuple[int, str]]:
    return sorted((row[0], row[1]) for row in shop[table].df().collect())


def lots(shop: tm.Pipeline, table: str) -> list[tuple[str, int, str]]:
    return [(lot.state, lot.generation, lot.note) for lot in shop[table].lots()]


@pytest.mark.rule("LOT-28")
def test_when_its_grace_is_over_an_arc_makes_a_lot_of_what_is_there_skips_it_or_goes_on_waiting(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    clock = LongLeaseClock.early_in_an_hour()
    with declare(tmp_path / "home", spark, clock) as shop:
        shop.plan().apply("test")
        shop.pause("rate")
        for name in ("clicks", "raw"):
            table = shop[name]
            assert isinstance(table, tm.Dataset)
            table.append([(1,)])
    clock.pass_time(3600)
    with declare(tmp_path / "home", spark, clock) as shop:
        began = clock.monotonic()
        report = shop.run()
        took_s = clock.monotonic() - began
        assert sorted(report.later) == ["never", "soon"]
        assert all(599 - took_s < left_s <= 600 for left_s in report.later.values())
        for name, follows in (
            ("soon", "; will be made without rates in "),
            ("never", "; will be skipped in "),
        ):
            ((state, _, note),) = lots(shop, name)
            assert state == "waiting"
            assert note.startswith("waits for rates (")
            assert follows in note
    clock.pass_time(600)
    with declare(tmp_path / "home", spark, clock) as shop:
        shop.run()
        assert rows(shop, "soon") == [(1, "click")]
        skipped = "skipped: rates had no such lot within the grace period"
        assert lots(shop, "never") == [("missing", 0, skipped)]
        status = {run.name: run for run in status_of(shop).runs}
        assert [reason.partition(": ")[2][:17] for reason in status["patient"].waiting] == [
            "waits for rates ("
        ]
        assert not status["soon"].waiting
        why = {name: [gap.cause.why for gap in shop.gaps(name).gaps] for name in ("never", "patient")}
        assert why == {"never": [skipped], "patient": ["arc rate is paused"]}

        shop.resume("rate")  # late
        shop.run()
        assert rows(shop, "soon") == rows(shop, "patient") == [(1, "click"), (1, "rate")]
        assert lots(shop, "soon") == [("complete", 1, "")]
        assert lots(shop, "patient") == [("complete", 0, "")]
        assert lots(shop, "never") == [("missing", 0, skipped)]
        shop.backfill("never")
        assert shop.run()
        assert rows(shop, "never") == rows(shop, "soon")
        assert shop.gaps()
