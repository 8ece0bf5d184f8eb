"""Schemas in Spark: our parser agrees with Spark's, and Spark reads files that are written without it."""

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tidemill.clock import SYSTEM
from tidemill.errors import BadSchema
from tidemill.objects import open_objects
from tidemill.spark.lot_reader import read_objects
from tidemill.spark.lot_writer import write_table
from tidemill.spark.schema import analysed, of_spark, parse, to_arrow, to_spark
from tidemill.spark.storage import Storage

GOOD = [
    "id BIGINT, `a b` string not null comment 'it''s', c decimal(10,2)",
    "a int, select int, 1a int, `x``y` int, \ton_ int -- more\n",
    "a struct<x:int,`y z` string not null comment 'q'>, m map<string,array<bigint>>",
    "a timestamp, b timestamp_ntz, c timestamp_ltz, d date, e binary, f boolean, g float, h real, i double",
    "j tinyint, k byte, l smallint, m short, n int, o integer, p bigint, q long, r decimal, s dec(5)",
    "a char(3), b varchar(5), c string collate UTF8_LCASE, t numeric(5,1), u variant, v void",
    "a interval day to second, b interval year to month, c interval, d interval hour, e time, f time(3)",
    "struct<a:int,b:struct<c:int>>",
]
BAD = [
    "a int default 5",
    "a array<int",
    "a foo",
    "a int b int",
    "a int,",
    "a decimal(50,2)",
    "a-b int",
    "a int null",
]


def test_our_parser_accepts_what_sparks_parser_accepts(spark: SparkSession) -> None:
    for text in GOOD:
        by_spark = StructType.fromDDL(text)
        assert of_spark(by_spark) == parse(text), text
        assert to_spark(parse(text)) == by_spark, text
    assert analysed(spark, GOOD[0]).fingerprint == parse(GOOD[0]).fingerprint


def test_our_parser_refuses_what_sparks_parser_refuses(spark: SparkSession) -> None:
    for text in BAD:
        with pytest.raises(BadSchema):
            parse(text)
        with pytest.raises(BadSchema, match="the schema is invalid"):
            analysed(spark, text)


def test_spark_reads_rows_written_without_it_as_declared(spark: SparkSession, tmp_path: Path) -> None:
    schema = parse(
        "a BIGINT NOT NULL, b DECIMAL(10,2), c TIMESTAMP, d TIMESTAMP_NTZ, e ARRAY<STRUCT<x: DATE>>,"
        " f MAP<STRING, DOUBLE>, g VARCHAR(3), h BINARY, i INTERVAL DAY TO SECOND, j TIME, k TINYINT,"
        " l BOOLEAN, `m n` STRING, o FLOAT"
    )
    moment = datetime.datetime(1582, 10, 4, 1, 2, 3, 456789)  # noqa: DTZ001 - before the calendar's gap
    row = {
        "a": -(2**63),
        "b": decimal.Decimal("-12345678.90"),
        "c": moment,
        "d": moment,
        "e": [{"x": datetime.date(1, 1, 1)}, None],
        "f": {"": float("nan"), "k": None},
        "g": "abc",
        "h": b"\x00\xff",
        "i": datetime.timedelta(days=-1, microseconds=1),
        "j": datetime.time(23, 59, 59, 999999),
        "k": -128,
        "l": False,
        "m n": "",
        "o": float("-inf"),
    }
    storage = Storage(open_objects(str(tmp_path), clock=SYSTEM))
    table = pa.Table.from_pylist([row, {}], schema=to_arrow(schema.stored()))
    written = write_table(table, storage.objects, "data/x/")
    frame = read_objects(spark, storage, schema, written.objects)
    assert frame.toArrow().to_pylist()[1] == dict.fromkeys(row)
    got = frame.toArrow().to_pylist()[0]
    got["f"] = {k: str(v) for k, v in got["f"]}
    assert got == {
        **row,
        "c": moment.replace(tzinfo=datetime.UTC),
        "f": {"": "nan", "k": "None"},
    }
