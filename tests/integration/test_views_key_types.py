"""Join keys of different types are compared in the type that Spark's analysis chooses."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.schemas.type_table import common_type

TYPES = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "string", "boolean", "binary"),
    *("decimal(10,2)", "decimal(12,4)", "decimal(38,0)", "decimal(38,10)", "decimal(38,38)"),
    *("date", "timestamp", "timestamp_ntz"),
)
ALSO_NAMED = {"timestamp_ltz": "timestamp"}


@pytest.fixture
def columns(spark: Any) -> Iterator[dict[str, str]]:
    names = {kind: f"c{n}" for n, kind in enumerate(TYPES)}
    selected = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for kind, name in names.items())
    spark.sql(f"SELECT {selected}").createOrReplaceTempView("key_types")
    yield names
    spark.catalog.dropTempView("key_types")


def compared_as(spark: Any, left: tuple[str, str], right: tuple[str, str]) -> set[str] | None:
    """Return the types of both sides in Spark's analysed comparison; None if Spark refuses it."""
    from pyspark.errors import AnalysisException

    (left_type, left_name), (right_type, right_name) = left, right
    try:
        query = f"SELECT {left_name} = {right_name} AS e FROM key_types"
        plan = spark.sql(query)._jdf.queryExecution().analyzed().toString().splitlines()[0]
    except AnalysisException:
        return None
    sides = re.fullmatch(r"Project \[\((.*) = (.*)\) AS .*", plan)
    assert sides is not None, plan
    kinds = set()
    for side, own in zip(sides.groups(), (left_type, right_type), strict=True):
        cast = re.fullmatch(r"cast\(.* as (.*)\)", side)
        kinds.add(own if cast is None else ALSO_NAMED.get(cast[1], cast[1]))
    return kinds


@pytest.mark.rule("DBSP-11")
def test_two_types_are_compared_in_the_type_that_spark_chooses(spark: Any, columns: dict[str, str]) -> None:
    for left, right in itertools.combinations(columns.items(), 2):
        chosen = common_type(left[0], right[0])
        assert chosen == common_type(right[0], left[0])
        assert (None if chosen is None else {chosen}) == compared_as(spark, left, right), (left, right)
