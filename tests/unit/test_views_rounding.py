"""Which views have values that plain Spark may round differently."""

import pytest

from tidemill.views.circuit.operators import SparkColumn
from tidemill.views.circuit.rounding import AVERAGED, DECIDES, ROUNDED
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query

COLUMNS = {"k": "int", "b": "bigint", "x": "double", "d": "decimal(10,2)"}
TABLES = {"t": QueryTable("t", tuple(SparkColumn(name, kind) for name, kind in COLUMNS.items()))}


@pytest.mark.rule("DBSP-20")
@pytest.mark.parametrize(
    ("query", "notes"),
    [
        ("SELECT k, sum(b) AS s, avg(d) AS a, max(x) AS m, count(x) AS n FROM t GROUP BY k", ()),
        ("SELECT k, avg(b) AS a FROM t GROUP BY k", (AVERAGED,)),
        ("SELECT k, sum(x) AS s FROM t GROUP BY k", (ROUNDED,)),
        ("SELECT k, median(x) AS s FROM t GROUP BY k", ()),
        ("SELECT k FROM t GROUP BY k HAVING sum(x) > 0", (ROUNDED, DECIDES)),
        (
            "SELECT s, count(*) AS n FROM (SELECT sum(x) AS s FROM t GROUP BY k) GROUP BY s",
            (ROUNDED, DECIDES),
        ),
        ("SELECT DISTINCT sum(x) OVER (PARTITION BY k) AS s FROM t", (ROUNDED, DECIDES)),
        ("SELECT k, b FROM t WHERE b > 0 AND x > 0", ()),
        (
            "SELECT z.k FROM (SELECT k, avg(b) AS m FROM t GROUP BY k) z JOIN t ON z.m = t.x",
            (AVERAGED, DECIDES),
        ),
    ],
)
def test_explain_notes_values_that_are_rounded(query: str, notes: tuple[str, ...]) -> None:
    assert compile_query(query, TABLES).notes == notes
