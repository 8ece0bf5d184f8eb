"""Compare the circuits of views with their queries on generated steps (DBSP-19).

Spark spends most of the time on analysing and planning queries: there are two for each view and step, over
tables of a few rows. So views share what they can. The generated tables are created once for all views
(`GeneratedTables`), and one Spark job computes the results of many queries.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from typing import TYPE_CHECKING, Self

from tidemill.spark.sessions import expecting_errors
from tidemill.views.certify import generated_steps
from tidemill.views.certify.bounds import Bounds
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.equality import equality_of
from tidemill.views.certify.judge import Case, Judge, TimedQuery, Verdict
from tidemill.views.certify.step_tables import StepTables
from tidemill.views.certify.table_contents import Step, merged_step
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
    """

    def __init__(self, spark: "SparkSession", ddl: Mapping[str, str], seed: int = 0) -> None:
        self.ddl = dict(ddl)
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
            generated_steps.generate_steps(
                {name: columns}, seed=f"{self._seed} {name}", clock=True, sized=sized
            )
            for name, columns in self.ddl.items()
        ]
        steps = [reduce(merged_step, steps) for steps in zip(*steps_of_tables, strict=True)]
        empty, inserts, deletes, clock, extreme = steps or generated_steps.generate_steps({}, clock=True)
        # A query depends on the rows that are there, not on the steps in which they came and went.
        return [empty, inserts, clock, merged_step(deletes, extreme)]


def certify_circuits(
    spark: "SparkSession",
    tests: Sequence[CircuitTest],
    tables: GeneratedTables,
    *,
    bounds: Bounds | None = None,
) -> list[ViewCertificate]:
    """Compare the circuits of several views with their queries, in a few Spark jobs.

    Args:
        spark: a session with the pinned settings.
        tests: the circuits and queries.
        tables: the generated tables, in the same session.
        bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """
    certificates = [test.trivial() for test in tests]
    judge = Judge(spark, tables.ddl, bounds=bounds)
    numbers_of: dict[StepTables, list[int]] = {}
    for number, certificate in enumerate(certificates):
        if certificate is None:
            numbers_of.setdefault(tables.of(tests[number]), []).append(number)
    with expecting_errors():  # generated values overflow, and both sides must raise an error
        for step_tables, numbers in numbers_of.items():
            cases = [_case(tests[number]) for number in numbers]
            for number, case, verdict in zip(numbers, cases, judge.verdicts(cases, step_tables), strict=True):
                certificates[number] = _certificate(case, verdict)
    return [certificate for certificate in certificates if certificate is not None]


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
    with GeneratedTables(spark, tables, seed) as generated:
        (certificate,) = certify_circuits(spark, [test], generated, bounds=bounds)
    return certificate


def _case(test: CircuitTest) -> Case:
    tie_breaking = None if test.written is None else _text(test.written)
    return Case(
        test.view, test.sql, _text(test.output), equality_of(test.output), tie_breaking, tuple(test.tables)
    )


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
