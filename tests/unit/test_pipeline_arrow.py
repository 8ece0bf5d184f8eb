"""Tables are read, and simple queries are answered, without Spark."""

import importlib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.errors import MissingDriver, NothingYet
from tidemill.pipeline import arrow_query

ROWS = [
    {"id": 1, "name": "b", "amount": Decimal("1.50"), "day": date(2026, 1, 1)},
    {"id": 2, "name": None, "amount": Decimal("-2.00"), "day": None},
    {"id": 3, "name": "a", "amount": None, "day": date(2026, 2, 1)},
]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tm.Pipeline]:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT, name STRING, amount DECIMAL(10,2), day DATE")
        orders.append(ROWS[:2])
        orders.append(ROWS[2:])
        yield shop
        assert not shop.context.on_demand.started, "Spark was started"


def answer(shop: tm.Pipeline, sql: str, limit: int = 100) -> Any:
    return arrow_query.first_rows(shop, sql, limit)


def test_rows_of_all_lots(shop: tm.Pipeline) -> None:
    assert shop["orders"].arrow().to_pylist() == ROWS
    assert list(shop["orders"].pandas()["id"]) == [1, 2, 3]


@pytest.mark.rule("LOT-41")
def test_rows_with_deletions_are_repeated_by_their_weight(shop: tm.Pipeline) -> None:
    notes = shop.dataset("notes", "text STRING", deletes=True)
    notes.append([{"text": "a"}, {"text": "a"}, {"text": "a"}, {"text": "b"}, {"text": None}])
    notes.delete([{"text": "a"}, {"text": "b"}])
    assert sorted(notes.arrow().column("text").to_pylist(), key=str) == [None, "a", "a"]


@pytest.mark.rule("LOT-40")
def test_the_last_write_of_each_key(shop: tm.Pipeline) -> None:
    customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")
    customers.upsert([{"id": 1, "region": "old"}, {"id": 2, "region": "x"}, {"id": 1, "region": "newer"}])
    customers.upsert([{"id": 3, "region": "y"}, {"id": 4, "region": "z"}])
    customers.delete([2, 4])
    customers.upsert([{"id": 4, "region": "back"}])
    rows = {(row["id"], row["region"]) for row in customers.arrow().to_pylist()}
    assert rows == {(1, "newer"), (3, "y"), (4, "back")}


def test_a_table_that_does_not_exist_yet(shop: tm.Pipeline) -> None:
    shop.dataset("later", "id BIGINT")
    with pytest.raises(NothingYet):
        shop["later"].arrow()


def test_a_package_that_is_not_installed_has_a_hint(
    shop: tm.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = shop["orders"]

    def missing(name: str) -> Any:
        raise ImportError(name)

    with monkeypatch.context() as without_packages:
        without_packages.setattr(importlib, "import_module", missing)
        with pytest.raises(MissingDriver, match="polars"):
            orders.polars()
        with pytest.raises(MissingDriver, match="duckdb"):
            orders.duckdb()


@pytest.mark.parametrize(
    ("sql", "names", "rows"),
    [
        ("SELECT * FROM orders", ["id", "name", "amount", "day"], [tuple(row.values()) for row in ROWS]),
        ("SELECT id FROM orders WHERE amount > 0 OR name = 'a'", ["id"], [(1,), (3,)]),
        ("SELECT name AS n, id + 1 AS next FROM orders LIMIT 1", ["n", "next"], [("b", 2)]),
        ("SELECT id FROM orders ORDER BY name", ["id"], [(2,), (3,), (1,)]),
        ("SELECT id FROM orders ORDER BY name DESC", ["id"], [(1,), (3,), (2,)]),
        ("SELECT id AS name FROM orders ORDER BY name DESC LIMIT 2", ["name"], [(3,), (2,)]),
        ("SELECT id FROM orders WHERE day >= '2026-01-15'", ["id"], [(3,)]),
    ],
)
def test_simple_queries(shop: tm.Pipeline, sql: str, names: list[str], rows: list[Any]) -> None:
    assert answer(shop, sql) == (names, rows)


def test_only_the_first_rows_are_returned(shop: tm.Pipeline) -> None:
    assert answer(shop, "SELECT id FROM orders LIMIT 3", limit=2) == (["id"], [(1,), (2,)])


def test_timestamps_are_in_the_time_zone_of_the_process(shop: tm.Pipeline) -> None:
    events = shop.dataset("events", "at TIMESTAMP")
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    events.append([{"at": at}])
    assert answer(shop, "SELECT at FROM events") == (["at"], [(at.astimezone().replace(tzinfo=None),)])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM orders",
        "SELECT name, sum(amount) AS s FROM orders GROUP BY name",
        "SELECT DISTINCT name FROM orders",
        "SELECT id + 1 FROM orders",
        "SELECT ID FROM orders",
        "SELECT o.id FROM orders o",
        "SELECT id FROM orders AS o",
        "SELECT orders.id FROM orders",
        "SELECT id FROM other",
        "SELECT id FROM orders ORDER BY 1",
        "SELECT id FROM orders ORDER BY name NULLS LAST",
        "SELECT id FROM orders ORDER BY id + 1",
        "SELECT id FROM orders LIMIT 1 + 1",
        "SELECT id FROM orders OFFSET 1",
        "SELECT id FROM orders WHERE id / 0 > 1",
        "SELECT id FROM orders WHERE name LIKE 'a_'",
        "SELECT id FROM orders TABLESAMPLE (1 ROWS)",
        "SELECT id FROM orders a JOIN orders b USING (id)",
        "SELECT id FROM orders UNION ALL SELECT id FROM orders",
        "WITH orders AS (SELECT 1 AS id) SELECT id FROM orders",
        "SELECT id FROM (SELECT id FROM orders)",
        "SELECT * EXCEPT (id) FROM orders",
        "SELECT id FROM orders WHERE id IN (SELECT id FROM orders)",
        "SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders",
        "SELECT id FROM shop.orders",
        "SHOW TABLES",
        "SELEC id",
    ],
)
def test_other_queries_are_left_to_spark(shop: tm.Pipeline, sql: str) -> None:
    assert answer(shop, sql) is None
