"""Values between Spark and kernels: no kernel changes their types, and equal rows are equal as in Spark."""

# ruff: noqa: E501, DTZ001  # each query is on one line with its name; some times have no zone

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests import type_roles
from tests.integration.views_follow import follow
from tidemill.errors import TypeRefused
from tidemill.spark.table_checks import evaluator
from tidemill.testing import Step
from tidemill.views.spark.arrow_types import arrow_of, spark_schema, struct_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = {
    "t": "id INT, k INT, n TIMESTAMP_NTZ, st STRUCT<z: TIMESTAMP_NTZ>, l ARRAY<TIMESTAMP_NTZ>, z TIMESTAMP",
    "u": "k INT, n TIMESTAMP_NTZ, m MAP<STRING, TIMESTAMP_NTZ>",
}

TIME_VIEWS = {
    "from the source": "SELECT id, to_json(named_struct('a', n, 'b', z)) AS j, to_json(st) AS s FROM t",
    "from a join": "SELECT t.id, typeof(t.n) AS ty, typeof(z) AS tz, to_json(struct(u.n AS a)) AS c FROM t JOIN u"
    " ON t.k = u.k",
    "from an aggregate": "SELECT k, to_json(named_struct('m', max(n), 'z', max(z))) AS m FROM t GROUP BY k",
    "from a keyed join": "SELECT t.id, date_format(t.n, 'HH:mm') AS z, to_json(m) AS j, typeof(l) AS tl FROM t"
    " LEFT JOIN u ON t.k = u.k",
    "in a keyed aggregate": "SELECT k, collect_set(typeof(n)) AS m, max(to_json(l)) AS j FROM t GROUP BY k",
    "exploded": "SELECT id, typeof(e) AS ty, to_json(struct(e AS e)) AS j FROM t LATERAL VIEW explode(l) AS e",
}


def _time(number: int, **values: Any) -> dict[str, Any]:
    night = datetime(2024, 3, 31, 2, 30, number)
    times = {"n": night, "st": {"z": night}, "l": [night, None], "z": night.astimezone()}
    return {"id": number, "k": 1, **times, **values}


SUMMER = datetime(2024, 7, 1)
TIME_STEPS = [
    Step(
        {
            "t": [_time(1), _time(2, n=None, st=None, l=None)],
            "u": [{"k": 1, "n": SUMMER, "m": {"a": SUMMER}}],
        }
    ),
    Step({"t": [_time(3)]}, {"t": [_time(1)]}),
]


@pytest.mark.rule("DBSP-10", "DBSP-20", "DBSP-21")
def test_kernels_keep_timestamps_without_a_time_zone(tmp_path: Path, spark: "SparkSession") -> None:
    kernels = follow(spark, tmp_path, TIMES, TIME_VIEWS, TIME_STEPS)
    assert kernels.group.views == TIME_VIEWS.keys()


@pytest.mark.rule("DBSP-21")
def test_every_type_of_a_kernel_returns_from_arrow(spark: "SparkSession") -> None:
    returned = 0
    for kind in (*type_roles.TYPES, "STRUCT<a: ARRAY<TIMESTAMP_NTZ>, b: MAP<INT, TIMESTAMP>>"):
        (field,) = struct_of(["c0"], [kind]).fields
        name = field.dataType.simpleString()
        try:
            arrow = arrow_of(name)
        except TypeRefused:
            continue
        (back,) = spark_schema(pa.schema([("c0", arrow)])).fields
        in_queries = "string" if name.startswith(("char(", "varchar(")) else name
        assert back.dataType.simpleString() == in_queries
        returned += 1
    assert returned > 15


def test_checks_see_timestamps_without_a_time_zone(spark: "SparkSession") -> None:
    table = pa.table(
        {"n": pa.array([SUMMER], pa.timestamp("us")), "z": pa.array([SUMMER], pa.timestamp("us", "UTC"))}
    )
    (without,) = evaluator(spark)(table, ["typeof(n) = 'timestamp_ntz' AND typeof(z) = 'timestamp'"])
    assert without.to_pylist() == [True]


NAN = float("nan")
ODD_NAN = float(np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0])
FLOATS = {"t": "id INT, x DOUBLE, f FLOAT, st STRUCT<p: DOUBLE>, l ARRAY<DOUBLE>, m MAP<STRING, DOUBLE>"}
FLOAT_VIEWS = {
    "rows": "SELECT id, x, CAST(x AS STRING) AS t, to_json(st) AS s, l FROM t",
    "counts": "SELECT count(*) AS n FROM t",
    "groups": "SELECT x, f, count(*) AS n FROM t GROUP BY x, f",
    "distinct": "SELECT DISTINCT st, l FROM t",
    "pairs": "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.x = b.x AND a.l = b.l",
    "outer": "SELECT a.id, b.x FROM t a LEFT JOIN t b ON a.f = b.f AND a.st = b.st",
}


def _float(number: int, value: float) -> dict[str, Any]:
    return {"id": number, "x": value, "f": value, "st": {"p": value}, "l": [value], "m": {"a": value}}


FLOAT_STEPS = [
    Step({"t": [_float(1, 0.0), _float(1, 0.0), _float(2, -0.0), _float(3, NAN)]}),
    Step({"t": [_float(4, ODD_NAN)]}, {"t": [_float(1, -0.0), _float(2, 0.0), _float(3, ODD_NAN)]}),
]


@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_a_delete_removes_a_row_that_spark_groups_with_it(tmp_path: Path, spark: "SparkSession") -> None:
    remaining = Step({"t": [_float(1, 0.0), _float(4, NAN)]})
    kernels = follow(spark, tmp_path, FLOATS, FLOAT_VIEWS, FLOAT_STEPS, remaining)
    assert kernels.group.views == FLOAT_VIEWS.keys()
