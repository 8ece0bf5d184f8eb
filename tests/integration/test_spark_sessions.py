"""Sessions that Tidemill opens or adopts, and jobs that are cancelled by tag."""

import os
import threading
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.servers.process import wait_until
from tidemill.errors import SessionUnusable, SparkUnavailable, UsageError
from tidemill.spark.java import REAL_JAVA
from tidemill.spark.sessions import (
    PINNED,
    SparkSettings,
    adopt,
    frame_of,
    interrupt,
    open_session,
    require,
    tagged,
)
from tidemill.testing.threads import STUCK_S

ZONE = "spark.sql.session.timeZone"


def test_a_session_counts_groups_and_runs_python(spark: SparkSession) -> None:
    twice = sf.udf(lambda x: 2 * x, "bigint")
    rows = spark.range(10).select((sf.col("id") % 2).alias("odd"), twice("id").alias("t"))
    sums = {row["odd"]: row["s"] for row in rows.groupBy("odd").agg(sf.sum("t").alias("s")).collect()}
    assert sums == {0: 40, 1: 50}


def test_settings_that_change_results_are_pinned(spark: SparkSession) -> None:
    assert {name: spark.conf.get(name) for name in PINNED} == PINNED
    with pytest.raises(UsageError, match="timeZone=Europe/Berlin is not allowed"):
        SparkSettings(conf={ZONE: "Europe/Berlin"})


def test_starting_spark_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert REAL_JAVA not in os.environ
    assert "tidemill" not in os.environ.get("JAVA_HOME", "")


def test_a_second_session_of_a_process_shares_its_spark_and_not_its_settings(spark: SparkSession) -> None:
    second = open_session(SparkSettings(conf={"spark.sql.shuffle.partitions": "7"}))
    assert second.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert second.conf.get("spark.app.id") == spark.conf.get("spark.app.id")
    second.range(1).createOrReplaceTempView("seen_by_the_second")
    assert not spark.catalog.tableExists("seen_by_the_second")
    with pytest.raises(SparkUnavailable, match=r"already runs Spark with the master local\[2\]"):
        open_session(SparkSettings(master="spark://127.0.0.1:1"))
    with pytest.raises(SparkUnavailable, match="another process"):
        open_session(SparkSettings(remote="sc://127.0.0.1:1/;token=hidden"))


def test_settings_name_one_spark() -> None:
    with pytest.raises(UsageError, match="both a master"):
        SparkSettings(master="local[2]", remote="sc://127.0.0.1:1")


def test_an_adopted_session_is_restored_when_its_last_use_ends(spark: SparkSession) -> None:
    adopted = spark.newSession()
    adopted.conf.set(ZONE, "Europe/Berlin")
    adopted.conf.set("spark.sql.ansi.enabled", "false")
    before = {name: adopted.conf.get(name) for name in PINNED}
    first = adopt(adopted)
    with first as session:
        assert session is adopted
        second = adopt(adopted)
        second.__enter__()
        assert {name: adopted.conf.get(name) for name in PINNED} == PINNED
    assert adopted.conf.get(ZONE) == "UTC"
    second.__exit__(None, None, None)
    assert {name: adopted.conf.get(name) for name in PINNED} == before


def test_a_session_that_is_too_old_is_refused_with_the_reason() -> None:
    @dataclass
    class Old:
        version: str

    require(Old("4.1.0"))  # type: ignore[arg-type]
    require(Old("4.12.1-SNAPSHOT"))  # type: ignore[arg-type]
    for version in ("3.5.6", "4.0.1", "unknown"):
        with pytest.raises(
            SessionUnusable, match=f"it is Spark {version}; the oldest supported version is 4.1"
        ):
            require(Old(version))  # type: ignore[arg-type]


def test_a_tag_cancels_its_own_jobs_only(spark: SparkSession) -> None:
    errors: dict[str, str] = {}

    def long_job(tag: str) -> None:
        try:
            with tagged(spark, tag):
                spark.range(10**14).agg(sf.sum(sf.hash("id"))).collect()
        except Exception as error:  # noqa: BLE001 - the job is expected to fail
            errors[tag] = str(error)

    def cancel(tag: str) -> bool:
        interrupt(spark, tag)
        return tag in errors

    threads = [threading.Thread(target=long_job, args=(tag,), daemon=True) for tag in ("one", "two")]
    for thread in threads:
        thread.start()
    try:
        assert wait_until(lambda: cancel("one"), timeout_s=STUCK_S)
        assert "two" not in errors
    finally:
        assert wait_until(lambda: cancel("two"), timeout_s=STUCK_S)
    for thread in threads:
        thread.join(STUCK_S)
    assert "cancel" in errors["one"].lower()
    assert spark.range(3).count() == 3


def test_a_frame_has_all_rows_of_a_table_with_empty_chunks(spark: SparkSession) -> None:
    rows = pa.table({"a": [1, 2]})
    empty = rows.slice(0, 0)
    chunks = pa.concat_tables([empty, empty, rows, empty, empty, empty, rows])
    assert chunks.column(0).num_chunks == 7
    assert sorted(row.a for row in frame_of(spark, chunks).collect()) == [1, 1, 2, 2]
    assert frame_of(spark, empty).collect() == []
