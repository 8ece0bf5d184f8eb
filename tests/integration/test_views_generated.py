"""Generated queries: the circuit of each, interpreted by Spark, gives after every step what the query gives.

`make test` runs a third of the queries, `make crash` the rest. `make fuzz` (`tests.fuzz_views`) draws others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration import views_oracle
from tests.integration.views_ahead import Ahead
from tests.integration.views_generator import DDL, Generator
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
PARTS = [0, 1, *(pytest.param(part, marks=pytest.mark.crash) for part in range(2, 6))]
"""Each is a test, so that several processes share them."""


def steps() -> list[Step]:
    """Empty tables, and four random steps: rows, rows and deletions twice, and all that is left but a few.

    A quarter of the queries is judged over empty tables, as all that are written by hand are elsewhere.
    """
    one, other = generated_steps.generate_steps(DDL, seed=7), generated_steps.generate_steps(DDL, seed=8)
    third = Step(inserts=other[1].inserts, deletes=one[2].inserts)
    return [*one[:3], third, Step(deletes={name: rows[2:] for name, rows in other[1].inserts.items()})]


STEPS = steps()


@pytest.fixture(scope="module")
def tables(spark: Any) -> Iterator[dict[str, QueryTable]]:
    with views_oracle.stage(spark, {}, DDL) as found:
        yield found


@dataclass(frozen=True)
class Drawn(Case):
    """A query and its circuit, and which kinds of operators that has."""

    kinds: frozenset[type] = frozenset()


def case_of(
    spark: Any, tables: Mapping[str, QueryTable], name: str, sql: str, written: ViewOutput | None = None
) -> Drawn:
    """A query held against its circuit; the oracle of ties is the circuit before any rewrite.

    `written` is that one, where it is known.
    """
    written = written or views_oracle.compiled(spark, tables, sql).output
    output = rewrite(written)
    kinds = frozenset(type(op) for op in walk(output))
    return Drawn(name, sql, _text(output), equality_of(output), _text(written), kinds)


def _text(output: ViewOutput) -> str | TimedQuery:
    """The circuit as a query; as that of a moment only where it reads the clock."""

    def at(now: int) -> str:
        return interpret(output, Renderer(clock_values(now)))

    return at(0) if at(0) == at(1) else at


@pytest.mark.rule("DBSP-15", "DBSP-20")
@pytest.mark.parametrize("part", PARTS)
def test_generated_queries_equal_their_circuits_after_every_step(
    spark: Any, tables: dict[str, QueryTable], part: int
) -> None:
    given = [case_of(spark, tables, f"seed {n}", Generator(n).query()) for n in SEEDS[part :: len(PARTS)]]
    kinds = {kind for case in given for kind in case.kinds}
    whole = sum(Opaque in case.kinds for case in given)
    ahead = Ahead(spark)
    steps = STEPS if part == 0 else STEPS[1:]
    verdict = Judge(spark, DDL, precomputed=ahead).run(given, steps)
    assert verdict, str(verdict)
    assert ahead.known > ahead.left * 20
    assert verdict.compared == len(given) * len(steps)
    assert verdict.raised == 0
    assert verdict.loose < verdict.compared / 10
    assert len(kinds) >= len(KINDS) - 4
    assert whole < len(given) / 5
