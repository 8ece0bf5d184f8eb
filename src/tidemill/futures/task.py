"""Running one task in a child: check, load, call, store. Whatever happens becomes a message."""

from collections.abc import Callable
from typing import Any, cast

from tidemill.errors import BadSignature, BlobMissing, CodeNotLoadable, FutureError
from tidemill.futures import calls, failures, memory, pickling, rows
from tidemill.futures.blobs import Blobs, Functions
from tidemill.futures.context import Site
from tidemill.futures.keys import FutureKeys
from tidemill.futures.rows import Location, Result, Spec
from tidemill.futures.signing import ClusterKey, Signer, check_spec
from tidemill.futures.wire import Broken, Done, Missing, Task


class _WhenNeeded:
    """Stands for something that is opened when it is first used: most tasks never do."""

    def __init__(self, opened: Callable[[], object]) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened(), name)


class TaskRunner:
    """Runs tasks, one at a time, and keeps the functions it has loaded."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.signer = Signer(ClusterKey(site.secret))
        store: Any = _WhenNeeded(lambda: site.store)
        objects: Any = _WhenNeeded(lambda: site.objects) if site.hello.objects else None
        self.blobs = Blobs(store, FutureKeys(site.cluster), self.signer, objects)
        self.functions = Functions(self.blobs)

    def learn(self, task: Task) -> None:
        """Keep the code of a task that is not run here: the supervisor will not send it again."""

    def run(self, task: Task, enter: Callable[[Spec], None]) -> Done | Broken | Missing:
        clock = self.site.clock
        began = clock.monotonic()
        kind = "deserialize"
        spec = rows.decode_spec(task.spec)
        try:
            enter(spec)
            check_spec(self.signer, spec)
            function = self.functions.get(spec.code, task.code)
            args, kwargs = calls.load_args(self.blobs.load_args(spec), self._resolve)
            kind = "exception"
            with memory.limited(task.ram):
                value = function(*args, **kwargs)
            result = self._store(task, spec, value)
        except BaseException as error:  # noqa: BLE001
            if isinstance(error, MemoryError):
                kind = "oom"
            failure = failures.dump_failure(error, self.signer, kind=kind, node=self.site.hello.node)
            return Broken(task.number, failure, int((clock.monotonic() - began) * 1e6))
        return Done(task.number, result, int((clock.monotonic() - began) * 1e6))

    def _resolve(self, future_id: bytes) -> object:
        raise FutureError("no inputs yet")

    def _store(self, task: Task, spec: Spec, value: object) -> Result:
        head = pickling.pack(calls.dump_value(value))
        signature = self.signer.sign("result", spec.id, task.epoch.to_bytes(8, "big"), head)
        return Result(version=task.epoch, at=0, size=len(head), location=Location("inline"), head=head, signature=signature)


__all__ = ["BadSignature", "BlobMissing", "CodeNotLoadable", "TaskRunner", "cast"]
