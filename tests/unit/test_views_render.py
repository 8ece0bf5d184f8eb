"""Operators as SQL: the text of the interpreter, the values of the clock, and tie breaking."""

import pytest

from tests.unit.views_stage import output
from tidemill.views.circuit import interpreter
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import ClockValue, Expr, binary, call, column, merge_parts, text
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import SparkColumn
from tidemill.views.circuit.render import Renderer, quoted
from tidemill.views.circuit.ties import break_ties, depends_on_ties, has_one_result, hash_of


def test_the_time_of_the_step_replaces_clock_functions_but_not_strings() -> None:
    view = output(
        "SELECT id, 'now()' AS s, unix_timestamp() AS u FROM events WHERE at < now() AND at > current_date"
    )
    sql = interpret(
        view,
        Renderer(
            {ClockValue.TIMESTAMP: "TIMESTAMP '2024-01-01 00:00:00'", ClockValue.DATE: "DATE '2024-01-01'"}
        ),
    )
    assert "current_" not in sql
    assert "'now()'" in sql
    assert sql.count("TIMESTAMP '2024-01-01 00:00:00'") == 2
    assert sql.count(" DATE '2024-01-01'") == 1


def sql_with_tie_breaks(sql: str) -> str:
    """Return the SQL of a circuit with ties broken; all columns are strings."""
    view = output(sql)
    types = {op: ("string",) * op.width for op in walk(view)}
    return interpret(break_ties(view, types))


@pytest.mark.rule("DBSP-20")
def test_ties_are_broken_only_where_the_order_of_peers_matters() -> None:
    over = "OVER (PARTITION BY kind ORDER BY at"
    for function, frame, has_hash in [
        ("row_number()", "", True),
        ("lag(id)", "", True),
        ("sum(id)", "ROWS UNBOUNDED PRECEDING", True),
        ("first_value(id)", "", True),
        ("rank()", "", False),
        ("dense_rank()", "", False),
        ("percent_rank()", "", False),
        ("cume_dist()", "", False),
        ("last_value(id)", "", False),
        ("nth_value(id, 2)", "RANGE UNBOUNDED PRECEDING", False),
        ("sum(id)", "", False),
        ("sum(id)", "RANGE UNBOUNDED PRECEDING", False),
    ]:
        sql = sql_with_tie_breaks(f"SELECT {function} {over} {frame}) AS n FROM events")
        assert ("xxhash64(" in sql) is has_hash, (function, frame)


@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_types_that_spark_cannot_hash_are_converted_first() -> None:
    kinds = ["int", "variant", "geometry(4326)", "array<geography(4326)>"]
    sql = hash_of(kinds)[0].sql()
    assert "isnull(c0), c0," in sql
    assert "isnull(c1), CAST(c1 AS STRING)," in sql
    assert "isnull(c2), ST_AsBinary(c2)," in sql
    assert "'v', ST_AsBinary(i0)" in sql


@pytest.mark.rule("DBSP-20")
def test_limits_and_aggregates_break_ties_by_the_hash_of_the_row() -> None:
    limited = sql_with_tie_breaks("SELECT id FROM events LIMIT 3")
    assert "xxhash64(1953064037, isnull(c0), c0) AS o0, xxhash64(1835625580, isnull(c0), c0) AS o1" in limited
    assert "ORDER BY o0 ASC NULLS FIRST, o1 ASC NULLS FIRST LIMIT 3" in limited
    for function, expected in [
        ("first(kind)", "min_by(c1, named_struct('h', xxhash64("),
        ("last(kind)", "max_by(c1, named_struct('h', xxhash64("),
        ("any_value(kind)", "min_by(c1, named_struct('h', xxhash64("),
        ("max_by(kind, at)", "max_by(c1, named_struct('k', c3, 'r', named_struct('h', xxhash64("),
        ("mode(kind)", "mode(c1, true)"),
        ("collect_list(kind)", "transform(array_sort(collect_list(named_struct('r', "),
        ("collect_list(kind) FILTER (WHERE id > 1)", "FILTER (WHERE (c0 > 1) AND (c1 IS NOT NULL))"),
    ]:
        view = output(f"SELECT {function} AS v FROM events GROUP BY id")
        assert depends_on_ties(view)
        assert not has_one_result(view)
        sql = sql_with_tie_breaks(f"SELECT {function} AS v FROM events GROUP BY id")
        assert expected in sql, sql


def test_names_with_backquotes_are_quoted() -> None:
    assert quoted("a`b c") == "`a``b c`"


def test_one_analysis_returns_all_types() -> None:
    queries = []

    def analyse(sql: str) -> list[SparkColumn]:
        queries.append(sql)
        return [
            SparkColumn("s0", "struct<c0:bigint,c1:string>"),
            SparkColumn("s1", "struct<c0:bigint>"),
            SparkColumn("s2", "struct<c0:bigint>"),
        ]

    from tidemill.views.sql.catalog import QueryTable
    from tidemill.views.sql.compiler import compile_query

    table = QueryTable("t", (SparkColumn("a", "bigint"), SparkColumn("b", "string")))
    view = compile_query("SELECT a FROM t", {"t": table}).output
    types = interpreter.column_types(view, analyse)
    assert types[view] == ("bigint",)
    assert len(queries) == 1


def test_combined_expressions_have_the_parentheses_they_need() -> None:
    total = binary(column(0), "+", text("1"))
    assert str(total) == "c0 + 1"
    assert str(binary(total, "*", column(1))) == "(c0 + 1) * c1"
    assert (
        str(call("f", total, column(2)).with_columns(lambda i: total if i == 2 else column(i)))
        == "f(c0 + 1, (c0 + 1))"
    )
    assert total.renumbered(lambda i: i + 5).columns == {5}
    assert merge_parts(["a", "b", 1, "", "c"]) == ("ab", 1, "c")
    assert Expr((3,)).column == 3
    assert total.column is None
