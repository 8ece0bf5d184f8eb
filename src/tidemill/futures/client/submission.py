"""Submissions: turn calls into futures and write them to the store in batches.

A submission contains everything that is known before the transaction: code and arguments as bytes, checked
options and an id. While one thread commits, the submissions of other threads are collected into a batch,
which the next transaction writes. Each submission is durable when its call returns. If the store refuses a
batch, the submissions are written one by one, so that only the faulty one fails.
"""

import contextlib
import inspect
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.clock import Clock
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import BlobMissing, TidemillError, UsageError
from tidemill.futures.client import input_tree
from tidemill.futures.client.input_tree import BundleCall
from tidemill.futures.client.options import Options
from tidemill.futures.protocol import actors, bulk, code, drafts, submit, unsatisfiable
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.rows import Spec
from tidemill.futures.values import calls
from tidemill.futures.values.blobs import Blobs
from tidemill.futures.values.call_digests import call_digest
from tidemill.futures.values.pickling import PYTHON, InputPlace
from tidemill.futures.values.signatures import Signer, sign_spec
from tidemill.futures.worker import task_context
from tidemill.store import Store, Tx

if TYPE_CHECKING:
    from tidemill.futures.client.connection import Connection
    from tidemill.futures.client.future import Future

Kwargs = Mapping[str, object]
NOTHING: Kwargs = {}


class StoredFunction(NamedTuple):
    """A function with its name and the digest under which its code is stored."""

    digest: bytes
    name: str
    function: Callable[..., object]


class Submission(msgspec.Struct, frozen=True):
    """A future that is ready to be written.

    - actor: the actor that it calls or creates.
    - bundles: handles of its bundles, which must exist until the future is written.
    """

    spec: Spec
    options: Options
    actor: bytes = b""
    bundles: Sequence[object] = ()


class SubmissionFactory:
    """Creates submissions from calls.

    Args:
        blobs: stores code and large arguments.
        signer: signs with the cluster key.
        owner: the id of the node that holds the handles.
        clock: the source of time, for ids.
        chance: the source of random numbers, for ids.
    """

    def __init__(self, blobs: Blobs, signer: Signer, owner: str, clock: Clock, chance: random.Random) -> None:
        self._blobs = blobs
        self._signer = signer
        self._owner = owner
        self._clock = clock
        self._chance = chance
        self._signatures: weakref.WeakKeyDictionary[Any, inspect.Signature | None] = (
            weakref.WeakKeyDictionary()
        )

    def code(self, function: Callable[..., object]) -> StoredFunction:
        """Store the code of a function, unless it is already stored."""
        content = calls.dump_code(function)
        return StoredFunction(self._blobs.store_code(content), calls.name_of(function), function)

    def new_ids(self, count: int) -> list[bytes]:
        """Return sorted ids for a batch: futures of a batch run in the order of their ids."""
        wall_ms = int(self._clock.wall() * 1_000)
        return sorted(new_id(wall_ms, self._chance) for _ in range(count))

    def make(
        self,
        code: StoredFunction,
        args: Sequence[object],
        kwargs: Kwargs,
        options: Options,
        *,
        future_id: bytes = b"",
        actor: bytes = b"",
        submit_bundle: BundleCall | None = None,
    ) -> Submission:
        """Create the submission of one call. Inside a task, the call gets an idempotency key (FUT-62).

        - submit_bundle: submits bundles of inputs, if the call has many; without it, such a call is refused.
        """
        future_id = future_id or self.new_ids(1)[0]
        content, inputs = calls.dump_args(args, kwargs)
        key, parent = options.key, b""
        task = task_context.current_task()
        if task is not None:
            parent = task.id
            if not key:
                key = child_key(task, call_digest(code.function, args, kwargs))
        bundles: Sequence[object] = ()
        if submit_bundle is not None and len(inputs) > input_tree.MOST_DIRECT:
            others = [upstream for upstream in inputs if upstream != actor]  # only the actor has itself
            places, bundles = input_tree.bundle(others, options, key, submit_bundle)
            content, inputs = calls.dump_args(args, kwargs, places)
        spec = Spec(
            id=future_id,
            name=code.name,
            code=code.digest,
            args=self._blobs.store_args(future_id, content),
            inputs=inputs,
            needs=options.needs,
            queue=options.queue,
            priority=options.priority,
            max_retries=options.max_retries,
            key=key,
            parent=parent,
            owner=self._owner,
            durable=options.durable,
            near=options.near,
            progress_timeout_s=options.progress_timeout_s,
            unsatisfiable_grace_s=options.grace_s,
            python=PYTHON,
        )
        if not actor:  # an actor's call is signed in its transaction, which assigns its ordinal
            spec = sign_spec(self._signer, spec)
        return Submission(spec, options, actor, bundles)

    def check_call(self, function: Callable[..., object], args: Sequence[object], kwargs: Kwargs) -> None:
        """Raise `UsageError` if the function does not accept these arguments, before a worker runs it."""
        try:
            signature = self._signatures[function]
        except (KeyError, TypeError):
            signature = _signature(function)
            with contextlib.suppress(TypeError):  # a function without support for weak references
                self._signatures[function] = signature
        if signature is None:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"{calls.name_of(function)}{signature} does not accept these arguments: {error}",
                hint="use submit(function, *args, **kwargs); options of submit, such as retries=, are not"
                " passed to the function",
            ) from None


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a C function without a signature
        return None


def child_key(task: task_context.TaskContext, digest: bytes) -> str:
    """Return the idempotency key of a future that a task submits.

    With this key, a retried task finds the future again (FUT-62).
    """
    return f"{task.id.hex()}.{task.next_call()}.{digest.hex()}"


class _QueuedSubmission:
    """A submission that waits for its batch, and then has an id or an error."""

    __slots__ = ("error", "id", "submission")

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.id = b""
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return bool(self.id) or self.error is not None


class SubmissionWriter:
    """Writes submissions to the store.

    Args:
        store: the store.
        keys: the keys of futures.
        cluster: the keys of nodes.
        signer: signs the calls of actors.
        blobs: has stored the code of the submissions.
    """

    def __init__(
        self, store: Store, keys: FutureKeys, cluster: ClusterKeys, signer: Signer, blobs: Blobs
    ) -> None:
        self._store = store
        self._keys = keys
        self._cluster = cluster
        self._signer = signer
        self._blobs = blobs
        self._queue: deque[_QueuedSubmission] = deque()
        self._lock = threading.Lock()

    def write(self, submission: Submission) -> bytes:
        """Write a submission, in one batch with those of other threads. Return the id of its future.

        If the idempotency key already exists, return the id of the earlier future.
        """
        queued = _QueuedSubmission(submission)
        self._queue.append(queued)
        with self._lock:
            while not queued.done:  # otherwise another thread has written it in its own batch
                self._write_queued(list(_pop_up_to(self._queue, bulk.PAGE)))
        if queued.error is not None:
            raise queued.error
        return queued.id

    def _write_queued(self, items: list[_QueuedSubmission]) -> None:
        by_id = {item.submission.spec.id: item for item in items}
        for page in submit.pages([item.submission.spec for item in items], bulk.weight):
            batch = [by_id[spec.id] for spec in page]
            try:
                ids = self._write_page([item.submission for item in batch])
                for item, future_id in zip(batch, ids, strict=True):
                    item.id = future_id
            except BaseException as error:  # noqa: BLE001 - raised again by the calls that wait for it
                if len(batch) == 1 or not isinstance(error, TidemillError):
                    for item in batch:
                        item.error = error
                else:
                    for item in batch:
                        self._write_queued([item])

    def write_many(self, submissions: Iterable[Submission]) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Write many submissions, a page at a time, while the caller creates them.

        For each page, yield two lists: the ids of the futures, and the ids of the submissions. If the
        idempotency key of a call already existed, the first list has the id of the earlier future instead.
        """
        rest = iter(submissions)
        while chunk := list(islice(rest, bulk.PAGE)):
            by_id = {submission.spec.id: submission for submission in chunk}
            for page in submit.pages([submission.spec for submission in chunk], bulk.weight):
                yield self._write_page([by_id[spec.id] for spec in page]), [spec.id for spec in page]

    def _write_page(self, page: list[Submission]) -> list[bytes]:
        def step(tx: Tx) -> list[bytes]:
            needs = {item.spec.needs: item.spec.name for item in page if item.options.refuse}
            unsatisfiable.check(tx, self._cluster, needs)
            code.need(tx, self._keys, {item.spec.code for item in page})
            if any(item.actor for item in page):
                ids = [self._write_one(tx, item) for item in page]
            else:
                ids = bulk.submit_many(tx, self._keys, [_with_deadline(tx, item) for item in page])
            for item, future_id in zip(page, ids, strict=True):
                drafts.adopt_args(tx, self._keys, item.spec, submitted=future_id == item.spec.id)
            return ids

        try:
            return self._store.run(step)
        except BlobMissing:
            for item in page:  # so that the same call stores its code again
                self._blobs.forget(item.spec.code)
            raise

    def _write_one(self, tx: Tx, submission: Submission) -> bytes:
        spec = _with_deadline(tx, submission)
        if not submission.actor:
            return submit.submit_one(tx, self._keys, spec)
        if submission.actor == spec.id:
            return actors.create(tx, self._keys, spec, sign=self._sign)
        return actors.call(tx, self._keys, submission.actor, [spec], sign=self._sign)[0]

    def _sign(self, spec: Spec) -> Spec:
        return sign_spec(self._signer, spec)


def _with_deadline(tx: Tx, submission: Submission) -> Spec:
    """Return the spec with its deadline, by the store's clock."""
    options = submission.options
    if not (options.deadline_s or options.deadline_wall_us):
        return submission.spec
    return msgspec.structs.replace(submission.spec, deadline_at=options.deadline_at(tx.now(), tx.wall()))


def _pop_up_to(queue: deque[_QueuedSubmission], most: int) -> Iterator[_QueuedSubmission]:
    for _ in range(most):
        try:
            yield queue.popleft()
        except IndexError:
            return


class CallSubmitter:
    """Submits calls for one client and returns handles of their futures.

    Args:
        link: the client's connection.
        future: returns a handle to a future; the handle is already counted.
    """

    def __init__(self, link: "Connection", future: "Callable[[bytes], Future[Any]]") -> None:
        self._link = link
        self._future = future

    def submit(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], options: Options
    ) -> "Future[Any]":
        """Submit one call; see `Client.submit`."""
        submissions = self._link.submissions
        code = submissions.code(function)
        submissions.check_call(function, args, kwargs)
        return self._write(submissions.make(code, args, kwargs, options, submit_bundle=self._submit_bundle))

    def map(
        self, function: Callable[..., Any], iterables: Sequence[Iterable[Any]], options: Options
    ) -> "list[Future[Any]]":
        """Submit one call per item; see `Client.map`."""
        if not iterables:
            raise UsageError("map needs at least one iterable", hint="use map(function, items)")
        for items in iterables:
            if not isinstance(items, Iterable):
                raise UsageError(
                    f"map expects iterables, got {type(items).__name__}", hint="use map(function, [a, b])"
                )
        code = self._link.submissions.code(function)
        futures: list[Future[Any]] = []
        submissions = self._map_submissions(function, code, iterables, options)
        for page in self._link.submission_writer.write_many(submissions):
            futures += self.handles_of(*page)
        return futures

    def _map_submissions(
        self,
        function: Callable[..., Any],
        code: StoredFunction,
        iterables: Sequence[Iterable[Any]],
        options: Options,
    ) -> Iterator[Submission]:
        submissions = self._link.submissions
        ids: list[bytes] = []
        for nth, args in enumerate(zip(*iterables)):  # noqa: B905 - as `map` does
            if not nth:
                submissions.check_call(function, args, NOTHING)
            if not ids:
                ids = submissions.new_ids(bulk.PAGE)[::-1]
            yield submissions.make(
                code,
                args,
                NOTHING,
                options.numbered(nth) if options.key else options,
                future_id=ids.pop(),
                submit_bundle=self._submit_bundle,
            )

    def create_actor(
        self, kind: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], options: Options
    ) -> "Future[Any]":
        """Submit the creation of an actor. The future and the actor have the same id; see `Client.actor`."""
        submissions = self._link.submissions
        code = submissions.code(kind)
        submissions.check_call(kind, args, kwargs)
        actor_id = submissions.new_ids(1)[0]
        return self._write(
            submissions.make(
                code,
                args,
                kwargs,
                options,
                future_id=actor_id,
                actor=actor_id,
                submit_bundle=self._submit_bundle,
            )
        )

    def call_method(
        self,
        actor_id: bytes,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: Options,
    ) -> "Future[Any]":
        """Submit a call of an actor's method; see `Client.call`."""
        submissions = self._link.submissions
        code = submissions.code(function)
        return self._write(
            submissions.make(code, args, kwargs, options, actor=actor_id, submit_bundle=self._submit_bundle)
        )

    def _submit_bundle(self, inputs: Sequence[InputPlace], options: Options) -> "Future[Any]":
        """Submit a bundle of a call's inputs; see `input_tree`."""
        submissions = self._link.submissions
        code = submissions.code(input_tree.collect)
        return self._write(submissions.make(code, inputs, NOTHING, options))

    def _write(self, submission: Submission) -> "Future[Any]":
        future_id = self._link.submission_writer.write(submission)
        return self.handles_of([future_id], [submission.spec.id])[0]

    def handles_of(self, ids: Sequence[bytes], new_ids: Sequence[bytes] | None = None) -> "list[Future[Any]]":
        """Return handles of futures. If an id differs from its id in `new_ids`, it is an earlier future."""
        earlier = {old for old, new in zip(ids, new_ids, strict=True) if old != new} if new_ids else set()
        handles = self._link.handles
        handles.count([future_id for future_id in ids if future_id not in earlier], own=True)
        handles.count([future_id for future_id in ids if future_id in earlier], own=False)
        return [self._future(future_id) for future_id in ids]
