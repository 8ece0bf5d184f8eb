"""Certify the new views of a program in background threads, while the runner does its other work (DBSP-19).

A step may use the circuit of a view while the circuit is still being compared with plain Spark. The step is
committed only when all circuits that it used are certified. So the comparison runs beside the first load, and
nothing uncertified is ever visible. If a circuit turns out to be wrong, or its comparison takes longer than
`WAIT_S`, the attempt at the step is abandoned, and the next one recomputes the view. A certificate that
arrives later switches the view to its chain at the next step. ADR 24 gives the reasons.

Views are compared in batches, and a batch is one attempt: `certificates.begin` records it for each view
before the comparison starts, and `certificates.finish` stores the results. Certified views of the same group,
also those of the batches before, are computed again together with the new ones. If the batch fails, each new
view is compared with plain Spark alone. If the process dies, the next runner finds the attempts. It compares
these suspects alone, one after the other, before it starts anything else. So a further death has only one
possible cause.
"""

import os
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tidemill.cluster.nodes import Node
from tidemill.errors import SparkUnavailable, StoreError
from tidemill.runner.program import Program, ViewProgram
from tidemill.scope import Scope
from tidemill.spark.java_process import check_java
from tidemill.spark.messages import short
from tidemill.store import Tx
from tidemill.views.certify import certificates
from tidemill.views.certify.bounds import MOST_SECONDS, BoundExceeded, TimeExceeded, ends_spark
from tidemill.views.certify.certificates import FAILED, Attempt, CertificateLate, ViewCertificate
from tidemill.views.certify.tester import BATCH, ViewTester, batches_of
from tidemill.views.certify.view_tests import CircuitTest, ViewTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS: Final = min(4, os.cpu_count() or 1)
"""How many batches are compared at the same time. Spark plans each query in one thread."""

WAIT_S: Final = 600.0
"""How long a computed step waits for the certificates of its views. After that, the step is computed again
without their circuits, and their traces are dropped. This is expensive, so the wait is long."""

CONFIRM_S: Final = 0.05
POLL_S: Final = 0.2
MOST_WAIT_S: Final = 2 * MOST_SECONDS
"""How long a run that has caught up waits for comparisons that other nodes run."""

BUSY_TRIES: Final = 5
"""How many times a comparison may take too long while other work keeps Spark busy."""

STOP_ROUNDS: Final = 5
STORE_PAUSE_S: Final = 1.0

T = TypeVar("T")


class NotCertified(Exception):
    """A step used a circuit that is not certified. Its next attempt recomputes the view."""


class Certification(Protocol):
    """What the loop of a runner asks about certificates."""

    def is_done(self) -> bool:
        """Return whether nothing is left to compare."""
        ...


class NoCertification:
    """The certification of a runner without Spark: there is nothing to compare."""

    def is_done(self) -> bool:
        return True


class Certifier:
    """Certifies the views of one program.

    Args:
        scope: the runner's store, clock and event sink.
        node: returns our node, under its current epoch.
        spark: the session of the runner.
        program: the program with its tests.
        wake: called when certificates have arrived.
        is_busy: returns whether Spark may be busy with other work of the runner.
        wait_s: how long a computed step waits for certificates; by default `WAIT_S`.
    """

    def __init__(
        self,
        scope: Scope,
        node: Callable[[], Node],
        spark: "SparkSession",
        program: Program,
        *,
        wake: Callable[[], object] = lambda: None,
        is_busy: Callable[[], bool] = lambda: False,
        wait_s: float | None = None,
    ) -> None:
        self._scope = scope
        self._node = node
        self._spark = spark
        self._program = program
        self._wake = wake
        self._is_busy = is_busy
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self._known: dict[str, ViewCertificate] = {}  # by view
        self._batches: queue.SimpleQueue[list[list[ViewTest]]] = queue.SimpleQueue()  # by group
        self._elsewhere: list[ViewTest] = []  # another node compares these views
        self._slow: list[tuple[ViewTest, Node]] = []  # begun, and repeated after the other comparisons
        self.waiting_steps = 0  # computed steps that wait for certificates
        self._late: set[str] = set()  # no step waits for these views any more
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._dead = False
        self._exclusive = False
        self._started_at = scope.clock.monotonic()
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None
        self._tester = ViewTester(spark, scope.clock, ())

    # --- for the runner

    def start(self) -> None:
        """Read the stored certificates, and start to compare the views that have none."""
        self._started_at = self._scope.clock.monotonic()
        tests = list(self._program.tests.values())
        stored = self._scope.store.run(
            lambda tx: [certificates.read(tx, self._scope.cluster, test.digest) for test in tests]
        )
        left, suspects = [], []
        for test, certificate in zip(tests, stored, strict=True):
            if certificate is not None and not certificate.open:
                self._known[test.view] = certificate
            elif certificate is None:
                left.append(test)
            else:
                suspects.append(test)
        if left or suspects:
            self._exclusive = bool(suspects)
            self._thread = threading.Thread(
                target=self._run, args=(left, suspects), name="certification", daemon=True
            )
            self._thread.start()

    def is_exclusive(self) -> bool:
        """Return whether nothing else may start now, because a suspect is compared."""
        return self._exclusive

    def is_done(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            return True
        with self._lock:
            only_elsewhere = len(self._known) + len(self._elsewhere) >= len(self._program.tests)
        waited_s = self._scope.clock.monotonic() - self._started_at
        return only_elsewhere and waited_s > MOST_WAIT_S

    def usable(self, view: ViewProgram) -> ViewProgram:
        """Return a view for the next step, without its circuit if the step must recompute the view.

        A step may use a circuit that is still being compared: `confirm` decides whether it is committed.
        """
        waits = [name for name in (view.name, *view.copied) if name not in self._known]
        if any(name in self._late for name in waits):
            return replace(view, circuit=None)
        return view.certified_by(self._known)

    def confirm(self, views: Collection[str]) -> None:
        """Wait for the certificates of views whose circuits a step has used, before the step is committed.

        Raise `NotCertified` if one of the circuits is wrong, or has no certificate after `wait_s`. The next
        attempt at the step then recomputes these views. A view that is declared `refresh="incremental"` must
        not be recomputed, so the step waits for as long as its comparison takes.
        """
        tested = [name for name in views if name in self._program.tests]
        with self._lock:
            self.waiting_steps += 1
        try:
            self._wait_for(tested)
        finally:
            with self._lock:
                self.waiting_steps -= 1
        wrong = [name for name in tested if not self._known[name].equal]
        if wrong:
            raise NotCertified(f"these views differ from what plain Spark computes: {', '.join(wrong)}")

    def _wait_for(self, tested: Collection[str]) -> None:
        ends_at = self._scope.clock.monotonic() + self._wait_s
        while waiting := [name for name in tested if name not in self._known]:
            if self._stop.is_set() or self._broken is not None:
                raise NotCertified("the comparison was interrupted")
            if self._scope.clock.monotonic() >= ends_at and not self._is_incremental(waiting):
                self._give_up(waiting)
                raise NotCertified(f"not compared with plain Spark yet: {', '.join(waiting)}")
            self._scope.clock.wait(self._stop, CONFIRM_S)

    def _is_incremental(self, names: Collection[str]) -> bool:
        views = [view for group in self._program.groups.values() for view in group.views]
        return any(view.name in names and view.refresh == "incremental" for view in views)

    def _give_up(self, names: Collection[str]) -> None:
        """Let steps recompute these views until their certificates arrive."""
        for name in names:
            if name not in self._late:
                self._late.add(name)
                self._scope.emit(CertificateLate(pipeline=self._program.pipeline, view=name))

    def check(self) -> None:
        """Raise the error that ended a thread, if there is one."""
        if self._broken is not None:
            raise self._broken

    def wait(self, timeout_s: float) -> None:
        """Wait for all comparisons, and raise their error, if there is one."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self.check()

    def stop(self) -> None:
        """End the comparisons, and withdraw the attempts. A later run repeats them. Idempotent."""
        self._stop.set()
        for _ in range(STOP_ROUNDS):
            if self._thread is None or not self._thread.is_alive():
                return
            self._tester.interrupt()  # repeated, because a comparison may start another job
            self._thread.join(1.0)

    def abandon(self) -> None:
        """End as if killed: write nothing more to the store."""
        self._dead = True
        self._stop.set()
        if self._thread is not None:
            self._tester.interrupt()

    def _is_certified(self, view: str) -> bool:
        return view in self._known and self._known[view].equal

    # --- the threads

    def _run(self, left: list[ViewTest], suspects: list[ViewTest]) -> None:
        try:
            certified = [test for test in self._program.tests.values() if self._is_certified(test.view)]
            with ViewTester(self._spark, self._scope.clock, [*left, *suspects], certified) as self._tester:
                for test in suspects:
                    self._certify([test])
                self._exclusive = False
                self._wake()
                for batches in batches_of(left):
                    self._batches.put(batches)
                self._work_in_threads()
                self._repeat_slow()
                self._follow_others()
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            error.add_note("in the thread that certifies views")
            self._broken = error
        finally:
            self._exclusive = False
            self._wake()

    def _work_in_threads(self) -> None:
        count = min(THREADS, self._batches.qsize())
        threads = [
            threading.Thread(target=self._work, name=f"certification-{number}", daemon=True)
            for number in range(1, count)
        ]
        for thread in threads:
            thread.start()
        self._work()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        """Compare batches until none is left."""
        while not self._stop.is_set() and self._broken is None:
            try:
                batches = self._batches.get_nowait()
            except queue.Empty:
                return
            try:
                for batch in batches:
                    self._certify(batch)
                    self._wake()
            except BaseException as error:  # noqa: BLE001 - raised by `check`
                self._broken = error
                self._wake()

    def _repeat_slow(self) -> None:
        """Repeat comparisons that took too long while other work kept Spark busy."""
        for tries in range(2, BUSY_TRIES + 1):
            slow, self._slow = self._slow, []
            for test, node in slow:
                beside = self._tester.beside([test])
                self._attempt([test], node, beside, batch=1, is_last=tries == BUSY_TRIES)
                self._wake()

    def _follow_others(self) -> None:
        """Wait for the comparisons that other nodes run; take over those whose node dies."""
        while self._elsewhere and self._broken is None:
            if self._scope.clock.wait(self._stop, POLL_S):
                return
            with self._lock:
                tests, self._elsewhere = self._elsewhere, []
            for test in tests:
                self._certify([test])
            self._repeat_slow()
            self._wake()

    def _certify(self, tests: Sequence[ViewTest]) -> None:
        """Compare these views, unless another node does or has done so."""
        if self._stop.is_set():
            return
        cluster, node = self._scope.cluster, self._node()
        attempts = self._step(
            "certify.begin",
            lambda tx: [certificates.begin(tx, cluster, test.digest, node) for test in tests],
        )
        ours: list[ViewTest] = []
        suspects: list[ViewTest] = []
        for test, attempt in zip(tests, attempts, strict=True):
            if isinstance(attempt, ViewCertificate):
                self._keep(test, attempt, is_new=attempt is certificates.UNFINISHED)
            elif attempt is Attempt.RUNNING:
                with self._lock:
                    self._elsewhere.append(test)
            else:
                (suspects if attempt is Attempt.SUSPECT else ours).append(test)
        if ours:
            self._attempt(ours, node, self._tester.beside(ours))
        for test in suspects:
            self._attempt([test], node, self._tester.beside([test]), batch=1, suspect=True)

    def _attempt(
        self,
        tests: Sequence[ViewTest],
        node: Node,
        beside: Sequence[CircuitTest] = (),
        *,
        batch: int = BATCH,
        suspect: bool = False,
        is_last: bool = False,
    ) -> None:
        """Run begun attempts; store the results, or why they failed.

        - beside: certified views that one chain computes together with these views.
        - batch: how many views are compared with plain Spark together.
        - is_last: store a failure if the test takes too long, even if other work has kept Spark busy.
        """
        if self._stop.is_set():
            if not self._dead:
                self._withdraw(tests, node)
            return
        was_busy = self._is_busy()
        try:
            results = self._tester.run(tests, beside, batch=batch)
        # explain shows the error; a test must not stop a pipeline, even if the function of a view exits
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
            if self._dead:
                return
            if self._stop.is_set():  # the interrupt says nothing about the views
                self._withdraw(tests, node)
                return
            if ends_spark(error):
                self._spark_ended(tests, node, error, suspect=suspect)
            if len(tests) > 1 or (beside and batch > 1):
                for test in tests:
                    self._attempt([test], node, self._tester.beside([test]), batch=1, suspect=suspect)
                return
            if beside:
                self._attempt(tests, node, batch=1, suspect=suspect, is_last=is_last)
                return
            if isinstance(error, TimeExceeded) and not is_last and (was_busy or self._is_busy()):
                with self._lock:
                    self._slow.append((tests[0], node))
                return
            why = (
                str(error)
                if isinstance(error, BoundExceeded)
                else f"the test failed: {short(error) or type(error).__name__}"
            )
            results = [_failed(why)]
        self._finish(tests, node, results)

    def _finish(self, tests: Sequence[ViewTest], node: Node, results: Sequence[ViewCertificate]) -> None:
        pairs = list(zip(tests, results, strict=True))
        cluster = self._scope.cluster
        self._step(
            "certify.finish",
            lambda tx: [
                certificates.finish(tx, cluster, test.digest, node, result) for test, result in pairs
            ],
        )
        for test, result in pairs:
            self._keep(test, result, is_new=True)

    def _withdraw(self, tests: Sequence[ViewTest], node: Node, *, died: bool = False) -> None:
        def withdraw(tx: Tx) -> None:
            for test in tests:
                certificates.withdraw(tx, self._scope.cluster, test.digest, node, died=died)

        self._step("certify.withdraw", withdraw)

    def _spark_ended(
        self, tests: Sequence[ViewTest], node: Node, error: BaseException, *, suspect: bool
    ) -> None:
        """Record that Spark ended during these attempts, and raise an error that ends the run."""
        first = _first_error(error)
        names = ", ".join(test.view for test in tests)
        hint = "run the pipeline again: it compares these views again, one at a time"
        if suspect and self._exclusive:  # nothing else was running
            self._finish(tests, node, [_failed(f"the test ended Spark: {short(first)}")])
            hint = "run the pipeline again: it skips the test, and recomputes the view in each step"
        else:
            self._withdraw(tests, node, died=True)
        check_java(error)
        raise SparkUnavailable(
            f"Spark ended during the test of {names}: {short(first)}", hint=hint
        ) from first

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        """Run one transaction. Wait for a store that does not answer, until the runner stops."""
        while True:
            try:
                return self._scope.step(name, fn)
            except StoreError:
                if self._scope.clock.wait(self._stop, STORE_PAUSE_S):
                    raise

    def _keep(self, test: ViewTest, certificate: ViewCertificate, *, is_new: bool) -> None:
        with self._lock:
            self._known[test.view] = certificate
        if certificate.equal:
            self._tester.add_certified(test)
        if is_new:
            self._scope.emit(test.event(certificate))


def _failed(why: str) -> ViewCertificate:
    return ViewCertificate(equal=False, kind=FAILED, why=why)


def _first_error(error: BaseException) -> BaseException:
    """Return the first error of a chain. After Spark has ended, cleaning up raises further errors."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error
