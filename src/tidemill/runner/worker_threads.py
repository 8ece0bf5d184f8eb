"""Worker threads of a runner: each runs one claimed future at a time.

They are the `Executor` of the in-process worker. The worker claims a future only when a thread is free, so
that other runners can claim the rest. To stop a future, the worker cancels the Spark jobs that have the
future's tag, again and again until the future has ended (`interrupt_ended`).

If two runners have died while they ran a future, the future may be the cause. So it then runs alone
(`Isolation`).
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from tidemill.clock import Clock
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import reap
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.worker.claim_loop import Executor
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob
from tidemill.futures.worker.ledger import Ledger
from tidemill.futures.worker.task import Outcome
from tidemill.futures.worker.wire import InputsMissing, TaskBroken, TaskDone
from tidemill.runner.future_run import FutureRun, FutureRunner

INTERRUPT_EVERY_S = 1.0

PLENTY = Capacity(cpu=1e9, ram=2**60)
"""The CPU and memory that futures may require: practically no limit.

Only the number of threads limits how many futures run; Spark has its own limits.
"""

Interrupt = Callable[[str], None]


def no_interrupt(tag: str) -> None:
    """Do nothing. Used for futures that cannot be interrupted."""


class WorkerThreads(Executor):
    """Runs futures in threads of this process.

    Args:
        runner: runs one future to its outcome.
        ledger: receives the outcomes of jobs.
        names: the resources that the futures require.
        size: the number of threads.
        tools: what `future_run.tools()` returns to the code of a future.
        interrupt: takes a tag, and ends the Spark jobs that have this tag; errors are ignored.
        clock: the source of time.
    """

    suspect_reaps = 2  # few parts share a Spark session, so few futures are suspected after a death

    def __init__(
        self,
        runner: FutureRunner,
        ledger: Ledger,
        names: Collection[str],
        size: int,
        *,
        tools: object = None,
        interrupt: Interrupt = no_interrupt,
        clock: Clock,
    ) -> None:
        self.size = size
        self._runner = runner
        self._ledger = ledger
        self._names = frozenset(names)
        self._tools = tools
        self._interrupt = interrupt
        self._clock = clock
        self._joined = False  # whether this process has joined the node list before
        self._threads: list[threading.Thread] = []
        self._queue: queue.SimpleQueue[FutureRun | None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[FutureRun, Outcome]] = queue.SimpleQueue()
        self._runs: dict[int, FutureRun] = {}  # runs that are in a thread, even if their claims have ended

    def __len__(self) -> int:
        """Return how many futures run now."""
        return len(self._runs)

    @property
    def _running(self) -> list[FutureRun]:
        return list(self._runs.values())

    # --- the threads

    def open(self, ended: Callable[[], None], broke: Callable[[BaseException], None]) -> None:
        """Start the threads.

        Args:
            ended: called when a future has ended.
            broke: called with the error if this process counts as dead, for example at a crash point.
        """
        for number in range(self.size):
            thread = threading.Thread(
                target=self._serve, args=(ended, broke), name=f"future-{number}", daemon=True
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let each thread end when its future has ended."""
        for _ in range(self.size):
            self._queue.put(None)

    def join(self, deadline: float) -> bool:
        """Wait for closed threads until this time of the monotonic clock; return whether all have ended."""
        threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _serve(self, ended: Callable[[], None], broke: Callable[[BaseException], None]) -> None:
        while (run := self._queue.get()) is not None:
            try:
                outcome = self._runner.run_future(run)
            except BaseException as error:  # noqa: BLE001 - see `open`
                broke(error)
                return
            finally:
                self._runs.pop(id(run), None)
            self._ends.put((run, outcome))
            ended()

    def collect(self) -> None:
        """Report the futures that have ended to the ledger."""
        while True:
            try:
                run, outcome = self._ends.get_nowait()
            except queue.Empty:
                return
            self.room_changed = True
            if not run.stopped and run.job.id in self._ledger.jobs:
                self._report(run.job, outcome)

    def _report(self, job: FutureJob, outcome: Outcome) -> None:
        match outcome:
            case TaskDone():
                self._ledger.finished(job, outcome.result)
            case TaskBroken():
                self._ledger.failed(job, outcome.failure, ram_used=outcome.ram_used)
            case InputsMissing():
                self._ledger.block(job, [loss.id for loss in outcome.losses], outcome.losses)

    def interrupt_ended(self) -> None:
        """Interrupt the futures that should end; any thread may call this."""
        now = self._clock.monotonic()
        for run in self._running:
            if run.ending and now >= run.interrupted_at + INTERRUPT_EVERY_S:
                run.interrupted_at = now
                with contextlib.suppress(Exception):
                    self._interrupt(run.tag)

    # --- the executor

    def request(self) -> ClaimRequest | None:
        free = self.size - len(self)
        return (
            ClaimRequest(free, Capacity(cpu=PLENTY.cpu, ram=PLENTY.ram, named=self._names))
            if free > 0
            else None
        )

    def start(self, jobs: Sequence[FutureJob]) -> None:
        for job in jobs:
            run = FutureRun(job, self._tools)
            self._runs[id(run)] = run
            self._queue.put(run)

    def interrupt(self, job: FutureJob) -> None:
        """Do nothing: `job.ending` is set, and `interrupt_ended` interrupts the future."""

    def drain(self, by: float) -> None:
        if self._clock.monotonic() < by:
            return
        for run in self._running:
            if not run.stopped and run.job.id in self._ledger.jobs:
                end = self._ledger.cancelled if run.job.ending else self._ledger.relinquish
                run.stopped = "drain"
                end(run.job)

    def drop(self) -> None:
        """Discard the results of running futures. The guard thread then interrupts these futures.

        Any thread may call this.
        """
        for run in self._running:
            run.stopped = run.stopped or "lost"

    def recover(self, node: Node) -> int:
        """End the claims of earlier processes of this node, which have died, as a leader would (FUT-49).

        Each death is counted for the future, so that a future that kills its runners is detected.
        """
        reaped, after, more = 0, b"", not self._joined
        keys, cluster = self._ledger.keys, self._ledger.cluster
        take = partial(reap.reap_page, keys=keys, cluster=cluster, node_id=node.id)
        while more:
            page, after = self._ledger.store.run(partial(take, after=after))
            reaped, more = reaped + len(page.moved), page.more
        self._joined = True
        return reaped
