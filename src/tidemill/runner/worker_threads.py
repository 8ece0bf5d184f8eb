"""Worker threads of a runner: each runs one claimed future at a time.

They are the `Executor` of the worker inside a runner. Futures are claimed only when a thread is free, because
several runners share them. A future whose end is wanted is interrupted by its tag, again and again until it
has ended (`interrupt_ended`).
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Sequence

from tidemill.clock import Clock
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.worker.claim_loop import Executor
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob
from tidemill.futures.worker.ledger import Ledger
from tidemill.futures.worker.task import Outcome
from tidemill.futures.worker.wire import InputsMissing, TaskBroken, TaskDone
from tidemill.runner.future_run import FutureRun, FutureRunner
from tidemill.runner.suspects import Suspects

INTERRUPT_EVERY_S = 1.0

PLENTY = Capacity(cpu=1e9, ram=2**60)
"""What futures may ask for, besides a name. The number of threads is the limit, and Spark has its own."""

Interrupt = Callable[[str], None]


def no_interrupt(tag: str) -> None:
    """For futures that cannot be interrupted."""


class WorkerThreads(Executor):
    """Runs futures in threads of this process.

    Args:
        runner: runs one future to its outcome.
        ledger: where the ends of jobs go.
        names: the resources that the futures ask for.
        size: how many threads.
        tools: what the code of a future gets from `future_run.tools()`.
        interrupt: ends the Spark jobs of a tag; may raise.
        clock: the source of time.
    """

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
        self._suspects = Suspects(ledger.store, ledger.keys, ledger.cluster)
        self._joined = False  # whether this process has joined the node list before
        self._threads: list[threading.Thread] = []
        self._queue: queue.SimpleQueue[FutureRun | None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[FutureRun, Outcome]] = queue.SimpleQueue()
        self._runs: dict[int, FutureRun] = {}  # in threads, even if their claims are over

    def __len__(self) -> int:
        """How many futures are in threads now."""
        return len(self._runs)

    @property
    def _running(self) -> list[FutureRun]:
        return list(self._runs.values())

    # --- the threads

    def open(self, ended: Callable[[], None], broke: Callable[[BaseException], None]) -> None:
        """Start the threads.

        Args:
            ended: called when a future has ended.
            broke: called with an error that must not happen in a future. A crash point counts as the death
                of the process.
        """
        for number in range(self.size):
            target = threading.Thread(
                target=self._serve, args=(ended, broke), name=f"future-{number}", daemon=True
            )
            self._threads.append(target)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let each thread end when its future has."""
        for _ in range(self.size):
            self._queue.put(None)

    def join(self, by: float) -> bool:
        """Wait for closed threads, until this time of the monotonic clock; return whether all have ended."""
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, by - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in others)

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
            self._suspects.clear(run.job.id)
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
        """Interrupt the futures whose end is wanted; any thread may call this."""
        now = self._clock.monotonic()
        for run in self._running:
            if run.ending and now >= run.interrupted_at + INTERRUPT_EVERY_S:
                run.interrupted_at = now
                with contextlib.suppress(Exception):
                    self._interrupt(run.tag)

    # --- the executor

    def request(self) -> ClaimRequest | None:
        free = (1 if self._suspects else self.size) - len(self)
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
        """`interrupt_ended` does it: `job.ending` is set."""

    def drain(self, by: float) -> None:
        if self._clock.monotonic() < by:
            return
        for run in self._running:
            if not run.stopped and run.job.id in self._ledger.jobs:
                end = self._ledger.cancelled if run.job.ending else self._ledger.relinquish
                run.stopped = "drain"
                end(run.job)

    def drop(self) -> None:
        """Write nothing of what runs now, and have it interrupted; any thread may call this."""
        for run in self._running:
            run.stopped = run.stopped or "lost"

    def recover(self, node: Node) -> int:
        """End the claims that an earlier process of this node left, as a leader would (FUT-49)."""
        reaped = 0 if self._joined else self._suspects.reap(node)
        self._joined = True
        return reaped

    def refresh(self) -> None:
        if self._suspects:
            self._suspects.look(self._ledger.jobs)
