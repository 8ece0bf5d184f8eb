"""A run stores what the page shows about views and sources: the query, the circuit, the origin of rows."""

from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        text = unescape(client.get("/view-query?name=totals").text)
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


def test_the_page_shows_rows_changes_columns_and_records_in_quarantine(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """What a user may see of the data itself: all of it comes from object storage, without Spark."""
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset(
            "orders",
            "id BIGINT, region STRING, amount DOUBLE",
            checks=[tm.expect("amount < 1000", on_fail="drop")],
        )
        people = shop.dataset("people", "name STRING, born DATE", key="name")
        shop.view("totals", "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region")
        orders.append([(1, "north", 1.5), (2, None, 7.5), (3, "south", 2000.0)])
        people.upsert([("Ada", "1815-12-10")])
        people.delete([("Ada",)])
        assert shop.run().ok
        orders.append([(4, "north", 2.5)])
        assert shop.run().ok
        stage = PageStage(shop.context.store)
        stage.objects = shop.context.objects
        client = stage.client(cluster=shop.context.place.cluster, token="")

        def read(path: str) -> dict[str, Any]:
            answer = client.get(f"/api/v1/{path}")
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        sample = read("sample?table=orders")
        assert sample["columns"] == ["id", "region", "amount"]
        assert sample["rows"] == [["4", "north", "2.5"]]
        writes = read("sample?table=people")
        assert (writes["columns"], writes["weights"]) == (["name", "born"], [-1])
        view = read("sample?table=totals")
        assert sorted(view["rows"], key=str) == [["north", "2", "4"], [None, "1", "7.5"]]
        changed = read("changes?view=totals")
        assert sorted(zip(changed["weights"], [row[:2] for row in changed["rows"]], strict=True)) == [
            (-1, ["north", "1"]),
            (1, ["north", "2"]),
        ]
        first = read(f"changes?view=totals&step={read('steps?view=totals')['items'][-1]['step']}")
        assert set(first["weights"]) == {1}
        assert read("changes?view=totals&step=999")["why"]
        columns = {line["name"]: line["sources"] for line in read("columns?name=totals")["items"]}
        assert columns["total"] == [
            {"table": "orders", "column": "amount", "how": "aggregation", "view": False}
        ]
        (record,) = read("records?table=orders")["items"]
        assert '"id":3' in record["record"]
        assert record["check"]
        assert sum(item["steps"] for item in read("health")["items"]) == 2
        for address in (
            "/rows?table=orders",
            "/view-rows?view=totals",
            "/changes?view=totals",
            "/quarantine?table=orders",
        ):
            assert client.get(address).status_code == 200
            assert "north" in client.get(address).text or "amount" in client.get(address).text
