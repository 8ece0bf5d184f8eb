"""Errors of the front point at the place, and say what could have been meant."""

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


def test_a_column_that_is_not_there_is_pointed_at_with_what_looks_like_it() -> None:
    error = raised("SELECT id,\n       amout\nFROM orders")
    assert isinstance(error, NameUnknown)
    assert (error.name, error.near) == ("amout", ("amount",))
    assert (error.line, error.column) == (2, 8)
    shown = error.message.splitlines()
    assert shown[0] == "there is no column amout (line 2, column 8)"
    assert shown[1] == "2 |        amout"
    assert shown[2] == "  |        ^^^^^"
    assert error.hint == "did you mean amount?"


@pytest.mark.parametrize(
    ("sql", "name", "near", "place"),
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
def test_names_that_are_not_there(sql: str, name: str, near: tuple[str, ...], place: tuple[int, int]) -> None:
    error = raised(sql)
    assert isinstance(error, NameUnknown), error
    assert (error.name, error.near, (error.line, error.column)) == (name, near, place)


def test_a_name_that_stands_for_two_columns_is_refused_with_both() -> None:
    error = raised("SELECT id FROM orders o, customers c")
    assert isinstance(error, NameAmbiguous)
    assert "o.id or c.id" in error.message
    assert (error.line, error.column) == (1, 8)


@pytest.mark.parametrize(
    ("sql", "place"),
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
def test_what_is_no_query_is_refused_at_its_place(sql: str, place: tuple[int, int]) -> None:
    error = raised(sql)
    assert isinstance(error, QuerySyntax)
    assert (error.line, error.column) == place
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
def test_what_spark_would_refuse_is_refused(sql: str) -> None:
    assert isinstance(raised(sql), QueryRefused)


def test_a_query_that_cannot_be_decomposed_needs_spark() -> None:
    error = raised("SELECT id FROM orders WHERE id = 1 OR EXISTS (SELECT 1 FROM customers)")
    assert isinstance(error, QueryRefused)
    assert "the compiler needs Spark" in error.message


def test_what_spark_refuses_is_refused_with_its_words() -> None:
    def analyse(sql: str, tables: object) -> list[object]:
        raise QueryRefused("[DATATYPE_MISMATCH] not like that")

    with pytest.raises(QueryRefused, match="DATATYPE_MISMATCH"):
        compile_query("SELECT id + true AS x FROM orders", TABLES, analyse)  # type: ignore[arg-type]
    with pytest.raises(NameUnknown, match="amout"):
        compile_query("SELECT amout FROM orders", TABLES, analyse)  # type: ignore[arg-type]


def test_tabs_keep_their_width_under_the_caret() -> None:
    error = raised("SELECT\n\tamout FROM orders")
    assert error.message.splitlines()[2] == "  | \t^^^^^"


def test_a_place_ends_with_its_line() -> None:
    assert position_of("ab\ncd", 1, 4).length == 1


def test_case_counts_where_it_is_told_to() -> None:
    tables = {"T": QueryTable("T", TABLES["orders"].columns)}
    assert compile_query("SELECT ID FROM t", tables).output.names == ("ID",)
    with pytest.raises(NameUnknown):
        compile_query("SELECT ID FROM T", tables, case_sensitive=True)
