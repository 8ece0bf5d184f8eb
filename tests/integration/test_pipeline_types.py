"""Types and settings through whole pipelines: what is refused, before anything runs; what is pinned."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.errors import DeclarationError, QueryError, TidemillError, ViewRefused
from tidemill.spark.expected_errors import expecting_errors
from tidemill.spark.sessions import PINNED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
}
"""What a user's session may have, each of which changes the view below."""

SENSITIVE = r"""
    SELECT ID AS id, hour(at) AS hour, size(CAST(NULL AS ARRAY<INT>)) AS size,
           typeof(CAST('2024-01-01' AS TIMESTAMP)) AS moment, "text" AS text, length('\n') AS length,
           typeof(CAST(1 AS DECIMAL(38,18)) * CAST(1 AS DECIMAL(38,18))) AS product,
           try_to_timestamp(day, 'yyyy-MM-dd') AS day FROM orders"""


@pytest.mark.rule("DBSP-22")
def test_a_view_is_the_same_whatever_the_session_of_its_user_has_set(
    spark: "SparkSession", tmp_path: Path
) -> None:
    theirs = spark.newSession()
    for name, value in OWN.items():
        assert PINNED[name] != value
        theirs.conf.set(name, value)
    with tm.Pipeline("shop", home=tmp_path / "home", spark=theirs) as shop:
        orders = shop.dataset("orders", "id BIGINT, at TIMESTAMP, day STRING")
        shop.view("plain", SENSITIVE)
        shop.view("full", SENSITIVE, refresh="full", group="other")
        orders.append([(1, datetime(2026, 1, 1, 5, tzinfo=UTC), "2024-1-1")])
        assert shop.run().ok
        for name in ("plain", "full"):
            (row,) = shop[name].df().collect()
            assert tuple(row) == (1, 5, None, "timestamp", "text", 1, "decimal(38,6)", None), name
    assert {name: theirs.conf.get(name) for name in OWN} == OWN


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize(
    ("kind", "options", "sql", "message"),
    [
        ("VARIANT", {}, "SELECT v FROM d", "column 'v' of view x is a variant, which Spark does not compare"),
        ("VARIANT", {}, "SELECT array(v) AS w FROM d", "column 'w' of view x is a variant"),
        ("GEOMETRY(4326)", {}, "SELECT v FROM d", "column 'v' of view x is a geometry, which Spark does not"),
        ("INT", {}, "SELECT NULL AS v FROM d", "column 'v' of view x is of no type"),
        ("INT", {}, "SELECT CAST('1 day' AS INTERVAL) AS v FROM d", "which no file can hold"),
        ("MAP<STRING, INT>", {}, "SELECT DISTINCT v FROM d", "SET_OPERATION_ON_MAP_TYPE"),
        ("MAP<STRING, INT>", {}, "SELECT max(v) AS v FROM d", "does not support ordering on type"),
        ("VARIANT", {"deletes": True}, "SELECT k FROM d", "its column v is a variant"),
        (
            "GEOMETRY(4326)",
            {"key": "v"},
            "SELECT k FROM d",
            "cannot use v as a key: the column is a geometry",
        ),
    ],
)
def test_what_no_view_can_do_with_a_type_is_refused_before_anything_runs(
    spark: "SparkSession", tmp_path: Path, kind: str, options: dict[str, Any], sql: str, message: str
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop, expecting_errors():
        shop.dataset("d", f"k INT, v {kind}", **options)
        shop.view("x", sql)
        with pytest.raises(TidemillError) as caught:
            shop.plan()
    assert isinstance(caught.value, ViewRefused | DeclarationError | QueryError)
    assert message in str(caught.value)
    assert caught.value.hint


def test_texts_of_limited_length_in_keys_checks_and_views(spark: Any, tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        columns = "id VARCHAR(5), name CHAR(3)"
        people = shop.dataset("people", columns, key="id", checks=[tm.not_null("name", on_fail="drop")])
        names = shop.view("names", "SELECT name, count(*) AS n FROM people GROUP BY name")
        people.upsert([{"id": "a", "name": "xyz"}, {"id": "b", "name": "xyz"}])
        assert shop.run().ok
        assert [tuple(row) for row in names.df().collect()] == [("xyz", 2)]
