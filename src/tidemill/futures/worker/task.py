"""Running one task in a child: check, load, call, store. Whatever happens becomes a message.

Nothing of a task is unpickled before the signature of its spec was checked (FUT-59). What goes wrong before
the function is called is told apart from what it raises: code that cannot be loaded here may be loadable
elsewhere (FUT-22), and an input that is gone is computed again (FUT-45).
"""

import resource
from collections.abc import Callable
from typing import Any

from tidemill.clock import backoff
from tidemill.errors import (
    ActorDied,
    BlobMissing,
    CopyCorrupt,
    CopyGone,
    FetchFailed,
    FutureCancelled,
    StoreError,
)
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Location, Result, Spec
from tidemill.futures.values import calls, failures
from tidemill.futures.values.blobs import Blobs, FunctionCache
from tidemill.futures.values.signatures import check_spec
from tidemill.futures.worker import memory
from tidemill.futures.worker.task_context import WhenNeeded, WorkerSite
from tidemill.futures.worker.wire import InputsMissing, Loss, TaskBroken, TaskDone, TaskMessage

FETCH_TRIES = 3

Outcome = TaskDone | TaskBroken | InputsMissing


class _InputLost(BaseException):
    """An input could not be had; the task is not run. Between two methods here: nobody else sees it."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.id.hex())
        self.loss = loss


class TaskRunner:
    """Runs tasks, one at a time; keeps the functions it has loaded, and the actor that lives here."""

    def __init__(self, site: WorkerSite) -> None:
        self.site = site
        self.signer = site.signer
        store: Any = WhenNeeded(lambda: site.store)
        objects: Any = WhenNeeded(lambda: site.objects) if site.has_objects else None
        self.blobs = Blobs(store, FutureKeys(site.cluster), site.signer, objects)
        self.functions = FunctionCache(self.blobs)
        self.actors: dict[bytes, object] = {}
        self._codes: dict[bytes, bytes] = {}  # of tasks that were recalled, and may come back without it

    def learn(self, task: TaskMessage) -> None:
        """Keep the code of a task that is not run now: the supervisor will not send it again."""
        if task.code:
            self._codes[rows.decode_spec(task.spec).code] = task.code

    def run(self, task: TaskMessage, enter: Callable[[Spec], object]) -> Outcome:
        """Run a task to its outcome; never raises on its account."""
        clock = self.site.clock
        began = clock.monotonic()
        spec = rows.decode_spec(task.spec)
        kind = "deserialize"
        try:
            enter(spec)
            check_spec(self.signer, spec)
            function = self.functions.get(spec.code, task.code or self._codes.pop(spec.code, b""))
            inputs = dict(task.inputs)
            args, kwargs = calls.load_args(self.blobs.load_args(spec), lambda one: self._input(one, inputs))
            kind = "exception"
            with memory.limited(task.ram):
                value = function(*args, **kwargs)
                del args, kwargs
                result = self._store(task, spec, value)
        except _InputLost as lost:
            return InputsMissing(task.number, _all_lost(lost.loss, task))
        except BaseException as error:  # noqa: BLE001  whatever a task raises is its outcome
            took_us = int((clock.monotonic() - began) * 1e6)
            return self._broken(task, error, kind, took_us)
        return TaskDone(task.number, result, int((clock.monotonic() - began) * 1e6))

    def _broken(self, task: TaskMessage, error: BaseException, kind: str, took_us: int) -> TaskBroken:
        ram_used = 0
        match error:
            case MemoryError():
                kind = "oom"
                ram_used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            case BlobMissing() | StoreError() if kind == "deserialize":
                kind = "exception"  # not the code's fault: another try may find it
            case ActorDied() if kind == "deserialize":
                kind = "actor"
            case FutureCancelled():
                kind = "cancelled"
        failure = failures.dump_failure(error, self.signer, kind=kind, node=self.site.hello.node)
        return TaskBroken(task.number, failure, took_us, ram_used)

    def _input(self, future_id: bytes, inputs: dict[bytes, Result]) -> object:
        """The value that stands for a handle among the arguments."""
        if future_id in self.actors:
            return self.actors[future_id]
        result = inputs[future_id]
        where = result.location
        if where.kind == "actor":
            raise ActorDied(f"actor {future_id.hex()} does not live in this process")
        if where.kind == "freed":
            raise _InputLost(Loss(future_id, result.version, where.node, unreachable=True))
        tries = 0
        while True:
            try:
                return self.site.values.load(result, future_id, what="an input")
            except (CopyGone, CopyCorrupt, FetchFailed):
                tries += 1
                if tries >= FETCH_TRIES:
                    raise _InputLost(Loss(future_id, result.version, where.node, unreachable=True)) from None
                self.site.clock.sleep(backoff(tries, self.site.chance, first_s=0.05))

    def _store(self, task: TaskMessage, spec: Spec, value: object) -> Result:
        if spec.actor == spec.id:
            self.actors[spec.id] = value
            return Result(task.epoch, 0, 0, Location("actor", node=self.site.hello.node))
        return self.site.values.store(
            value, spec.id, task.epoch, durable=spec.durable, what=f"the result of {spec.name}"
        )


def _all_lost(loss: Loss, task: TaskMessage) -> tuple[Loss, ...]:
    """One loss, and the other inputs that the same node holds: if it is dead, they are lost as well."""
    others = (
        Loss(one, result.version, loss.node, unreachable=False)
        for one, result in task.inputs
        if one != loss.id and result.location.kind == "segment" and result.location.node == loss.node
    )
    return (loss, *others)
