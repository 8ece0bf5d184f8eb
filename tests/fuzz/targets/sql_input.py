"""Queries of views: mutated queries compile, or are refused with a position and a hint."""

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import listed, mutated_text, text
from tests.integration import tpcds_queries_1_50, tpcds_queries_51_99, tpcds_tables, tpch, views_queries
from tests.integration.views_generator import DDL, Generator
from tidemill.errors import QueryError, QueryRefused
from tidemill.schemas import ddl
from tidemill.views.circuit.circuit import Circuit
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import Opaque, SparkColumn
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query

CASES = 120
WORDS = listed("""
SELECT|FROM|WHERE|GROUP BY|HAVING|ORDER BY|LIMIT 3|OFFSET 1|DISTINCT|UNION ALL|INTERSECT|EXCEPT|RECURSIVE|ON
WITH x AS (SELECT 1)|LATERAL VIEW explode(arr) e AS v|JOIN u USING (a)|NATURAL|LEFT ANTI JOIN u|SEMI|CROSS
OVER (PARTITION BY a ORDER BY b)|WINDOW w AS ()|ROWS BETWEEN 1 PRECEDING AND CURRENT ROW|FILTER (WHERE a > 1)
QUALIFY|PIVOT|UNPIVOT|TABLESAMPLE (5 ROWS)|CASE WHEN a THEN b END|CAST(a AS INT)|a::INT|INTERVAL 1 DAY|X'1F'
DATE '2024-01-01'|1e400|1BD|IN (1, NULL)|IN (SELECT a FROM u)|EXISTS (SELECT 1 FROM u WHERE u.a = t.a)|<=>|->
(SELECT max(a) FROM u)|BETWEEN 1 AND 2|LIKE ALL ('a')|IS DISTINCT FROM|=>|::|@|?|:p|${x}|*|t.*|* EXCEPT (a)
COLUMNS('a')|ALL|GROUPING SETS ((a), ())|ROLLUP(a)|CUBE(a, b)|stack(2, 1, 2)|explode(arr)|count(*)|sum(a)
count(DISTINCT a, b)|first(a)|row_number()|now()|rand()|uuid()|VALUES (1)|range(5)|TABLE t|INSERT INTO t
DROP TABLE t|/*+ BROADCAST(t) */|-- x|`a b`|t.`a`
""")


@functools.cache
def _corpus() -> tuple[tuple[str, str], ...]:
    """Return the project's queries, each with the name of its tables."""
    own = {**views_queries.SINGLE, **views_queries.TRAPS}
    standard = {**tpcds_queries_1_50.QUERIES, **tpcds_queries_51_99.QUERIES}
    queries = [("own", query) for query in own.values()] + [
        ("tpch", query) for query in tpch.QUERIES.values()
    ]
    return (*queries, *(("tpcds", query) for query in standard.values()))


@functools.cache
def _tables(corpus: str) -> Mapping[str, QueryTable]:
    from tests.integration import views_oracle

    tables = {"own": {**views_oracle.TABLES, **DDL}, "tpch": tpch.DDL, "tpcds": tpcds_tables.DDL}[corpus]
    return {
        name: QueryTable(name, tuple(SparkColumn(c.name, str(c.type)) for c in ddl.parse(columns).columns))
        for name, columns in tables.items()
    }


def generate(rng: random.Random) -> dict[str, Any]:
    corpus, query = (
        rng.choice(_corpus()) if rng.random() < 0.7 else ("own", Generator(rng.randrange(10**6)).query())
    )
    if corpus != "own" and rng.random() < 0.5:
        corpus, query = rng.choice([each for each in _corpus() if each[0] == "own"])
    if rng.random() < 0.02:
        query = rng.choice(
            (text(rng), "(" * 3000, "SELECT " + "(" * 500 + "1" + ")" * 500, "SELECT " + "1+" * 3000 + "1")
        )
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        query = mutated_text(rng, query, WORDS)
    return {"tables": corpus, "query": query}


def check(case: dict[str, Any]) -> None:
    tables, query = _tables(case.get("tables", "own")), case.get("query", "")

    def analyse(sql: str, _: Mapping[str, QueryTable]) -> Sequence[SparkColumn]:
        if sql != query:
            raise QueryRefused("only the query itself is analysed")
        return [SparkColumn("only", "int")]

    for given in (None, analyse):
        try:
            compiled = compile_query(query, tables, given)
        except QueryError as error:
            check_refusal(error)
            continue
        bugs = [note for note in compiled.notes if "a bug in Tidemill" in note]
        assert not bugs, bugs[0]
        if isinstance(compiled.output.input, Opaque):
            continue
        interpret(compiled.output)
        Circuit({"v": rewrite(compiled.output)})
