"""Run the tests of views on Spark, in a session that does not disturb other queries."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeGuard

from tidemill.clock import Clock
from tidemill.spark.sessions import interrupt, separate_session
from tidemill.views.certify import declared_functions
from tidemill.views.certify.bounds import Bounds
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.circuit_comparison import GeneratedTables, certify_circuits
from tidemill.views.certify.table_facts import facts_of
from tidemill.views.certify.view_tests import CircuitTest, FunctionTest, ViewTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH: Final = 40
"""How many views are compared together."""

FOR_SMALL_QUERIES: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
}
"""Spark settings for a comparison, which runs many queries over a few rows. With its usual settings, Spark
would spend most of the time generating Java code, describing and checking plans, and starting a job for each
join. These settings do not change results, and the query and the circuit both run with them."""


class ViewTester:
    """Runs tests, in any thread. Tests that run at the same time share the generated tables.

    Circuits are compared in a session with settings for small queries. A test that may call a function of the
    user's session runs in that session.

    Args:
        spark: the user's session, with the pinned settings.
        clock: measures how long tests take.
        tests: all tests that `run` will get.
        certified: the tests of the other views of the program, which have passed.
    """

    def __init__(
        self,
        spark: "SparkSession",
        clock: Clock,
        tests: Sequence[ViewTest],
        certified: Sequence[ViewTest] = (),
    ) -> None:
        self._spark = spark
        self._clock = clock
        self._certified = [test for test in certified if _in_batches(test)]
        self._ddl = {name: text for test in (*certified, *tests) for name, text in test.tables.items()}
        self._facts = facts_of(test.output for test in (*certified, *tests) if isinstance(test, CircuitTest))
        self._running: dict[Bounds, SparkSession] = {}
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._session = separate_session(self._spark)
        if self._session is not self._spark:
            for name, value in FOR_SMALL_QUERIES.items():
                self._session.conf.set(name, value)
        self._tables = self._stack.enter_context(GeneratedTables(self._session, self._ddl, facts=self._facts))
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):  # Spark may have died
            self._stack.close()

    def beside(self, tests: Sequence[ViewTest]) -> list[CircuitTest]:
        """Return certified views that a batch of new views can disturb.

        They are in the same group and read a table that a new view reads, so one chain computes them with
        shared projections and operators. Views that share more tables come first.
        """
        if not all(map(_in_batches, tests)):
            return []
        groups = {test.group for test in tests if isinstance(test, CircuitTest)}
        tables = {name for test in tests for name in test.tables}
        related = [test for test in self._certified if test.group in groups and tables & test.tables.keys()]
        related.sort(key=lambda test: -len(tables & test.tables.keys()))
        compared = (test for test in related if test.trivial() is None)
        chosen = {test.view for test in islice(compared, max(0, BATCH - len(tests)))}
        return [test for test in self._certified if test.view in chosen]

    def run(self, tests: Sequence[ViewTest], beside: Sequence[CircuitTest] = ()) -> list[ViewCertificate]:
        """Run one batch of tests.

        - beside: certified views that are compared again, together with the new views.
        """
        bounds = Bounds()
        circuits = [test for test in tests if isinstance(test, CircuitTest)]
        if all(map(_in_batches, tests)):
            with self._watching(self._session, bounds):
                return certify_circuits(self._session, circuits, self._tables, beside=beside, bounds=bounds)
        (test,) = tests
        with self._watching(self._spark, bounds):
            if not isinstance(test, FunctionTest):
                with GeneratedTables(self._spark, test.tables, facts=self._facts) as tables:
                    return certify_circuits(self._spark, circuits, tables, bounds=bounds)
            result = declared_functions.certify_function(
                self._spark, test.function, test.reads, test.tables, keyed_by=test.keyed_by, bounds=bounds
            )
        return [result]

    @contextmanager
    def _watching(self, session: "SparkSession", bounds: Bounds) -> Iterator[None]:
        """Watch the bounds of a test, and let `interrupt` find its jobs."""
        with self._lock:
            self._running[bounds] = session
        try:
            with bounds.watch(session, self._clock):
                yield
        finally:
            with self._lock:
                del self._running[bounds]

    def interrupt(self) -> None:
        """End all running tests: cancel their Spark jobs, and let no further job start."""
        with self._lock:
            running = dict(self._running)
        for bounds, session in running.items():
            bounds.expire()
            with suppress(Exception):  # Spark may have died
                interrupt(session, bounds.tag)


def batches_of(tests: Sequence[ViewTest]) -> Iterator[list[ViewTest]]:
    """Divide tests into batches of views of one group.

    A test that may call functions of the user's session is a batch itself.
    """
    circuits: dict[str, list[ViewTest]] = {}
    for test in tests:
        if _in_batches(test):
            circuits.setdefault(test.group, []).append(test)
        else:
            yield [test]
    for members in circuits.values():
        for first in range(0, len(members), BATCH):
            yield members[first : first + BATCH]


def _in_batches(test: ViewTest) -> TypeGuard[CircuitTest]:
    """Return whether a test runs with others, in a separate session."""
    return isinstance(test, CircuitTest) and not test.calls_unknown_functions
