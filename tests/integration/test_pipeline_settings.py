"""Functions that change the settings of the session they are given."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import tidemill as tm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZONE, TIMESTAMPS = "spark.sql.session.timeZone", "spark.sql.timestampType"


def test_what_a_function_sets_for_itself_changes_nothing_for_others(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT, at TIMESTAMP")

        @shop.arc(reads=orders, writes="clean")
        def clean(df: "DataFrame") -> "DataFrame":
            df.sparkSession.conf.set(ZONE, "Asia/Tokyo")
            return df.where("id > 0")

        @shop.arc(reads="clean", writes="hours")
        def hours(df: "DataFrame") -> "DataFrame":
            return df.selectExpr("id", "hour(at) AS hour")

        shop.view("by_hour", "SELECT hour(at) AS hour, count(*) AS n FROM clean GROUP BY 1")
        orders.append([(1, datetime(2026, 1, 1, 5, tzinfo=UTC))])
        assert shop.run().ok
        assert [tuple(row) for row in shop["hours"].df().collect()] == [(1, 5)]
        assert [tuple(row) for row in shop["by_hour"].df().collect()] == [(5, 1)]


def test_what_a_function_sets_while_it_is_planned_changes_nothing_for_others(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT")

        @shop.arc(reads=orders, writes="clean")
        def clean(df: "DataFrame") -> "DataFrame":
            df.sparkSession.conf.set(TIMESTAMPS, "TIMESTAMP_NTZ")
            return df.where("id > 0")

        @shop.arc(reads="clean", writes="dated")
        def dated(df: "DataFrame") -> "DataFrame":
            return df.selectExpr("id", "CAST('2026-01-01' AS TIMESTAMP) AS at")

        orders.append([(1,)])
        assert shop.run().ok
        assert [field.dataType.typeName() for field in shop["dated"].df().schema] == ["long", "timestamp"]


def test_the_function_of_a_view_changes_nothing_for_other_views_of_its_group(
    spark: "SparkSession", tmp_path: Path
) -> None:
    def in_tokyo(df: "DataFrame") -> "DataFrame":
        df.sparkSession.conf.set(ZONE, "Asia/Tokyo")
        return df.where("id > 0")

    def hours(df: "DataFrame") -> "DataFrame":
        return df.selectExpr("id", "hour(at) AS hour")

    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT, at TIMESTAMP")
        shop.view("positive", in_tokyo, reads=orders, full=True)
        shop.view("hours", hours, reads="positive", full=True)
        orders.append([(1, datetime(2026, 1, 1, 5, tzinfo=UTC))])
        assert shop.run().ok
        assert [tuple(row) for row in shop["hours"].df().collect()] == [(1, 5)]
