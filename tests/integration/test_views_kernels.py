"""Queries of every kind as views of one chain: after every step its kernels hold what plain Spark gives.

The exchange stays in this process; kernels and state are those of a job, as which some are run as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration import views_oracle
from tests.integration.views_generator import DDL, Generator
from tests.integration.views_kernels import Kernels
from tests.integration.views_planned import PlannedQueries
from tests.integration.views_queries import (
    CHOSEN,
    CUT,
    JOINS,
    RANGES,
    SCALARS,
    SINGLE,
    TOP,
    TRAPS,
    WINDOWS,
    ZEROS,
)
from tidemill.testing import Case, Judge, MaintainedView, Step
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.table_facts import TableFacts
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.rungs import Rung, rungs
from tidemill.views.kernels import ordered_trace
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.trace.version import TraceChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HAND = {**SINGLE, **TRAPS, **CUT, **JOINS, **TOP, **SCALARS, **RANGES, **WINDOWS, **CHOSEN}
DRAWN = {f"seed {n}": Generator(n).query() for n in range(30)}
AS_JOBS = 16


@pytest.fixture(scope="module")
def steps(spark: Any) -> list[Step]:
    """Return steps with zeros as a dataset of changes stores them: without a sign."""
    steps = views_oracle.steps(spark)
    for table in views_oracle.TABLES:
        fitted = TableFacts().fit(steps, table)
        steps = [
            replace(
                step,
                inserts={**step.inserts, table: fit.inserts[table]},
                deletes={**step.deletes, table: fit.deletes[table]},
            )
            for step, fit in zip(steps, fitted, strict=True)
        ]
    return steps


@pytest.fixture
def hand(spark: Any, steps: list[Step]) -> Iterator[tuple[dict[str, QueryTable], list[Step]]]:
    """For one test: other tests have other tables with these names, and drop them."""
    with views_oracle.stage(spark, {}) as tables:
        yield tables, steps


def judged(
    spark: Any,
    folder: Path,
    ddl: Mapping[str, str],
    known: dict[str, QueryTable],
    texts: Mapping[str, str],
    steps: list[Step],
    **options: Any,
) -> tuple[Kernels, int]:
    """Judge the queries that have a chain; how many there were."""
    written = {n: views_oracle.compiled(spark, known, sql).output for n, sql in texts.items()}
    outputs = {n: rewrite(output) for n, output in written.items()}
    kernels = Kernels(spark, folder, ddl, outputs, **options)
    cases = [
        Case(name, sql, kernels.maintained(name), equality_of(outputs[name]), interpret(written[name]))
        for name, sql in texts.items()
        if name in kernels.group.views and views_oracle.is_one_query(sql)
    ]
    verdict = Judge(spark, ddl, batch=60, precomputed=PlannedQueries(spark)).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(cases) * len(steps)
    assert verdict.raised == 0
    return kernels, len(cases)


@pytest.mark.crash
@pytest.mark.rule("DBSP-10", "DBSP-12")
def test_queries_written_by_hand_are_equal_to_spark_on_kernels_after_every_step(
    spark: Any, hand: tuple[dict[str, QueryTable], list[Step]], tmp_path: Path
) -> None:
    kinds = dict.fromkeys(views_oracle.TABLES, "changes")
    kernels, count = judged(spark, tmp_path, views_oracle.TABLES, hand[0], HAND, hand[1][:2], kinds=kinds)
    assert count > 140
    operators = {type(placed.operator).__name__ for placed in kernels.chain.operators}
    assert operators >= {
        "StatefulJoin",
        "StatefulAggregate",
        "StatefulSet",
        "GatherRows",
        "ReplaceRows",
        "StatefulTop",
        "StatefulWindow",
        "StoredInput",
        "StoredResult",
        "OutputSink",
    }


@pytest.mark.rule("DBSP-11", "DBSP-14", "DBSP-15", "DBSP-20")
def test_joins_windows_scalars_ranges_and_chosen_rows_are_equal_to_spark_on_kernels_after_every_step(
    spark: Any,
    hand: tuple[dict[str, QueryTable], list[Step]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 2)
    kinds = dict.fromkeys(views_oracle.TABLES, "changes")
    queries = {**JOINS, **WINDOWS, **SCALARS, **RANGES, **CHOSEN}
    kernels, count = judged(spark, tmp_path, views_oracle.TABLES, hand[0], queries, hand[1][:3], kinds=kinds)
    assert count == len(queries), kernels.group.reasons
    names = [type(placed.operator).__name__ for placed in kernels.chain.operators]
    assert not {"GatherRows", "StoredInput"} & set(names), "Spark computes none of them"


@pytest.mark.crash
@pytest.mark.rule("DBSP-20")
def test_tables_without_deletes_keep_the_sign_of_zeros(
    spark: Any, hand: tuple[dict[str, QueryTable], list[Step]], tmp_path: Path
) -> None:
    first, second, _ = views_oracle.steps(spark)
    more = {
        "u": [{"a": 1, "k": 5, "e": "q", "y": -0.0}, {"a": 6, "k": 5, "e": "q", "y": 0.0}],
        "t": [{"a": 6, "b": 7, "x": -0.0}, {"a": 1, "b": 30, "x": 0.0}],
    }
    steps = [first, Step(inserts=second.inserts), Step(inserts=more)]
    _, count = judged(spark, tmp_path, views_oracle.TABLES, hand[0], ZEROS, steps)
    assert count == len(ZEROS)


@pytest.mark.crash
@pytest.mark.rule("DBSP-1", "DBSP-20")
def test_generated_queries_are_equal_to_spark_on_kernels_in_seven_ranges(spark: Any, tmp_path: Path) -> None:
    steps = generated_steps.generate_steps(DDL, seed=7)[:3]
    with views_oracle.stage(spark, {}, DDL) as known:
        kinds = {"t": "changes", "n": "changes"}
        _, count = judged(spark, tmp_path, DDL, known, DRAWN, steps, kinds=kinds, count=7)
    assert count > 12


def is_shallow(output: Operator) -> bool:
    """Return whether its step has at most two jobs: no keyed operator reads another one."""
    rung_of = rungs(output)

    def keyed(op: Operator) -> int:
        return (rung_of[op].rung is Rung.KEYED) + max(map(keyed, op.inputs), default=0)

    return keyed(output) < 2 and all(placed.rung is not Rung.FULL for placed in rung_of.values())


@pytest.mark.rule("DBSP-1", "DBSP-46")
def test_some_queries_are_equal_to_spark_as_jobs(
    spark: Any, hand: tuple[dict[str, QueryTable], list[Step]], tmp_path: Path
) -> None:
    """Run a load and a step for all of them in the same few jobs, and compare the contents."""
    texts = [item for item in list(HAND.items())[::3] if views_oracle.is_one_query(item[1])]
    compiled = {n: rewrite(views_oracle.compiled(spark, hand[0], sql).output) for n, sql in texts}
    some = dict([(n, output) for n, output in compiled.items() if is_shallow(output)][: AS_JOBS + 4])
    kinds = dict.fromkeys(views_oracle.TABLES, "changes")
    kernels = Kernels(spark, tmp_path, views_oracle.TABLES, some, kinds=kinds, job=True)
    assert len(kernels.group.views) >= AS_JOBS
    assert kernels.chain.jobs == 2, "some have a query between two jobs"
    assert any(placed.borrowed for placed in kernels.chain.operators), "some joins read the trace of a source"
    (first, then) = hand[1][:2]
    reports = [*kernels.step(first), *kernels.step(then)]
    operators = kernels.chain.operators
    shared = [placed for placed in operators if len(kernels.chain.leaving(placed.number)) > 1]
    assert shared, "some have several consumers"
    bundles = [info.key for info in kernels.objects.list("state/") if info.key.endswith(".runs")]
    assert len(bundles) == sum(report.changes != TraceChanges() for report in reports), "no kernel ran twice"
    both = Step({n: [*first.inserts[n], *then.inserts[n]] for n in first.inserts}, then.deletes)
    cases = [
        Case(name, sql, MaintainedView(partial(_content, kernels, name)), equality_of(some[name]))
        for name, sql in texts
        if name in kernels.group.views
    ]
    verdict = Judge(spark, views_oracle.TABLES, batch=200).run(cases, [both])
    assert verdict, str(verdict)
    assert verdict.compared == len(cases) >= AS_JOBS
    assert kernels.loads == 1, "the second run was a step"


def _content(kernels: Kernels, view: str, _: Step) -> "DataFrame":
    return kernels.frame(view)


@pytest.mark.crash
@pytest.mark.rule("DBSP-1", "DBSP-46")
def test_queries_written_by_hand_are_equal_to_spark_as_jobs(
    spark: Any, hand: tuple[dict[str, QueryTable], list[Step]], tmp_path: Path
) -> None:
    some = dict(list(HAND.items())[::3])
    _, count = judged(spark, tmp_path, views_oracle.TABLES, hand[0], some, hand[1], job=True)
    assert count >= 40
