"""The life of lots on Spark, through the loop of a real runner: corrected, taken back, paused, replayed."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declare(home: Path, spark: "SparkSession", factor: int) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark)
    orders = shop.dataset("orders", "id BIGINT, amount BIGINT")

    @shop.arc(reads=orders, writes="scaled", max_concurrent=2)
    def scale(df: "DataFrame") -> "DataFrame":
        return df.selectExpr("id", f"amount * {factor} AS amount")

    shop.view("total", "SELECT sum(amount) AS amount, count(*) AS n FROM scaled")
    return shop


def bag(frame: "DataFrame") -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def orders_of(shop: tm.Pipeline) -> tm.Dataset:
    table = shop["orders"]
    assert isinstance(table, tm.Dataset)
    return table


@pytest.mark.rule("LOT-30")
@pytest.mark.rule("LOT-31")
@pytest.mark.rule("LOT-38")
def test_corrections_replays_and_pauses_reach_tables_and_views_and_nothing_else_is_made_again(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with declare(tmp_path / "home", spark, 2) as shop:
        orders = orders_of(shop)
        first = orders.append([(1, 10), (2, 20)]).lot
        second = orders.append([(3, 30)]).lot
        assert shop.run()
        assert bag(shop["total"].df()) == Counter([(120, 3)])
        at = orders.position

        # a correction: minus the old rows, plus the new ones, where it was published
        orders.replace(first, [(1, 11)])
        orders.remove(second)
        changes = orders.changes(at).select("id", "amount", "_weight", "_position")
        assert bag(changes) == Counter([(1, 10, -1, 3), (2, 20, -1, 3), (1, 11, 1, 3), (3, 30, -1, 4)])
        third = orders.append([(4, 40)]).lot
        report = shop.run()
        assert [(arc.arc, arc.complete) for arc in report.arcs] == [("scale", 3)]
        assert bag(shop["scaled"].df()) == Counter([(1, 22), (4, 80)])
        assert bag(shop["total"].df()) == Counter([(102, 2)])
        shown = {lot.lot: (lot.generation, lot.state) for lot in shop["scaled"].lots()}
        assert shown == {first: (1, "complete"), second: (1, "empty"), third: (0, "complete")}
        assert shop.gaps()

        # what is paused does not run, and a catching up does not wait for it
        shop.pause("scale")
        fourth = orders.append([(5, 50)]).lot
        shop.replay("scaled", [third])
        assert not shop.run().arcs
        assert [(gap.lot, gap.cause.why) for gap in shop["scaled"].gaps().gaps] == [
            (fourth, "arc scale is paused")
        ]

    # other code, and a replay of what was made before: what was asked for while it was paused is not lost
    with declare(tmp_path / "home", spark, 3) as shop:
        shop.resume("scale")
        plan = shop.replay("scaled", first=first, last=third, parallel=2)
        assert [lot.action.value for lot in plan.lots] == ["remake"] * 3
        report = shop.run()
        assert [(arc.arc, arc.complete) for arc in report.arcs] == [("scale", 4)]
        assert bag(shop["scaled"].df()) == Counter([(1, 33), (4, 120), (5, 150)])
        assert bag(shop["total"].df()) == Counter([(303, 3)])
        generations = {lot.lot: lot.generation for lot in shop["scaled"].lots()}
        assert generations == {first: 2, second: 2, third: 1, fourth: 0}
        assert shop.gaps()
