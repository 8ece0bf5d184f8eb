"""Sums and averages out of exact accumulators are Spark's own, to the last digit, and raise where it does."""

import random
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tidemill.errors import ViewFailed
from tidemill.views.aggregates.registry import Kernel, kernel_of
from tidemill.views.spark.arrow_types import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {  # of what is aggregated: its digits, its scale, and the result's types
    "int": (9, 0, "bigint", "double"),
    "bigint": (13, 0, "bigint", "double"),  # Spark adds up doubles: of larger sums its average is not exact
    "decimal(10,2)": (10, 2, "decimal(20,2)", "decimal(14,6)"),
    "decimal(18,0)": (18, 0, "decimal(28,0)", "decimal(22,4)"),
    "decimal(28,4)": (28, 4, "decimal(38,4)", "decimal(32,8)"),
    "decimal(38,18)": (22, 18, "decimal(38,18)", "decimal(38,22)"),
}
WIDE = pa.decimal128(38, 0)


def kernel(name: str) -> Kernel:
    result = kernel_of(name)
    assert result is not None
    return result


def finish(name: str, argument: pa.DataType, result: pa.DataType, raw: list[pa.Array]) -> pa.Array:
    return kernel(name).final(raw, argument, result)


def _values(chance: random.Random, digits: int, scale: int, count: int) -> list[Any]:
    values: list[Any] = []
    for _ in range(count):
        size = chance.choice((1, 2, digits))
        value = chance.randrange(-(10**size) + 1, 10**size)
        values.append(
            None if chance.random() < 0.1 else value if not scale else Decimal(value).scaleb(-scale)
        )
    return values


def _raw(kind: str, argument: pa.DataType, groups: list[list[Any]]) -> list[pa.Array]:
    """What the accumulators return."""
    scale = argument.scale if pa.types.is_decimal(argument) else 0
    known = [[value for value in group if value is not None] for group in groups]
    with localcontext(prec=60):
        sums = [sum(map(Decimal, group), Decimal(0)) if group else None for group in known]
    raw = [pa.array(sums, pa.decimal128(38, scale)), pa.array([False] * len(groups))]
    return raw if kind == "sum" else [*raw, pa.array(map(len, known), pa.int64())]


@pytest.mark.rule("DBSP-13", "DBSP-20")
def test_sums_and_averages_are_those_of_spark(spark: "SparkSession") -> None:
    chance = random.Random(3)
    parts, wanted = [], {}
    for number, (kind, (digits, scale, *results)) in enumerate(TYPES.items()):
        groups = [_values(chance, digits, scale, chance.choice((1, 2, 3, 7, 60))) for _ in range(40)]
        argument = arrow_of(kind)
        rows = [(at, value) for at, group in enumerate(groups) for value in group]
        table = pa.table([[at for at, _ in rows], pa.array([v for _, v in rows], argument)], names=["g", "v"])
        spark.createDataFrame(table).createOrReplaceTempView(f"finals{number}")
        text = f"SELECT {number} AS n, g, CAST(sum(v) AS STRING) s, CAST(avg(v) AS STRING) a, {{}} t"
        typed = "concat(typeof(sum(v)), ' ', typeof(avg(v)))"
        parts.append(f"{text.format(typed)} FROM finals{number} GROUP BY g")
        made = {
            function: finish(function, argument, arrow_of(result), _raw(function, argument, groups))
            for function, result in zip(("sum", "avg"), results, strict=True)
        }
        for at in range(len(groups)):
            wanted[number, at] = (made["sum"][at].as_py(), made["avg"][at].as_py(), " ".join(results))
    result_rows = spark.sql(" UNION ALL ".join(parts)).collect()
    assert len(result_rows) == len(wanted)
    for row in result_rows:
        total, mean, types = wanted[row.n, row.g]
        assert row.t == types
        for text_value, value in ((row.s, total), (row.a, mean)):
            if text_value is None or value is None:
                assert text_value is value, (row, value)
            else:
                same = (
                    float(text_value) == value if isinstance(value, float) else Decimal(text_value) == value
                )
                assert same, (row, value)


@pytest.mark.rule("DBSP-20")
def test_averages_in_the_middle_of_two_results_fall_where_sparks_do(spark: "SparkSession") -> None:
    chance = random.Random(8)
    ties: list[tuple[int, int]] = []
    while len(ties) < 400:
        count, cents = chance.choice((64, 128, 320, 640, 1_600)), chance.randrange(-(10**10) + 1, 10**10)
        if cents * 10**4 % count == count // 2:
            ties.append((cents, count))
    argument, result = arrow_of("decimal(10,2)"), arrow_of("decimal(14,6)")
    values = [Decimal(cents).scaleb(-2) for cents, _ in ties]
    table = pa.table(
        [list(range(len(ties))), pa.array(values, argument), [count for _, count in ties]],
        names=["g", "v", "n"],
    )
    spark.createDataFrame(table).createOrReplaceTempView("ties")
    rows = "SELECT g, IF(at = 1, v, 0.00BD) AS v FROM ties LATERAL VIEW explode(sequence(1, n)) AS at"
    text = f"SELECT g, avg(CAST(v AS DECIMAL(10,2))) AS a FROM ({rows}) GROUP BY g ORDER BY g"
    averages = [row.a for row in spark.sql(text).collect()]
    raw = [
        pa.array(values, pa.decimal128(38, 2)),
        pa.array([False] * len(ties)),
        pa.array([count for _, count in ties], pa.int64()),
    ]
    assert finish("avg", argument, result, raw).to_pylist() == averages
    with localcontext(prec=60, rounding=ROUND_HALF_UP):
        exact = [
            (value / count).quantize(Decimal("1e-6")) for value, (_, count) in zip(values, ties, strict=True)
        ]
    assert averages != exact, "doubles miss some"


@pytest.mark.rule("DBSP-20")
def test_averages_of_large_sums_are_those_of_sparks_doubles(spark: "SparkSession") -> None:
    count, argument, result = 6_000, arrow_of("decimal(11,0)"), arrow_of("decimal(15,4)")
    rows = f"SELECT g, 99999999999 - g * at % 7 AS v FROM range(1, 40) AS t(g), range({count}) AS u(at)"
    text = f"SELECT g, sum(v) AS s, avg(CAST(v AS DECIMAL(11,0))) AS a FROM ({rows}) GROUP BY g ORDER BY g"
    grouped = spark.sql(text).collect()
    raw = [
        pa.array([Decimal(row.s) for row in grouped], pa.decimal128(38, 0)),
        pa.array([False] * len(grouped)),
        pa.array([count] * len(grouped), pa.int64()),
    ]
    assert finish("avg", argument, result, raw).to_pylist() == [row.a for row in grouped]


@pytest.mark.rule("DBSP-20")
def test_what_does_not_fit_raises() -> None:
    big = pa.array([Decimal(2**63)], WIDE)
    no, yes = pa.array([False]), pa.array([True])
    with pytest.raises(ViewFailed, match="the sum overflows bigint"):
        finish("sum", pa.int64(), pa.int64(), [big, no])
    with pytest.raises(ViewFailed, match=r"the sum overflows decimal\(38,0\)"):
        finish("sum", WIDE, WIDE, [pa.array([None], WIDE), yes])
    narrow = pa.decimal128(12, 2)
    with pytest.raises(ViewFailed, match=r"the sum overflows decimal\(12,2\)"):
        finish("sum", pa.decimal128(2, 2), narrow, [pa.array([Decimal(10**11)], pa.decimal128(38, 2)), no])
    sums = [pa.array([Decimal(10**36)], WIDE), no, pa.array([1])]
    with pytest.raises(ViewFailed, match="the avg overflows"):
        finish("avg", WIDE, pa.decimal128(38, 4), sums)
    with pytest.raises(ViewFailed, match="the avg overflows"):
        finish("avg", WIDE, pa.decimal128(38, 4), [pa.array([None], WIDE), yes, pa.array([2])])
    assert finish("avg", pa.int64(), pa.float64(), [big, no, pa.array([2])]).to_pylist() == [float(2**62)]


def test_widths_and_refusals() -> None:
    assert [kernel(kind).raw_width(pa.int32()) for kind in ("count", "sum", "avg", "max")] == [1, 2, 3, 1]
    assert kernel("sum").raw_width(pa.float64()) == 1
    for kind in ("sum", "avg"):
        assert not kernel(kind).takes(pa.duration("us"), pa.duration("us"))
