"""Functions that change the settings of the session they are given."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import tidemill as tm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZONE = "spark.sql.session.timeZone"


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
