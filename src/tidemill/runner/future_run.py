"""One run of a claimed future in a thread of a runner, and what the code of the future may ask.

The code is a function of a module, found by its name. It gets what it works with, such as a Spark session,
from `tools()`. `current()` says where it may write: the future's id and the epoch of its claim are part of
every folder, so that a stale run and its successor never share one (LOT-17).
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
from tidemill.publish.parts import PartPlace
from tidemill.scope import Scope


class FutureRun:
    """A claimed future while a thread runs it."""

    def __init__(self, job: FutureJob, tools: object) -> None:
        self.job = job
        self.tools = tools
        self.place = PartPlace(job.id.hex(), job.claim.epoch)
        self.tag = tag_of(self.place)
        self.stopped = ""  # "lost" or "drain": its claim is over, and nothing of it is written
        self.interrupted_at = float("-inf")

    @property
    def ending(self) -> str:
        """Why this run should end; empty while it should not."""
        return self.stopped or self.job.ending

    def check(self) -> None:
        """Raise when this run should end."""
        if self.stopped:
            raise LeaseLost(f"the claim on {self.job.id.hex()} under epoch {self.place.epoch} is over")
        if self.job.ending:
            raise FutureCancelled(f"{self.job.spec.name} ({self.job.id.hex()}) was asked to end")


_run: ContextVar[FutureRun | None] = ContextVar("tidemill-future-run", default=None)


def _now() -> FutureRun:
    run = _run.get()
    if run is None:
        raise UsageError("this thread runs no future", hint="call this only from the code of a part")
    return run


def current() -> PartPlace:
    """The future that this thread runs, and the epoch of its claim."""
    return _now().place


def tools() -> Any:
    """The tools of the worker that runs this future."""
    return _now().tools


def check() -> None:
    """Raise `LeaseLost` or `FutureCancelled` when this future should end; call it between long steps."""
    _now().check()


def tag_of(place: PartPlace) -> str:
    """The tag of every Spark job of a future; the future is interrupted by it."""
    return f"tidemill-{place.task}-{place.epoch}"


class _Site(WorkerSite):
    """A site in the process of the runner itself, which has opened everything already."""

    def __init__(self, hello: ChildHello, scope: Scope) -> None:
        super().__init__(hello, clock=scope.clock)
        self._store = scope.store
        self._objects = scope.objects


class FutureRunner(TaskRunner):
    """Runs futures as a worker's child runs tasks, but several at once. Threads may share it.

    Args:
        scope: what the runner works with.
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
        )
        super().__init__(_Site(hello, scope))

    def run_future(self, run: FutureRun) -> Outcome:
        """Run one future to its outcome. Raises only what counts as the death of this process."""
        job = run.job
        task = TaskMessage(0, job.claim.epoch, job.spec_raw, job.inputs, job.code)
        token = _run.set(run)
        try:
            return self.run(task, lambda _: None)
        finally:
            _run.reset(token)

    def _broken(self, task: TaskMessage, error: BaseException, kind: str, took_us: int) -> TaskBroken:
        if isinstance(error, Crashed):
            raise error  # a crash point counts as the death of the process
        return super()._broken(task, error, kind, took_us)
