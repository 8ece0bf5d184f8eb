"""Compaction with Spark: the same rows in fewer files, while readers read (LOT-37)."""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.shop import clean_up
from tidemill.cli import main
from tidemill.errors import UsageError
from tidemill.events import Event
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.events import LotCompacted
from tidemill.publish.manifests import attempt_in
from tidemill.runner import compaction
from tidemill.spark.compaction import Rewritten, content_digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = """
import tidemill as tm
shop = tm.Pipeline("shop", home={home!r}, spark="local[2]")
orders = shop.dataset("orders", "id BIGINT, tags MAP<STRING, INT>, deep STRUCT<a: ARRAY<DOUBLE>, b: STRING>")
"""


def rows_of(shop: tm.Pipeline, name: str) -> list[LotRow]:
    site = shop.context
    return site.store.run(lambda tx: lots.listed(tx, site.keys.lots, DatasetId(name)))


def odd_rows(spark: "SparkSession", count: int) -> "DataFrame":
    return spark.range(count).selectExpr(
        "IF(id % 7 = 0, NULL, id) AS id",
        "IF(id % 3 = 0, NULL, map('k', CAST(id AS INT), 'l', NULL)) AS tags",
        "IF(id % 5 = 0, NULL, named_struct('a', array(NULL, id / 2, double('NaN')),"
        " 'b', IF(id % 2 = 0, NULL, 'x'))) AS deep",
    )


@pytest.mark.rule("LOT-37")
def test_small_files_are_merged_while_a_reader_reads_and_removed_after_its_grace(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    (tmp_path / "shop.py").write_text(FILE.format(home=str(home)))
    scope: dict[str, tm.Pipeline] = {}
    exec(FILE.format(home=str(home)), scope)
    with scope["shop"] as shop:
        shop.use_spark(spark)
        orders = shop["orders"]
        assert isinstance(orders, tm.Dataset)
        orders.append(odd_rows(spark, 200).repartition(20))
        orders.append([{"id": 1}])
        begun = orders.df()
        digest = content_digest(begun)
        position = orders.position
    assert main(["compact", "orders", "-f", f"{tmp_path / 'shop.py'}:shop", "--json"]) == 0
    [compacted] = json.loads(capsys.readouterr().out.splitlines()[-1])["lots"]
    assert (compacted["files_before"], compacted["files"], compacted["revision"]) == (20, 1, 1)
    with scope["shop"] as shop:
        orders = shop["orders"]
        first, second = rows_of(shop, "orders")
        assert (first.files, first.revision, second.files, second.revision) == (1, 1, 1, 0)
        assert orders.position == position
        assert orders.compact() == []
        assert content_digest(begun) == content_digest(orders.df()) == digest
        context = shop.context
        cleaner = Cleaner(context.scope, readers_s=0.0)
        while cleaner.clean():
            pass
        assert content_digest(orders.df()) == digest
        data = [info.key for info in context.objects.list("data/")]
        listed = [item.uri for row in (first, second) for item in context.manifests.lot_objects(row.manifest)]
        assert sorted(data) == sorted(listed)


@pytest.mark.rule("LOT-37")
def test_a_runner_compacts_each_lot_with_many_small_files(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = tm.Pipeline("shop", home=tmp_path / "home", spark=spark)
    orders = shop.dataset("orders", "id BIGINT, name STRING", key="id")
    events: list[Event] = []
    with shop:
        for n in range(2):
            frame = spark.range(40).selectExpr("id % 30 AS id", f"concat(id, '-', {n}) AS name")
            orders.upsert(frame.repartition(16))
        before = {row["id"]: row["name"] for row in orders.df().collect()}
        assert [row.fragmented for row in rows_of(shop, "orders")] == [True, True]
        stop, tags, rewrite = threading.Event(), list[set[str]](), compaction.rewrite

        def recorded(session: "SparkSession", *rest: Any) -> Rewritten:
            tags.append(set(session.sparkContext.getJobTags()))
            return rewrite(session, *rest)

        monkeypatch.setattr(compaction, "rewrite", recorded)

        def emit(event: Event) -> None:
            events.append(event)
            if sum(isinstance(each, LotCompacted) for each in events) == 2:
                stop.set()

        report = shop.run(watch=True, emit=emit, stop=stop)
        assert report.ok, report
        assert sum(isinstance(event, LotCompacted) for event in events) == 2
        assert [(row.files, row.revision) for row in rows_of(shop, "orders")] == [(1, 1), (1, 1)]
        attempts = [attempt_in(row.manifest) for row in rows_of(shop, "orders")]
        assert tags == [
            {f"tidemill-{attempt}"} for attempt in attempts
        ]  # the tags by which jobs are cancelled
        assert {row["id"]: row["name"] for row in orders.df().collect()} == before  # in the same order
        clean_up(shop)
        shop.view("names", "SELECT name FROM orders")
        with pytest.raises(UsageError, match="views are compacted automatically"):
            shop["names"].compact()


def test_a_digest_depends_on_nulls_places_and_nested_values(spark: "SparkSession") -> None:
    def digest(sql: str) -> str:
        return content_digest(spark.sql(f"SELECT * FROM VALUES {sql} AS t(a, b)"))

    assert digest("(1, 2), (3, 4)") == digest("(3, 4), (1, 2)")
    different = [
        digest("(1, NULL), (3, 4)"),
        digest("(NULL, 1), (3, 4)"),
        digest("(1, NULL), (3, 4), (3, 4)"),
        digest("(array(1, NULL), 1)"),
        digest("(array(NULL, 1), 1)"),
        digest("(array(1), 1)"),
    ]
    assert len(set(different)) == len(different)
