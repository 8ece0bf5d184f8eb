"""The client of a cluster: submits function calls and returns their results.

    client = tidemill.connect(home="my-home", workers=2)
    squares = client.map(lambda x: x * x, range(1000))
    print(sum(client.gather(squares)))

The cluster retries calls when workers die. Inside a task, `connect()` returns the client of the task's
process. The futures that a task submits are its children (FUT-62). While a task waits for its children, other
tasks can use its slot (FUT-41).

The file is long because `Client` is one class with 27 public methods. Docstrings and signatures take 220 of
its lines, and most methods call a function of another module of this package.
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
from tidemill.futures.client.completions import Callbacks
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.future import Future
from tidemill.futures.client.gather import as_list
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
from tidemill.futures.client.submission import CallSubmitter
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
    """Connect to a cluster, which you name by its home, or by its store and objects.

    In a task, omit `home` and `store` to connect to the task's own cluster.

    Args:
        home: a folder for the store, the objects and the key; it is created if it does not exist.
        store: the store's URL, instead of a home. The cluster key is then read from `key_file`, or from
            TIDEMILL_CLUSTER_KEY or TIDEMILL_CLUSTER_KEY_FILE.
        objects: the URL of object storage for large code, arguments and durable results.
        cluster: the name of the cluster; it prefixes all keys in the store.
        workers: start a local worker with this many slots; it stops when the client closes.
        key_file: the file with the cluster key.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     client.put("a value").result()
    'a value'
    """
    whole("workers", workers, 0, 1_000)
    task = task_context.current_task()
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
    """A connection to one cluster, safe to share between threads. Create it with `connect`, and close it.

    >>> import tidemill as tm
    >>> with tm.connect(home="tidemill-home") as client:
    ...     client.submit(max, 3, 5).done()
    False
    """

    def __init__(self, connection: Connection) -> None:
        self._link = connection
        self._callbacks = Callbacks(connection.completions)
        self._submitter = CallSubmitter(connection, lambda future_id: Future(self, future_id))
        self.placement = ValuePlacement(connection)
        self._waiter = ResultWaiter(connection, lambda actor_id: ActorHandle(self.future(actor_id)))
        self._workers: list[LocalWorker] = []
        connection.completions.on_quiet = self._on_quiet
        self._closing = threading.Lock()
        _open[connection.place.identity] = self
        _all.add(self)

    @property
    def place(self) -> ClusterAddress:
        """The address of the cluster."""
        return self._link.place

    @property
    def id(self) -> str:
        """The id of the node that holds this client's handles."""
        return self._link.owner

    @property
    def handles(self) -> HandleCounts:
        """Counts the handles of this client."""
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
        """Submit a call. The call is durable when `submit` returns.

        If you pass a future as an argument, the function receives the future's result.
        If a keyword argument of the function has the name of an option, bind it with `functools.partial`.

        Args:
            function: the function to call. The worker imports it from its module, or receives its code if it
                is not in a module.
            args: the positional arguments of the function.
            cpu: how many CPUs the task needs.
            ram: how much memory the task may use, in bytes or as text such as "2GB".
            gpu: how many GPUs the task needs.
            resources: names of resources that the worker must have.
            retries: how often to retry after an exception.
            near: run on the node that has the result of this future, if possible.
            priority: futures with a higher priority run first.
            deadline: seconds from now, a timedelta, or a datetime with a time zone. The future fails if it
                has not ended by then.
            key: an idempotency key. Submitting the same key again returns the first future.
            durable: store a large result in object storage, so that it outlives its worker.
            queue: the name of a queue; see `limit`.
            on_unsatisfiable: what to do if no live worker has the resources: "fail" raises an error here,
                "wait" waits without limit, a number waits that many seconds.
            progress_timeout: after this many seconds without progress the task is considered hung.
            kwargs: the keyword arguments of the function.
        """
        values = (
            *(cpu, ram, gpu, resources, retries, near, priority),
            *(deadline, key, durable, queue, on_unsatisfiable, progress_timeout),
        )
        options = _PLAIN if values == _DEFAULTS else Options.of(dict(zip(NAMES, values, strict=True)))
        return self._submitter.submit(function, args, kwargs, options)

    def map(
        self,
        function: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        **options: Unpack[SubmitOptions],
    ) -> list[Future[T]]:
        """Submit one call per item, in batches. With several iterables, stop at the end of the shortest.

        The options are those of `submit`. With `key="k"`, the calls have the keys "k/0", "k/1" and so on.
        """
        return self._submitter.map(function, iterables, Options.of(options) if options else _PLAIN)

    def actor(self, kind: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor: an object on one worker that runs its method calls in order (FUT-47).

        The options are those of `submit`. `handle.method.submit(*args)`, or just `handle.method(*args)`,
        returns a future.
        """
        options, kwargs = _split(kwargs)
        return ActorHandle(self._submitter.create_actor(kind, args, kwargs, options), kind)

    def call(
        self, actor: Future[Any], function: Callable[..., T], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Future[T]:
        """Submit a call of an actor's method. `ActorHandle` uses this."""
        options, kwargs = _split(kwargs)
        return self._submitter.call_method(actor.id, function, args, kwargs, options)

    def put(self, value: T, *, durable: bool = True) -> Future[T]:
        """Store a value once and return a realized future, which you can pass to many calls (FUT-33).

        If the value is lost, it cannot be computed again. A large value is stored in object storage. If a
        task passes `durable=False`, the value is stored on the task's worker and on one other worker instead,
        if there is another worker.
        """
        future_id = self.placement.put(self, value, durable=durable)
        return self._submitter.handles_of([future_id])[0]

    def future(self, future_id: bytes | str) -> Future[Any]:
        """Return a handle to the future with this id, even if another client submitted it."""
        try:
            raw = bytes.fromhex(future_id) if isinstance(future_id, str) else bytes(future_id)
        except ValueError:
            raw = b""
        if len(raw) != 16:
            raise UsageError(
                f"invalid future id: {future_id!r:.80}", hint="use an id of 32 hexadecimal digits"
            )
        self.handles.count([raw], own=False)
        return Future(self, raw)

    # --- waiting

    def gather(
        self, *futures: Any, timeout: float | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """Wait for futures and return their results in order. Raise the first failure as soon as it is seen.

        Args:
            futures: futures, or one iterable of them.
            timeout: after this many seconds, raise `FutureTimeout`.
            return_exceptions: return errors in place of results instead of raising them.
        """
        self._check_open()
        return self._waiter.results(as_list(futures), timeout, return_exceptions=return_exceptions)

    def as_completed(self, *futures: Any, timeout: float | None = None) -> Iterator[Future[Any]]:
        """Yield the futures as they end. Raise `FutureTimeout` if not all end within `timeout` seconds."""
        self._check_open()
        return self._waiter.completed(as_list(futures), timeout)

    def result_of(self, future: Future[Any], timeout: float | None = None) -> Any:
        """See `Future.result`."""
        self._check_open()
        return self._waiter.result(future, timeout)

    def exception_of(self, future: Future[Any], timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        self._check_open()
        return self._waiter.exception(future, timeout)

    def call_when_done(self, future: Future[Any], call: Callable[[Any], object]) -> None:
        """See `Future.add_done_callback`."""
        if not callable(call):
            raise UsageError(
                f"the callback {call!r:.100} is not callable", hint="use add_done_callback(function)"
            )
        self._callbacks.add(future.id, partial(call, future))

    # --- inspecting

    def row_of(self, future: Future[Any]) -> AnyRow:
        """Read the state row of a future. Raise `FutureUnknown` if there is none."""
        self._check_open()
        row = self._link.completions.read([future.id])[0]
        if row is None:
            raise FutureUnknown(f"future {future.id.hex()} does not exist or was deleted")
        return row

    def described(self, future: Future[Any]) -> tuple[str, str]:
        """Return the name and state of a future as text. Never raises."""
        try:
            lineage = trace(self._link.store, self._link.keys, future.id, most=1)
        except (StoreError, UsageError):
            return "?", "unknown"
        return lineage.name, lineage.state

    def lineage(self, future: Future[Any]) -> Lineage:
        """See `Future.lineage`."""
        self._check_open()
        return trace(self._link.store, self._link.keys, future.id)

    # --- acting on futures

    def cancel(self, future: Future[Any]) -> bool:
        """Cancel a future; its dependents fail. Return False if the future has already ended."""
        keys, future_id = self._link.keys, future.id

        def end(tx: Tx) -> bool:
            before = tx.get(keys.future[future_id], lock=True)
            row = cancel.cancel(tx, keys, future_id)
            return row.state not in ENDED or before != tx.get(keys.future[future_id], lock=True)

        return self._link.store.run(end)

    def delete(self, *futures: Any) -> int:
        """Delete the results of futures (FUT-32). Return how many had a result.

        A later request for such a result computes it again, if that is possible.
        """
        ids = [future.id for future in as_list(futures)]
        keys = self._link.keys
        deleted = 0
        for start in range(0, len(ids), DELETE_PAGE):
            page = ids[start : start + DELETE_PAGE]
            deleted += self._link.store.run(partial(results.delete_results, keys=keys, ids=page))
        for future in as_list(futures):
            future.remember(None)
        return deleted

    def limit(self, queue: str, *, running: int | None = None, per_s: float | None = None) -> None:
        """Limit how many futures of a queue run at once, and how many start per second (FUT-57).

        With neither argument, the limit of the queue is removed.
        """
        name = text("queue", queue, 200)
        if not name:
            raise UsageError(
                "limit() needs the name of a queue", hint="use the name passed as queue= to submit"
            )
        most = whole("running", running, 1, 1_000_000) if running is not None else 0
        rate = above_zero("per_s", per_s)
        keys = self._link.keys
        if most or rate:
            self._link.store.run(lambda tx: limits.set_limit(tx, keys, name, running=most, per_s=rate))
        else:
            self._link.store.run(lambda tx: limits.clear_limit(tx, keys, name))

    def pin(self, *futures: Any, owner: str = "user") -> None:
        """Keep results until `unpin`, even if no future object refers to them any more (FUT-34)."""
        for future in as_list(futures):
            self._link.store.run(partial(results.pin, keys=self._link.keys, future_id=future.id, owner=owner))

    def unpin(self, *futures: Any, owner: str = "user") -> None:
        """Remove the pins that `pin` created for this owner."""
        for future in as_list(futures):
            self._link.store.run(
                partial(results.unpin, keys=self._link.keys, future_id=future.id, owner=owner)
            )

    def clone(self, future: Future[T], node: str) -> Future[Any]:
        """Copy a result to another worker (FUT-31). Return a future that ends when the copy is stored."""
        return self.placement.clone(self, future, node)

    def take_ownership(self, future: Future[T]) -> bool:
        """In a task: copy a result to this worker and delete every other copy (FUT-31).

        Return False if the result was replaced or deleted in the meantime.
        """
        return self.placement.take_ownership(future)

    # --- workers and the end

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
        """Start a worker on this machine. The worker stops when this client closes.

        Args:
            slots: how many tasks it runs at once.
            cpu: how many CPUs it offers; by default, all of the machine.
            ram: how much memory it offers, in bytes or as text such as "2GB"; by default, all.
            gpu: how many GPUs it offers; by default, none.
            resources: names of resources that tasks may require.
            results_ram: how much memory results may use; by default, half of `ram`.
        """
        options = [f"--resource={name}" for name in Options.of({"resources": resources}).needs.named]
        options += [f"--cpu={number('cpu', cpu)}"] if cpu else []
        options += [f"--ram={amount_of_bytes('ram', ram)}"] if ram else []
        options += [f"--gpu={number('gpu', gpu)}"] if gpu else []
        options += [f"--results={amount_of_bytes('results_ram', results_ram)}"] if results_ram else []
        worker = LocalWorker(self.place, whole("slots", slots, 1, 1_000), self._link.clock, options)
        self._workers.append(worker)
        worker.wait_ready(self._link.store, self._link.cluster)

    def _on_quiet(self, ids: Sequence[bytes]) -> None:
        """Act when no awaited future has ended for a while.

        Raise an error if all local workers have ended and no other worker runs. Otherwise perform the
        leader's duties for these futures, in case there is no leader.
        """
        codes = [worker.exit_code for worker in self._workers]
        if codes and None not in codes and not self._link.live_workers():
            raise FutureError(
                f"the local worker ended with exit code {codes[-1]}, and no other worker is running",
                hint="check its output on standard error, then start a worker; the futures are still stored",
            )
        self._link.reap(ids)

    @property
    def closed(self) -> bool:
        return self._link.closed

    def _check_open(self) -> None:
        if self._link.closed:
            raise UsageError("this client is closed", hint="connect again")

    def close(self) -> None:
        """Drain the local workers, release all handles and disconnect. Idempotent.

        In a task this only releases handles; the task's process keeps the connection.
        """
        if not self._link.own:
            self.handles.tick()
            return
        with self._closing:
            if self._link.closed:
                return
            for worker in self._workers:
                worker.drain()
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


# --- the clients of this process


_open: weakref.WeakValueDictionary[tuple[str, str], Client] = weakref.WeakValueDictionary()
_all: weakref.WeakSet[Client] = weakref.WeakSet()
_of_task: dict[int, Client] = {}


def _task_client(task: task_context.TaskContext) -> Client:
    """Return the client of a task's process. It is created on first use, because most tasks need none."""
    client = _of_task.get(id(task.site))
    if client is None:
        client = _of_task[id(task.site)] = Client(Connection.of_task(task.site))
    return client


def client_of(place: ClusterAddress) -> Client:
    """Return this process's client for a cluster: an open client, the client of its task, or a new one."""
    task = task_context.current_task()
    client = _open.get(place.identity)
    if client is not None and not client.closed:
        return client
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
