"""Expressions that Arrow evaluates give the values and types of Spark, also for values at every limit."""

# ruff: noqa: E501  # tables of values and expressions

import random
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from tidemill.spark.sessions import frame_of
from tidemill.views.circuit.expr import Expr, Part
from tidemill.views.kernels.scalars import ArrowRows, ArrowSelect, NotComputed
from tidemill.views.spark.arrow_compiler import NotCompiled, compile_scalar
from tidemill.views.spark.arrow_types import arrow_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 120
RANDOM_EXPRESSIONS = 150
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

VALUES: dict[str, Sequence[Any]] = {
    "tinyint": [-128, 127, 0, 1, -1],
    "smallint": [-32768, 32767, 0, 7],
    "int": [-(2**31), 2**31 - 1, 0, 1, -1, 2024],
    "bigint": [-(2**63), 2**63 - 1, 0, 1, 2**53 + 1, -(2**53) - 1, 10**18],
    "decimal(10,2)": [
        Decimal(text) for text in ("99999999.99", "-99999999.99", "0.00", "0.01", "-0.01", "7.50")
    ],
    "decimal(20,5)": [Decimal(text) for text in ("999999999999999.99999", "0.00001", "-1.50000", "7.50000")],
    "double": [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e308, 5e-324, 0.1, -2.5, 2.0**53],
    "string": [
        "",
        " ",
        " a ",
        "a",
        "A",
        "abc",
        "ABC",
        "ä",
        "ß",
        "İ",
        "\U0001f30a x",
        "a\tb",
        "100%",
        "a_b",
        "ab\nc",
    ],
    "boolean": [True, False],
    "date": [
        date(1, 1, 1),
        date(1582, 10, 4),
        date(1969, 12, 31),
        date(2024, 2, 29),
        date(2026, 1, 1),
        date(9999, 12, 31),
    ],
    "timestamp": [
        EPOCH + timedelta(microseconds=us)
        for us in (
            0,
            -1,
            1,
            -86_400_000_000,
            1_709_251_199_999_999,
            -2_208_988_800_000_001,
            253_402_300_799_999_999,
        )
    ],
}
TYPES = list(VALUES)
COLUMNS = [*TYPES, *TYPES]  # two columns of each type, so that both sides of an operation vary


class Written(NamedTuple):
    """An expression as text, with its columns as numbers."""

    parts: tuple[Part, ...]

    @property
    def sql(self) -> str:
        return "".join(part if isinstance(part, str) else f"c{part}" for part in self.parts)


def rows(chance: random.Random) -> pa.Table:
    columns = []
    for kind in COLUMNS:
        values = [*VALUES[kind], None]
        columns.append(pa.array([chance.choice(values) for _ in range(ROWS)], arrow_of(kind)))
    names = [f"c{number}" for number in range(len(columns))]
    return pa.table([*columns, pa.array([1] * ROWS)], names=[*names, "_w"])


# --- expressions

TEMPLATES: dict[str, list[str]] = {
    "boolean": [
        "{x} = {x'}", "{x} <> {x'}", "{x} < {x'}", "{x} <= {x'}", "{x} > {x'}", "{x} >= {x'}", "{x} <=> {x'}",
        "{x} IS NULL", "{x} IS NOT NULL", "{x} BETWEEN {x'} AND {x}", "{x} NOT BETWEEN {x'} AND {x'}",
        "{integer} = {integer}", "{integer} < {decimal}", "{decimal} >= {decimal}", "{integer} <= {double}",
        "{boolean} AND {boolean}", "{boolean} OR {boolean}", "NOT {boolean}", "{decimal} = 7.5", "{double} > 0",
        "{integer} IN (0, 1, 127)", "{integer} NOT IN (1, NULL)", "{string} IN ('a', 'ß', '')", "{string} LIKE 'a%'",
        "{string} LIKE '%b'", "{string} NOT LIKE '%a%'", "{string} LIKE 'abc'", "{date} >= '2024-02-29'",
        "{date} < DATE '1970-01-01'", "{timestamp} >= TIMESTAMP '1970-01-01 00:00:00'", "{timestamp} < {date}",
        "{timestamp} > '2024-02-29 00:00:00'",
    ],
    "int": [
        "{int} + {int}", "{int} - 1", "{int} * {int}", "-{int}", "abs({int})", "year({date})", "month({timestamp})",
        "dayofmonth({date})", "quarter({date})", "hour({timestamp})", "minute({timestamp})", "second({timestamp})",
        "length({string})", "CAST({bigint} AS INT)", "day({timestamp})",
    ],
    "tinyint": ["{tinyint} + {tinyint}", "{tinyint} * {tinyint}", "-{tinyint}", "CAST({int} AS TINYINT)"],
    "smallint": ["{smallint} - {tinyint}", "abs({smallint})"],
    "bigint": [
        "{bigint} + {int}", "{bigint} - {bigint}", "{bigint} * {tinyint}", "-{bigint}", "abs({bigint})",
        "coalesce({bigint}, {int}, 0)", "nullif({bigint}, {int})", "CAST({decimal} AS BIGINT)", "{bigint} + 3000000000",
        "CAST(NULL AS BIGINT)",
    ],
    "decimal(10,2)": ["-{decimal(10,2)}", "CAST({integer} AS DECIMAL(10,2))", "CAST({decimal(20,5)} AS DECIMAL(10,2))"],
    "decimal(20,5)": ["CAST({decimal(10,2)} AS DECIMAL(20,5))"],
    "decimal": [
        "{decimal} + {decimal}", "{decimal} - {integer}", "{decimal} * 2", "{decimal(10,2)} * {decimal(10,2)}",
        "{decimal(10,2)} * (1 - {decimal(10,2)})", "1.5 + {integer}", "coalesce({decimal(10,2)}, 0)",
        "CASE WHEN {boolean} THEN {decimal(10,2)} ELSE 0 END", "{decimal(10,2)} * {integer}",
    ],
    "double": [
        "{double} + {double}", "{double} - {integer}", "{double} * {double}", "{double} / {double}", "-{double}",
        "{int} / {integer}", "abs({double})", "CAST({integer} AS DOUBLE)", "nullif({double}, 0.0D)",
    ],
    "string": [
        "upper({string})", "lower({string})", "trim({string})", "ltrim({string})", "rtrim({string})",
        "substring({string}, 1, 2)", "substr({string}, 2)", "substring({string}, 2, 0)", "{string} || {string}",
        "concat({string}, '-', {string})", "coalesce({string}, 'none')", "CAST({integer} AS STRING)",
        "CAST({boolean} AS STRING)", "CAST({date} AS STRING)", "CASE {string} WHEN 'a' THEN 'one' WHEN 'ß' THEN 'two' END",
    ],
    "date": ["CAST({timestamp} AS DATE)", "to_date({timestamp})", "date({timestamp})", "coalesce({date}, DATE '2024-01-31')"],
    "timestamp": [
        "CAST({date} AS TIMESTAMP)", "date_trunc('hour', {timestamp})", "date_trunc('DAY', {timestamp})",
        "date_trunc('month', {timestamp})", "date_trunc('minute', {timestamp})", "date_trunc('year', {timestamp})",
        "{timestamp} + INTERVAL '600.500000' SECOND", "{timestamp} - INTERVAL 90 MINUTES", "{timestamp} + INTERVAL 23 HOURS",
    ],
    "any": [
        "CASE WHEN {boolean} THEN {x} WHEN {boolean} THEN {x'} END", "CASE WHEN {boolean} THEN {x} ELSE {x'} END",
        "if({boolean}, {x}, NULL)", "coalesce({x}, {x'})", "nullif({x}, {x'})",
        "named_struct('a', {x}, 'b', {x'}).b",
    ],
}  # fmt: skip
FAMILIES = {
    "integer": ["tinyint", "smallint", "int", "bigint"],
    "decimal": ["decimal(10,2)", "decimal(20,5)"],
    "any": TYPES,
}


def column_of(kind: str, chance: random.Random) -> Written:
    kind = chance.choice(FAMILIES.get(kind, [kind]))
    return Written((chance.choice([number for number, each in enumerate(COLUMNS) if each == kind]),))


def filled(template: str, chance: random.Random, depth: int) -> Written:
    """Replace the names of types by columns, or by other expressions of these types."""
    some = chance.choice(TYPES)
    parts: list[Part] = []
    for number, piece in enumerate(template.replace("}", "{").split("{")):
        if number % 2 == 0:
            parts.append(piece)
            continue
        kind = some if piece in ("x", "x'") else piece
        if depth and kind in TEMPLATES and chance.random() < 0.6:
            inner = filled(chance.choice(TEMPLATES[kind]), chance, depth - 1)
            parts += ["(", *inner.parts, ")"]
        else:
            parts += column_of(kind, chance).parts
    return Written(tuple(parts))


def expressions(chance: random.Random) -> list[Written]:
    """Return every template over columns, for each type if it has any, and nested ones."""
    flat = [
        filled(template, chance, 0)
        for templates in TEMPLATES.values()
        for template in templates
        for _ in range(4 if "{x}" in template else 1)
    ]
    every = [template for templates in TEMPLATES.values() for template in templates]
    return [*flat, *(filled(chance.choice(every), chance, 2) for _ in range(RANDOM_EXPRESSIONS))]


# --- the comparison


class Computed(NamedTuple):
    """The value of an expression in those rows that Arrow computes."""

    written: Written
    type: pa.DataType
    values: dict[int, Any]


def by_arrow(written: Written, table: pa.Table) -> Computed | None:
    """Evaluate an expression; return None if Spark must evaluate it in all rows."""
    try:
        scalar = compile_scalar(Expr(written.parts), [arrow_of(kind) for kind in COLUMNS])
    except NotCompiled:
        return None
    compiled = ArrowRows((ArrowSelect((scalar,)),))
    try:
        column = compiled.apply(table).column(0)
        return Computed(written, scalar.type, dict(enumerate(comparable(column))))
    except NotComputed:
        values = {}
        for number in range(table.num_rows):
            try:
                (values[number],) = comparable(compiled.apply(table.slice(number, 1)).column(0))
            except NotComputed:
                continue
        return Computed(written, scalar.type, values) if values else None


def comparable(column: Any) -> list[Any]:
    """Return values that are equal only if they are equal bit for bit; any NaN is the same."""
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(column.type):  # Python has no year 10000
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_floating(column.type):
        return [
            value if value is None else "NaN" if value != value else struct.pack(">d", value)
            for value in column.to_pylist()
        ]
    return list(column.to_pylist())


@pytest.mark.rule("DBSP-10")
def test_arrow_computes_what_spark_computes(spark: "SparkSession") -> None:
    chance = random.Random(20)
    table = rows(chance)
    computed = [done for written in expressions(chance) if (done := by_arrow(written, table)) is not None]
    assert len(computed) > 200, "most expressions are compiled"
    numbered = table.append_column("n", pa.array(range(ROWS), pa.int32()))
    frame = frame_of(spark, numbered, spark_schema(numbered.schema))
    for first in range(0, len(computed), 100):
        part = computed[first : first + 100]
        selected = []
        for number, done in enumerate(part):
            left_out = ", ".join(str(row) for row in range(ROWS) if row not in done.values)
            value = (
                f"CASE WHEN n NOT IN ({left_out}) THEN {done.written.sql} END"
                if left_out
                else done.written.sql
            )
            selected.append(f"{value} AS e{number}")
        result = frame.selectExpr("n", *selected).toArrow().sort_by("n")
        for number, done in enumerate(part):
            column = result.column(f"e{number}")
            assert column.type == done.type, done.written.sql
            expected = comparable(column)
            wrong = {
                row: (value, expected[row]) for row, value in done.values.items() if value != expected[row]
            }
            assert not wrong, (
                f"{done.written.sql}: {wrong}, in {table.slice(next(iter(wrong)), 1).to_pylist()}"
            )
