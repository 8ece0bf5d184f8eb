"""Errors of the SQL compiler: they point at the position and suggest similar names."""

import pytest

from tests.unit.views_stage import TABLES, output
from tidemill.errors import NameAmbiguous, NameUnknown, QueryError, QueryRefused, QuerySyntax
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query
from tidemill.views.sql.query_position import position_of


def raised(sql: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        output(sql)
    return caught.value


def test_the_error_for_an_unknown_column_points_at_it_and_suggests_a_name() -> None:
    error = raised("SELECT id,\n       amout\nFROM orders")
    assert isinstance(error, NameUnknown)
    assert (error.name, error.near) == ("amout", ("amount",))
    assert (error.line, error.column) == (2, 8)
    lines = error.message.splitlines()
    assert lines[0] == "there is no column amout (line 2, column 8)"
    assert lines[1] == "2 |        amout"
    assert lines[2] == "  |        ^^^^^"
    assert error.hint == "did you mean amount?"


@pytest.mark.parametrize(
    ("sql", "name", "near", "position"),
    [
        ("SELECT id FROM order", "order", ("orders",), (1, 16)),
        ("SELECT o.idd FROM orders o", "idd", ("id",), (1, 10)),
        ("SELECT p.id FROM orders o", "p", (), (1, 8)),
        ("SELECT x.* FROM orders o", "x", (), (1, 8)),
        ("SELECT id FROM orders WHERE regoin = 'x'", "regoin", (), (1, 29)),
        ("SELECT c.id FROM customers c JOIN orders o USING (idd)", "idd", ("id",), (1, 51)),
        ("SELECT * EXCEPT (dya) FROM orders", "dya", ("day",), (1, 18)),
        ("SELECT sum(id) OVER v FROM orders WINDOW w AS (ORDER BY id)", "v", (), (1, 21)),
        ("SELECT cust, count(*) AS n FROM orders GROUP BY custt", "custt", ("cust",), (1, 49)),
        (
            "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM customers c WHERE c.idd = cust)",
            "idd",
            ("id",),
            (1, 71),
        ),
    ],
)
def test_unknown_names(sql: str, name: str, near: tuple[str, ...], position: tuple[int, int]) -> None:
    error = raised(sql)
    assert isinstance(error, NameUnknown), error
    assert (error.name, error.near, (error.line, error.column)) == (name, near, position)


def test_the_error_for_an_ambiguous_name_lists_both_columns() -> None:
    error = raised("SELECT id FROM orders o, customers c")
    assert isinstance(error, NameAmbiguous)
    assert "o.id or c.id" in error.message
    assert (error.line, error.column) == (1, 8)


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("SELECT id FRM orders WHERE", (1, 15)),
        ("SELECT (id FROM orders", (1, 12)),
        ("SELEC id FROM orders", (1, 10)),
        ("", (1, 1)),
        ("SELECT 1; SELECT 2", (1, 9)),
        ("DROP TABLE orders", (1, 1)),
        ("INSERT INTO orders SELECT * FROM orders", (1, 1)),
    ],
)
def test_a_syntax_error_has_a_position(sql: str, position: tuple[int, int]) -> None:
    error = raised(sql)
    assert isinstance(error, QuerySyntax)
    assert (error.line, error.column) == position
    assert "^" in error.message


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, count(*) AS n FROM orders",
        "SELECT cust, id FROM orders GROUP BY cust",
        "SELECT id FROM orders ORDER BY 4 LIMIT 1",
        "SELECT id, id FROM orders",
        "SELECT id FROM orders UNION ALL SELECT id, cust FROM orders",
        "SELECT p FROM (SELECT id, cust FROM orders) AS q(p)",
    ],
)
def test_the_compiler_refuses_what_spark_would_refuse(sql: str) -> None:
    assert isinstance(raised(sql), QueryRefused)


def test_a_query_that_cannot_be_decomposed_needs_spark() -> None:
    error = raised("SELECT id IN (SELECT id FROM customers) AS known FROM orders")
    assert isinstance(error, QueryRefused)
    assert "the compiler needs Spark" in error.message


def test_an_error_of_spark_keeps_its_message() -> None:
    def analyse(sql: str, tables: object) -> list[object]:
        raise QueryRefused("[DATATYPE_MISMATCH] not like that")

    with pytest.raises(QueryRefused, match="DATATYPE_MISMATCH"):
        compile_query("SELECT id + true AS x FROM orders", TABLES, analyse)  # type: ignore[arg-type]
    with pytest.raises(NameUnknown, match="amout"):
        compile_query("SELECT amout FROM orders", TABLES, analyse)  # type: ignore[arg-type]


def test_carets_are_aligned_below_tabs() -> None:
    error = raised("SELECT\n\tamout FROM orders")
    assert error.message.splitlines()[2] == "  | \t^^^^^"


def test_a_position_ends_with_its_line() -> None:
    assert position_of("ab\ncd", 1, 4).length == 1


def test_names_are_case_sensitive_on_request() -> None:
    tables = {"T": QueryTable("T", TABLES["orders"].columns)}
    assert compile_query("SELECT ID FROM t", tables).output.names == ("ID",)
    with pytest.raises(NameUnknown):
        compile_query("SELECT ID FROM T", tables, case_sensitive=True)
