"""The identity of rows that kernels compute is Spark's, to the last bit."""

import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tidemill.views.kernels.row_identity import identifiable, row_identity
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.arrow_types import arrow_of, struct_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KINDS = {
    "boolean": [True, False],
    "tinyint": [0, 1, -1, 127, -128],
    "smallint": [0, -1, 32767, -32768],
    "int": [0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, -1, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e-40],
    "double": [0.0, -0.0, -1.5, float("nan"), float("inf"), -float("inf"), 5e-324],
    "decimal(9,2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999.99")],
    "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**18) + 1), Decimal(0)],
    "decimal(20,2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("1.27"), Decimal("1.28"), Decimal("-1.28")],
    "decimal(38,0)": [
        Decimal(10**38 - 1),
        Decimal(-(10**38) + 1),
        Decimal(2**63),
        Decimal(-1),
        Decimal(-129),
    ],
    "date": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    "timestamp": [EPOCH, EPOCH - dt.timedelta(microseconds=1), EPOCH + dt.timedelta(days=10_000)],
    "timestamp_ntz": [
        dt.datetime.fromisoformat("1969-12-31T23:00"),
        dt.datetime.fromisoformat("2100-01-01T00:00:00.000007"),
    ],
    "string": ["", "a", "abcd", "sixteen octets..", "ü€😀", "x" * 31, "y" * 32, "z" * 33, "long" * 50],
    "binary": [b"", b"\x00", b"\xff" * 7, b"\x80" * 8, bytes(range(256)), b"q" * 44],
}


def _rows(chance: random.Random, count: int) -> list[tuple[Any, ...]]:
    return [
        tuple(None if chance.random() < 0.15 else chance.choice(values) for values in KINDS.values())
        for _ in range(count)
    ]


@pytest.mark.rule("DBSP-42")
def test_the_identity_of_kernels_is_that_of_spark(spark: "SparkSession") -> None:
    kinds = list(KINDS)
    assert all(identifiable(arrow_of(kind)) for kind in kinds)
    drawn = _rows(random.Random(5), 400)
    schema = struct_of([f"c{i}" for i in range(len(kinds))], kinds)
    arrow = pa.schema([pa.field(f"c{i}", arrow_of(kind)) for i, kind in enumerate(kinds)])
    table = pa.Table.from_arrays(
        [pa.array(column, each.type) for column, each in zip(zip(*drawn, strict=True), arrow, strict=True)],
        schema=arrow,
    )
    frame = spark.createDataFrame(table, schema)
    high, low = weighted_rows.identity(
        weighted_rows.columns_of(schema), [field.dataType for field in schema.fields]
    )
    wanted = frame.select("*", high.alias("high"), low.alias("low")).toArrow()
    again = wanted.select(arrow.names).cast(arrow)
    computed = row_identity(again.columns)
    assert computed[0].to_pylist() == wanted["high"].to_pylist()
    assert computed[1].to_pylist() == wanted["low"].to_pylist()
    halves = [row_identity(again.slice(first, 37).columns)[0] for first in range(0, 400, 37)]
    assert pa.concat_arrays(halves).to_pylist() == wanted["high"].to_pylist()


def test_no_rows_have_no_identity() -> None:
    empty = [pa.chunked_array([pa.array([], pa.string())]), pa.chunked_array([], pa.int64())]
    high, low = row_identity(empty)
    assert (len(high), len(low)) == (0, 0)


def test_what_kernels_cannot_identify_is_left_to_spark() -> None:
    for kind in ("array<int>", "map<int,int>", "struct<a:int>"):
        assert not identifiable(arrow_of(kind))
