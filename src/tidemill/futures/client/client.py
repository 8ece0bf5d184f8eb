"""The client: submit functions, get their results; whatever dies meanwhile is the cluster's business.

    client = tidemill.connect(home="my-home", workers=2)
    squares = client.map(lambda x: x * x, range(1000))
    print(sum(client.gather(squares)))

Inside a task the same client is there again, connected by the task's own process: what it submits are the
task's children (FUT-62), and while it waits its slot is free for others (FUT-41).
"""

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from tidemill.errors import FutureError, FutureUnknown, StoreError, UsageError
from tidemill.futures.actors.handle import ActorHandle
from tidemill.futures.client.call_submitter import CallSubmitter
from tidemill.futures.client.callbacks import Callbacks
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.future import Future
from tidemill.futures.client.gather import listed
from tidemill.futures.client.handle_counts import HandleCounts
from tidemill.futures.client.lineage import Lineage, trace
from tidemill.futures.client.local_worker import LocalWorker
from tidemill.futures.client.options import (
    NAMES,
    Options,
    SubmitOptions,
    above_zero,
    amount_of_bytes,
    number,
    split,
    text,
    whole,
)
from tidemill.futures.client.result_waiter import ResultWaiter
from tidemill.futures.client.value_placement import ValuePlacement
from tidemill.futures.home import CLUSTER, ClusterAddress
from tidemill.futures.protocol import cancel, limits, results
from tidemill.futures.protocol.rows import AnyRow
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.worker import task_context
from tidemill.store import Tx

T = TypeVar("T")

DELETE_PAGE = 100

_PLAIN = Options.of({})
_DEFAULTS = (0, 0, 0, (), 0, None, 0, None, None, False, None, "fail", None)


def connect(
    home: str | os.PathLike[str] | None = None,
    *,
    store: str | None = None,
    objects: str | None = None,
    cluster: str = CLUSTER,
    workers: int = 0,
    key_file: str | os.PathLike[str] | None = None,
) -> "Client":
    """Connect to a cluster: a home, or a store with its objects. In a task, without arguments: its own.

    Args:
        home: a folder with everything; made if it is not there.
        store: the store's URL, instead of a home; the cluster key is then taken from `key_file`, or from
            TIDEMILL_CLUSTER_KEY or TIDEMILL_CLUSTER_KEY_FILE.
        objects: object storage for large code, arguments and durable results.
        cluster: the name that everything lies under in the store.
        workers: start a worker with so many slots for as long as the client lives.
        key_file: the file of the cluster key.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     client.put("a value").result()
    'a value'
    """
    whole("workers", workers, 0, 1_000)
    task = task_context.current()
    if task is not None and home is None and store is None:
        return _task_client(task)
    place = ClusterAddress.of(home=home, store=store, objects=objects, cluster=cluster, key_file=key_file)
    if task is not None and place.identity == _task_client(task).place.identity:
        return _task_client(task)
    client = Client(Connection.open(place))
    if workers:
        try:
            client.start_worker(workers)
        except BaseException:
            client.close()
            raise
    return client


class Client:
    """A connection to one cluster, for any number of threads. Made by `connect`; close it, or use `with`.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     client.submit(max, 3, 5).done()
    False
    """

    def __init__(self, connection: Connection) -> None:
        self._link = connection
        self._callbacks = Callbacks(connection.waiting)
        self.submitting = CallSubmitter(connection, lambda one: Future(self, one))
        self.putting = ValuePlacement(connection)
        self.awaiting = ResultWaiter(connection, lambda one: ActorHandle(self.future(one)))
        self._workers: list[LocalWorker] = []
        connection.waiting.look_after = self._look_after
        self._closing = threading.Lock()
        _open[connection.place.identity] = self
        _all.add(self)

    @property
    def place(self) -> ClusterAddress:
        """Where the cluster is."""
        return self._link.place

    @property
    def id(self) -> str:
        """The node under which this client's handles are held."""
        return self._link.owner

    @property
    def handles(self) -> HandleCounts:
        """The count of this client's handles."""
        return self._link.handles

    # --- submitting

    def submit(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        cpu: float = 0,
        ram: int | str = 0,
        gpu: float = 0,
        resources: str | Iterable[str] = (),
        retries: int = 0,
        near: Future[Any] | None = None,
        priority: int = 0,
        deadline: float | timedelta | datetime | None = None,
        key: str | None = None,
        durable: bool = False,
        queue: str | None = None,
        on_unsatisfiable: str | float | timedelta = "fail",
        progress_timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> Future[T]:
        """Submit a call; it is durable when this returns. A future among the arguments stands for its result.

        `functools.partial` binds keyword arguments of the function that are called like an option.

        Args:
            function: with a module it is looked up there by the worker; without one it is sent along.
            args: of the function.
            cpu: how much of it the task needs.
            ram: bytes, or a text such as "2GB"; beyond it the task is out of memory.
            gpu: how much of it the task needs.
            resources: names that a worker must have.
            retries: how often it is tried again after an exception.
            near: run where the result of this future is, if possible.
            priority: higher goes first.
            deadline: seconds, a timedelta, or a datetime with its zone; after it the future fails.
            key: an idempotency key: of several submissions with one key the first one counts.
            durable: a large result goes to object storage and outlives its worker.
            queue: its queue, see `limit`.
            on_unsatisfiable: "fail" (an error here if no live worker could run it), "wait", or seconds.
            progress_timeout: seconds without a word from the task after which it counts as hung.
            kwargs: of the function.
        """
        given = (
            *(cpu, ram, gpu, resources, retries, near, priority),
            *(deadline, key, durable, queue, on_unsatisfiable, progress_timeout),
        )
        options = _PLAIN if given == _DEFAULTS else Options.of(dict(zip(NAMES, given, strict=True)))
        return self.submitting.one(function, args, kwargs, options)

    def map(
        self,
        function: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        **options: Unpack[SubmitOptions],
    ) -> list[Future[T]]:
        """Submit a call for each item, or for each group of items, in batches; the shortest iterable decides.

        Options as for `submit`. With `key`, call number n has the key "key/n".
        """
        return self.submitting.many(function, iterables, Options.of(options) if options else _PLAIN)

    def actor(self, kind: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor: an object that lives on one worker, whose methods are called in order (FUT-47).

        Options as for `submit`. `handle.method.submit(*args)`, or just `handle.method(*args)`, is a future.
        """
        options, kwargs = _split(kwargs)
        return ActorHandle(self.submitting.actor(kind, args, kwargs, options), kind)

    def call(
        self, actor: Future[Any], function: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Future[T]:
        """Submit a call of an actor's method; used by its handle."""
        options, kwargs = _split(kwargs)
        return self.submitting.method(actor.id, function, args, kwargs, options)

    def put(self, value: T, *, durable: bool = True) -> Future[T]:
        """A value as a realised future: pass it to many calls, store it once (FUT-33).

        It has no provenance and is never computed again. `durable` puts a large one into object storage;
        without it, which is for tasks, it lies on the task's worker and on one other.
        """
        future_id = self.putting.put(self, value, durable=durable)
        return self.submitting.handles_of([future_id])[0]

    def future(self, future_id: bytes | str) -> Future[Any]:
        """A handle of a future by its id, which others may have submitted."""
        try:
            raw = bytes.fromhex(future_id) if isinstance(future_id, str) else bytes(future_id)
        except ValueError:
            raw = b""
        if len(raw) != 16:
            raise UsageError(f"not the id of a future: {future_id!r:.80}", hint="32 hexadecimal digits")
        self.handles.count([raw], ours=False)
        return Future(self, raw)

    # --- waiting

    def gather(
        self, *futures: Any, timeout: float | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """The results of futures in their order; the first failure is raised as soon as it is noticed.

        Args:
            futures: futures, or one iterable of them.
            timeout: seconds; then `FutureTimeout`.
            return_exceptions: give errors in place of results instead of raising.
        """
        self._check_open()
        return self.awaiting.results(listed(futures), timeout, return_exceptions=return_exceptions)

    def as_completed(self, *futures: Any, timeout: float | None = None) -> Iterator[Future[Any]]:
        """The futures one by one, as they end; `FutureTimeout` when the time is over before all have."""
        self._check_open()
        return self.awaiting.completed(listed(futures), timeout)

    def result_of(self, future: Future[Any], timeout: float | None = None) -> Any:
        """See `Future.result`."""
        self._check_open()
        return self.awaiting.result(future, timeout)

    def exception_of(self, future: Future[Any], timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        self._check_open()
        return self.awaiting.exception(future, timeout)

    def call_when_done(self, future: Future[Any], call: Callable[[Any], object]) -> None:
        """See `Future.add_done_callback`."""
        if not callable(call):
            raise UsageError(f"not a function: {call!r:.100}", hint="add_done_callback(function)")
        self._callbacks.add(future.id, partial(call, future))

    # --- looking

    def row_of(self, future: Future[Any]) -> AnyRow:
        """A future's state row as it is now; `FutureUnknown` when there is none."""
        self._check_open()
        row = self._link.waiting.read([future.id])[0]
        if row is None:
            raise FutureUnknown(f"there is no future {future.id.hex()}, or no longer")
        return row

    def described(self, future: Future[Any]) -> tuple[str, str]:
        """A future's name and state for people; never raises."""
        try:
            seen = trace(self._link.store, self._link.keys, future.id, most=1)
        except (StoreError, UsageError):
            return "?", "unknown"
        return seen.name, seen.state

    def lineage(self, future: Future[Any]) -> Lineage:
        """See `Future.lineage`."""
        self._check_open()
        return trace(self._link.store, self._link.keys, future.id)

    # --- acting on futures

    def cancel(self, future: Future[Any]) -> bool:
        """Ask for a future's end; False when it has ended already. Its dependents fail."""
        keys, one = self._link.keys, future.id

        def end(tx: Tx) -> bool:
            before = tx.get(keys.future[one], lock=True)
            row = cancel.cancel(tx, keys, one)
            return row.state not in ENDED or before != tx.get(keys.future[one], lock=True)

        return self._link.store.run(end)

    def delete(self, *futures: Any) -> int:
        """Delete results, of one future or many (FUT-32); how many had one.

        Whoever asks for such a result later gets it computed again, where that is possible.
        """
        ids = [future.id for future in listed(futures)]
        keys = self._link.keys
        deleted = 0
        for start in range(0, len(ids), DELETE_PAGE):
            page = ids[start : start + DELETE_PAGE]
            deleted += self._link.store.run(partial(results.delete_results, keys=keys, ids=page))
        for future in listed(futures):
            future.remember(None)
        return deleted

    def limit(self, queue: str, *, running: int | None = None, per_s: float | None = None) -> None:
        """Limit a queue: so many at once, so many starts a second; neither takes the limit away (FUT-57)."""
        name = text("queue", queue, 200)
        if not name:
            raise UsageError("there is no such queue", hint="the name that was given as queue=…")
        most = whole("running", running, 1, 1_000_000) if running is not None else 0
        rate = above_zero("per_s", per_s)
        keys = self._link.keys
        if most or rate:
            self._link.store.run(lambda tx: limits.set_limit(tx, keys, name, running=most, per_s=rate))
        else:
            self._link.store.run(lambda tx: limits.clear_limit(tx, keys, name))

    def pin(self, *futures: Any, who: str = "user") -> None:
        """Keep results until `unpin`, whatever happens to handles (FUT-34)."""
        for future in listed(futures):
            self._link.store.run(partial(results.pin, keys=self._link.keys, future_id=future.id, who=who))

    def unpin(self, *futures: Any, who: str = "user") -> None:
        """Take back `pin`."""
        for future in listed(futures):
            self._link.store.run(partial(results.unpin, keys=self._link.keys, future_id=future.id, who=who))

    def clone(self, future: Future[T], node: str) -> Future[Any]:
        """Have a worker keep a copy of a result, too (FUT-31); the future that comes back does it."""
        return self.putting.clone(self, future, node)

    def take_ownership(self, future: Future[T]) -> bool:
        """In a task: bring a result to this worker, and have every other copy deleted (FUT-31).

        False when the result has changed or gone meanwhile.
        """
        return self.putting.take_ownership(future)

    # --- the end

    def start_worker(
        self,
        slots: int = 1,
        *,
        cpu: float = 0.0,
        ram: int | str = 0,
        gpu: float = 0.0,
        resources: Sequence[str] = (),
        results_ram: int | str = 0,
    ) -> None:
        """Start a worker on this machine that ends with this client.

        Args:
            slots: how many tasks it runs at once.
            cpu: what it has to give; all there is by default.
            ram: bytes, or a text such as "2GB"; all there is by default.
            gpu: none by default.
            resources: names that tasks may ask for.
            results_ram: how much of the ram results may take; half by default.
        """
        options = [f"--name={name}" for name in Options.of({"resources": resources}).needs.named]
        options += [f"--cpu={number('cpu', cpu)}"] if cpu else []
        options += [f"--ram={amount_of_bytes('ram', ram)}"] if ram else []
        options += [f"--gpu={number('gpu', gpu)}"] if gpu else []
        options += [f"--results={amount_of_bytes('results_ram', results_ram)}"] if results_ram else []
        worker = LocalWorker(self.place, whole("slots", slots, 1, 1_000), self._link.clock, options)
        self._workers.append(worker)
        worker.wait_ready(self._link.store, self._link.cluster)

    def _look_after(self, ids: Sequence[bytes]) -> None:
        """Called while futures are awaited and nothing ends: do what can be done, or say what is wrong."""
        codes = [worker.exit_code for worker in self._workers]
        if codes and None not in codes and not self._link.live_workers():
            raise FutureError(
                f"the client's own worker ended with code {codes[-1]}, and there is no other",
                hint="see what it wrote to standard error; the futures wait for the next worker",
            )
        self._link.look_after(ids)

    @property
    def closed(self) -> bool:
        return self._link.closed

    def _check_open(self) -> None:
        if self._link.closed:
            raise UsageError("this client is closed", hint="connect again")

    def close(self) -> None:
        """Let go of everything: workers of its own drain, handles no longer count. Idempotent.

        In a task this releases handles and leaves the rest to the task's process.
        """
        if not self._link.own:
            self.handles.tick()
            return
        with self._closing:
            if self._link.closed:
                return
            for worker in self._workers:
                worker.ask_to_end()
            for worker in self._workers:
                worker.close()
            self._callbacks.close()
            self._link.close()
            _all.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return client_of, (self.place,)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.handles):,} handles"
        return f"<Client {self.place.home or self.place.identity[0]} cluster {self.place.cluster!r} {state}>"


# --- which client


_open: weakref.WeakValueDictionary[tuple[str, str], Client] = weakref.WeakValueDictionary()
_all: weakref.WeakSet[Client] = weakref.WeakSet()
_of_task: dict[int, Client] = {}


def _task_client(task: task_context.TaskContext) -> Client:
    """The client of a task's process; made with the first call, because most tasks need none."""
    known = _of_task.get(id(task.site))
    if known is None:
        known = _of_task[id(task.site)] = Client(Connection.of_task(task.site))
    return known


def client_of(place: ClusterAddress) -> Client:
    """This process's client for a place: that of its task, one that is open, or a new one."""
    task = task_context.current()
    found = _open.get(place.identity)
    if found is not None and not found.closed:
        return found
    if task is not None and task.site.cluster == place.cluster:
        return _task_client(task)
    if not place.can_be_opened:
        raise UsageError(
            f"this process is not connected to {place!r}", hint="connect to it first: tidemill.connect(…)"
        )
    return Client(Connection.open(place))


@atexit.register
def _close_all() -> None:
    for client in list(_all):
        with contextlib.suppress(Exception):
            client.close()


def _split(kwargs: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    if not kwargs:
        return _PLAIN, kwargs
    options, rest = split(kwargs)
    return (Options.of(options) if options else _PLAIN), rest
