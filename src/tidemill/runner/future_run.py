"""A turn: one claimed future in one thread of a runner, and what the code in it may ask.

The code that a turn runs is a function of a module, found by its name; what it works with, a session say, it
finds in `tools()`. Where it may write follows from `current()`: the future's id and the epoch of its claim
are part of every folder, so that a zombie and its successor never share one (LOT-17).
"""

from contextvars import ContextVar
from typing import Any

from tidemill.clock import Clock
from tidemill.crash import Crashed
from tidemill.errors import FutureCancelled, LeaseLost, UsageError
from tidemill.futures.worker.jobs import Job
from tidemill.futures.worker.task import Outcome, TaskRunner
from tidemill.futures.worker.task_context import Site
from tidemill.futures.worker.wire import Broken, Hello, Task
from tidemill.objects import Objects
from tidemill.publish.parts import PartPlace
from tidemill.store import Store


class Turn:
    """One claimed future while it is in a thread. `over` says why its end is of no interest any more."""

    def __init__(self, job: Job, tools: object) -> None:
        self.job = job
        self.tools = tools
        self.place = PartPlace(job.id.hex(), job.claim.epoch)
        self.tag = tag_of(self.place)
        self.over = ""  # "lost", "drain": nothing of it is written; "cancelled", "deadline": its end is
        self.interrupted_at = float("-inf")

    def check(self) -> None:
        """Raise when this turn should end."""
        if self.over in ("cancelled", "deadline"):
            raise FutureCancelled(f"{self.job.spec.name} ({self.job.id.hex()}) was asked to end")
        if self.over:
            raise LeaseLost(f"the claim on {self.job.id.hex()} under epoch {self.place.epoch} is over")


_turn: ContextVar[Turn | None] = ContextVar("tidemill-turn", default=None)


def _now() -> Turn:
    turn = _turn.get()
    if turn is None:
        raise UsageError("this is no thread of a runner's hands", hint="only the code of a part may ask")
    return turn


def current() -> PartPlace:
    """Who we are, for the code that runs in a turn: the future, and the epoch of its claim."""
    return _now().place


def tools() -> Any:
    """What the hands of this turn were made with."""
    return _now().tools


def check() -> None:
    """`LeaseLost` or `FutureCancelled` when the turn should end: asked between two steps of long work."""
    _now().check()


def tag_of(place: PartPlace) -> str:
    """The tag that every Spark job of a turn carries, and by which it is interrupted."""
    return f"tidemill-{place.task}-{place.epoch}"


class _Site(Site):
    """A site in the process of the runner itself, which has opened everything already."""

    def __init__(self, hello: Hello, store: Store, objects: Objects | None, clock: Clock) -> None:
        super().__init__(hello, clock=clock)
        self._store = store
        self._objects = objects


class TurnRunner(TaskRunner):
    """Runs turns as a worker's child runs tasks, but several at once. Safe to share between threads.

    Args:
        store, objects: opened.
        cluster: its name.
        secret: the cluster key.
        node: whose turns these are.
    """

    def __init__(
        self,
        store: Store,
        objects: Objects | None,
        cluster: str,
        secret: bytes,
        node: str,
        *,
        clock: Clock,
    ) -> None:
        hello = Hello(
            cluster=cluster,
            store="",
            objects="here" if objects is not None else "",
            secret=secret,
            node=node,
            node_epoch=0,
            address="",
            segments="",
        )
        super().__init__(_Site(hello, store, objects, clock))

    def take(self, turn: Turn) -> Outcome:
        """Run one turn to its outcome. Raises only what stands for the death of this process."""
        job = turn.job
        task = Task(0, job.claim.epoch, job.spec_raw, job.inputs, job.code)
        token = _turn.set(turn)
        try:
            return self.run(task, lambda _: None)
        finally:
            _turn.reset(token)

    def _broken(self, task: Task, error: BaseException, kind: str, took_us: int) -> Broken:
        if isinstance(error, Crashed):
            raise error  # a crash point: as if the process were gone
        return super()._broken(task, error, kind, took_us)
