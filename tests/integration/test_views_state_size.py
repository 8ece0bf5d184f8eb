"""What a join with an aggregate takes in object storage, beside what its input takes.

All objects are counted that are not rows which came: run files and version files, the table, manifests, and
the history of changes that consumers may still read.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidemill as tm
from tidemill.events import Event
from tidemill.views.steps.collector import Collector
from tidemill.views.steps.events import StepTimed

ORDERS, CUSTOMERS, STEPS, CHANGES = 50_000, 1_000, 18, 200
NUMBERS = {"orders": "id BIGINT, cust INT, day INT, amount BIGINT", "customers": "id INT, region INT"}
TYPES = {
    "orders": "id BIGINT, cust BIGINT, day DATE, amount DECIMAL(10,2)",
    "customers": "id BIGINT, region STRING",
}
SALES = """SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total, {} max(o.amount) AS largest
    FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region, o.day"""


class Shop:
    """Orders of customers, over 20 regions and 300 days, in no order but that of their numbers."""

    def __init__(self, ddl: dict[str, str]) -> None:
        self.typed = ddl is TYPES
        self.chance = np.random.default_rng(5)

    def orders(self, count: int, first: int) -> pa.Table:
        draw = self.chance.integers
        cust, day = draw(0, CUSTOMERS, count), pa.array(draw(19_000, 19_300, count, dtype=np.int32))
        amount = pa.array(draw(100, 1_000_000, count))
        if self.typed:
            day, amount = day.cast(pa.date32()), amount.cast(pa.decimal128(38, 2)).cast(pa.decimal128(10, 2))
        else:
            cust = cust.astype(np.int32)
        return pa.table({"id": np.arange(first, first + count), "cust": cust, "day": day, "amount": amount})

    def customers(self, regions: Any, first: int = 0) -> pa.Table:
        ids = pa.array(range(first, first + len(regions)), pa.int64() if self.typed else pa.int32())
        names: Any = (
            [f"region-{region:02}" for region in regions] if self.typed else pa.array(regions, pa.int32())
        )
        return pa.table({"id": ids, "region": names})


@pytest.mark.rule("DBSP-45")
@pytest.mark.parametrize(
    ("ddl", "more"),
    [
        pytest.param(NUMBERS, "", id="numbers", marks=pytest.mark.crash),
        pytest.param(TYPES, "avg(o.amount) AS mean,", id="types"),
    ],
)
def test_state_is_at_most_three_times_the_input_after_a_load_and_after_steps_with_merges(
    spark: SparkSession, tmp_path: Path, ddl: dict[str, str], more: str
) -> None:
    events: list[Event] = []
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        tables = {name: pipeline.dataset(name, columns, deletes=True) for name, columns in ddl.items()}
        pipeline.view("sales", SALES.format(more))
        site = pipeline.context

        def ratio() -> float:
            total = sum(info.size for info in site.objects.list(""))
            came = sum(lot.size for table in tables.values() for lot in table.lots())
            return (total - came) / came

        shop = Shop(ddl)
        regions = shop.chance.integers(0, 20, CUSTOMERS)
        base = shop.orders(ORDERS, 0)
        tables["orders"].append(base)
        tables["customers"].append(shop.customers(regions))
        assert pipeline.run(emit=events.append).ok
        loaded = ratio()
        files = set[str]()
        for step in range(STEPS):
            tables["orders"].append(shop.orders(CHANGES, ORDERS + step * CHANGES))
            tables["orders"].delete(base.slice(step * 20, 20))
            tables["customers"].delete(shop.customers(regions[step : step + 2], step))
            regions[step : step + 2] += 1
            tables["customers"].append(shop.customers(regions[step : step + 2], step))
            assert pipeline.run(emit=events.append).ok
            files |= {info.key for info in site.objects.list("")}
        while Collector(site.store, site.keys, "p", site.objects, grace_s=0).collect(1000):
            pass
        left = {info.key for info in site.objects.list("")}
        assert any("/merge-" in key for key in left), "the table was merged"
        assert sum(key.endswith(".runs") for key in files - left) >= STEPS, (
            "so were traces, and files collected"
        )
        assert sum(isinstance(event, StepTimed) and event.load_s == 0 for event in events) == STEPS
        assert loaded <= 3
        assert ratio() <= 3
