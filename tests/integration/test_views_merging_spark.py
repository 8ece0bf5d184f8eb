"""Merges of what Spark wrote, outside of Spark and slice by slice: rows of every type stay as they were."""

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.integration.test_views_full import EVERY, EVERYTHING
from tests.integration.views_stage import bag, plain
from tidemill.objects.local import LocalObjects
from tidemill.spark.storage import Storage
from tidemill.testing.fake_clock import FakeClock
from tidemill.views.spark import digests, table_merges, table_pieces, weighted_rows
from tidemill.views.spark import view_tables as tables_
from tidemill.views.spark.view_tables import ViewAttempt, ViewTables
from tidemill.views.steps.inputs import ManifestReader


@pytest.mark.rule("DBSP-47")
def test_rows_of_every_type_survive_merges_of_slices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_pieces, "FAN", 3)
    monkeypatch.setattr(tables_, "window_budget", lambda *_: 30)
    clock = FakeClock()
    objects = LocalObjects(tmp_path, clock, random.Random(7))
    reader = ManifestReader(objects)
    tables = ViewTables(Storage(objects), reader, clock)
    names = [field.name for field in spark.createDataFrame([], EVERY).schema]
    given = spark.createDataFrame([tuple(row.get(name) for name in names) for row in EVERYTHING], EVERY)
    more = [  # instants of long ago and far off as well
        "id",
        *(name for name in names if name not in ("m", "deep")),
        "interval '1 02:03:04.5' day to second AS dt",
        "timestamp'1583-01-01 00:00:00.000001' AS early",
        "timestamp'9999-12-31 23:59:59.999999' AS late",
    ]
    whole = given.crossJoin(spark.range(3)).selectExpr(*more)
    schema = whole.schema
    weighted = weighted_rows.identified(whole.withColumn("_weight", sf.lit(1).cast("bigint")), schema)
    table, expected = "", Counter[object]()
    cut = False
    every = whole.collect()
    for number, (ids, sign) in enumerate([({0, 1}, 1), ({2}, 1), ({0}, -1)]):
        place = ViewAttempt(pipeline="p", view="v", lot=f"S{number}", attempt=f"t{number}")
        change = weighted.where(sf.col("id").isin(*ids)).withColumn("_weight", sf.lit(sign).cast("bigint"))
        changes, written = tables.write_changes(place, weighted_rows.netted(change, schema), schema)
        assert written.rows > 1
        table = tables.extended(place, table, changes, schema, spark)
        cut |= bool(reader.load(table).within)
        for row in every:
            expected[plain(row)] += sign * (row.id in ids)
    assert cut
    assert (
        table_merges.arrow_schema(table_merges.stored_columns(schema)) is not None
    )  # it was done without Spark
    assert bag(tables.content(spark, table)) == +expected
    frame, measured = digests.observed(tables.weighted(spark, table))
    frame.collect()
    assert measured() == tables.digest(table)
