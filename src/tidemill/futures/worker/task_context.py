"""The context of a running task: what the task is, where it runs, how it reports to its supervisor (CLU-23).

`current_task()` returns the context of the task that runs in this process, or None outside of tasks. With it,
a task checks whether it was cancelled, reports progress, sets a status, and takes cluster-wide locks and
semaphores. The context also tells the supervisor when the task waits for other futures, so that other tasks
can use its slot (FUT-41).
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import FutureCancelled, UsageError
from tidemill.futures.protocol.rows import Spec
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.futures.worker.wire import ChildHello, Keep, Message, Resuming, SharedPage, Status, TaskWaiting

if TYPE_CHECKING:
    from tidemill.cluster.keeper import Keeper
    from tidemill.cluster.locks import Lock, Semaphore
    from tidemill.futures.values.result_storage import ResultStorage
    from tidemill.objects import Objects
    from tidemill.store import Store

STATUS_EVERY_S = 0.2


class LazyProxy:
    """Forwards attribute access to an object that is opened on first use. Most tasks never need it."""

    def __init__(self, open_target: Callable[[], object]) -> None:
        self._open_target = open_target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open_target(), name)


class WorkerSite:
    """What the tasks of one process share: the cluster, and its store and objects, opened on first use."""

    def __init__(
        self, hello: ChildHello, *, clock: Clock = SYSTEM, chance: random.Random | None = None
    ) -> None:
        self.hello = hello
        self.clock = clock
        self.chance = chance if chance is not None else random.Random()
        self.signer = Signer(ClusterKey(hello.secret))
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._values: ResultStorage | None = None
        self._objects: Objects | None = None
        self._keeper: Keeper | None = None

    @property
    def cluster(self) -> str:
        return self.hello.cluster

    @property
    def store(self) -> "Store":
        with self._lock:
            if self._store is None:
                from tidemill.store import open_store

                self._store = open_store(self.hello.store, clock=self.clock, chance=self.chance)
            return self._store

    @property
    def objects(self) -> "Objects":
        with self._lock:
            if self._objects is None:
                from tidemill.objects import open_objects

                if not self.hello.objects:
                    raise UsageError(
                        "this worker has no object storage", hint="start the worker with --home or --objects"
                    )
                self._objects = open_objects(self.hello.objects, clock=self.clock, chance=self.chance)
            return self._objects

    @property
    def has_objects(self) -> bool:
        return bool(self.hello.objects)

    @property
    def values(self) -> "ResultStorage":
        """Stores and loads results on this node."""
        with self._lock:
            if self._values is None:
                from tidemill.futures.protocol import drafts
                from tidemill.futures.protocol.keys import FutureKeys
                from tidemill.futures.values.flight import SegmentFetcher
                from tidemill.futures.values.result_storage import ResultStorage
                from tidemill.futures.values.segment_writer import SegmentWriter

                hello = self.hello
                keys = FutureKeys(hello.cluster)
                objects: Any = LazyProxy(lambda: self.objects) if self.has_objects else None
                self._values = ResultStorage(
                    self.signer,
                    node=hello.node,
                    node_epoch=hello.node_epoch,
                    address=hello.address,
                    writer=SegmentWriter(Path(hello.segments)) if hello.segments else None,
                    objects=objects,
                    fetcher=SegmentFetcher(self.signer, roots=Path(hello.roots) if hello.roots else None),
                    announce=lambda name: self.store.run(lambda tx: drafts.announce(tx, keys, name)),
                )
            return self._values

    @property
    def keeper(self) -> "Keeper":
        """Renews the leases of the locks that tasks of this process hold."""
        with self._lock:
            if self._keeper is None:
                from tidemill.cluster.keeper import Keeper
                from tidemill.cluster.leases import LeaseTiming
                from tidemill.cluster.member import random_id

                self._keeper = Keeper(
                    self.store,
                    random_id(self.chance),
                    clock=self.clock,
                    chance=self.chance,
                    timing=LeaseTiming(self.hello.ttl_s),
                )
                self._keeper.start()
            return self._keeper


class TaskContext:
    """One running task. The child process creates one for each task."""

    def __init__(
        self,
        number: int,
        epoch: int,
        spec: Spec,
        site: WorkerSite,
        page: SharedPage,
        send: Callable[[Message], None],
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.spec = spec
        self.site = site
        self._page = page
        self._send = send
        self._cancelled = threading.Event()
        self._resumed = threading.Event()
        self._thread = threading.get_ident()
        self._calls = 0
        self._status_at = 0.0
        self._lock = threading.Lock()

    @property
    def id(self) -> bytes:
        """The id of the future that this task computes."""
        return self.spec.id

    @property
    def name(self) -> str:
        return self.spec.name

    # --- cancellation

    def cancelled(self) -> bool:
        """Return whether this task was cancelled. After a grace period, the task is killed (FUT-56)."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise `FutureCancelled` if this task was cancelled."""
        if self._cancelled.is_set():
            raise FutureCancelled(f"{self.spec.name} ({self.spec.id.hex()}) was cancelled")

    def wait_cancelled(self, timeout_s: float) -> bool:
        """Wait until this task is cancelled, at most `timeout_s` seconds. Return whether it was cancelled.

        Use it instead of `time.sleep` in a task that polls, so that the task ends as soon as it is cancelled.
        """
        return self.site.clock.wait(self._cancelled, timeout_s)

    # --- reports to the supervisor

    def progress(self) -> None:
        """Report progress, which restarts `progress_timeout` (FUT-40)."""
        self._page.progress(int(self.site.clock.monotonic() * 1_000_000))

    def status(self, text: str) -> None:
        """Report progress, and set the status text that users see.

        The text changes at most five times a second.
        """
        self.progress()
        now = self.site.clock.monotonic()
        if now - self._status_at >= STATUS_EVERY_S:
            self._status_at = now
            self._send(Status(self.number, text[:1000]))

    def keep(self, segment: str) -> None:
        """Keep a segment of this task after this process ends, because a result refers to it."""
        self._send(Keep(segment))

    # --- locks of the cluster

    def lock(self, name: str) -> "Lock":
        """Return a lock that the whole cluster shares: `with current_task().lock("name").holding(): ...`."""
        from tidemill.cluster.keys import ClusterKeys
        from tidemill.cluster.locks import Lock

        return Lock(self.site.keeper, ClusterKeys(self.site.cluster), name)

    def semaphore(self, name: str, permits: int) -> "Semaphore":
        """Return a semaphore that the whole cluster shares."""
        from tidemill.cluster.keys import ClusterKeys
        from tidemill.cluster.locks import Semaphore

        return Semaphore(self.site.keeper, ClusterKeys(self.site.cluster), name, permits)

    # --- futures that this task submits

    def next_call(self) -> int:
        """Return the number of the next future that this task submits.

        The number becomes part of that future's idempotency key (FUT-62).
        """
        with self._lock:
            self._calls += 1
            return self._calls

    @contextmanager
    def waiting(self, ids: Sequence[bytes]) -> Iterator[None]:
        """Free the task's slot while the body waits for these futures; then wait for a slot again (FUT-41).

        In threads other than the one that runs the task, this does nothing, because they hold no slot.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        self._resumed.clear()
        self._send(TaskWaiting(self.number, tuple(ids)))
        try:
            yield
        finally:
            self._send(Resuming(self.number))
            self._resumed.wait()
            self.progress()

    # --- called by the child's control thread

    def set_cancelled(self) -> None:
        self._cancelled.set()

    def set_resumed(self) -> None:
        self._resumed.set()


_current: TaskContext | None = None


def current_task() -> TaskContext | None:
    """Return the context of the task that runs in this process, or None outside of tasks.

    >>> current_task() is None
    True
    """
    return _current


def enter(context: TaskContext | None) -> None:
    """Set the current task, or clear it. Only the child process calls this."""
    global _current
    _current = context
