"""Generated queries: after every step, each query and its circuit, run by Spark, give the same result.

`make test` runs a tenth of the queries, `make crash` the rest. `make fuzz` (`tests.fuzz_views`) generates
others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration import views_oracle
from tests.integration.views_generator import DDL, Generator
from tests.integration.views_planned import PlannedQueries
from tidemill.testing import Case, Judge, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.judge import TimedQuery
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import KINDS, Opaque, ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.spark.step_time import clock_values
from tidemill.views.sql.catalog import QueryTable

SEEDS = range(300)
PARTS = [0, *(pytest.param(part, marks=pytest.mark.crash) for part in range(1, 10))]
"""Each part is a test, so that several processes can share the work."""


def steps() -> list[Step]:
    """Return five steps: empty tables, inserts, twice inserts and deletes, and deletes of most rows.

    Only the first part starts with empty tables; another test does so for all queries written by hand.
    """
    first, second = generated_steps.generate_steps(DDL, seed=7), generated_steps.generate_steps(DDL, seed=8)
    third = Step(inserts=second[1].inserts, deletes=first[2].inserts)
    return [*first[:3], third, Step(deletes={name: rows[2:] for name, rows in second[1].inserts.items()})]


STEPS = steps()


@pytest.fixture(scope="module")
def tables(spark: Any) -> Iterator[dict[str, QueryTable]]:
    with views_oracle.stage(spark, {}, DDL) as query_tables:
        yield query_tables


@dataclass(frozen=True)
class GeneratedCase(Case):
    """A query, its circuit, and the kinds of operators in the circuit."""

    kinds: frozenset[type] = frozenset()


def case_of(
    spark: Any, tables: Mapping[str, QueryTable], name: str, sql: str, written: ViewOutput | None = None
) -> GeneratedCase:
    """Return a case that compares a query with its circuit; the circuit before any rewrite breaks ties.

    `written` is the circuit before any rewrite, if it is known.
    """
    written = written or views_oracle.compiled(spark, tables, sql).output
    output = rewrite(written)
    kinds = frozenset(type(op) for op in walk(output))
    return GeneratedCase(name, sql, _text(output), equality_of(output), _text(written), kinds=kinds)


def _text(output: ViewOutput) -> str | TimedQuery:
    """Return the circuit as a query, or as a function of the time if it reads the clock."""

    def at(now: int) -> str:
        return interpret(output, Renderer(clock_values(now)))

    return at(0) if at(0) == at(1) else at


@pytest.mark.rule("DBSP-15", "DBSP-20")
@pytest.mark.parametrize("part", PARTS)
def test_generated_queries_equal_their_circuits_after_every_step(
    spark: Any, tables: dict[str, QueryTable], part: int
) -> None:
    cases = [case_of(spark, tables, f"seed {n}", Generator(n).query()) for n in SEEDS[part :: len(PARTS)]]
    kinds = {kind for case in cases for kind in case.kinds}
    opaque = sum(Opaque in case.kinds for case in cases)
    planned = PlannedQueries(spark)
    steps = STEPS if part == 0 else STEPS[1:]
    verdict = Judge(spark, DDL, precomputed=planned).run(cases, steps)
    assert verdict, str(verdict)
    assert planned.computed > planned.missing * 20
    assert verdict.compared == len(cases) * len(steps)
    assert verdict.raised == 0
    assert verdict.loose < verdict.compared / 10
    assert len(kinds) >= len(KINDS) - 4
    assert opaque < len(cases) / 5
