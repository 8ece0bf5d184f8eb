"""The worker inside a runner: claims the futures of the runner's pipelines and runs them in threads.

One thread runs the same claim loop as a worker process. Worker threads run the claimed futures. A guard
thread interrupts a future when the node's lease has ended or the future must end, even while the loop waits
for the store.

When the node loses its lease, the worker ends everything that started under that lease (FUT-55). It drops the
results of running futures, and releases the claims under the next epoch. The store refuses a result that is
written too late. If this runner replaces a
process that died, the worker ends the claims of the dead process, as the leader would. For each future of
these claims, the number of runners that died while they ran it goes up by one (FUT-49).

A crash point in a future or in the loop simulates the death of the process: the worker writes nothing more,
and `check` raises the error.
"""

import threading
from collections.abc import Collection

from tidemill.errors import LeaseLost
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Lane, bounds_of
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.claim_loop import ClaimLoop
from tidemill.futures.worker.ledger import Ledger
from tidemill.runner.future_run import FutureRunner
from tidemill.runner.presence import Presence
from tidemill.runner.worker_threads import Interrupt, WorkerThreads, no_interrupt
from tidemill.scope import Scope

LINGER_S = 5.0
"""How long to wait for interrupted futures when the worker ends."""

GUARD_EVERY_S = 0.1
LEAST_PAUSE_S = 0.02


class InProcessWorker:
    """Runs futures that require one of the resources in `names`, in threads of this process.

    A node has at most one in-process worker, because the worker releases claims of its node that it does not
    know.

    Args:
        scope: the runner's scope.
        key: the cluster key; only code that was signed with it runs.
        presence: our node.
        names: the resources that the futures require; see `part_futures.resource_of`.
        threads: how many futures run at the same time.
        tools: what `future_run.tools()` returns to the code of a future.
        interrupt: takes a tag, and ends the Spark jobs that have this tag. The guard thread calls it; errors
            are ignored.
    """

    def __init__(
        self,
        scope: Scope,
        key: ClusterKey,
        presence: Presence,
        *,
        names: Collection[str],
        threads: int,
        tools: object = None,
        interrupt: Interrupt = no_interrupt,
    ) -> None:
        self.store = scope.store
        self.presence = presence
        self.clock = scope.clock
        self._names = frozenset(names)
        node_id = presence.node.id
        ledger = Ledger(
            scope.store, scope.cluster, node_id, scope.chance, emit=scope.emit, serves=self._serves
        )
        self._threads = WorkerThreads(
            FutureRunner(scope, key, node_id),
            ledger,
            names,
            threads,
            tools=tools,
            interrupt=interrupt,
            clock=scope.clock,
        )
        self._claims = ClaimLoop(ledger, presence, self._threads, scope.clock)
        self._keys = FutureKeys(scope.cluster)
        self._wake = threading.Event()
        self._loop: threading.Thread | None = None
        self._over = threading.Event()
        self._idle = threading.Event()  # drained
        self._quiet = threading.Event()  # every thread has ended: no future is left to interrupt
        self._broken: BaseException | None = None

    def _serves(self, lane: Lane) -> bool:
        return not self._names.isdisjoint(bounds_of(lane.label)[0].named)

    # --- called by other threads

    def start(self) -> None:
        """Start to claim futures."""
        self._loop = threading.Thread(target=self._run, name="claim-loop", daemon=True)
        self._loop.start()
        self._threads.open(self._wake.set, self._break)
        threading.Thread(target=self._guard, name="claim-guard", daemon=True).start()

    def check(self) -> None:
        """Raise an error if this worker has ended. Otherwise a caller would wait forever for futures."""
        if self._broken is not None:
            raise self._broken
        if self._over.is_set():
            raise LeaseLost("the worker of this runner has ended")

    @property
    def busy(self) -> int:
        """How many futures run now."""
        return len(self._threads)

    def drain(self, grace_s: float = 30.0) -> bool:
        """Claim nothing more, let running futures finish within `grace_s`, and release the others (CLU-25).

        Returns True when nothing is left to write, and False if the store did not answer in time. You may
        call it again; the shortest grace period applies. A future that ignores its interruption is abandoned
        after a few seconds.
        """
        self.start_drain(grace_s)
        ended = self.clock.wait(self._idle, grace_s + 30.0)
        self._end()
        return ended and self._broken is None

    def start_drain(self, grace_s: float) -> None:
        """Claim nothing more, without waiting for the futures that run; see `drain`."""
        deadline = self.clock.monotonic() + grace_s
        earlier = self._claims.drain_by
        self._claims.drain(deadline if earlier is None else min(deadline, earlier))
        self._wake.set()
        if self._loop is None:
            self._idle.set()

    def wait_drained(self, timeout_s: float) -> bool:
        """Wait until no future is running, for at most this long. Return False if some still run."""
        return self.clock.wait(self._idle, timeout_s)

    def stop(self) -> None:
        """Release all claims and end."""
        self.drain(0.0)

    def abandon(self) -> None:
        """End as if killed: write nothing more, and interrupt running futures."""
        self._over.set()
        self._idle.set()
        self._threads.drop()
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._wake.set()
        self._threads.close()
        deadline = self.clock.monotonic() + LINGER_S
        if self._loop is not None and self._loop is not threading.current_thread():
            self._loop.join(LINGER_S)
        if self._threads.join(deadline):
            self._quiet.set()

    def _break(self, error: BaseException) -> None:
        error.add_note(f"in the thread {threading.current_thread().name}")
        self._broken = self._broken or error
        self._over.set()
        self._idle.set()
        self._wake.set()

    # --- the loop

    def _run(self) -> None:
        work = self.store.watch([self._keys.bell])
        mail = self.store.watch([self._keys.inbox[self.presence.node.id]])
        unsubscribe = [work.notify(self._on_work), mail.notify(self._on_mail)]
        try:
            while not self._over.is_set() and not self._idle.is_set():
                self.clock.wait(self._wake, self._pause_s())
                self._wake.clear()
                self._threads.collect()
                self._claims.run_once()
                if self._claims.is_drained:
                    self._idle.set()
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._break(error)
        finally:
            for end in unsubscribe:
                end()
            work.close()
            mail.close()

    def _pause_s(self) -> float:
        pause_s = self._claims.pause_s()
        if self._claims.drain_by is None:
            return pause_s
        return min(pause_s, max(LEAST_PAUSE_S, self._claims.drain_by - self.clock.monotonic()))

    def _guard(self) -> None:
        """Interrupt futures that should end, even while the loop waits for the store.

        This continues after `_end` has stopped waiting. A future may start its Spark job late, and no other
        thread would cancel that job.
        """
        while not self.clock.wait(self._quiet, GUARD_EVERY_S):
            if self._over.is_set() and self._threads.join(self.clock.monotonic()):
                return
            if self._claims.is_lost():
                self._threads.drop()
                self._claims.mark_lost()
                self._wake.set()
            self._threads.interrupt_ended()

    def _on_work(self) -> None:
        self._claims.on_work()
        self._wake.set()

    def _on_mail(self) -> None:
        self._claims.on_mail()
        self._wake.set()
