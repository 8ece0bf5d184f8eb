"""Retention on Spark: lots expire, views keep their rows, and what needs expired lots is refused (LOT-39)."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.cli import main
from tidemill.errors import DeclarationError, HistoryExpired, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOMENT = 0.001
"""Seconds; every lot of an earlier run is older."""


def declare(home: Path, spark: "SparkSession", query: str = "", **fields: Any) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark)
    orders = shop.dataset("orders", "id BIGINT, amount BIGINT", keep=MOMENT)

    @shop.arc(reads=orders, writes="scaled", keep=MOMENT)
    def scale(df: "DataFrame") -> "DataFrame":
        return df.selectExpr("id", "amount * 2 AS amount")

    query = query or "SELECT id % 2 AS odd, sum(amount) AS amount FROM scaled GROUP BY id % 2"
    shop.view("total", query, keep=MOMENT, **fields)
    return shop


def bag(frame: "DataFrame") -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def append(shop: tm.Pipeline, *rows: tuple[int, int]) -> None:
    orders = shop["orders"]
    assert isinstance(orders, tm.Dataset)
    orders.append(list(rows))


@pytest.mark.rule("LOT-39")
def test_lots_expire_and_views_keep_their_rows(tmp_path: Path, spark: "SparkSession") -> None:
    with declare(tmp_path / "home", spark) as shop:
        append(shop, (1, 10), (2, 20))
        append(shop, (3, 30))
        assert shop.run()
        planned = shop.vacuum(dry_run=True)
        assert {table.table: table.lots for table in planned.tables} == {"orders": 2, "scaled": 2}
        assert bag(shop["orders"].df()) == Counter([(1, 10), (2, 20), (3, 30)])
        before = shop["scaled"].df()
        done = shop.vacuum()
        assert done.tables == planned.tables
        assert bag(before) == Counter([(1, 20), (2, 40), (3, 60)]), "a reader that has begun"
        assert bag(shop["orders"].df()) == Counter()
        assert bag(shop["total"].df()) == Counter([(1, 80), (0, 40)])

        append(shop, (5, 50))
        assert shop.run()
        assert bag(shop["orders"].df()) == Counter([(5, 50)])
        assert bag(shop["total"].df()) == Counter([(1, 180), (0, 40)]), "expiry is not retraction"
        with pytest.raises(HistoryExpired, match="up to position 2"):
            shop["orders"].changes(1)
        assert bag(shop["orders"].changes(2).select("id")) == Counter([(5,)])
        shop["orders"].register_consumer("export", 2)
        held = next(table for table in shop.vacuum().tables if table.table == "orders")
        assert (held.lots, held.held_by) == (0, "consumer export")
        with pytest.raises(UsageError, match="no position 9"):
            shop["orders"].register_consumer("export", 9)
        assert shop["orders"].remove_consumer("export")

    changed = "SELECT id % 3 AS third, sum(amount) AS amount FROM scaled GROUP BY id % 3"
    with declare(tmp_path / "home", spark, changed) as shop, pytest.raises(HistoryExpired):
        shop.run()
    with declare(tmp_path / "home", spark) as shop:
        append(shop, (6, 60))
        assert shop.run()
        assert bag(shop["total"].df()) == Counter([(1, 180), (0, 160)])


@pytest.mark.rule("LOT-39")
def test_the_lots_of_a_recomputed_view_do_not_expire(tmp_path: Path, spark: "SparkSession") -> None:
    with declare(tmp_path / "home", spark, refresh="full") as shop:
        append(shop, (1, 10))
        assert shop.run()
        tables = {table.table: table for table in shop.vacuum().tables}
        assert tables["orders"].lots == 1
        assert tables["scaled"].lots == 0
        assert "reads the whole table" in tables["scaled"].held_by
        append(shop, (3, 30))
        assert shop.run()
        assert bag(shop["total"].df()) == Counter([(1, 80)])


@pytest.mark.parametrize("kind", [{"key": "id"}, {"deletes": True}])
def test_a_table_whose_rows_can_be_deleted_has_no_keep(kind: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="cannot expire"):
        tm.Pipeline("shop", home="unused").dataset("orders", "id BIGINT", keep="P30D", **kind)


FILE = """
import tidemill as tm
shop = tm.Pipeline("shop", home="home")
orders = shop.dataset("orders", "id BIGINT", keep=0.001)
"""


def test_the_command_lists_what_expires_and_a_dry_run_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FILE)
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT")
        for n in range(3):
            orders.append([(n,)])

    def vacuum(*options: str) -> dict[str, Any]:
        assert main(["vacuum", "-f", f"{file}:shop", "--json", *options]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return report

    planned = vacuum("--dry-run")
    assert [(table["table"], table["lots"]) for table in planned["tables"]] == [("orders", 3)]
    assert vacuum("--dry-run") == planned
    assert vacuum() == {**planned, "dry_run": False}
    assert vacuum()["tables"] == []
