"""Lots with Spark: written rows are counted, listed once and read back exactly."""

import datetime
import decimal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import BadSchema, ObjectUnreadable, UsageError, WriteMismatch
from tidemill.lots.manifest import StoredObject, UriType
from tidemill.objects import Objects, open_objects
from tidemill.objects.local import LocalObjects
from tidemill.spark import lot_writer
from tidemill.spark.lot_reader import read_errors, read_objects, read_positioned
from tidemill.spark.lot_writer import Written, write_frame, write_table
from tidemill.spark.storage import Storage

HOSTILE = "a b=/%'\"é{x}[y]*?#+&:;,@!~()\\^`|<>$ 漢\u00a0\u3000"
ROWS = "id BIGINT, v STRING"


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    opened = open_objects(str(tmp_path / "an [odd] {root} %41 é*"), clock=SYSTEM)
    assert isinstance(opened, LocalObjects)
    return opened


@pytest.fixture
def storage(objects: Objects) -> Storage:
    return Storage(objects)


def lot(n: int) -> str:
    return f"data/name=orders/version=1/lot={n}/attempt=t{n}.f.1/"


def write(df: DataFrame, storage: Storage, n: int, *partition_by: str) -> Written:
    return write_frame(df, storage, lot(n), partition_by=partition_by)


def keys(objects: Objects) -> list[str]:
    return [info.key for info in objects.list()]


@pytest.mark.rule("LOT-7", "LOT-17", "LOT-24")
def test_all_files_in_the_folder_of_a_job_are_its_objects(
    spark: SparkSession, storage: Storage, objects: LocalObjects
) -> None:
    written = write(spark.range(1000).withColumn("v", sf.lit("x")), storage, 1)
    assert written.rows == 1000 == sum(item.rows or 0 for item in written.objects)
    assert [item.uri for item in written.objects] == keys(objects)  # no marker, no checksum file
    for item in written.objects:
        assert item.uri.startswith(lot(1))
        assert item.uri.endswith(".parquet")
        info = objects.head(item.uri)
        assert (item.size, item.etag, item.format) == (info.size, info.etag, "parquet")
        assert item.partition == {}
    assert list(objects.root.rglob(".*.crc")) == []
    back = read_objects(spark, storage, ROWS, written.objects)
    assert (back.columns, back.count()) == (["id", "v"], 1000)


@pytest.mark.parametrize("columns", ["id INT, at TIME(6)", "id INT, s STRUCT<at: TIME(6)>"])
def test_a_new_thread_reads_times(spark: SparkSession, storage: Storage, columns: str) -> None:
    value = "at" if "STRUCT" not in columns else "named_struct('at', at) AS s"
    frame = spark.sql(f"SELECT 1 AS id, {value} FROM VALUES (TIME'10:00:00') AS t(at)")
    written = write(frame, storage, 1)
    with ThreadPoolExecutor(1) as thread:
        rows = thread.submit(lambda: read_objects(spark, storage, columns, written.objects).collect())
        assert [row.id for row in rows.result()] == [1]


@pytest.mark.rule("LOT-24")
def test_partition_columns_are_folders_and_stay_inside_the_files(
    spark: SparkSession, storage: Storage
) -> None:
    values = [None, "", "~", "~#x", "__HIVE_DEFAULT_PARTITION__", "x", HOSTILE, "é" * 300, "a\x01b", "."]
    df = spark.createDataFrame([Row(id=n, v=values[n % len(values)]) for n in range(40)], ROWS).repartition(2)
    written = write(df, storage, 1, "v")
    assert {item.partition["v"] for item in written.objects} == set(values)
    assert len(written.objects) == len(values)  # each value's rows came together
    for item in written.objects:
        assert item.uri.removeprefix(lot(1)).startswith("by.v=")
        inside = read_objects(spark, storage, ROWS, [item]).select("v").distinct().collect()
        assert [row.v for row in inside] == [item.partition["v"]]
    back = read_objects(spark, storage, ROWS, written.objects)
    assert back.columns == ["id", "v"]
    assert sorted((row.id, row.v) for row in back.collect()) == [
        (n, values[n % len(values)]) for n in range(40)
    ]


def test_columns_of_any_name_and_simple_type_make_folders(spark: SparkSession, storage: Storage) -> None:
    odd = "a `b`.=/é [c]"
    df = spark.range(4).select(
        (sf.col("id") % 2).alias(odd),
        sf.lit(datetime.date(2024, 2, 29)).alias("by.x"),
        sf.lit(decimal.Decimal("1.50")).alias("x"),
        sf.lit(bytearray(b"\xff\x00")).alias("y"),
    )
    written = write(df, storage, 1, odd, "x", "y", "by.x")
    expected = {"x": "1.50", "y": "FF00", "by.x": "2024-02-29"}
    assert [item.partition for item in written.objects] == [{odd: "0", **expected}, {odd: "1", **expected}]
    back = read_objects(spark, storage, df.schema, written.objects)
    assert sorted(back.collect()) == sorted(df.collect())


def test_a_column_that_makes_no_folders_is_refused(spark: SparkSession, storage: Storage) -> None:
    df = spark.range(3).withColumn("a", sf.array("id"))
    with pytest.raises(BadSchema, match="no column 'day'"):
        write(df, storage, 1, "day")
    with pytest.raises(BadSchema, match="cannot partition by"):
        write(df, storage, 1, "a")


def test_no_rows_make_no_objects(spark: SparkSession, storage: Storage, objects: Objects) -> None:
    for n, df in enumerate([spark.createDataFrame([], ROWS), spark.range(9).where("id < 0")]):
        assert write(df, storage, n) == Written((), 0)
    assert write(spark.range(9).withColumn("v", sf.lit(1)).where("id < 0"), storage, 5, "v") == Written((), 0)
    # Spark's first task leaves a file even when its rows are none
    some = write(spark.range(100, numPartitions=4).where("id > 60"), storage, 6)
    assert some.rows == 39
    assert all(item.rows for item in some.objects)
    assert keys(objects) == [item.uri for item in some.objects]
    assert read_objects(spark, storage, ROWS, []).collect() == []


def test_a_folder_is_written_once(spark: SparkSession, storage: Storage, objects: Objects) -> None:
    written = write(spark.range(5), storage, 1)
    with pytest.raises(UsageError, match="is not empty"):
        write(spark.range(6), storage, 1)
    assert keys(objects) == [item.uri for item in written.objects]


def test_large_files_are_split_at_the_target(
    spark: SparkSession, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lot_writer, "_LEAST_ROWS", 10)
    df = spark.range(1000).coalesce(1)
    written = write_frame(df, storage, lot(1), target_bytes=8 * 250)
    assert [item.rows for item in written.objects] == [250] * 4


@pytest.mark.rule("LOT-17")
def test_files_without_all_computed_rows_are_refused(
    spark: SparkSession, storage: Storage, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write(spark.range(7), storage, 1).objects[0]
    listing = objects.list

    def with_a_stray(prefix: str = "", **kwargs: object) -> object:
        objects.put(f"{prefix}part-99999.parquet", objects.get(other.uri)[0])
        return listing(prefix)

    monkeypatch.setattr(objects, "list", with_a_stray)
    with pytest.raises(WriteMismatch, match=r"100 rows were computed .* have 10[34]"):
        write(spark.range(100), storage, 2)


def test_a_write_can_die_before_and_after(spark: SparkSession, storage: Storage, objects: Objects) -> None:
    with crash.armed("spark.write.before"), pytest.raises(crash.Crashed):
        write(spark.range(5), storage, 1)
    assert keys(objects) == []
    with crash.armed("spark.write.after"), pytest.raises(crash.Crashed):
        write(spark.range(5), storage, 1)
    assert keys(objects) != []


@pytest.mark.parametrize("pack", [False, True])
def test_a_table_is_written_without_spark_and_read_by_it(
    spark: SparkSession, storage: Storage, pack: bool
) -> None:
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 456789)  # noqa: DTZ001 - TIMESTAMP_NTZ has no zone
    table = pa.table(
        {
            "id": pa.array([1, None], pa.int64()),
            "at": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "wall": pa.array([moment, None], pa.timestamp("us")),
            "amount": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        }
    )
    written = write_table(table, storage.objects, lot(1), pack=pack)
    assert (written.rows, len(written.objects)) == (2, 1)
    schema = "id BIGINT, at TIMESTAMP, wall TIMESTAMP_NTZ, amount DECIMAL(10,2), tags ARRAY<STRING>"
    back = read_objects(spark, storage, schema, written.objects)
    first = back.select("id", sf.col("at").cast("string").alias("at"), "wall", "amount", "tags").first()
    assert first == Row(1, "2024-02-29 01:02:03.456789", moment, decimal.Decimal("1.50"), ["a", None])
    assert write_table(table.slice(0, 0), storage.objects, lot(2)) == Written((), 0)
    numbers = pa.table({"id": list(range(1000))})
    split = write_table(numbers, storage.objects, lot(3), target_bytes=2000, pack=pack)
    assert [item.rows for item in split.objects] == [250] * 4
    back = read_objects(spark, storage, ROWS, split.objects)
    assert sorted(row.id for row in back.collect()) == list(range(1000))


@pytest.mark.rule("LOT-7")
def test_only_the_listed_objects_are_read(spark: SparkSession, storage: Storage) -> None:
    df = spark.range(30).withColumn("v", (sf.col("id") % 3).cast("string"))
    written = write(df, storage, 1, "v")
    selected = [item for item in written.objects if item.partition["v"] == "1"]
    assert {row.v for row in read_objects(spark, storage, ROWS, selected).collect()} == {"1"}
    folder = StoredObject(uri=lot(1), type=UriType.PATH)
    with pytest.raises(UsageError, match="not a single Parquet file"):
        read_objects(spark, storage, ROWS, [folder])


def test_rows_carry_the_position_of_their_lot(spark: SparkSession, storage: Storage) -> None:
    lots = []
    for n in range(1, 4):
        df = spark.range(n).withColumn("v", sf.lit(HOSTILE if n == 2 else None).cast("string"))
        lots.append((10 * n, write(df, storage, n, *(["v"] if n > 1 else [])).objects))
    back = read_positioned(spark, storage, ROWS, [(5, ()), *lots])
    assert back.columns == ["id", "v", "_position"]
    assert sorted((row._position, row.id) for row in back.collect()) == [
        (10, 0),
        (20, 0),
        (20, 1),
        (30, 0),
        (30, 1),
        (30, 2),
    ]
    first = read_positioned(spark, storage, ROWS, lots[:1])
    assert first.collect() == [Row(id=0, v=None, _position=10)]
    assert read_positioned(spark, storage, ROWS, []).columns == ["id", "v", "_position"]


def test_spark_reports_the_path_that_storage_expects(spark: SparkSession, storage: Storage) -> None:
    df = spark.range(1).withColumn("v", sf.lit(HOSTILE))
    (item,) = write(df, storage, 1, "v").objects
    (row,) = read_objects(spark, storage, ROWS, [item]).select("_metadata.file_path").collect()
    assert row.file_path == storage.file_path(item.uri)
    assert storage.key(row.file_path) == item.uri


@pytest.mark.parametrize("harm", ["missing", "gone", "cut", "noise"])
def test_a_file_that_cannot_be_read_is_named(
    harm: str, spark: SparkSession, storage: Storage, objects: LocalObjects
) -> None:
    written = write(spark.range(5).withColumn("v", sf.lit(HOSTILE)), storage, 1, "v")
    victim = written.objects[0].uri
    body = objects.get(victim)[0]
    if harm == "missing":
        objects.delete(victim)
        with pytest.raises(ObjectUnreadable, match="does not exist") as caught:
            read_objects(spark, storage, ROWS, written.objects)
        assert caught.value.key == victim
        return
    planned = read_objects(spark, storage, ROWS, written.objects)
    if harm == "gone":
        objects.delete(victim)
    else:
        objects.put(victim, body[: len(body) // 2] if harm == "cut" else b"no parquet at all, but bytes")
    with pytest.raises(ObjectUnreadable) as caught, read_errors(storage):
        planned.collect()
    assert caught.value.key == victim
    with pytest.raises(ObjectUnreadable) as caught:
        write(planned, storage, 2)
    assert caught.value.key == victim
