"""Tables that Arrow reads have the rows and types that Spark reads."""

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.pipeline import arrow_query, reader
from tidemill.pipeline.arrow_reader import arrow_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counted(table: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.rule("LOT-40", "LOT-41")
def test_arrow_reads_what_spark_reads(tmp_path: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT, cust BIGINT, amount DECIMAL(10,2)", deletes=True)
        customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")
        ratios = shop.dataset("ratios", "x DOUBLE", deletes=True)
        shop.view(
            "revenue",
            "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o JOIN customers c"
            " ON o.cust = c.id WHERE o.amount > 0 GROUP BY c.region",
        )
        shop.view("repeated", "SELECT region FROM orders o JOIN customers c ON o.cust = c.id")
        for step in range(3):
            rows = [
                {"id": n, "cust": n % 4, "amount": Decimal(n - 3)} for n in range(20 * step, 20 * step + 20)
            ]
            orders.append(rows)
            orders.delete(rows[:5])
            customers.upsert([{"id": n, "region": f"r{(n + step) % 3}"} for n in range(4)])
            customers.delete([3 - step])
            ratios.append([{"x": 0.0}, {"x": -0.0}])
            assert shop.run().ok
        names = ["orders", "customers", "revenue", "repeated"]
        tables = arrow_tables(shop, names)
        assert sorted(tables) == sorted(names), "Arrow reads all of them"
        for name, table in tables.items():
            expected = shop[name].df().toArrow()
            assert counted(table) == counted(expected), name
            assert table.schema.types == expected.schema.types, name
        assert arrow_tables(shop, ["ratios"]) == {}, "Spark does not distinguish both zeros"
        assert shop["ratios"].arrow().num_rows == 6
        query = "SELECT region, total AS t FROM revenue WHERE n > 1 ORDER BY region"
        by_spark = reader.first_rows(shop, reader.query(shop, query), 10)
        assert arrow_query.first_rows(shop, query, 10) == by_spark
        assert by_spark[1]
