"""Run one task: check its signature, load it, call its function, store the result and return a message.

The signature of the spec is checked before anything is unpickled (FUT-59). Errors before the call are
reported differently from errors that the function raises, because recovery is possible: another node may be
able to load the code (FUT-22), and a lost input is computed again (FUT-45).
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
from tidemill.futures.worker.task_context import LazyProxy, WorkerSite
from tidemill.futures.worker.wire import InputsMissing, Loss, TaskBroken, TaskDone, TaskMessage

FETCH_TRIES = 3

Outcome = TaskDone | TaskBroken | InputsMissing


class _InputLost(BaseException):
    """An input could not be loaded, so the task does not run. It never leaves `TaskRunner`."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.id.hex())
        self.loss = loss


class TaskRunner:
    """Runs tasks, one at a time. It caches loaded functions, and holds the actor of this process."""

    def __init__(self, site: WorkerSite) -> None:
        self.site = site
        self.signer = site.signer
        store: Any = LazyProxy(lambda: site.store)
        objects: Any = LazyProxy(lambda: site.objects) if site.has_objects else None
        self.blobs = Blobs(store, FutureKeys(site.cluster), site.signer, objects)
        self.functions = FunctionCache(self.blobs)
        self.actors: dict[bytes, object] = {}
        self._codes: dict[bytes, bytes] = {}  # of recalled tasks, which may be sent again without code

    def keep_code(self, task: TaskMessage) -> None:
        """Keep the code of a task that is not run now: the supervisor sends the same code only once."""
        if task.code:
            self._codes[rows.decode_spec(task.spec).code] = task.code

    def run(self, task: TaskMessage, enter: Callable[[Spec], object]) -> Outcome:
        """Run a task and return its outcome. An error of the task is an outcome; it is not raised."""
        clock = self.site.clock
        began = clock.monotonic()
        spec = rows.decode_spec(task.spec)
        kind = "deserialize"
        try:
            enter(spec)
            check_spec(self.signer, spec)
            function = self.functions.get(spec.code, task.code or self._codes.pop(spec.code, b""))
            inputs = dict(task.inputs)
            args, kwargs = calls.load_args(
                self.blobs.load_args(spec), lambda future_id: self._load_input(future_id, inputs)
            )
            kind = "exception"
            with memory.limited(task.ram):
                value = function(*args, **kwargs)
                del args, kwargs
                result = self._store(task, spec, value)
        except _InputLost as lost:
            return InputsMissing(task.number, _all_lost(lost.loss, task))
        except BaseException as error:  # noqa: BLE001  any error of a task is its outcome
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
                kind = "exception"  # not the code's fault: a retry may succeed
            case ActorDied() if kind == "deserialize":
                kind = "actor"
            case FutureCancelled():
                kind = "cancelled"
        failure = failures.dump_failure(error, self.signer, kind=kind, node=self.site.hello.node)
        return TaskBroken(task.number, failure, took_us, ram_used)

    def _load_input(self, future_id: bytes, inputs: dict[bytes, Result]) -> object:
        """Return the value that the task receives in place of a future or actor among the arguments."""
        if future_id in self.actors:
            return self.actors[future_id]
        result = inputs[future_id]
        where = result.location
        if where.kind == "actor":
            raise ActorDied(f"actor {future_id.hex()} is not in this process any more")
        if where.kind == "freed":
            raise _InputLost(Loss(future_id, result.version, where.node, unreachable=True))
        tries = 0
        while True:
            try:
                return self.site.values.load(result, future_id, subject="an input")
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
            value, spec.id, task.epoch, durable=spec.durable, subject=f"the result of {spec.name}"
        )


def _all_lost(loss: Loss, task: TaskMessage) -> tuple[Loss, ...]:
    """Return this loss and one for each other input on the same node: if the node is dead, all are lost."""
    same_node = (
        Loss(future_id, result.version, loss.node, unreachable=False)
        for future_id, result in task.inputs
        if future_id != loss.id and result.location.kind == "segment" and result.location.node == loss.node
    )
    return (loss, *same_node)
