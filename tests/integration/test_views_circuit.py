"""The SQL compiler: the circuit of a query, run by Spark, gives the same result as the query."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration import tpch, views_oracle
from tests.integration.test_views_generated import case_of
from tests.integration.views_planned import PlannedQueries
from tests.integration.views_queries import SINGLE, TRAPS, pairs
from tidemill.errors import QueryRefused
from tidemill.testing import Judge, Step
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.functions import CLOCK, SCALARS, ViewFunctions
from tidemill.views.circuit.operators import KINDS, Join, Opaque, Operator, ViewOutput
from tidemill.views.circuit.rewrites import REWRITES, rewrite
from tidemill.views.sql.catalog import QueryTable

QUERIES = {**SINGLE, **TRAPS}

TWELFTHS = [0, *(pytest.param(part, marks=pytest.mark.crash) for part in range(1, 12))]
"""A twelfth of the queries runs in `make test`, the rest in `make crash`."""

SIXTHS = [0, *(pytest.param(part, marks=pytest.mark.crash) for part in range(1, 6))]

# The queries that are not split into operators. The list must not grow.
OPAQUE = {
    "opaque",
    "recursion",
    "range",
    "tablesample of everything",
    "exists over an aggregate",
    "operators that touch",
    "zipped arrays keep names",
    "a pipe",
    "in in the list",
    "correlated without aggregate",
    "correlated with groups",
    "sort by",
    "moments by name",
    "variables that look like columns",
}


@dataclass(frozen=True)
class CompiledQueries:
    """The queries, compiled once for all tests: the result depends only on the types of the tables."""

    tables: dict[str, QueryTable]
    outputs: dict[str, ViewOutput]


@pytest.fixture(scope="module")
def compiled_queries(spark: Any) -> CompiledQueries:
    with views_oracle.stage(spark, {}) as tables:
        return CompiledQueries(
            tables, {n: views_oracle.compiled(spark, tables, sql).output for n, sql in QUERIES.items()}
        )


def kinds(*roots: Operator) -> set[type[Operator]]:
    return {type(op) for root in roots for op in walk(root)}


def report(wrong: Sequence[views_oracle.Difference]) -> str:
    return "\n\n".join(map(str, wrong))


def test_the_queries_contain_every_kind_of_operator_and_few_are_opaque(
    compiled_queries: CompiledQueries,
) -> None:
    assert kinds(*compiled_queries.outputs.values()) == set(KINDS)
    assert {name for name, output in compiled_queries.outputs.items() if Opaque in kinds(output)} == OPAQUE


def check_after_steps(
    spark: Any,
    tables: Mapping[str, QueryTable],
    texts: Mapping[str, str],
    steps: Sequence[Step],
    written: Mapping[str, ViewOutput] | None = None,
) -> None:
    """Compare queries with their circuits after every step."""
    planned, outputs = PlannedQueries(spark), written or {}
    cases = [case_of(spark, tables, name, sql, outputs.get(name)) for name, sql in texts.items()]
    verdict = Judge(spark, views_oracle.TABLES, precomputed=planned).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(texts) * len(steps)
    assert verdict.raised < verdict.compared / 20
    assert verdict.loose < verdict.compared / 20
    assert planned.computed > planned.missing * 20


@pytest.fixture(scope="module")
def steps(spark: Any) -> list[Step]:
    return views_oracle.steps(spark)


def test_rewriting_a_circuit_again_does_not_change_it(compiled_queries: CompiledQueries) -> None:
    for name, output in compiled_queries.outputs.items():
        rewritten = rewrite(output)
        assert rewrite(rewritten) == rewritten, name


@pytest.mark.rule("DBSP-15")
@pytest.mark.parametrize("part", SIXTHS)
def test_queries_with_every_kind_of_operator_equal_their_circuits(
    spark: Any, compiled_queries: CompiledQueries, steps: list[Step], part: int
) -> None:
    # The judge inserts the time of the step into a query, but not into an opaque operator.
    timeless = QUERIES.keys() - {"moments by name"}
    texts = {
        name: QUERIES[name]
        for name in QUERIES
        if name in timeless and views_oracle.is_one_query(QUERIES[name])
    }
    chosen = _covering(compiled_queries.outputs, texts) if part == 0 else {}
    chosen |= dict(list(texts.items())[part::6])
    with views_oracle.stage(spark, {}) as tables:
        check_after_steps(spark, tables, chosen, steps, compiled_queries.outputs)
    other_cases = [
        (QUERIES[name], rewrite(compiled_queries.outputs[name])) for name in QUERIES.keys() - texts.keys()
    ]
    with views_oracle.stage(spark, views_oracle.ROWS):
        wrong = views_oracle.differences(spark, other_cases)
    assert len(other_cases) < 10
    assert not wrong, report(wrong)


def _covering(outputs: Mapping[str, ViewOutput], texts: Mapping[str, str]) -> dict[str, str]:
    """Return some of the queries that together contain every kind of operator that all of them contain."""
    chosen: dict[str, str] = {}
    covered: set[type[Operator]] = set()
    for name, sql in texts.items():
        if not kinds(outputs[name]) <= covered:
            covered |= kinds(outputs[name])
            chosen[name] = sql
    return chosen


@pytest.mark.parametrize("part", TWELFTHS)
def test_circuits_equal_queries_over_empty_tables_and_before_rewrites(
    spark: Any, compiled_queries: CompiledQueries, part: int
) -> None:
    with views_oracle.stage(spark, {}):
        wrong = views_oracle.differences(
            spark, [(QUERIES[n], o) for n, o in list(compiled_queries.outputs.items())[part::12]]
        )
    assert not wrong, report(wrong)


@pytest.mark.rule("DBSP-15")
@pytest.mark.parametrize("part", TWELFTHS)
def test_every_pair_of_operators_equals_its_circuit_after_every_step(
    spark: Any, steps: list[Step], part: int
) -> None:
    texts = pairs()
    assert len(texts) > 200
    with views_oracle.stage(spark, {}) as tables:
        check_after_steps(spark, tables, dict(list(texts.items())[part::12]), steps[:2])


@pytest.mark.parametrize("part", SIXTHS)
def test_tpch_has_no_opaque_operators_and_equals_spark_after_every_step(spark: Any, part: int) -> None:
    """Spark runs the circuits. `test_views_tpch` runs the queries as views of a pipeline."""
    steps = views_oracle.steps(spark, tpch.rows(), tpch.DDL)
    with views_oracle.stage(spark, {}, tpch.DDL) as tables:
        written = {n: views_oracle.compiled(spark, tables, sql).output for n, sql in tpch.QUERIES.items()}
        assert len(written) == 22
        assert {name for name, output in written.items() if Opaque in kinds(output)} == set()
        without_key = {
            name
            for name, output in written.items()
            if any(isinstance(op, Join) and not op.keys for op in walk(rewrite(output)))
        }
        assert without_key == {"q16"}, "NOT IN has no key; all other joins have keys, even comma joins"
        chosen = list(tpch.QUERIES.items())[part::6]
        cases = [case_of(spark, tables, name, sql, written[name]) for name, sql in chosen]
        verdict = Judge(spark, tpch.DDL, precomputed=PlannedQueries(spark)).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(chosen) * len(steps)
    assert verdict.raised == 0
    assert verdict.loose == 0


@pytest.mark.crash
def test_every_query_of_tpch_has_rows_to_compare(spark: Any) -> None:
    with views_oracle.stage(spark, tpch.rows(), tpch.DDL):
        texts = list(tpch.QUERIES.values())
        parts = [texts[start : start + 6] for start in range(0, len(texts), 6)]
        assert all(bag for part in parts for bag in views_oracle.bags(spark, part))


def test_each_rewrite_alone_keeps_the_result(spark: Any, compiled_queries: CompiledQueries) -> None:
    names = [
        "comma join",
        "left join with residual",
        "having by alias",
        "window over groups",
        "cte used twice",
    ]
    names += [
        "scalar over groups",
        "grouping sets with null keys",
        "using with full join",
        "two lateral views",
    ]
    cases = []
    for name in names:
        changed = [apply(compiled_queries.outputs[name], ViewFunctions()) for apply in REWRITES.values()]
        cases.append(
            (QUERIES[name], *(apply for apply in changed if apply != compiled_queries.outputs[name]))
        )
    outputs = [compiled_queries.outputs[name] for name in names]
    effective = {
        kind for kind, apply in REWRITES.items() if any(apply(p, ViewFunctions()) != p for p in outputs)
    }
    assert effective >= {"push down", "prune", "fuse"}
    with views_oracle.stage(spark, views_oracle.ROWS):
        wrong = views_oracle.differences(spark, cases)
    assert not wrong, report(wrong)


# Keywords of the grammar, which DESCRIBE FUNCTION does not know.
SPECIAL = frozenset({"timestampadd", "timestampdiff", "try_cast"})
# Opaque: the parser fails on the example, or its value depends on names or on the time of day.
OPAQUE_EXAMPLES = frozenset(
    {"arrays_zip", "bitmap_count", "current_time", "localtime", "shiftrightunsigned", "window", "window_time"}
    | {"session_window", "approx_top_k_estimate"}
)


@pytest.mark.crash
def test_an_example_of_every_scalar_function_is_compiled_with_the_types_of_spark(spark: Any) -> None:
    """Compile the first example in the documentation of each function."""
    examples: dict[str, str] = {}
    with views_oracle.stage(spark, {}) as tables:
        for name in sorted(SCALARS | CLOCK):
            description = (
                spark.sql(f"DESCRIBE FUNCTION EXTENDED {name}").collect() if name not in SPECIAL else []
            )
            match = re.search(
                r"^\s*> (SELECT [^;]*);\s*$", "\n".join(row[0] for row in description), re.MULTILINE
            )
            if match:
                examples[name] = match[1]
        opaque, refused = set(), {}
        for name, sql in examples.items():
            try:
                output = views_oracle.compiled(spark, tables, sql).output
            except QueryRefused as reason:
                refused[name] = reason.message
                continue
            if Opaque in kinds(output):
                opaque.add(name)
    assert len(examples) > 300
    assert opaque <= OPAQUE_EXAMPLES
    # A function of a package that is not installed is refused with the message of Spark.
    assert all(description.startswith("[") for description in refused.values()), refused
    assert len(refused) < 10, refused
