"""An arc over several tables, through a real runner: what it does when its grace is over (LOT-28)."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tidemill.pipeline import overview

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declare(home: Path, spark: "SparkSession") -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark)
    clicks = shop.dataset("clicks", "id BIGINT", lots="PT1S")
    raw = shop.dataset("raw", "id BIGINT", lots="PT1S")

    @shop.arc(reads=raw, writes="rates", retries=0)
    def rate(df: "DataFrame") -> "DataFrame":
        return df

    def both(left: "DataFrame", right: "DataFrame") -> "DataFrame":
        return left.selectExpr("id", "'click' AS of").union(right.selectExpr("id", "'rate' AS of"))

    shop.arc(reads=[clicks, "rates"], writes="soon", grace=0.5, after_grace="partial", name="soon")(both)
    shop.arc(reads=[clicks, "rates"], writes="never", grace="PT0.5S", after_grace="skip", name="never")(both)
    shop.arc(reads=[clicks, "rates"], writes="patient", name="patient")(both)
    return shop


def rows(shop: tm.Pipeline, table: str) -> list[tuple[int, str]]:
    return sorted((row[0], row[1]) for row in shop[table].df().collect())


def in_one_interval(shop: tm.Pipeline) -> str:
    """A lot in which both tables have a row."""
    for number in range(20):
        lots = {shop[name].append([(number,)]).lot for name in ("clicks", "raw")}  # type: ignore[attr-defined]
        if len(lots) == 1:
            return lots.pop()
    raise AssertionError("no two appends in one second")


@pytest.mark.rule("LOT-28")
def test_when_its_grace_is_over_an_arc_makes_a_lot_of_what_is_there_skips_it_or_goes_on_waiting(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with declare(tmp_path / "home", spark) as shop:
        shop.plan().apply("test")
        shop.pause("rate")
        lot = in_one_interval(shop)
        clicks = shop["clicks"]
        assert isinstance(clicks, tm.Dataset)
        while lot not in {one.lot for one in clicks.lots()}:
            shop.site.clock.sleep(0.2)
            shop.run()
        shop.run()  # waits for the ends of graces
        assert [kind for _, kind in rows(shop, "soon")] == ["click"] * clicks.df().count()
        never = {one.lot: (one.state, one.note) for one in shop["never"].lots()}
        assert never[lot] == ("missing", "skipped: rates had no such lot within its grace")
        patient = {one.lot: (one.state, one.note) for one in shop["patient"].lots()}
        assert patient[lot][0] == "waiting"
        assert patient[lot][1].startswith("waits for rates, ")
        status = {one.name: one for one in overview.status_of(shop).runs}
        assert any(lot in said and "waits for rates" in said for said in status["patient"].awaits)
        assert not status["soon"].awaits
        why = {gap.lot: gap.cause.why for gap in shop.gaps("never").gaps}
        assert why[lot].startswith("skipped: ")
        why = {gap.lot: gap.cause.why for gap in shop.gaps("patient").gaps}
        assert why[lot] == "arc rate is paused"  # where it begins

        shop.resume("rate")
        shop.run()
        kinds = [kind for _, kind in rows(shop, "soon")]
        assert kinds.count("rate") == kinds.count("click") > 0
        assert {one.lot: one.generation for one in shop["soon"].lots()}[lot] == 1
        assert rows(shop, "patient") == rows(shop, "soon")
        assert {one.lot: one.generation for one in shop["patient"].lots()}[lot] == 0
        assert {one.lot: one.state for one in shop["never"].lots()}[lot] == "missing"
        shop.backfill("never", [lot])
        shop.run()
        assert {one.lot: one.state for one in shop["never"].lots()}[lot] == "complete"
