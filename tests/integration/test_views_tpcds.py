"""TPC-DS: the queries are compiled, and their circuits equal Spark.

docs/reference/tpcds.md lists how each query follows changes.
"""

from typing import Any

import pytest

from tests import tpc_rungs
from tests.integration import tpcds_queries_1_50, tpcds_queries_51_99, tpcds_tables, views_oracle
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Opaque
from tidemill.views.circuit.rewrites import rewrite

QUERIES = {**tpcds_queries_1_50.QUERIES, **tpcds_queries_51_99.QUERIES}

SHARES = 7


def share(number: int) -> tuple[str, ...]:
    return tuple(QUERIES)[number::SHARES]


@pytest.mark.crash
@pytest.mark.rule("DBSP-15")
@pytest.mark.parametrize("names", [pytest.param(share(n), id=f"share-{n}") for n in range(SHARES)])
def test_queries_of_tpcds_equal_their_circuits(spark: Any, names: tuple[str, ...]) -> None:
    cases, opaque = [], set()
    with views_oracle.stage(spark, tpcds_tables.rows(), tpcds_tables.DDL) as tables:
        for name in names:
            output = rewrite(views_oracle.compiled(spark, tables, QUERIES[name]).output)
            cases.append((QUERIES[name], output))
            if any(isinstance(op, Opaque) for op in walk(output)):
                opaque.add(name)
        row_counts: list[int] = []
        wrong = views_oracle.differences(spark, cases, 4, row_counts)
    assert not wrong, "\n\n".join(map(str, wrong))
    assert not opaque, "every query is split into operators"
    assert len(QUERIES) == 98
    assert sum(bool(rows) for rows in row_counts) > len(names) * 2 / 3, "most have rows to compare"


@pytest.mark.crash
def test_the_page_says_how_each_query_follows_changes(spark: Any) -> None:
    answers = {suite: tpc_rungs.rungs_of(spark, suite) for suite in tpc_rungs.SUITES}
    assert tpc_rungs.PAGE.read_text() == tpc_rungs.page(answers), "run python -m tests.tpc_rungs --page"
