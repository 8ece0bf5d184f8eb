"""Run the tests of views on Spark, in a session that does not disturb other queries."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self, TypeGuard

from tidemill.clock import Clock
from tidemill.spark.sessions import interrupt, separate_session
from tidemill.spark.small_queries import FOR_SMALL_QUERIES
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

    def add_certified(self, test: ViewTest) -> None:
        """Let later tests be judged together with a view that has passed."""
        if _in_batches(test):
            with self._lock:
                self._certified.append(test)

    def beside(self, tests: Sequence[ViewTest]) -> list[CircuitTest]:
        """Return the certified views of the same group, which one chain computes together with new views.

        Views that share more tables with the new views come first.
        """
        if not all(map(_in_batches, tests)):
            return []
        groups = {test.group for test in tests if isinstance(test, CircuitTest)}
        names = {test.view for test in tests}
        tables = {name for test in tests for name in test.tables}
        with self._lock:
            certified = [test for test in self._certified if test.view not in names]
        members = [test for test in certified if test.group in groups and test.trivial() is None]
        return sorted(members, key=lambda test: -len(tables & test.tables.keys()))

    def run(
        self, tests: Sequence[ViewTest], beside: Sequence[CircuitTest] = (), *, batch: int = BATCH
    ) -> list[ViewCertificate]:
        """Run one batch of tests.

        - beside: certified views that one chain computes together with the new views.
        - batch: how many views are compared with plain Spark: the new views, and certified ones that share a
          table with them. For all other certified views, the chain must compute the same rows with and
          without the new views.
        """
        bounds = Bounds()
        circuits = [test for test in tests if isinstance(test, CircuitTest)]
        if all(map(_in_batches, tests)):
            with self._watching(self._session, bounds):
                read = {name for test in tests for name in test.tables}
                sharing = sum(1 for test in beside if read & test.tables.keys())
                near = max(0, min(sharing, batch - len(tests)))
                return certify_circuits(
                    self._session,
                    circuits,
                    self._tables,
                    beside=self._in_order(beside[:near]),
                    others=self._in_order(beside[near:]),
                    bounds=bounds,
                )
        (test,) = tests
        with self._watching(self._spark, bounds):
            if not isinstance(test, FunctionTest):
                with GeneratedTables(self._spark, test.tables, facts=self._facts) as tables:
                    return certify_circuits(self._spark, circuits, tables, bounds=bounds)
            result = declared_functions.certify_function(
                self._spark, test.function, test.reads, test.tables, keyed_by=test.keyed_by, bounds=bounds
            )
        return [result]

    def _in_order(self, tests: Sequence[CircuitTest]) -> list[CircuitTest]:
        """Return certified views in the order of their certificates: a view after the views that it reads."""
        names = {test.view for test in tests}
        with self._lock:
            return [test for test in self._certified if test.view in names]

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


def batches_of(tests: Sequence[ViewTest]) -> Iterator[list[list[ViewTest]]]:
    """Divide tests into batches of views of one group; return the batches of each group, in order.

    The views of a batch are judged together with those of the batches before. So the batches of a group must
    run one after the other. A test that may call functions of the user's session is a batch itself.
    """
    circuits: dict[str, list[ViewTest]] = {}
    for test in tests:
        if _in_batches(test):
            circuits.setdefault(test.group, []).append(test)
        else:
            yield [[test]]
    for members in circuits.values():
        yield [members[first : first + BATCH] for first in range(0, len(members), BATCH)]


def _in_batches(test: ViewTest) -> TypeGuard[CircuitTest]:
    """Return whether a test runs with others, in a separate session."""
    return isinstance(test, CircuitTest) and not test.calls_unknown_functions
