"""Compare the chains of views with their queries on generated steps (DBSP-19).

What is compared is the chain that runs: all views of a batch are executed together, by the kernels, row
expressions and traces of real steps (`executed_chain`). After each step, their rows must equal those of plain
Spark. A view that no chain can compute runs its original query, so there is nothing to compare.

If a view differs from plain Spark, its batch is repeated with each view alone, to find out which views are
wrong. A view that is wrong only together with others is refused too.

Views of a group that are in different batches are compared without plain Spark: one chain must compute the
same rows for all of them as the chains that have been compared with plain Spark.
"""

import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import pyarrow as pa

from tidemill.spark.expected_errors import expecting_errors
from tidemill.spark.sessions import is_local
from tidemill.views.certify import generated_steps
from tidemill.views.certify.bounds import Bounds
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.equality import Row, equality_of
from tidemill.views.certify.executed_chain import ExecutedViews, differing_contents
from tidemill.views.certify.judge import Case, Judge, MaintainedView, TimedQuery, Verdict
from tidemill.views.certify.step_tables import StepTables
from tidemill.views.certify.table_contents import Step, merged_step
from tidemill.views.certify.table_facts import TableFacts, facts_of
from tidemill.views.certify.view_tests import CircuitTest
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.size_arguments import sized_columns
from tidemill.views.spark.step_time import clock_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class GeneratedTables:
    """The tables of several views with generated rows. Comparisons in several threads can share them.

    The rows of a table do not depend on the other tables. Only columns that a view uses as lengths or counts
    get other values for that view, so such a view has its own tables.

    Args:
        spark: the session in which the queries run.
        ddl: the columns of each table.
        seed: the seed of the generated rows.
        facts: how the tables change.
    """

    def __init__(
        self,
        spark: "SparkSession",
        ddl: Mapping[str, str],
        seed: int = 0,
        facts: Mapping[str, TableFacts] | None = None,
    ) -> None:
        self.ddl = dict(ddl)
        self.facts = dict(facts or {})
        self._spark = spark
        self._seed = seed
        self._tables: dict[str, StepTables] = {}
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def of(self, test: CircuitTest) -> StepTables:
        """Return the tables for a view after each generated step."""
        sized = sized_columns(test.written or test.output)
        key = repr(sorted((name, sorted(columns)) for name, columns in sized.items()))
        with self._lock:
            if key not in self._tables:
                steps = StepTables(self._spark, self.ddl, self._steps(sized))
                self._tables[key] = self._stack.enter_context(steps)
            return self._tables[key]

    def _steps(self, sized: Mapping[str, Collection[str]]) -> list[Step]:
        """Return the steps of all tables. The rows of a table do not depend on the other tables."""
        steps_of_tables = [
            self.facts.get(name, TableFacts()).fit(
                generated_steps.generate_steps(
                    {name: columns}, seed=f"{self._seed} {name}", clock=True, sized=sized
                ),
                name,
            )
            for name, columns in self.ddl.items()
        ]
        steps = [reduce(merged_step, steps) for steps in zip(*steps_of_tables, strict=True)]
        return steps or generated_steps.generate_steps({}, clock=True)


def certify_circuits(
    spark: "SparkSession",
    tests: Sequence[CircuitTest],
    tables: GeneratedTables,
    *,
    beside: Sequence[CircuitTest] = (),
    others: Sequence[CircuitTest] = (),
    bounds: Bounds | None = None,
) -> list[ViewCertificate]:
    """Compare the chains of several views with their queries, in a few Spark jobs.

    Args:
        spark: a session with the pinned settings.
        tests: the circuits and queries.
        tables: the generated tables, in the same session.
        beside: certified views, which the same chain computes. If one of them is wrong only together with new
            views, these new views are refused.
        others: certified views for which the chain must compute the same rows with and without the new views.
        bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """
    certificates = {test.view: certificate for test in tests if (certificate := test.trivial()) is not None}
    levels: dict[str, int] = {}
    compared = [test for test in tests if test.view not in certificates]
    # A view that reads another view of the batch is compared over generated rows of that view. A certified
    # view is above the level of the views that it reads too.
    new, near, far = (_by_level(group, tables, levels) for group in (compared, beside, others))
    with expecting_errors():  # generated values overflow, and both sides must raise an error
        for key, together in new.items():
            step_tables, _ = key
            compare = partial(_compare, spark, step_tables=step_tables, tables=tables, bounds=bounds)
            certificates |= _certificates(compare, together, near.get(key, []))
            equal = [test for test in together if certificates[test.view].equal]
            if equal and key in far:
                contents = partial(_contents, spark, step_tables=step_tables, tables=tables, bounds=bounds)
                certificates |= _undisturbed(contents, equal, far[key], certificates)
    return [certificates[test.view] for test in tests]


Level = tuple[StepTables, int]


def _by_level(
    tests: Sequence[CircuitTest], tables: GeneratedTables, levels: dict[str, int]
) -> dict[Level, list[CircuitTest]]:
    """Divide tests into those that one chain can compute: same tables, and no view reads another one.

    - levels: the level of each view that has been divided before; gets those of these tests.
    """
    by_level: dict[Level, list[CircuitTest]] = {}
    for test in tests:
        levels[test.view] = 1 + max((levels.get(name, -1) for name in test.tables), default=-1)
        by_level.setdefault((tables.of(test), levels[test.view]), []).append(test)
    return by_level


Contents = Mapping[str, Sequence[pa.Table | Exception]]
"""The rows of each view after each step."""


def _undisturbed(
    contents: Callable[..., Contents],
    tests: Sequence[CircuitTest],
    others: Sequence[CircuitTest],
    certificates: Mapping[str, ViewCertificate],
) -> dict[str, ViewCertificate]:
    """Return the certificates of new views that are right, after one chain has computed them with others."""
    expected = {**contents(tests), **contents(others)}

    def disturbed(some: Sequence[CircuitTest]) -> list[str]:
        return differing_contents(expected, contents(some, together=True))

    wrong = disturbed([*tests, *others])
    if not wrong:
        return {}
    checked = [test for test in others if test.view in wrong]
    refused = [test for test in tests if test.view in wrong or disturbed([test, *checked])] or tests
    why = f"only together with other views of the group: the rows of {', '.join(wrong)} differ"[:2000]
    return {
        test.view: msgspec.structs.replace(certificates[test.view], equal=False, why=why) for test in refused
    }


def _contents(
    spark: "SparkSession",
    tests: Sequence[CircuitTest],
    step_tables: StepTables,
    tables: GeneratedTables,
    bounds: Bounds | None,
    *,
    together: bool = False,
) -> Contents:
    """Execute the chain of these views, without the step on which many queries raise errors.

    - together: whether to execute a step as a Spark job too, in which other expressions share a projection.
    """
    job_step = _job_step(spark, step_tables)
    with _executed(spark, tests, tables, bounds) as executed:
        for number, step in enumerate(step_tables.steps):
            if not step.extreme:
                executed.run(step, as_job=together and number == job_step)
        return executed.contents()


@contextmanager
def _executed(
    spark: "SparkSession", tests: Sequence[CircuitTest], tables: GeneratedTables, bounds: Bounds | None
) -> Iterator[ExecutedViews]:
    """Build the chain of these views, in a temporary folder."""
    names = dict.fromkeys(name for test in tests for name in test.tables)
    ddl = {name: tables.ddl[name] for name in names}
    outputs = {test.view: test.output for test in tests}
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-certify-") as folder,
        ExecutedViews(spark, Path(folder), ddl, tables.facts, outputs, bounds) as executed,
    ):
        yield executed


def _certificates(
    compare: Callable[[Sequence[CircuitTest]], dict[str, ViewCertificate]],
    tests: Sequence[CircuitTest],
    beside: Sequence[CircuitTest],
) -> dict[str, ViewCertificate]:
    """Return the certificates of new views that one chain computes together with certified views."""
    compared = compare([*tests, *beside])
    for test in tests:
        if len(tests) + len(beside) > 1 and not compared[test.view].equal:
            alone = compare([test])[test.view]
            compared[test.view] = _blamed(compared[test.view], alone, [*tests, *beside])
    wrong = [test for test in beside if not compared[test.view].equal]
    disturbed = [test for test in wrong if compare([test])[test.view].equal]
    if disturbed:
        names = ", ".join(test.view for test in disturbed)
        why = f"computed together with it, certified views are wrong: {names}"[:2000]
        for test in _disturbing(compare, tests, disturbed):
            if compared[test.view].equal:
                compared[test.view] = msgspec.structs.replace(compared[test.view], equal=False, why=why)
    return {test.view: compared[test.view] for test in tests}


def _disturbing(
    compare: Callable[[Sequence[CircuitTest]], dict[str, ViewCertificate]],
    tests: Sequence[CircuitTest],
    disturbed: Sequence[CircuitTest],
) -> Sequence[CircuitTest]:
    """Return the new views that make certified views wrong; all of them if none does so alone."""
    alone = {test.view: compare([test, *disturbed]) for test in tests}
    return [
        test for test in tests if not all(alone[test.view][other.view].equal for other in disturbed)
    ] or tests


def _blamed(
    together: ViewCertificate, alone: ViewCertificate, batch: Sequence[CircuitTest]
) -> ViewCertificate:
    """Return the certificate of a view that is wrong in its batch."""
    if not alone.equal:
        return alone
    names = ", ".join(test.view for test in batch)
    why = f"only together with other views ({names}): {together.why}"
    return msgspec.structs.replace(together, why=why[:2000])


def _compare(
    spark: "SparkSession",
    tests: Sequence[CircuitTest],
    step_tables: StepTables,
    tables: GeneratedTables,
    bounds: Bounds | None,
) -> dict[str, ViewCertificate]:
    """Execute the chain of these views, and compare it with their queries after each step."""
    with _executed(spark, tests, tables, bounds) as executed:
        judge = Judge(spark, tables.ddl, bounds=bounds)
        results: dict[str, list[list[Row] | Exception]] = {}

        def rows_after(view: str, step: Step) -> list[Row] | Exception:
            number = next(number for number, other in enumerate(step_tables.steps) if other is step)
            return results[view][number]

        chained = [test for test in tests if test.view in executed.views]
        cases = [_case(test, MaintainedView(partial(rows_after, test.view))) for test in chained]
        job_step = _job_step(spark, step_tables)
        for number, step in enumerate(step_tables.steps):
            # Plain Spark runs first: it stops queries that return too much.
            raising = judge.raising(cases, step_tables, number)
            executed.run(step, raising=raising, as_job=number == job_step)
        results |= executed.results()
        verdicts = judge.verdicts(cases, step_tables)
        certificates = {
            test.view: ViewCertificate(
                equal=True, kind=equality_of(test.output).name, why=f"each step runs the query: {why}"
            )
            for test in tests
            if (why := executed.reasons.get(test.view)) is not None
        }
    return certificates | {
        case.name: _certificate(case, verdict) for case, verdict in zip(cases, verdicts, strict=True)
    }


def _job_step(spark: "SparkSession", tables: StepTables) -> int | None:
    """Return the step that also runs as a Spark job: the last one with deletes and without extreme values.

    The workers must read the files of the chain, so Spark must run on this machine.
    """
    if not is_local(spark):
        return None
    steps = [
        number for number, step in enumerate(tables.steps) if any(step.deletes.values()) and not step.extreme
    ]
    return max(steps, default=None)


def certify(
    spark: "SparkSession",
    name: str,
    sql: str,
    output: ViewOutput,
    tables: Mapping[str, str],
    *,
    written: ViewOutput | None = None,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> ViewCertificate:
    """Compare the circuit of one view with its query; the arguments are those of `CircuitTest`."""
    test = CircuitTest(view=name, sql=sql, output=output, written=written, tables=tables)
    with GeneratedTables(spark, tables, seed, facts_of([output])) as generated:
        (certificate,) = certify_circuits(spark, [test], generated, bounds=bounds)
    return certificate


def _case(test: CircuitTest, executed: MaintainedView) -> Case:
    tie_breaking = _text(test.output if test.written is None else test.written)
    return Case(test.view, test.sql, executed, equality_of(test.output), tie_breaking, tuple(test.tables))


def _certificate(case: Case, verdict: Verdict) -> ViewCertificate:
    why = "" if verdict else str(verdict.mismatches[0])
    if verdict.raised == verdict.compared:
        why = "raises an error in every generated step, so nothing could be compared"
    return ViewCertificate(
        equal=not why,
        kind=case.equality.name,
        why=why[:2000],
        compared=verdict.compared,
        loose=verdict.loose,
        raised=verdict.raised,
    )


def _text(output: ViewOutput) -> TimedQuery:
    return lambda now: interpret(output, Renderer(clock_values(now)))
