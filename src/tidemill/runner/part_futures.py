"""Run the parts of arcs and sources as durable futures (LOT-18, LOT-26).

The future of a part has no owner, so its result outlives the process that submitted it. The future is pinned,
so its result is kept until the attempt ends. A runner that continues the attempt finds the finished parts by
their keys, and runs only the others. Submitting a failed part again resets its counters and runs it again.

The store has a row for each part of an attempt. The row says which future to delete when the attempt has
ended. The row is written and cleared together with the future. So any runner can delete the futures of a dead
runner (`forget_ended`).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote

from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import (
    AttemptUnknown,
    CommitUnknown,
    DiskFull,
    FutureTimeout,
    ObjectError,
    ObjectsFull,
    ObjectUnavailable,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from tidemill.futures.client.completions import Completions
from tidemill.futures.client.options import Options
from tidemill.futures.client.outcomes import Outcomes
from tidemill.futures.client.submission import NOTHING, SubmissionFactory
from tidemill.futures.protocol import cancel, code, drafts, edges, reap, requeue, results, rows, submit, sweep
from tidemill.futures.protocol.keys import FutureKeys, args_object
from tidemill.futures.protocol.lanes import RUNNERS
from tidemill.futures.protocol.rows import (
    AnyRow,
    Cancelled,
    Claimed,
    Failed,
    Failure,
    Needs,
    Quarantined,
    Realized,
    Spec,
)
from tidemill.futures.protocol.states import ENDED
from tidemill.futures.values.blobs import Blobs
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.publish import attempts
from tidemill.publish.attempts import Open
from tidemill.publish.keys import PublishKeys
from tidemill.publish.parts import PartDone, PartEnd, PartFailed, PartTask, SinkWritten
from tidemill.runner.keys import RunnerKeys
from tidemill.scope import Scope
from tidemill.store import Tx

PIN = "part"
CHECK_EVERY_S = 0.5
"""How often a waiting thread checks whether the worker still runs."""

OUTAGES = {
    f"{error.__module__}.{error.__qualname__}": error
    for error in (
        CommitUnknown,
        DiskFull,
        ObjectsFull,
        ObjectUnavailable,
        StoreBusy,
        StoreFull,
        StoreUnavailable,
    )
}
"""The errors that are not the fault of a part, by the type that a failure names."""

MOST_KEY_BYTES = 500
READ_PAGE = 200
DELETE_PAGE = 40

Make = Callable[[PartTask], Sequence[SinkWritten]]


def resource_of(pipeline: str) -> str:
    """Return the resource that the parts of a pipeline require, and that its runners offer."""
    return RUNNERS + quote(pipeline, safe="")


def _fine() -> None:
    """Check nothing. Used for parts that run in other processes."""


class PartFutures:
    """Runs parts as futures on any runner of the pipeline. Several threads may share it.

    Args:
        scope: the runner's scope.
        key: the cluster key.
        function: makes a part; a function of a module, so that every runner finds it by its name.
        check: called while waiting; raises an error if the parts can never end, because the worker has ended.
    """

    def __init__(
        self, scope: Scope, key: ClusterKey, function: Make, *, check: Callable[[], None] = _fine
    ) -> None:
        store, objects, clock, chance = scope.store, scope.objects, scope.clock, scope.chance
        signer = Signer(key)
        self._scope = scope
        self._store = store
        self._objects = objects
        self._function = function
        self._check = check
        self._keys = FutureKeys(scope.cluster)
        self._own = RunnerKeys(scope.cluster)
        self._publish = PublishKeys(scope.cluster)
        self._waiting = Completions(store, self._keys, clock)
        self._submissions = SubmissionFactory(
            Blobs(store, self._keys, signer, objects, clock), signer, owner="", clock=clock, chance=chance
        )
        values, cluster = ResultStorage(signer, objects=objects), ClusterKeys(scope.cluster)
        self._outcomes = Outcomes(store, self._keys, cluster, signer, values, clock, chance)

    # --- running

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]:
        """Process parts, and yield the outcome of each as soon as it ends.

        If a part with the same key is already done, its result is used (`reused`). A part that is already
        running is awaited. A part that failed, was quarantined or was cancelled runs again. The first call of
        `next` submits all parts.
        """
        submitted = self._submit(tasks)
        awaited = dict(submitted)
        while awaited:
            self._check()
            try:
                for ended in self._waiting.ended(list(awaited), timeout_s=CHECK_EVERY_S):
                    for future in ended:
                        task, version = awaited[future.id]
                        end = self._end_of(task, future.id, future.row, version)
                        if end is not None:
                            del awaited[future.id]
                            yield end
                    self._check()
            except FutureTimeout:
                continue

    def _end_of(self, task: PartTask, future_id: bytes, row: AnyRow | None, version: int) -> PartEnd | None:
        """Return how a part ended; None if its result is lost, so that the part must run again.

        - version: the version of the result that existed before we submitted the part; 0 if there was none.
        """
        if isinstance(row, Realized):
            exists, value = self._outcomes.value(future_id, row)
            if not exists:
                return None
            written: tuple[SinkWritten, ...] = tuple(value)  # type: ignore[arg-type] # the function's result
            return PartDone(task=task, written=written, reused=row.result.version <= version)
        failure = self._store.run(lambda tx: _failure(tx, self._keys, future_id))
        if failure is None:
            kind = row.state.value if row is not None else "lost"
            return PartFailed(task=task, kind=kind, message=f"its future is {kind}")
        message = ": ".join(text for text in (failure.type, failure.message) if text) or failure.kind
        outage = OUTAGES.get(failure.type)
        return PartFailed(
            task=task,
            kind=failure.kind,
            message=message,
            traceback=failure.traceback,
            outage=None if outage is None else outage(f"part {task.part}: {_first_line(failure)}"),
        )

    # --- submitting

    def _submit(self, tasks: Sequence[PartTask]) -> dict[bytes, tuple[PartTask, int]]:
        """Store futures for parts that have none. Return the parts by the ids of their futures.

        Each part comes with the version of the result that existed before; 0 if there was none.
        """
        if not tasks:
            return {}
        usable = self._have_futures(tasks)
        function = self._submissions.code(self._function)
        ids = self._submissions.new_ids(len(tasks))
        new: list[Spec] = []
        by_key = {_key(task): task for task in tasks}
        for task, has_future, future_id in zip(tasks, usable, ids, strict=True):
            if has_future:
                continue
            options = Options(
                needs=Needs(named=(resource_of(task.pipeline),)),
                max_retries=task.retries,
                key=_key(task),
                durable=True,
                refuse=False,
                grace_s=-1.0,
            )
            name = " ".join(text for text in (task.author, task.lot, task.part) if text)
            named = function._replace(name=name)
            new.append(self._submissions.make(named, (task,), NOTHING, options, future_id=future_id).spec)
        specs = {spec.key: spec for spec in new}
        submitted: dict[bytes, tuple[PartTask, int]] = {}
        deleted: list[PartTask] = []  # their futures were deleted since `_have_futures`
        pages: list[list[PartTask]] = [
            [by_key[spec.key] for spec in page]
            for page in submit.pages(new, lambda spec: submit.weight(spec) + 4)
        ]
        old = [task for task, has_future in zip(tasks, usable, strict=True) if has_future]
        pages += [old[at : at + DELETE_PAGE] for at in range(0, len(old), DELETE_PAGE)]
        for page in pages:
            futures = self._scope.step("runner.submit", partial(self._submit_page, page=page, specs=specs))
            for task, future in zip(page, futures, strict=True):
                if future is not None:
                    submitted[future[0]] = (task, future[1])
                else:
                    deleted.append(task)
        return {**submitted, **self._submit(deleted)}

    def _have_futures(self, tasks: Sequence[PartTask]) -> list[bool]:
        """Return, for each part, whether it has a future that was not cancelled."""

        def read(tx: Tx, page: Sequence[PartTask]) -> list[bool]:
            ids = tx.get_many([self._keys.key[_key(task)] for task in page])
            stored = [future_id for future_id in ids if future_id is not None]
            rows = dict(zip(stored, edges.read_many(tx, self._keys, stored), strict=True))
            return [
                future_id is not None and not isinstance(rows[future_id], Cancelled | None)
                for future_id in ids
            ]

        usable: list[bool] = []
        for at in range(0, len(tasks), READ_PAGE):
            usable += self._store.run(partial(read, page=tasks[at : at + READ_PAGE]))
        return usable

    def _submit_page(
        self, tx: Tx, page: Sequence[PartTask], specs: dict[str, Spec]
    ) -> list[tuple[bytes, int] | None]:
        """Store the futures of one page. Return each future's id and the version of its result.

        The entry is None if the future was deleted after `_have_futures` read it. If another runner has
        submitted the same part since then, both runners wait for the same future.
        """
        futures: list[tuple[bytes, int] | None] = []
        code.need(tx, self._keys, {specs[key].code for key in map(_key, page) if key in specs})
        for task in page:
            key = _key(task)
            future_id = tx.get(self._keys.key[key])
            row = edges.read(tx, self._keys, future_id) if future_id is not None else None
            if future_id is not None and isinstance(row, Cancelled) and key in specs:
                sweep.delete(tx, self._keys, future_id, row)
                tx.clear(self._keys.pin[future_id, PIN])
                row = None
            if future_id is None or row is None:
                if key not in specs:
                    futures.append(None)
                    continue
                future_id = submit.submit_one(tx, self._keys, specs[key])
                drafts.adopt_args(tx, self._keys, specs[key], submitted=True)
                results.pin(tx, self._keys, future_id, PIN)
                tx.set(self._own.part[task.attempt, _short(task.key)], future_id, quiet=True)
                futures.append((future_id, 0))
            elif isinstance(row, Failed | Quarantined):
                requeue.requeue(tx, self._keys, future_id)
                futures.append((future_id, 0))
            else:
                futures.append((future_id, row.result.version if isinstance(row, Realized) else 0))
        return futures

    # --- deleting

    def forget(self, attempt: str) -> int:
        """Delete the futures of an attempt that has ended, with their results and rows. Return how many.

        A future that is still running is cancelled, and a later call deletes it.
        """
        deleted, after = 0, b""
        while True:
            page = self._scope.step("runner.forget", partial(self._delete, attempt=attempt, after=after))
            self._remove(page.garbage)
            deleted += page.deleted
            after = page.after
            if not after:
                return deleted

    def forget_ended(self) -> int:
        """Delete the remaining futures of all attempts that have ended. Return how many."""
        deleted = 0
        for attempt in self._store.run(lambda tx: reap.holders(tx, self._own.part)):
            if not self._store.run(partial(self._is_open, attempt=attempt)):
                deleted += self.forget(attempt)
        return deleted

    def _is_open(self, tx: Tx, attempt: str) -> bool:
        try:
            return isinstance(attempts.read(tx, self._publish, attempt), Open)
        except AttemptUnknown:
            return False

    def _delete(self, tx: Tx, attempt: str, after: bytes) -> "_Page":
        lo, hi = self._own.part.under(attempt)
        index_rows = tx.range(max(lo, after + b"\x00"), hi, limit=DELETE_PAGE)
        deleted, garbage = 0, []
        for index in index_rows:
            future_id = index.value
            row = edges.read(tx, self._keys, future_id)
            if row is not None and row.state not in ENDED:
                row = cancel.cancel(tx, self._keys, future_id)
                if isinstance(row, Claimed):
                    continue
            if row is not None:
                spec = edges.must_read_spec(tx, self._keys, future_id)
                garbage += [copy.location.name for copy in results.copies(tx, self._keys, future_id)]
                if spec.args.inline is None:
                    garbage.append(args_object(future_id, spec.args.digest))
                sweep.delete(tx, self._keys, future_id, row)
                deleted += 1
            tx.clear(self._keys.pin[future_id, PIN])
            tx.clear(index.key, quiet=True)
        return _Page(deleted, garbage, index_rows[-1].key if len(index_rows) == DELETE_PAGE else b"")

    def _remove(self, names: Sequence[str]) -> None:
        """Delete these objects, and clear their garbage entries. If that fails, the leader does it later."""
        if not names:
            return
        with contextlib.suppress(ObjectError, StoreError):
            self._objects.delete_many(names)
            self._store.run(partial(self._clear_garbage, names=names))

    def _clear_garbage(self, tx: Tx, names: Sequence[str]) -> None:
        for name in names:
            tx.clear(self._keys.garbage[name])


class _Page(NamedTuple):
    deleted: int
    garbage: list[str]
    after: bytes  # the last key of this page; empty after the last page


def _key(task: PartTask) -> str:
    """Return the key of a part. Each attempt has its own keys, because its files are deleted when it ends."""
    return f"part/{task.attempt}/{_short(task.key)}"


def _short(key: str) -> str:
    """Return the key, or its digest if it is too long for the store."""
    raw = key.encode()
    return key if len(raw) <= MOST_KEY_BYTES else blake2b(raw, digest_size=32).hexdigest()


def _first_line(failure: Failure) -> str:
    """Return the message without the hint, which the error gets again."""
    return failure.message.partition("\n")[0]


def _failure(tx: Tx, keys: FutureKeys, future_id: bytes) -> Failure | None:
    raw = tx.get(keys.error[future_id])
    return None if raw is None else rows.decode_failure(raw)
