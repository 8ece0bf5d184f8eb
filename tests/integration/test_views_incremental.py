"""Views by kernels, through the public API: after every step they are what plain Spark gives."""

import math
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.integration import views_oracle
from tests.integration.views_stage import bag, plain
from tidemill.events import Event
from tidemill.views.steps import commits
from tidemill.views.steps.events import RowsSetAside, StepTimed
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

QUERIES = {
    "sold": """
        SELECT c.region, o.item, o.n, o.price
        FROM orders o JOIN customers c ON o.cust = c.id AND o.n >= c.least""",
    "by_region": """
        SELECT region, count(*) AS n, count(item) AS items, sum(price) AS price, avg(price) AS mean,
               min(item) AS first, max(n) AS most FROM sold GROUP BY region""",
    "everything": "SELECT count(*) AS regions, sum(n) AS sold, max(most) AS most FROM by_region",
    "prices": "SELECT item, max(price) AS most, min(price) AS least FROM orders GROUP BY item",
    "unsold": "SELECT item FROM stock EXCEPT SELECT item FROM orders",
    "levels": """
        SELECT item, min(n) AS low, max(n) AS high, count(*) AS n
        FROM stock GROUP BY item HAVING count(*) > 1""",
}
RECOMPUTED = ("by_region",)
READS = ("orders", "customers", "stock")


class Shop:
    """The pipeline, plain Spark beside it, and the events of its steps."""

    def __init__(self, home: Path, spark: "SparkSession", queries: Mapping[str, str] = QUERIES) -> None:
        self.spark = spark
        self.queries = dict(queries)
        self.told: list[Event] = []
        self.pipeline = tm.Pipeline("shop", home=home, spark=spark)
        self.orders = self.pipeline.dataset("orders", "cust INT, item STRING, n INT, price DECIMAL(10,2)")
        self.customers = self.pipeline.dataset("customers", "id INT, region STRING, least INT", key="id")
        self.stock = self.pipeline.dataset("stock", "item STRING, n BIGINT, x DOUBLE", deletes=True)
        for name, sql in self.queries.items():
            self.pipeline.view(name, sql)
        self.sums = self.pipeline.view(
            "sums", "SELECT item, sum(x) AS x, avg(x) AS mean FROM stock GROUP BY item"
        )
        for name in RECOMPUTED:  # the same again, in a group of its own
            text = self.queries[name].replace("FROM sold", f"FROM ({self.queries['sold']}) sold")
            self.pipeline.view(f"{name}_full", text, refresh="full", group="other")

    def step(self) -> StepTimed | None:
        """Run, and compare every view with plain Spark; return the event of the group's last step."""
        self.told.clear()
        assert self.pipeline.run(emit=self.told.append).ok
        self.check()
        timed = [event for event in self.told if isinstance(event, StepTimed) and event.group == "main"]
        return timed[-1] if timed else None

    def check(self) -> None:
        names, pairs = [], {}
        try:
            for name in READS:
                getattr(self, name).df().createOrReplaceTempView(name)
                names.append(name)
            for name, sql in self.queries.items():
                frame = self.spark.sql(sql)
                frame.createOrReplaceTempView(name)
                names.append(name)
                pairs[name] = self.pipeline[name].df(), frame
            views_oracle.check_equal(self.spark, pairs)
        finally:
            for name in names:
                self.spark.catalog.dropTempView(name)
        by_item: dict[Any, list[float]] = {}
        for row in self.stock.df().collect():
            by_item.setdefault(row["item"], []).append(row["x"])
        wanted = {item: math.fsum(values) for item, values in by_item.items()}
        assert {row["item"]: row["x"] for row in self.sums.df().collect()} == wanted, "sums leave no residue"
        for name in RECOMPUTED:
            assert self.content(name, "main") == self.content(f"{name}_full", "other"), name

    def rows(self, group: str = "main") -> list[commits.StepRow]:
        site = self.pipeline.context
        return site.store.run(lambda tx: commits.rows(tx, site.keys, "shop", group, 0, 1 << 60))

    def content(self, view: str, group: str) -> int:
        """The content digest of a view (DBSP-42)."""
        digests = [
            output.content for row in self.rows(group) for output in row.outputs if output.view == view
        ]
        return int(digests[-1] or "0", 16) if digests else 0

    def version(self) -> TraceVersion:
        return read_version(
            self.pipeline.context.objects, [row.version for row in self.rows() if row.version][-1]
        )

    def begin(self) -> None:
        self.customers.upsert([(n, "n" if n % 2 else "s", n % 3) for n in range(6)])
        self.orders.append([(n % 7, f"i{n % 5}", n % 4, Decimal(n) / 100) for n in range(40)])
        self.stock.append([(f"i{n % 9}", n, 0.1 * n) for n in range(60)])


@pytest.mark.rule("DBSP-8", "DBSP-20")
def test_after_every_step_views_are_what_plain_spark_gives(tmp_path: Path, spark: "SparkSession") -> None:
    shop = Shop(tmp_path / "home", spark)
    shop.begin()
    first = shop.step()
    assert first is not None
    assert first.load_s > 0
    everything = {*QUERIES, "sums"}

    # joins and aggregates, upserts and deletions, views over views: one step, and nothing is loaded
    shop.orders.append([(1, "i9", 3, Decimal("9.99")), (None, None, None, None), (6, "i1", 9, Decimal(0))])
    shop.customers.upsert([(1, "w", 0), (6, "w", 0), (6, "n", 9)])
    shop.customers.delete([(3,), (77,)])
    shop.stock.append([("i0", 1000, 1e16), ("i0", 1001, 0.1)])
    timed = shop.step()
    assert timed is not None
    assert set(timed.views) == everything
    assert timed.load_s == 0

    # the large number is deleted again, with a row that never existed: this is set aside, and netted later
    shop.stock.delete([("i0", 1000, 1e16), ("never", 1, 1.0)])
    shop.stock.append([("full", n, float(n)) for n in range(60)])
    timed = shop.step()
    assert timed is not None
    assert timed.load_s == 0
    (aside,) = [event for event in shop.told if isinstance(event, RowsSetAside) and event.group == "main"]
    assert aside.rows == {"stock": 1}

    # more of a group's greatest values are deleted than are remembered: only this group is read again
    shop.stock.append([("never", 1, 1.0)])
    shop.stock.delete([("full", n, float(n)) for n in range(20, 60)])
    timed = shop.step()
    assert timed is not None
    assert timed.load_s == 0
    assert not [event for event in shop.told if isinstance(event, RowsSetAside)]
    assert ("never",) not in bag(shop.pipeline["unsold"].df())

    # no change at all, and an empty lot
    before = shop.rows()
    assert shop.step() is None
    assert shop.rows() == before
    shop.orders.append([])
    shop.step()

    # everything is deleted
    shop.stock.delete([tuple(row) for row in shop.stock.df().collect()])
    shop.customers.delete([(n,) for n in range(7)])
    shop.step()
    assert bag(shop.pipeline["sold"].df()) == Counter()
    assert [plain(row) for row in shop.pipeline["everything"].df().collect()] == [(0, None, None)]
    assert bag(shop.sums.df()) == bag(shop.pipeline["levels"].df()) == Counter()
    shop.pipeline.close()


@pytest.mark.crash
@pytest.mark.rule("DBSP-8")
def test_a_replaced_lot_a_restart_and_edited_views_rebuild_only_what_is_other(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    shop = Shop(tmp_path / "home", spark)
    shop.begin()
    lot = shop.orders.append([(1, "late", 3, Decimal(5)), (2, "late", 3, Decimal(7))])
    shop.step()

    # another generation of a lot is exchanged: the greatest price was in it, and no other is remembered where
    # rows only come, so the view of prices is loaded, and compared with its table
    shop.orders.replace(str(lot.lot), [(1, "late", 2, Decimal(1))])
    timed = shop.step()
    assert timed is not None
    assert timed.load_s > 0
    assert "by_region" in timed.views, "others are stepped"
    before = shop.version()
    shop.pipeline.close()

    # another process, with a view that is other and one that is new: the rest is not touched
    queries = dict(QUERIES)
    queries["everything"] = "SELECT count(*) AS regions, sum(n) AS sold FROM by_region"
    queries["late"] = "SELECT item, count(*) AS n FROM sold GROUP BY item"
    again = Shop(tmp_path / "home", spark, queries)
    again.stock.append([("i1", 5, 0.3)])
    again.step()
    after = again.version()
    kept = before.steps.keys() & after.steps.keys()
    assert all(after.steps[name] == after.step for name in after.steps), "every trace is current"
    untouched = [name for name in kept if before.traces.get(name, ()) == after.traces.get(name, ())]
    assert len(untouched) >= 4, "traces of the join, of orders and of customers have the files they had"
    assert before.steps.keys() - after.steps.keys(), "what only the old query needed is gone"
    assert after.steps.keys() - before.steps.keys(), "what the new ones need is there"

    # and steps go on from there
    again.orders.append([(1, "later", 3, Decimal(9))])
    again.orders.remove(str(lot.lot))
    timed = again.step()
    assert timed is not None
    assert set(timed.views) >= {"sold", "by_region", "everything", "late", "sums"}
    again.pipeline.close()
