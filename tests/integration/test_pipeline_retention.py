"""Retention on Spark: lots expire, views keep their rows, and base lots have the rows of tables (LOT-39)."""

import json
from collections import Counter
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.cli import main
from tidemill.errors import DeclarationError, HistoryExpired, UsageError
from tidemill.lots import base_lot
from tidemill.lots.keys import DatasetId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

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


def keyed(home: Path, spark: "SparkSession", *, views: bool) -> tm.Pipeline:
    """A table with a key, one with a key and an order, one with deletes, and one that keeps rows."""
    shop = tm.Pipeline("shop", home=home, spark=spark)
    shop.dataset("prices", "id BIGINT, price BIGINT", key="id", keep=MOMENT)
    shop.dataset("stock", "id BIGINT, at BIGINT, n BIGINT", key="id", order_by="at", keep=MOMENT)
    shop.dataset("notes", "id BIGINT", deletes=True, keep=MOMENT)
    shop.dataset("sales", "id BIGINT, n BIGINT", keep=MOMENT, keep_rows=True)
    shop.view("old", "SELECT id, price FROM prices", keep=MOMENT)
    if views:
        shop.view("new_prices", "SELECT price, count(*) AS n FROM prices GROUP BY price")
        shop.view("new_stock", "SELECT id, n FROM stock")
        shop.view("new_notes", "SELECT id, count(*) AS n FROM notes GROUP BY id")
        shop.view("new_sales", "SELECT id, sum(n) AS n FROM sales GROUP BY id", refresh="full")
        shop.arc(reads="sales", writes="sold", name="sell")(methodcaller("where", "n > 1"))
        shop.arc(reads="notes", writes="noted", changes="linear", name="note")(
            methodcaller("where", "id < 3")
        )
    return shop


EXPECTED = {
    "prices": [(1, 11), (3, 30)],
    "stock": [(1, 5, 50), (3, 2, 20)],
    "notes": [(1,), (1,), (2,)],
    "sales": [(1, 1), (1, 1), (2, 2), (1, 5)],
}


@pytest.mark.rule("LOT-39", "LOT-40", "LOT-41")
def test_expired_lots_are_merged_and_new_views_start_from_the_base(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """Rows of tables with keys and deletes stay, and so does a deletion that an older write must not undo."""
    with keyed(tmp_path / "home", spark, views=False) as shop:
        prices, stock, notes, sales = (
            table for name in EXPECTED if isinstance(table := shop[name], tm.Dataset)
        )
        prices.upsert([(1, 10), (2, 20), (3, 30)])
        stock.upsert([(1, 5, 50), (2, 5, 50), (3, 1, 10)])
        notes.append([(1,), (1,), (2,), (3,)])
        sales.append([(1, 1), (1, 1)])
        prices.delete([{"id": 2}])
        stock.delete([{"id": 2, "at": 9}])
        notes.delete([(3,), (3,)])
        sales.append([(2, 2)])
        assert shop.run()
        shop.vacuum()  # the run has already expired tables that no view reads
        keys, store = shop.context.keys.lots, shop.context.store
        bases = {
            name: store.run(partial(base_lot.read, keys=keys, dataset=DatasetId(name))) for name in EXPECTED
        }
        assert {name: (base.position, base.rows) for name, base in bases.items()} == {
            "prices": (2, 2),
            "stock": (2, 3),
            "notes": (2, 3),
            "sales": (2, 3),
        }
        prices.upsert([(1, 11)])
        stock.upsert([(1, 4, 40), (2, 8, 80), (3, 2, 20)])  # the first two are older than what is stored
        notes.append([(3,)])
        sales.append([(1, 5)])
        assert shop.run()
        shop.vacuum()
        for name, rows in EXPECTED.items():
            assert bag(shop[name].df()) == Counter(rows), name
        assert bag(shop["old"].df()) == Counter(EXPECTED["prices"])
        with pytest.raises(HistoryExpired):
            shop["sales"].changes(1)
        assert bag(shop["sales"].changes(0).select("id", "n")) == Counter(EXPECTED["sales"])

    with keyed(tmp_path / "home", spark, views=True) as shop:
        assert shop.run()
        assert bag(shop["new_prices"].df()) == Counter([(11, 1), (30, 1)])
        assert bag(shop["new_stock"].df()) == Counter([(1, 50), (3, 20)])
        assert bag(shop["new_notes"].df()) == Counter([(1, 2), (2, 1)])
        assert bag(shop["new_sales"].df()) == Counter([(1, 7), (2, 2)])
        assert bag(shop["sold"].df()) == Counter([(2, 2), (1, 5)])
        assert bag(shop["noted"].df()) == Counter([(1,), (1,), (2,)])
        shop["prices"].delete([{"id": 1}])  # type: ignore[attr-defined]
        assert shop.run()
        assert bag(shop["old"].df()) == Counter([(3, 30)])


def test_rows_are_kept_only_with_keep(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="no keep="):
        tm.Pipeline("shop", home=tmp_path).dataset("orders", "id BIGINT", keep_rows=True)


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
