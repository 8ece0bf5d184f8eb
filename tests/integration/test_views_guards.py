"""Expressions that can raise an error are evaluated only on rows on which Spark evaluates them."""

# ruff: noqa: E501  # each query is on one line with its name

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.views_follow import follow
from tidemill.testing import Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = {"t": "id INT, g STRING, k INT, b BIGINT", "u": "k INT, v INT"}
NUMBER = "RLIKE '^[0-9]+$'"

VIEWS = {
    "string and number": f"SELECT id FROM (SELECT * FROM t WHERE g {NUMBER}) WHERE g = 1",
    "same select": f"SELECT id, CAST(g AS INT) AS n FROM t WHERE g {NUMBER}",
    "join key": f"SELECT t.id, u.v FROM t JOIN u ON t.k = u.k AND CAST(t.g AS INT) = u.v WHERE t.g {NUMBER}",
    "only key": f"SELECT t.id, u.v FROM t JOIN u ON CAST(t.g AS INT) = u.v WHERE t.g {NUMBER}",
    "group key": f"SELECT CAST(g AS INT) AS n, count(*) AS c FROM t WHERE g {NUMBER} GROUP BY CAST(g AS INT)",
    "below a projection": "SELECT * FROM (SELECT id, 10 DIV k AS z, k FROM t) WHERE k % 7 <> 0",
    "below an aggregate": "SELECT k, sum(z) AS s FROM (SELECT k, 100 DIV k AS z FROM t) WHERE k + 0 > 0 GROUP BY k",
    "having": "SELECT * FROM (SELECT k, sum(100 DIV k) AS s FROM t GROUP BY k) WHERE abs(k) > 0",
    "outer join": "SELECT t.id, u.v FROM t LEFT JOIN u ON t.k = u.k AND 10 DIV u.v > 1 WHERE u.v > 0",
    "outer join of a projection": "SELECT t.id, z.q FROM t LEFT JOIN (SELECT k, v, 10 DIV v AS q FROM u) z ON t.k = z.k WHERE z.v > 0",
    "left side": "SELECT z.id, u.v FROM (SELECT id, k, 10 DIV k AS z FROM t) z LEFT JOIN u ON z.z = u.v WHERE z.k % 5 > 0",
    "exists": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.v = 10 DIV t.k) AND abs(t.k) > 0",
    "window": "SELECT id, row_number() OVER (PARTITION BY z ORDER BY id) AS r"
    " FROM (SELECT id, k, 10 DIV k AS z FROM t) WHERE abs(k) > 0",
    "element": "SELECT id, z FROM (SELECT id, element_at(array(1,2,3), k) AS z, k FROM t) WHERE mod(k,4) > 0",
    "function": "SELECT * FROM (SELECT id, CAST(g AS INT) AS n, g FROM t) WHERE regexp_like(g, '^[0-9]+$')",
    "union": "SELECT * FROM (SELECT id, 10 DIV k AS z, k FROM t UNION ALL SELECT v, 7L, k FROM u) WHERE k % 7 <> 0",
    "common table": f"WITH c AS (SELECT id, CAST(g AS INT) AS n, g FROM t) SELECT id, n FROM c WHERE g {NUMBER}"
    f" UNION ALL SELECT id, n + 1 FROM c WHERE g {NUMBER} AND id > 1",
    "distinct": "SELECT * FROM (SELECT DISTINCT k, 10 DIV k AS z FROM t) WHERE k % 7 <> 0",
    "case": "SELECT id, CASE WHEN k <> 0 THEN z END AS z FROM (SELECT id, k, 10 DIV k AS z FROM t)",
    "unused": "SELECT id FROM (SELECT id, 10 DIV k AS z FROM t)",
    "exploded": "SELECT id, e FROM (SELECT id, k, 10 DIV k AS z, explode(array(k, 7)) AS e FROM t) WHERE k % 7 <> 0",
    "computed": "SELECT id, 100 DIV n AS q FROM (SELECT id, k * 2 AS n FROM t) WHERE n % 7 <> 0",
}


QUICK = (
    "string and number",
    "join key",
    "below an aggregate",
    "outer join of a projection",
    "window",
    "union",
    "common table",
    "case",
)
"""The views of `make test`; `make crash` runs all of them."""


def _row(number: int, text: str | None, key: int | None) -> dict[str, Any]:
    return {"id": number, "g": text, "k": key, "b": key}


STEPS = [
    Step(
        {
            "t": [_row(1, "1", 1), _row(2, "abc", 0), _row(3, "2", 2), _row(4, None, None)],
            "u": [{"k": 1, "v": 1}, {"k": 2, "v": 0}, {"k": 2, "v": 5}, {"k": 0, "v": 0}],
        }
    ),
    Step({"t": [_row(5, "", 0), _row(6, "5", 3)], "u": [{"k": 3, "v": 5}]}, {"t": [_row(2, "abc", 0)]}),
]


@pytest.mark.rule("DBSP-10", "DBSP-20")
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(tuple(VIEWS), marks=pytest.mark.crash)], ids=["some", "all"]
)
def test_guarded_expressions_raise_only_where_spark_raises(
    tmp_path: Path, spark: "SparkSession", names: tuple[str, ...]
) -> None:
    kernels = follow(spark, tmp_path, TABLES, {name: VIEWS[name] for name in names}, STEPS)
    assert kernels.group.views == set(names)
