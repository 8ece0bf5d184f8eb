"""What fuzzing finds is made smaller: rows and parts of the query that are not needed are left out."""

from tests.integration.views_shrinking import Rows, shorter, shrunk_query, shrunk_rows, shrunk_steps
from tidemill.testing import Step

DDL = {"t": "a INT", "u": "a INT"}


def test_rows_are_left_out_for_as_long_as_it_still_differs() -> None:
    steps = [
        Step(inserts={"t": [{"a": n} for n in range(9)]}),
        Step(inserts={"u": [{"a": n} for n in range(7)]}, deletes={"t": [{"a": 0}]}),
    ]

    def differs(rows: Rows) -> bool:
        return {"a": 5} in rows["t"] and {"a": 3} in rows["u"]

    assert shrunk_rows(DDL, steps, differs) == {"t": [{"a": 5}], "u": [{"a": 3}]}
    assert shrunk_rows(DDL, steps, lambda rows: False) is None


def test_steps_and_their_rows_are_left_out_for_as_long_as_it_still_differs() -> None:
    steps = [
        Step(inserts={"t": [{"a": n} for n in range(40)]}),
        Step(inserts={"u": [{"a": n} for n in range(7)]}),
        Step(deletes={"t": [{"a": n} for n in range(30)]}),
    ]

    def differs(some: list[Step]) -> bool:
        there = [{"a": 5} in step.inserts.get("t", ()) for step in some]
        gone = [{"a": 5} in step.deletes.get("t", ()) for step in some]
        return any(there) and any(gone) and there.index(True) < gone.index(True)

    first, second = shrunk_steps(steps, differs)
    assert (first.inserts, first.deletes) == ({"t": [{"a": 5}]}, {})
    assert (second.inserts, second.deletes) == ({}, {"t": [{"a": 5}]})
    assert shrunk_steps(steps, lambda some: False) == steps


def test_clauses_columns_and_queries_around_it_are_left_out() -> None:
    sql = (
        "WITH q AS (SELECT z1.a AS a, count(*) AS n FROM t z1 LEFT JOIN u z2 ON z1.a = z2.a "
        "WHERE z1.a > 0 GROUP BY z1.a HAVING count(*) > 1) SELECT q.a, q.n FROM q ORDER BY q.a LIMIT 3"
    )
    small = shrunk_query(sql, lambda less: "LEFT JOIN" in less)
    assert small == "SELECT z1.a AS a FROM t AS z1 LEFT JOIN u AS z2 ON z1.a = z2.a"
    assert all(len(less) < len(sql) + 40 for less in shorter(sql))


def test_a_query_that_cannot_be_smaller_stays() -> None:
    assert shrunk_query("SELECT a FROM t", lambda less: False) == "SELECT a FROM t"
