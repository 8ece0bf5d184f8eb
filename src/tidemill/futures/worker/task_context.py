"""What a running task knows: itself, the place it runs at, and how to be heard (CLU-23).

`current()` is the context of the task that runs in this process, or None outside of tasks. A task can ask
whether it should end, say that it makes progress, say what it is doing, take a lock or a semaphore that the
whole cluster shares, and tell that it awaits other futures, so that its slot is used meanwhile (FUT-41).
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


class WhenNeeded:
    """Stands for something that is opened when it is first used: most tasks never use it."""

    def __init__(self, opened: Callable[[], object]) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened(), name)


class WorkerSite:
    """The place of a child process: its cluster, and the store and objects, opened when first asked for."""

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
        """Stores and loads results as a process of this node."""
        with self._lock:
            if self._values is None:
                from tidemill.futures.values.flight import SegmentFetcher
                from tidemill.futures.values.result_storage import ResultStorage
                from tidemill.futures.values.segment_writer import SegmentWriter

                hello = self.hello
                objects: Any = WhenNeeded(lambda: self.objects) if self.has_objects else None
                self._values = ResultStorage(
                    self.signer,
                    node=hello.node,
                    node_epoch=hello.node_epoch,
                    address=hello.address,
                    writer=SegmentWriter(Path(hello.segments)) if hello.segments else None,
                    objects=objects,
                    fetcher=SegmentFetcher(self.signer, roots=Path(hello.roots) if hello.roots else None),
                )
            return self._values

    @property
    def keeper(self) -> "Keeper":
        """Renews the leases that tasks of this process hold."""
        with self._lock:
            if self._keeper is None:
                from tidemill.cluster.keeper import Keeper
                from tidemill.cluster.member import random_id

                self._keeper = Keeper(
                    self.store, random_id(self.chance), clock=self.clock, chance=self.chance
                )
                self._keeper.start()
            return self._keeper


class TaskContext:
    """One task while it runs. Made by the child process for each task."""

    def __init__(
        self,
        number: int,
        epoch: int,
        spec: Spec,
        site: WorkerSite,
        page: SharedPage,
        say: Callable[[Message], None],
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.spec = spec
        self.site = site
        self._page = page
        self._say = say
        self._cancelled = threading.Event()
        self._resumed = threading.Event()
        self._thread = threading.get_ident()
        self._calls = 0
        self._said_at = 0.0
        self._lock = threading.Lock()

    @property
    def id(self) -> bytes:
        """The future that this task computes."""
        return self.spec.id

    @property
    def name(self) -> str:
        return self.spec.name

    # --- being asked to end

    def cancelled(self) -> bool:
        """Did somebody ask for the end of this task? It is killed a grace after that (FUT-56)."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """`FutureCancelled` when somebody asked for the end of this task."""
        if self._cancelled.is_set():
            raise FutureCancelled(f"{self.spec.name} ({self.spec.id.hex()}) was asked to end")

    def wait_cancelled(self, timeout_s: float) -> bool:
        """Wait so long, or until somebody asks for the end; True in that case."""
        return self.site.clock.wait(self._cancelled, timeout_s)

    # --- being heard

    def progress(self) -> None:
        """Say that this task is alive: `progress_timeout` counts from here again (FUT-40)."""
        self._page.progress(int(self.site.clock.monotonic() * 1_000_000))

    def status(self, text: str) -> None:
        """Say what this task is doing, for people; also progress. Told at most five times a second."""
        self.progress()
        now = self.site.clock.monotonic()
        if now - self._said_at >= STATUS_EVERY_S:
            self._said_at = now
            self._say(Status(self.number, text[:1000]))

    def keep(self, segment: str) -> None:
        """A segment that this task wrote belongs to a result from now on: it outlives this process."""
        self._say(Keep(segment))

    # --- together with others

    def lock(self, name: str) -> "Lock":
        """A lock that the whole cluster shares: `with current().lock("name").holding() as held: ...`."""
        from tidemill.cluster.keys import ClusterKeys
        from tidemill.cluster.locks import Lock

        return Lock(self.site.keeper, ClusterKeys(self.site.cluster), name)

    def semaphore(self, name: str, permits: int) -> "Semaphore":
        """A semaphore that the whole cluster shares."""
        from tidemill.cluster.keys import ClusterKeys
        from tidemill.cluster.locks import Semaphore

        return Semaphore(self.site.keeper, ClusterKeys(self.site.cluster), name, permits)

    # --- futures of its own

    def next_call(self) -> int:
        """The ordinal of the next future that this task submits: part of its idempotency key (FUT-62)."""
        with self._lock:
            self._calls += 1
            return self._calls

    @contextmanager
    def waiting(self, ids: Sequence[bytes]) -> Iterator[None]:
        """Await these futures inside: the task's slot is free for others until it may go on (FUT-41).

        Only the thread that runs the task has a slot to give; in others this does nothing.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        self._resumed.clear()
        self._say(TaskWaiting(self.number, tuple(ids)))
        try:
            yield
        finally:
            self._say(Resuming(self.number))
            self._resumed.wait()
            self.progress()

    # --- told by the child's control thread

    def tell_cancel(self) -> None:
        self._cancelled.set()

    def tell_resume(self) -> None:
        self._resumed.set()


_current: TaskContext | None = None


def current() -> TaskContext | None:
    """The task that runs in this process; None outside of tasks.

    >>> current() is None
    True
    """
    return _current


def enter(context: TaskContext | None) -> None:
    """Called by the child process alone, when a task begins and when it is over."""
    global _current
    _current = context
