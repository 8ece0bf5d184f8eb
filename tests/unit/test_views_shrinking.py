"""Shrinking of queries that fuzzing found: unnecessary rows and parts of the query are removed."""

from tests.integration.views_shrinking import Rows, shorter, shrunk_query, shrunk_rows, shrunk_steps
from tidemill.testing import Step

DDL = {"t": "a INT", "u": "a INT"}


def test_unnecessary_rows_are_removed() -> None:
    steps = [
        Step(inserts={"t": [{"a": n} for n in range(9)]}),
        Step(inserts={"u": [{"a": n} for n in range(7)]}, deletes={"t": [{"a": 0}]}),
    ]

    def differs(rows: Rows) -> bool:
        return {"a": 5} in rows["t"] and {"a": 3} in rows["u"]

    assert shrunk_rows(DDL, steps, differs) == {"t": [{"a": 5}], "u": [{"a": 3}]}
    assert shrunk_rows(DDL, steps, lambda rows: False) is None


def test_unnecessary_steps_and_rows_are_removed() -> None:
    steps = [
        Step(inserts={"t": [{"a": n} for n in range(40)]}),
        Step(inserts={"u": [{"a": n} for n in range(7)]}),
        Step(deletes={"t": [{"a": n} for n in range(30)]}),
    ]

    def differs(remaining: list[Step]) -> bool:
        inserted = [{"a": 5} in step.inserts.get("t", ()) for step in remaining]
        deleted = [{"a": 5} in step.deletes.get("t", ()) for step in remaining]
        return any(inserted) and any(deleted) and inserted.index(True) < deleted.index(True)

    first, second = shrunk_steps(steps, differs)
    assert (first.inserts, first.deletes) == ({"t": [{"a": 5}]}, {})
    assert (second.inserts, second.deletes) == ({}, {"t": [{"a": 5}]})
    assert shrunk_steps(steps, lambda remaining: False) == steps


def test_unnecessary_clauses_columns_and_outer_queries_are_removed() -> None:
    sql = (
        "WITH q AS (SELECT z1.a AS a, count(*) AS n FROM t z1 LEFT JOIN u z2 ON z1.a = z2.a "
        "WHERE z1.a > 0 GROUP BY z1.a HAVING count(*) > 1) SELECT q.a, q.n FROM q ORDER BY q.a LIMIT 3"
    )
    small = shrunk_query(sql, lambda shorter_sql: "LEFT JOIN" in shorter_sql)
    assert small == "SELECT z1.a AS a FROM t AS z1 LEFT JOIN u AS z2 ON z1.a = z2.a"
    assert all(len(shorter_sql) < len(sql) + 40 for shorter_sql in shorter(sql))


def test_a_minimal_query_stays_unchanged() -> None:
    assert shrunk_query("SELECT a FROM t", lambda shorter_sql: False) == "SELECT a FROM t"
