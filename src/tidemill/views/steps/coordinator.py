"""The coordinator: runs a round, in which all groups of a pipeline stop at one step and start again.

It holds the lease of the pipeline's step log from the first transaction to the last, and during that time no
record is written. If it dies, its lease ends, and the next run of any group starts all groups again
(`rounds.end_abandoned`). A coordinator that wakes up after that changes nothing: each of its transactions
checks the lease (DBSP-35).
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from tidemill.cluster import leases
from tidemill.cluster.leases import Lease
from tidemill.errors import LeaseLost, RoundNotReady, StoreError
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.views.steps import records, rounds
from tidemill.views.steps.keys import StepKeys

POLL_S = 0.05
TTL_US = 15 * leases.SECOND_US
RENEW_S = 3.0


class Coordinator:
    """Runs the rounds of one pipeline.

    - wait_s: how long to wait until all groups rest, and then until all have stopped. A round that takes
      longer is ended, and changes nothing.
    """

    def __init__(self, scope: Scope, pipeline: str, *, wait_s: float = 600.0) -> None:
        self._scope = scope
        self._keys = StepKeys(scope.cluster)
        self._pipeline = pipeline
        self._wait_s = wait_s

    def run_round(
        self, change: Callable[[Tx], object], *, stopped: Callable[[Lease, int], object] | None = None
    ) -> int:
        """Stop all groups, apply a change, and start them again; return the step at which they stopped.

        Raises `RoundNotReady` if a group does not stop in time; then all continue without the change.

        - change: a part of the transaction that starts the groups.
        - stopped: called while all groups are stopped, with the lease and their step. It may take long, and
          checks the lease in each of its transactions. If it raises an error, all groups start again.
        """
        keys, pipeline, scope = self._keys, self._pipeline, self._scope
        lease = self._lease()
        try:
            scope.step("views.pause", lambda tx: rounds.pause(tx, keys, pipeline, lease))
            self._wait(lease, lambda: self._all_rest(lease), "finish its step")
            step = scope.step("views.stop", lambda tx: rounds.stop(tx, keys, pipeline, lease))
            self._wait(lease, lambda: self._all_stopped(lease), f"reach step {step}")
            if stopped is not None:
                with self._renewing(lease):
                    stopped(lease, step)
        except Exception:
            scope.step("views.resume", lambda tx: self._start(tx, lease))
            raise

        def start(tx: Tx) -> None:
            change(tx)
            self._start(tx, lease)

        scope.step("views.start", start)
        return step

    def _lease(self) -> Lease:
        """Acquire the lease; wait while another process holds it."""
        give_up = self._scope.clock.monotonic() + self._wait_s
        while True:
            lease = self._scope.store.run(
                lambda tx: records.become_coordinator(
                    tx, self._keys, self._pipeline, self._scope.node.id, TTL_US
                )
            )
            if isinstance(lease, Lease):
                return lease
            if self._scope.clock.monotonic() > give_up:
                raise RoundNotReady(f"another process coordinates pipeline {self._pipeline!r}")
            self._scope.clock.sleep(min(lease.wait_s, POLL_S))

    @contextlib.contextmanager
    def _renewing(self, lease: Lease) -> Iterator[None]:
        """Renew the lease in a thread. If that fails, the lease ends, and the next transaction finds out."""
        done, key = threading.Event(), self._keys.coordinator_lease(self._pipeline)

        def renew() -> None:
            with contextlib.suppress(LeaseLost, StoreError):
                while not self._scope.clock.wait(done, RENEW_S):
                    self._scope.store.run(lambda tx: leases.renew(tx, key, lease, TTL_US))

        thread = threading.Thread(target=renew, name="round-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _start(self, tx: Tx, lease: Lease) -> None:
        rounds.start(tx, self._keys, self._pipeline, lease)
        records.resign_coordinator(tx, self._keys, self._pipeline, lease)

    def _all_rest(self, lease: Lease) -> bool:
        return self._scope.store.run(lambda tx: rounds.rest_idle(tx, self._keys, self._pipeline, lease))

    def _all_stopped(self, lease: Lease) -> bool:
        states = self._scope.store.run(lambda tx: rounds.read_all(tx, self._keys, self._pipeline))
        stopped = [
            self._scope.step(
                "views.finish",
                lambda tx, name=name: rounds.finish_idle(tx, self._keys, self._pipeline, name, lease),  # type: ignore[misc]
            )
            for name, state in states.items()
            if not isinstance(state, rounds.Stopped)
        ]
        return all(stopped)

    def _wait(self, lease: Lease, ready: Callable[[], bool], what: str) -> None:
        clock, key = self._scope.clock, self._keys.coordinator_lease(self._pipeline)
        give_up = clock.monotonic() + self._wait_s
        while not ready():
            if clock.monotonic() > give_up:
                raise RoundNotReady(
                    f"a group of pipeline {self._pipeline!r} did not {what} within {self._wait_s:g} s",
                    hint="groups that are behind need a runner: start one with tidemill run --watch",
                )
            clock.sleep(POLL_S)
            self._scope.store.run(lambda tx: leases.renew(tx, key, lease, TTL_US))
