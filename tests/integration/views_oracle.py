"""Compare queries with their circuits: plain Spark runs both over difficult data."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from tidemill.errors import QueryError, QueryRefused
from tidemill.spark import queries, schema
from tidemill.testing import Step
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import SparkColumn
from tidemill.views.circuit.ties import depends_on_ties, has_one_result, with_other_tie_breaks
from tidemill.views.sql.catalog import Analyse, QueryTable
from tidemill.views.sql.compiler import CompiledQuery, compile_query

TABLES = {
    "t": "a INT, b INT, c STRING, x DOUBLE, d DECIMAL(10,2), ts TIMESTAMP, day DATE",
    "u": "a INT, k BIGINT, e STRING, y DOUBLE",
    "n": "id INT, arr ARRAY<INT>, m MAP<STRING, INT>, s STRUCT<f: INT, g: STRING>",
    "none": "a INT, z STRING",
    "odd one": "`a b` INT, `select` STRING, `x``y` INT, `Ünï` STRING",
}

ROWS = {
    "t": """
        (1, 10, 'x', 1.5D, 1.10, TIMESTAMP '2024-01-01 00:00:00', DATE '2024-01-01'),
        (1, 10, 'x', 1.5D, 1.10, TIMESTAMP '2024-01-01 00:00:00', DATE '2024-01-01'),
        (2, 20, 'y', CAST('NaN' AS DOUBLE), 2.20, TIMESTAMP '2024-02-01 12:00:00', DATE '2024-02-01'),
        (2, 5, 'Y', -0.0D, 0.00, TIMESTAMP '2024-02-02 12:00:00', DATE '2024-02-02'),
        (3, NULL, NULL, 0.0D, NULL, NULL, NULL),
        (NULL, 7, 'x', NULL, 3.30, TIMESTAMP '2024-03-01 00:00:00', DATE '2024-03-01'),
        (NULL, NULL, 'z', CAST('NaN' AS DOUBLE), 4.40, NULL, DATE '2024-01-01'),
        (4, 2147483647, '', 1e300D, -1.10, TIMESTAMP '2024-01-01 00:00:00', DATE '2023-12-31'),
        (5, 0, 'x y', 2.5D, 99.99, TIMESTAMP '2023-01-01 00:00:00', DATE '2023-01-01')""",
    "u": """
        (1, 100, 'x', 1.5D), (1, 101, 'x', 2.5D), (2, 200, 'Y', CAST('NaN' AS DOUBLE)), (2, 200, 'Y', 0.0D),
        (NULL, 300, 'z', NULL), (6, NULL, NULL, -0.0D), (5, 7, 'w', 2.5D)""",
    "n": """
        (1, array(1, 2, NULL), map('k', 1, 'l', 2), named_struct('f', 1, 'g', 'one')),
        (2, array(), map(), named_struct('f', NULL, 'g', 'two')),
        (3, NULL, NULL, NULL), (4, array(2, 2), map('k', 5), named_struct('f', 4, 'g', NULL))""",
    "odd one": "(1, 'one', 10, 'ä'), (2, NULL, 20, NULL), (NULL, 'three', 30, 'c')",
}

# Hundreds of queries over a few rows: generating Java code would take most of the time.
SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # This rule ignores the order below a LIMIT under a scalar subquery: SELECT (SELECT max(k) FROM u
    # WHERE u.a = z.a) FROM (SELECT a FROM t ORDER BY x LIMIT 3) z returns any three rows of t.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.EliminateSorts",
}


@dataclass(frozen=True)
class Difference:
    """The rows in which a query and its circuit differ."""

    query: str
    circuit: str
    only_query: Counter[str]
    only_circuit: Counter[str]

    def __str__(self) -> str:
        return f"{self.query}\n{self.circuit}\nquery: {self.only_query}\ncircuit: {self.only_circuit}"


def columns_of(spark: Any, ddl: str) -> tuple[SparkColumn, ...]:
    empty = schema.empty_frame(spark, ddl)
    return tuple(SparkColumn(field.name, field.dataType.simpleString()) for field in empty.schema.fields)


def analysis(spark: Any) -> Analyse:
    """Return Spark's analysis of queries over temporary views with the names of the tables."""
    from pyspark.errors import PySparkException

    def analyse(sql: str, tables: Mapping[str, QueryTable]) -> Sequence[SparkColumn]:
        try:
            schema = spark.sql(sql).schema
        except PySparkException as error:
            raise refusal(str(error)) from None
        return [SparkColumn(field.name, field.dataType.simpleString()) for field in schema.fields]

    return analyse


def refusal(message: str) -> QueryRefused:
    error = QueryRefused(message.strip().splitlines()[0])
    position = re.search(r"line (\d+),? pos (\d+)", message)
    if position:
        error.line, error.column = int(position[1]), int(position[2]) + 1
    return error


@contextmanager
def settings(spark: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session and restore them at the end."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@contextmanager
def stage(
    spark: Any, rows: Mapping[str, str], ddl: Mapping[str, str] | None = None
) -> Iterator[dict[str, QueryTable]]:
    """Create the tables as temporary views, and use settings for many tiny queries."""
    tables = {}
    with settings(spark, SETTINGS), ExitStack() as stack:
        for name, types in (ddl or TABLES).items():
            columns = columns_of(spark, types)
            tables[name] = QueryTable(name, columns)
            quoted = [f"`{column.name.replace('`', '``')}`" for column in columns]
            cast = ", ".join(f"CAST(c{i} AS {c.type}) AS {quoted[i]}" for i, c in enumerate(columns))
            columns_list = ", ".join(f"c{i}" for i in range(len(columns)))
            nothing = ", ".join(["NULL"] * len(columns))
            values = (
                f"VALUES {rows[name]} AS v({columns_list})"
                if rows.get(name)
                else f"VALUES ({nothing}) AS v({columns_list})"
            )
            where = "" if rows.get(name) else " WHERE false"
            frame = spark.sql(f"SELECT {cast} FROM {values}{where}")
            frame.createOrReplaceTempView(f"`{name}`")
            stack.callback(spark.catalog.dropTempView, name)
            backwards = frame.selectExpr("*", "monotonically_increasing_id() AS __n").orderBy(
                "__n", ascending=False
            )
            backwards.drop("__n").createOrReplaceTempView(f"`{name} backwards`")
            stack.callback(spark.catalog.dropTempView, f"{name} backwards")
        yield tables


def steps(spark: Any, values: Mapping[str, str] = ROWS, ddl: Mapping[str, str] | None = None) -> list[Step]:
    """Return steps over the difficult rows: insert some, insert all and delete some, delete most of them."""
    tables = ddl or TABLES
    with stage(spark, values, tables):
        rows = {n: [row.asDict(recursive=True) for row in spark.table(f"`{n}`").collect()] for n in tables}
    half = {name: table_rows[::2] for name, table_rows in rows.items()}
    return [
        Step(inserts=half, now=int(datetime(2024, 1, 15, tzinfo=UTC).timestamp()) * 1_000_000),
        Step(inserts=rows, deletes={name: half_rows[:2] for name, half_rows in half.items()}),
        Step(deletes={name: table_rows[1:] for name, table_rows in rows.items()}),
    ]


def is_one_query(sql: str) -> bool:
    """Return whether the judge can rename the tables of a query; it cannot read VALUES without SELECT."""
    try:
        queries.table_names(sql)
    except QueryError:
        return False
    return True


def compiled(spark: Any, tables: Mapping[str, QueryTable], sql: str, **options: Any) -> CompiledQuery:
    return compile_query(sql, tables, analysis(spark), **options)


def bags(spark: Any, texts: Sequence[str]) -> list[Counter[str]]:
    """Return the rows of each query, from one Spark job with one task."""
    # The queries are not combined as text: some are not allowed in parentheses.
    return bags_of([spark.sql(sql) for sql in texts])


def bags_of(frames: Sequence[Any]) -> list[Counter[str]]:
    """Return the rows of each frame as text, from one Spark job with one task."""
    from pyspark.sql import functions as f

    parts = []
    for number, frame in enumerate(frames):
        # NULL fields are included, to distinguish them from missing fields.
        row = f.to_json(f.struct("*"), {"ignoreNullFields": "false"})
        parts.append(frame.select(f.lit(number).alias("number"), row.alias("text")))
    bags_by_frame: list[Counter[str]] = [Counter() for _ in frames]
    for number, text in reduce(lambda left, right: left.unionAll(right), parts).coalesce(1).collect():
        bags_by_frame[number][text] += 1
    return bags_by_frame


def check_equal(spark: Any, pairs: Mapping[str, tuple[Any, Any]]) -> None:
    """Check in one job that the frames of each pair have equal columns and rows."""
    with settings(spark, SETTINGS):
        results = bags_of([frame for pair in pairs.values() for frame in pair])
    for (name, (left, right)), left_rows, right_rows in zip(
        pairs.items(), results[::2], results[1::2], strict=True
    ):
        kinds = [[(field.name, field.dataType) for field in frame.schema] for frame in (left, right)]
        assert kinds[0] == kinds[1], name
        assert left_rows == right_rows, name


def differences(
    spark: Any, cases: Sequence[tuple[Any, ...]], batch: int = 16, row_counts: list[int] | None = None
) -> list[Difference]:
    """Return the queries that differ from their circuits; a case is a query and one or more circuits.

    If a query leaves ties, all its circuits break them in the same way. So the circuits must be equal to each
    other, and to the query if Spark has only one result for it, for any order of the input rows.
    `row_counts` receives the number of rows of each query.
    """
    wrong = []
    for start in range(0, len(cases), batch):
        batch_cases = cases[start : start + batch]
        texts = [text for sql, *circuits in batch_cases for text in (sql, *map(interpret, circuits))]
        results = iter(bags(spark, texts))
        for sql, *circuits in batch_cases:
            query = next(results)
            if row_counts is not None:
                row_counts.append(query.total())
            circuit_rows = [next(results) for _ in circuits]
            ordered = bool(circuits) and depends_on_ties(circuits[0])
            reference = circuit_rows[0] if ordered and has_one_result(circuits[0]) else query
            for output, circuit in zip(circuits, circuit_rows, strict=True):
                if circuit == query == reference:
                    continue
                if ordered and circuit == reference and circuit.total() == query.total():
                    backwards = queries.renamed(sql, "`{} backwards`".format)
                    variants = bags(spark, [backwards, *with_other_tie_breaks(interpret(output))])
                    if variants[0] != query or any(variant != circuit for variant in variants[1:]):
                        continue  # Spark has several results
                wrong.append(Difference(sql, interpret(output), query - circuit, circuit - query))
    return wrong
