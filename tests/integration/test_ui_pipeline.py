"""A run stores what the page shows about views and sources: the query, the circuit, the origin of rows."""

from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import tidemill as tm
from tests.unit.page_stage import PageStage
from tidemill.pipeline import descriptions
from tidemill.pipeline.descriptions import DescriptionKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL = "SELECT region, count(*) AS n FROM orders WHERE amount > 0 GROUP BY region"


def declared(home: Path, spark: "SparkSession", *, view: str = "totals", sql: str = SQL) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=home, spark=spark)
    orders = shop.dataset("orders", "id BIGINT, region STRING, amount BIGINT")
    shop.source(orders, tm.folder("landing/*.json"))
    shop.view(view, sql)
    return shop


def test_the_page_shows_the_query_the_circuit_and_the_source_that_a_plan_stored(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    home = tmp_path / "home"
    with declared(home, spark) as shop:
        shop.plan().apply("node")
        store, cluster = shop.context.store, shop.context.place.cluster
        client = PageStage(store).client(cluster=cluster)
        text = unescape(client.get("/view?view=totals").text)
        assert SQL in text
        view = client.get("/api/v1/view?name=totals").json()
        rungs = {operator["kind"]: operator["rung"] for operator in view["circuit"]}
        assert rungs["aggregate"] == "native"
        assert "not yet compared with plain Spark" in view["certified"]
        assert view["where"].endswith(".py:22")
        lineage = client.get("/api/v1/lineage").json()
        (source,) = [node for node in lineage["nodes"] if node["kind"] == "source"]
        assert "landing" in source["name"]
        assert {"source": source["id"], "target": "table:orders@1"} in lineage["edges"]
        keys = DescriptionKeys(cluster)
        before = store.run(lambda tx: tx.get(keys.view["shop", "totals"]))
    changed = SQL.replace("> 0", "> 1")
    with declared(home, spark, sql=changed) as shop:
        shop.plan().apply("node")
        store = shop.context.store
        after = store.run(lambda tx: descriptions.read_view(tx, keys, "shop", "totals"))
        assert after is not None
        assert after.sql == changed
        assert store.run(lambda tx: tx.get(keys.view["shop", "totals"])) != before
    with declared(home, spark, view="other") as shop:
        shop.plan().apply("node")
        store = shop.context.store
        assert store.run(lambda tx: descriptions.read_view(tx, keys, "shop", "totals")) is None
        assert store.run(lambda tx: descriptions.read_view(tx, keys, "shop", "other")) is not None
