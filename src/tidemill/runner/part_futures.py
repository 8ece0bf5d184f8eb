"""Parts as durable futures: the port that arcs and sources have their parts run through (LOT-18, LOT-26).

A part's future has no owner, so that its result outlives whoever submitted it, and is pinned, so that it is
kept for as long as its attempt: a runner that goes on with the attempt finds what was made under an equal key
and runs the rest. Asking for a part again that had failed arms it again: every count begins anew.

A row per part, by attempt, says which futures to delete once the attempt has ended. It is written with the
future and cleared with it, so that whoever comes by (`forget_ended`) finds what a dead runner left.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote

from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import AttemptUnknown, FutureTimeout, ObjectError, StoreError
from tidemill.futures.client.completions import Completions
from tidemill.futures.client.options import Options
from tidemill.futures.client.outcomes import Outcomes
from tidemill.futures.client.submission import NOTHING, SubmissionFactory
from tidemill.futures.protocol import cancel, edges, reap, requeue, results, rows, submit, sweep
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
LOOK_S = 0.5
"""How often whoever waits asks whether there is still somebody to wait for."""

MOST_KEY_BYTES = 500
READ_PAGE = 200
DELETE_PAGE = 40

Make = Callable[[PartTask], Sequence[SinkWritten]]


def resource_of(pipeline: str) -> str:
    """What the parts of a pipeline ask for, and what the runners that have this pipeline offer."""
    return RUNNERS + quote(pipeline, safe="")


def _fine() -> None:
    """For whoever waits for hands of other processes."""


class PartFutures:
    """Runs parts as futures, wherever there are hands for them. One for every thread, or one for all.

    Args:
        scope: what the runner works with.
        key: the cluster key.
        function: makes a part; of a module, so that every runner finds it by its name.
        check: called while waiting; raises when it makes no sense to wait any longer.
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
            Blobs(store, self._keys, signer, objects), signer, owner="", clock=clock, chance=chance
        )
        values, cluster = ResultStorage(signer, objects=objects), ClusterKeys(scope.cluster)
        self._outcomes = Outcomes(store, self._keys, cluster, signer, values, clock, chance)

    # --- running

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]:
        """Have parts made, and say how each ended, as they end.

        What was made under an equal key is given as it is (`reused`); what runs is awaited; what had failed,
        was set aside or cancelled is armed again. All are submitted when the first is asked for.
        """
        submitted = self._submit(tasks)
        awaited = dict(submitted)
        while awaited:
            self._check()
            try:
                for ended in self._waiting.ended(list(awaited), timeout_s=LOOK_S):
                    for one in ended:
                        task, before = awaited[one.id]
                        end = self._ended(task, one.id, one.row, before)
                        if end is not None:
                            del awaited[one.id]
                            yield end
                    self._check()
            except FutureTimeout:
                continue

    def _ended(self, task: PartTask, future_id: bytes, row: AnyRow | None, before: int) -> PartEnd | None:
        """How a part ended; None when its result is gone, and it is made once more."""
        if isinstance(row, Realized):
            there, value = self._outcomes.value(future_id, row)
            if not there:
                return None
            written: tuple[SinkWritten, ...] = tuple(value)  # type: ignore[arg-type] # what the function made
            return PartDone(task=task, written=written, reused=row.result.version <= before)
        failure = self._store.run(lambda tx: _failure(tx, self._keys, future_id))
        if failure is None:
            kind = row.state.value if row is not None else "lost"
            return PartFailed(task=task, kind=kind, message=f"its future is {kind}")
        message = ": ".join(text for text in (failure.type, failure.message) if text) or failure.kind
        return PartFailed(task=task, kind=failure.kind, message=message, traceback=failure.traceback)

    # --- submitting

    def _submit(self, tasks: Sequence[PartTask]) -> dict[bytes, tuple[PartTask, int]]:
        """Enter what is not there; the ids, and the epochs at which results were there before us."""
        if not tasks:
            return {}
        known = self._known(tasks)
        code = self._submissions.code(self._function)
        ids = self._submissions.new_ids(len(tasks))
        new: list[Spec] = []
        by_key = {_key(task): task for task in tasks}
        for task, there, future_id in zip(tasks, known, ids, strict=True):
            if there:
                continue
            options = Options(
                needs=Needs(named=(resource_of(task.pipeline),)),
                max_retries=task.retries,
                key=_key(task),
                durable=True,
                refuse=False,
                grace_s=-1.0,
            )
            named = code._replace(name=" ".join(text for text in (task.author, task.lot, task.part) if text))
            new.append(self._submissions.make(named, (task,), NOTHING, options, future_id=future_id).spec)
        made = {spec.key: spec for spec in new}
        found: dict[bytes, tuple[PartTask, int]] = {}
        gone: list[PartTask] = []
        pages: list[list[PartTask]] = [
            [by_key[spec.key] for spec in page]
            for page in submit.pages(new, lambda one: submit.weight(one) + 4)
        ]
        old = [task for task, there in zip(tasks, known, strict=True) if there]
        pages += [old[at : at + DELETE_PAGE] for at in range(0, len(old), DELETE_PAGE)]
        for page in pages:
            entered = self._scope.step("runner.submit", partial(self._enter, page=page, made=made))
            for task, one in zip(page, entered, strict=True):
                if one is not None:
                    found[one[0]] = (task, one[1])
                else:
                    gone.append(task)
        return {**found, **self._submit(gone)}

    def _known(self, tasks: Sequence[PartTask]) -> list[bool]:
        """Which of these have a future that is good, or can be armed again."""

        def read(tx: Tx, page: Sequence[PartTask]) -> list[bool]:
            ids = tx.get_many([self._keys.key[_key(task)] for task in page])
            found = edges.read_many(tx, self._keys, [one for one in ids if one is not None])
            states = dict(zip([one for one in ids if one is not None], found, strict=True))
            return [one is not None and not isinstance(states[one], Cancelled | None) for one in ids]

        known: list[bool] = []
        for at in range(0, len(tasks), READ_PAGE):
            known += self._store.run(partial(read, page=tasks[at : at + READ_PAGE]))
        return known

    def _enter(
        self, tx: Tx, page: Sequence[PartTask], made: dict[str, Spec]
    ) -> list[tuple[bytes, int] | None]:
        """Enter a page: ids, and the versions of results that are there; None for one that is gone since we
        looked. What somebody else has entered meanwhile is theirs and ours.
        """
        found: list[tuple[bytes, int] | None] = []
        for task in page:
            key = _key(task)
            known = tx.get(self._keys.key[key])
            row = edges.read(tx, self._keys, known) if known is not None else None
            if known is not None and isinstance(row, Cancelled) and key in made:
                sweep.delete(tx, self._keys, known, row)
                tx.clear(self._keys.pin[known, PIN])
                row = None
            if known is None or row is None:
                if key not in made:
                    found.append(None)
                    continue
                known = submit.submit_one(tx, self._keys, made[key])
                results.pin(tx, self._keys, known, PIN)
                tx.set(self._own.part[task.attempt, _short(task.key)], known, quiet=True)
                found.append((known, 0))
            elif isinstance(row, Failed | Quarantined):
                requeue.requeue(tx, self._keys, known)
                found.append((known, 0))
            else:
                found.append((known, row.result.version if isinstance(row, Realized) else 0))
        return found

    # --- deleting

    def forget(self, attempt: str) -> int:
        """Delete the futures of an attempt that has ended, with all that hangs on them; how many there were.

        One that runs is cancelled, and goes when somebody comes by after its end.
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
        """Do that for every attempt that is not open any more: what runners left that died; how many."""
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
        found = tx.range(max(lo, after + b"\x00"), hi, limit=DELETE_PAGE)
        deleted, garbage = 0, []
        for index in found:
            one = index.value
            row = edges.read(tx, self._keys, one)
            if row is not None and row.state not in ENDED:
                row = cancel.cancel(tx, self._keys, one)
                if isinstance(row, Claimed):
                    continue
            if row is not None:
                spec = edges.must_read_spec(tx, self._keys, one)
                garbage += [copy.location.name for copy in results.copies(tx, self._keys, one)]
                if spec.args.inline is None:
                    garbage.append(args_object(one, spec.args.digest))
                sweep.delete(tx, self._keys, one, row)
                deleted += 1
            tx.clear(self._keys.pin[one, PIN])
            tx.clear(index.key, quiet=True)
        return _Page(deleted, garbage, found[-1].key if len(found) == DELETE_PAGE else b"")

    def _remove(self, names: Sequence[str]) -> None:
        """Delete objects whose names are noted as garbage; if that fails, a leader does it."""
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
    after: bytes  # where the next page begins; empty at the end


def _key(task: PartTask) -> str:
    """Equal work of one attempt: what another attempt made lies in that one's folder, and goes with it."""
    return f"part/{task.attempt}/{_short(task.key)}"


def _short(key: str) -> str:
    """A key that fits into one of the store, whatever it is made of."""
    raw = key.encode()
    return key if len(raw) <= MOST_KEY_BYTES else blake2b(raw, digest_size=32).hexdigest()


def _failure(tx: Tx, keys: FutureKeys, future_id: bytes) -> Failure | None:
    raw = tx.get(keys.error[future_id])
    return None if raw is None else rows.decode_failure(raw)
