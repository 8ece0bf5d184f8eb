"""Run a claimed future in a thread of a runner, and tell the future's code which run it belongs to.

The code is a function of a module, found by its name. The function calls `tools()` to get shared objects,
such as a Spark session. It calls `current()` to get the future's id and the epoch of its claim. Every folder
that it writes to has both in its name, so a stale run and its successor never share a folder (LOT-17).
"""

from contextvars import ContextVar
from typing import Any

from tidemill.crash import Crashed
from tidemill.errors import FutureCancelled, LeaseLost, UsageError
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.task import Outcome, TaskRunner
from tidemill.futures.worker.task_context import WorkerSite
from tidemill.futures.worker.wire import ChildHello, TaskBroken, TaskMessage
from tidemill.publish.parts import PartClaim
from tidemill.scope import Scope
from tidemill.spark.java_process import check_java


class FutureRun:
    """A claimed future while a thread runs it."""

    def __init__(self, job: FutureJob, tools: object) -> None:
        self.job = job
        self.tools = tools
        self.place = PartClaim(job.id.hex(), job.claim.epoch)
        self.tag = tag_of(self.place)
        self.stopped = ""  # "lost" or "drain" once the claim has ended; then no result is written
        self.interrupted_at = float("-inf")

    @property
    def ending(self) -> str:
        """Why this run should end; empty while it should continue."""
        return self.stopped or self.job.ending

    def check(self) -> None:
        """Raise an error if this run should end."""
        if self.stopped:
            raise LeaseLost(
                f"the claim on future {self.job.id.hex()} has ended (epoch {self.place.epoch});"
                " the result of this run is not used"
            )
        if self.job.ending:
            raise FutureCancelled(
                f"{self.job.spec.name} ({self.job.id.hex()}) was stopped: {self.job.ending}"
            )


_run: ContextVar[FutureRun | None] = ContextVar("tidemill-future-run", default=None)


def _current_run() -> FutureRun:
    run = _run.get()
    if run is None:
        raise UsageError(
            "this thread is not running a future", hint="call this only from code that processes a lot"
        )
    return run


def current() -> PartClaim:
    """Return the future that this thread runs, and the epoch of its claim."""
    return _current_run().place


def tools() -> Any:
    """Return the shared objects that the worker passes to its futures, such as the Spark session."""
    return _current_run().tools


def check() -> None:
    """Raise `LeaseLost` or `FutureCancelled` if this future should end. Call this between long steps."""
    _current_run().check()


def tag_of(place: PartClaim) -> str:
    """Return the tag of a future's Spark jobs. The worker uses the tag to interrupt them."""
    return f"tidemill-{place.task}-{place.epoch}"


class _Site(WorkerSite):
    """A site that uses the store and the object storage that the runner has already opened."""

    def __init__(self, hello: ChildHello, scope: Scope) -> None:
        super().__init__(hello, clock=scope.clock)
        self._store = scope.store
        self._objects = scope.objects


class FutureRunner(TaskRunner):
    """Runs futures like the child process of a worker, but several at once. Threads may share it.

    Args:
        scope: the runner's scope.
        key: the cluster key.
        node_id: the node that claims the futures.
    """

    def __init__(self, scope: Scope, key: ClusterKey, node_id: str) -> None:
        hello = ChildHello(
            cluster=scope.cluster,
            store="",
            objects="here",
            secret=key.secret,
            node=node_id,
            node_epoch=0,
            address="",
            segments="",
            ttl_s=scope.timing.ttl_s,
        )
        super().__init__(_Site(hello, scope))

    def run_future(self, run: FutureRun) -> Outcome:
        """Run one future and return its outcome.

        It raises an error only at a crash point, which simulates the death of this process.
        """
        job = run.job
        task = TaskMessage(0, job.claim.epoch, job.spec_raw, job.inputs, job.code)
        token = _run.set(run)
        try:
            return self.run(task, lambda _: None)
        finally:
            _run.reset(token)

    def _broken(self, task: TaskMessage, error: BaseException, kind: str, took_us: int) -> TaskBroken:
        if isinstance(error, Crashed):
            raise error  # a crash point simulates the death of the process
        check_java(error)
        return super()._broken(task, error, kind, took_us)
