"""Operators as SQL: what the interpreter writes, and what it puts in for the clock and for ties."""

import pytest

from tests.unit.views_stage import output
from tidemill.views.circuit import interpreter
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import ClockValue, Expr, binary, call, column, joined, text
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import SparkColumn
from tidemill.views.circuit.render import Renderer, quoted
from tidemill.views.circuit.ties import break_ties, depends_on_ties, has_one_result, hash_of


def test_the_clock_of_a_step_is_put_in_everywhere_and_strings_are_left_alone() -> None:
    made = output(
        "SELECT id, 'now()' AS s, unix_timestamp() AS u FROM events WHERE at < now() AND at > current_date"
    )
    said = interpret(
        made,
        Renderer(
            {ClockValue.TIMESTAMP: "TIMESTAMP '2024-01-01 00:00:00'", ClockValue.DATE: "DATE '2024-01-01'"}
        ),
    )
    assert "current_" not in said
    assert "'now()'" in said
    assert said.count("TIMESTAMP '2024-01-01 00:00:00'") == 2
    assert said.count(" DATE '2024-01-01'") == 1


def broken(sql: str) -> str:
    """A query's circuit with its ties broken; every operator below has columns of text."""
    made = output(sql)
    types = {op: ("string",) * op.width for op in walk(made)}
    return interpret(break_ties(made, types))


@pytest.mark.rule("DBSP-20")
def test_ties_are_broken_where_order_decides_and_nowhere_else() -> None:
    over = "OVER (PARTITION BY kind ORDER BY at"
    for said_of, frame, told_apart in [
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
        said = broken(f"SELECT {said_of} {over} {frame}) AS n FROM events")
        assert ("xxhash64(" in said) is told_apart, (said_of, frame)


@pytest.mark.rule("DBSP-20", "DBSP-21")
def test_what_spark_does_not_hash_is_hashed_by_a_form_that_it_has() -> None:
    kinds = ["int", "variant", "geometry(4326)", "array<geography(4326)>"]
    said = hash_of(kinds)[0].sql()
    assert "isnull(c0), c0," in said
    assert "isnull(c1), CAST(c1 AS STRING)," in said
    assert "isnull(c2), ST_AsBinary(c2)," in said
    assert "'v', ST_AsBinary(i0)" in said


@pytest.mark.rule("DBSP-20")
def test_ties_of_limits_and_of_groups_are_broken_by_the_hash_of_the_row() -> None:
    limited = broken("SELECT id FROM events LIMIT 3")
    assert "xxhash64(1953064037, isnull(c0), c0) AS o0, xxhash64(1835625580, isnull(c0), c0) AS o1" in limited
    assert "ORDER BY o0 ASC NULLS FIRST, o1 ASC NULLS FIRST LIMIT 3" in limited
    for said_of, settles in [
        ("first(kind)", "min_by(c1, named_struct('h', xxhash64("),
        ("last(kind)", "max_by(c1, named_struct('h', xxhash64("),
        ("any_value(kind)", "min_by(c1, named_struct('h', xxhash64("),
        ("max_by(kind, at)", "max_by(c1, named_struct('k', c3, 'r', named_struct('h', xxhash64("),
        ("mode(kind)", "mode(c1, true)"),
        ("collect_list(kind)", "transform(array_sort(collect_list(named_struct('r', "),
        ("collect_list(kind) FILTER (WHERE id > 1)", "FILTER (WHERE (c0 > 1) AND (c1 IS NOT NULL))"),
    ]:
        made = output(f"SELECT {said_of} AS v FROM events GROUP BY id")
        assert depends_on_ties(made)
        assert not has_one_result(made)
        said = broken(f"SELECT {said_of} AS v FROM events GROUP BY id")
        assert settles in said, said


def test_names_are_quoted_whatever_is_in_them() -> None:
    assert quoted("a`b c") == "`a``b c`"


def test_types_come_from_one_question() -> None:
    asked = []

    def ask(sql: str) -> list[SparkColumn]:
        asked.append(sql)
        return [
            SparkColumn("s0", "struct<c0:bigint,c1:string>"),
            SparkColumn("s1", "struct<c0:bigint>"),
            SparkColumn("s2", "struct<c0:bigint>"),
        ]

    from tidemill.views.sql.catalog import QueryTable
    from tidemill.views.sql.compiler import compile_query

    table = QueryTable("t", (SparkColumn("a", "bigint"), SparkColumn("b", "string")))
    made = compile_query("SELECT a FROM t", {"t": table}).output
    found = interpreter.column_types(made, ask)
    assert found[made] == ("bigint",)
    assert len(asked) == 1


def test_expressions_are_put_together_with_the_parentheses_they_need() -> None:
    total = binary(column(0), "+", text("1"))
    assert str(total) == "c0 + 1"
    assert str(binary(total, "*", column(1))) == "(c0 + 1) * c1"
    assert (
        str(call("f", total, column(2)).with_columns(lambda i: total if i == 2 else column(i)))
        == "f(c0 + 1, (c0 + 1))"
    )
    assert total.renumbered(lambda i: i + 5).columns == {5}
    assert joined(["a", "b", 1, "", "c"]) == ("ab", 1, "c")
    assert Expr((3,)).column == 3
    assert total.column is None
