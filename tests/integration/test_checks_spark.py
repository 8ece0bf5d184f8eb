"""Checks in the write pass of Spark: of sources, of arcs, and of expressions on appends (LOT-33)."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import BadCheck, CheckFailed, DeclarationError
from tidemill.events import Event
from tidemill.lots import lots
from tidemill.lots.checks import expect, not_null, rows, unique
from tidemill.lots.keys import DatasetId
from tidemill.objects.local import LocalObjects
from tidemill.publish.events import ChecksFailed
from tidemill.spark.frame_checks import LotFolders, verify, write_checked
from tidemill.spark.lot_reader import read_objects
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.rule("LOT-33")
def test_each_row_is_computed_once_and_is_in_the_lot_or_in_quarantine(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """`rand` returns other rows each time: a second computation would lose or repeat some of them."""
    objects = LocalObjects(tmp_path, SYSTEM, random.Random(1))
    frame = spark.range(1000).selectExpr("id", "id % 4 AS part", "rand() AS luck", "id % 500 AS half")
    checks = [
        expect("luck < 0.5", on_fail="drop", name="luck"),
        expect("id <> 7", on_fail="drop", name="seven"),
        not_null("part", on_fail="warn"),
        unique("id"),
        unique("half", on_fail="warn"),
        rows(at_least=10_000, on_fail="warn"),
    ]
    checked = write_checked(
        frame,
        Storage(objects),
        LotFolders(rows="good/", bad="bad/", partition_by=("part",)),
        checks,
        table="t",
    )
    good = read_objects(spark, Storage(objects), frame.schema, checked.rows.objects).collect()
    bad = read_objects(
        spark, Storage(objects), "record STRING, error STRING, check STRING", checked.quarantined.objects
    ).collect()
    records = [json.loads(row["record"]) for row in bad]
    assert sorted([row["id"] for row in good] + [record["id"] for record in records]) == list(range(1000))
    assert all(row["luck"] < 0.5 for row in good)
    assert all(
        (record["luck"] < 0.5) == (row["check"] == "seven") for record, row in zip(records, bad, strict=True)
    )
    assert {row["check"] for row in bad} <= {"luck", "seven", "luck, seven"}
    assert {item.partition["part"] for item in checked.rows.objects} == {"0", "1", "2", "3"}
    assert checked.counts["luck"] + checked.counts["seven"] - len(bad) == sum(
        row["check"] == "luck, seven" for row in bad
    )
    halves = [row["half"] for row in good]
    assert checked.counts["unique(half)"] == sum(halves.count(half) > 1 for half in halves)
    assert checked.counts["not_null(part)"] == checked.counts["unique(id)"] == 0
    assert checked.counts["rows"] == 10_000 - len(good)
    left = {info.key for info in objects.list("")}
    assert left == {item.uri for item in (*checked.rows.objects, *checked.quarantined.objects)}


@pytest.mark.rule("LOT-33")
def test_all_rows_that_are_not_unique_are_removed_and_a_check_of_missing_columns_is_refused(
    spark: "SparkSession", tmp_path: Path
) -> None:
    objects = LocalObjects(tmp_path, SYSTEM, random.Random(1))
    frame = spark.sql(
        "SELECT * FROM VALUES (1, 'a'), (1, 'b'), (2, NULL), (NULL, 'c'), (NULL, 'd') AS t(id, n)"
    )
    checks = [unique("id", on_fail="drop"), not_null("n", on_fail="drop")]
    checked = write_checked(frame, Storage(objects), LotFolders(rows="good/", bad="bad/"), checks, table="t")
    assert (checked.rows.rows, checked.quarantined.rows) == (2, 3)
    assert checked.counts == {"unique(id)": 2, "not_null(n)": 1}
    with pytest.raises(CheckFailed, match=r"few \(expected at most 1 rows; found 5\)"):
        write_checked(
            frame,
            Storage(objects),
            LotFolders(rows="g2/", bad="b2/"),
            [rows(at_most=1, name="few")],
            table="t",
        )
    for check, message in [
        (not_null("amount"), "amount, which does not exist"),
        (expect("amount > 0"), "amount"),
        (expect("id"), "does not fit the table"),
        (expect("sum(id) > 0"), "does not fit the table"),
    ]:
        with pytest.raises(BadCheck, match=message):
            verify(frame, [check])


def declared(tmp_path: Path, spark: "SparkSession", *, strict: bool = False) -> tm.Pipeline:
    shop = tm.Pipeline("shop", home=tmp_path / "home", spark=spark)
    orders = shop.dataset("orders", "id BIGINT, region STRING, amount BIGINT", checks=[tm.not_null("id")])
    shop.source(
        orders,
        tm.folder(f"{tmp_path}/landing/*.json", settle_s=0.0),
        checks=[tm.expect("amount <> 13", name="unlucky", on_fail="drop")],
    )

    @shop.arc(
        reads=orders,
        writes="cleaned",
        partition_by="region",
        retries=0,
        checks=[
            tm.expect("amount > 0", name="positive", on_fail="fail" if strict else "drop"),
            tm.expect("amount < 100", name="small", on_fail="warn"),
            tm.unique("id"),
        ],
    )
    def clean(df: "DataFrame") -> "DataFrame":
        return df

    return shop


def manifest_checks(shop: tm.Pipeline, table: str) -> list[dict[str, int]]:
    context = shop.context
    listed = context.store.run(lambda tx: lots.listed(tx, context.keys.lots, DatasetId(table)))
    return [context.manifests.load(row.manifest).checks for row in listed]


def ids(shop: tm.Pipeline, table: str) -> list[Any]:
    return sorted(row["id"] for row in shop[table].df().collect())


@pytest.mark.rule("LOT-33")
def test_checks_of_a_source_and_an_arc_remove_rows_or_prevent_publishing(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    lines = [(1, 5), (2, -1), (3, 200), (4, 13), (5, None)]
    text = "".join(json.dumps({"id": n, "region": "n", "amount": amount}) + "\n" for n, amount in lines)
    (landing / "a.json").write_text(text + "not json\n")
    events: list[Event] = []
    with declared(tmp_path, spark, strict=True) as shop:
        report = shop.run(emit=events.append)
        assert not report.ok
        assert ids(shop, "orders") == [1, 2, 3]  # 13 fails the check, and so does NULL
        assert manifest_checks(shop, "orders") == [
            {"files": 1, "quarantined": 3, "not_null(id)": 0, "unlucky": 2}
        ]
        bad = shop["orders_quarantine"].df().collect()
        assert sorted((row["check"] or "", row["line"] or 0) for row in bad) == [
            ("", 6),
            ("unlucky", 0),
            ("unlucky", 0),
        ]
        assert shop["cleaned"].position == 0
        [lot] = shop["cleaned"].lots()
        assert lot.state == "partial"
        assert "positive (1 of 3 rows: not true: amount > 0)" in lot.note
    with declared(tmp_path, spark) as shop, crash.armed("spark.drop.before"), pytest.raises(crash.Crashed):
        shop.run()  # changed code is retried automatically; this attempt crashes between the two folders
    with declared(tmp_path, spark) as shop:
        report = shop.run(emit=events.append)
        assert report.ok, report
        assert ids(shop, "cleaned") == [1, 3]
        assert manifest_checks(shop, "cleaned") == [{"positive": 1, "small": 1, "unique(id)": 0}]
        [out] = shop["cleaned_quarantine"].df().collect()
        assert (json.loads(out["record"])["id"], out["check"]) == (2, "positive")
        assert [event.checks for event in events if isinstance(event, ChecksFailed)][-1] == {
            "positive": 1,
            "small": 1,
        }


@pytest.mark.rule("LOT-33")
def test_an_expression_on_an_append_is_checked_by_spark_and_plans_name_the_line_of_a_bad_one(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    shop = tm.Pipeline("shop", home=tmp_path / "home", spark=spark)
    orders = shop.dataset(
        "orders",
        "id BIGINT, at TIMESTAMP, amount DECIMAL(10,2)",
        checks=[tm.expect("amount > 0", name="positive", on_fail="drop")],
    )
    with shop:
        orders.append([{"id": 1, "at": "2026-01-01T00:00:00Z", "amount": 2}, {"id": 2, "amount": 0}])
        assert [tuple(row)[::2] for row in orders.df().collect()] == [(1, 2)]
        [out] = shop["orders_quarantine"].df().collect()
        assert json.loads(out["record"])["id"] == 2
    other = tm.Pipeline("other", home=tmp_path / "home2", spark=spark)
    other.dataset("orders", "id BIGINT", checks=[tm.expect("amount > 0")])
    with other, pytest.raises(DeclarationError, match=r"test_checks_spark\.py:\d+: the check amount > 0"):
        other.plan()
