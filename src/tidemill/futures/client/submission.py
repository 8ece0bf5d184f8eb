"""From a call to futures in the store: submissions are made where the user calls, and entered in batches.

A submission is all that is known before the transaction: code and arguments as bytes, checked options, an
id. Single ones of several threads gather while one of them commits, so that each costs a share of a
transaction; every one is durable when its own call returns. A batch in which one is refused is entered one
by one, so that nobody is refused for another's fault.
"""

import contextlib
import inspect
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from tidemill.clock import Clock
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import TidemillError, UsageError
from tidemill.futures.client.options import Options
from tidemill.futures.protocol import actors, bulk, satisfy, submit
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.rows import Spec
from tidemill.futures.values import calls
from tidemill.futures.values.blobs import Blobs
from tidemill.futures.values.call_digests import call_digest
from tidemill.futures.values.pickling import PYTHON
from tidemill.futures.values.signatures import Signer, sign_spec
from tidemill.futures.worker import task_context
from tidemill.store import Store, Tx

Kwargs = Mapping[str, object]
NOTHING: Kwargs = {}


class StoredFunction(NamedTuple):
    """A function that is stored: its digest, what people call it, and itself."""

    digest: bytes
    name: str
    function: Callable[..., object]


class Submission(msgspec.Struct, frozen=True):
    """A future that is ready to be entered; `actor` is the actor it is a call of, or its own id."""

    spec: Spec
    options: Options
    actor: bytes = b""


class SubmissionFactory:
    """Makes submissions of calls.

    Args:
        blobs: where code and large arguments go.
        signer: has the cluster key.
        owner: the node whose handles keep the results.
        clock: gives ids their time.
        chance: gives ids their chance.
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
        """Store a function, unless this very code is stored already."""
        content = calls.dump_code(function)
        return StoredFunction(self._blobs.store_code(content), calls.name_of(function), function)

    def new_ids(self, count: int) -> list[bytes]:
        """Ids for a batch, in order: of those entered together the first one goes first."""
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
    ) -> Submission:
        """One call with its arguments; inside a task it has a key of its own (FUT-62)."""
        future_id = future_id or self.new_ids(1)[0]
        content, inputs = calls.dump_args(args, kwargs)
        key, parent = options.key, b""
        task = task_context.current()
        if task is not None:
            parent = task.id
            if not key:
                key = child_key(task, call_digest(code.function, args, kwargs))
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
        if not actor:  # what an actor's call is signed with is known in its transaction only
            spec = sign_spec(self._signer, spec)
        return Submission(spec, options, actor)

    def check_call(self, function: Callable[..., object], args: Sequence[object], kwargs: Kwargs) -> None:
        """`UsageError` when the function does not take these arguments: here, not on a worker."""
        try:
            signature = self._signatures[function]
        except (KeyError, TypeError):
            signature = _signature(function)
            with contextlib.suppress(TypeError):  # of a kind that cannot be referred to weakly
                self._signatures[function] = signature
        if signature is None:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"{calls.name_of(function)}{signature} does not take these arguments: {error}",
                hint="submit(function, *args, **kwargs); options of submit are not passed on",
            ) from None


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # written in C, and says nothing of itself
        return None


def child_key(task: task_context.TaskContext, digest: bytes) -> str:
    """The idempotency key of what a task submits: a task that is tried again finds it by it (FUT-62)."""
    return f"{task.id.hex()}.{task.next_call()}.{digest.hex()}"


class _Slot:
    """One submission on its way into a batch."""

    __slots__ = ("error", "id", "submission")

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.id = b""
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        return bool(self.id) or self.error is not None


class SubmissionWriter:
    """Enters submissions into the store.

    Args:
        store: where.
        keys: the futures' layout.
        cluster: the nodes' layout.
        signer: signs what is entered, when all of it is known.
    """

    def __init__(self, store: Store, keys: FutureKeys, cluster: ClusterKeys, signer: Signer) -> None:
        self._store = store
        self._keys = keys
        self._cluster = cluster
        self._signer = signer
        self._slots: deque[_Slot] = deque()
        self._turn = threading.Lock()

    def enter(self, submission: Submission) -> bytes:
        """Enter one, together with what other threads enter meanwhile; its id, or that of its key."""
        slot = _Slot(submission)
        self._slots.append(slot)
        with self._turn:
            while not slot.over:  # else whoever had the turn before has entered it with its own
                self._enter_slots(list(_taken(self._slots, bulk.PAGE)))
        if slot.error is not None:
            raise slot.error
        return slot.id

    def _enter_slots(self, slots: list[_Slot]) -> None:
        by_id = {slot.submission.spec.id: slot for slot in slots}
        for page in submit.pages([slot.submission.spec for slot in slots], bulk.weight):
            batch = [by_id[spec.id] for spec in page]
            try:
                for slot, future_id in zip(
                    batch, self._enter([one.submission for one in batch]), strict=True
                ):
                    slot.id = future_id
            except BaseException as error:  # noqa: BLE001 - it is raised again by each of those it concerns
                if len(batch) == 1 or not isinstance(error, TidemillError):
                    for slot in batch:
                        slot.error = error
                else:
                    for slot in batch:
                        self._enter_slots([slot])

    def enter_many(self, submissions: Iterable[Submission]) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Enter many, a page at a time, while they are being made: page by page the ids they have, and those
        they were made with; they differ where a key was known.
        """
        rest = iter(submissions)
        while made := list(islice(rest, bulk.PAGE)):
            by_id = {one.spec.id: one for one in made}
            for page in submit.pages([one.spec for one in made], bulk.weight):
                yield self._enter([by_id[spec.id] for spec in page]), [spec.id for spec in page]

    def _enter(self, page: list[Submission]) -> list[bytes]:
        def enter_page(tx: Tx) -> list[bytes]:
            asked = {one.spec.needs: one.spec.name for one in page if one.options.refuse}
            satisfy.check(tx, self._cluster, asked)
            if any(one.actor for one in page):
                return [self._enter_one(tx, one) for one in page]
            return bulk.submit_many(tx, self._keys, [_dated(tx, one) for one in page])

        return self._store.run(enter_page)

    def _enter_one(self, tx: Tx, one: Submission) -> bytes:
        spec = _dated(tx, one)
        if not one.actor:
            return submit.submit_one(tx, self._keys, spec)
        if one.actor == spec.id:
            return actors.create(tx, self._keys, spec, sign=self._sign)
        return actors.call(tx, self._keys, one.actor, [spec], sign=self._sign)[0]

    def _sign(self, spec: Spec) -> Spec:
        return sign_spec(self._signer, spec)


def _dated(tx: Tx, one: Submission) -> Spec:
    """The spec with its deadline, which is a time of the store's."""
    options = one.options
    if not (options.deadline_s or options.deadline_wall_us):
        return one.spec
    return msgspec.structs.replace(one.spec, deadline_at=options.deadline_at(tx.now(), tx.wall()))


def _taken(slots: deque[_Slot], most: int) -> Iterator[_Slot]:
    for _ in range(most):
        try:
            yield slots.popleft()
        except IndexError:
            return
