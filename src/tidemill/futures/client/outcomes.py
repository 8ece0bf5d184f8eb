"""Load the outcome of a future: its value, or the error that explains why it has none.

A failure is stored as data. Its kind decides which error class is raised (`errors`). An exception of the
user's function is raised unchanged if it can be loaded here, with the remote traceback as a note (FUT-50).

If a value is not at the location that its row names, the client tries again. The value counts as lost only if
its node is dead or fetching it fails repeatedly. The client reports the loss for the version that it read
(FUT-63). The cluster then computes the value again, and the client waits for the new value.
"""

import random

from tidemill.clock import Clock, backoff
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import (
    ActorDied,
    CodeNotLoadable,
    CopyCorrupt,
    CopyGone,
    DeadlineExceeded,
    FetchFailed,
    FutureCancelled,
    FutureError,
    FutureFailed,
    FutureUnknown,
    ResultLost,
    TaskCrashed,
    TaskOutOfMemory,
    TidemillError,
    UnsatisfiableError,
    UpstreamDependencyFailed,
)
from tidemill.futures.protocol import results, rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Cancelled, Failed, Failure, Quarantined, Realized
from tidemill.futures.values import failures
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.signatures import Signer
from tidemill.store import Store, Tx

TRIES = 3
"""How often to fetch a copy from a live node before it counts as lost."""

ERRORS: dict[str, type[FutureFailed]] = {
    "exception": FutureFailed,
    "crash": TaskCrashed,
    "hang": TaskCrashed,
    "reaped": TaskCrashed,
    "oom": TaskOutOfMemory,
    "deadline": DeadlineExceeded,
    "upstream": UpstreamDependencyFailed,
    "unsatisfiable": UnsatisfiableError,
    "deserialize": CodeNotLoadable,
    "lost": ResultLost,
}
"""The error class of each kind of failure. Cancelled futures and dead actors have other classes."""

RAISED_UNCHANGED = ("exception", "deserialize")
"""Kinds of failures with a stored exception that is raised unchanged."""


class Outcomes:
    """Loads values and errors for one client.

    Args:
        store: the store.
        keys: the keys of futures.
        cluster: the keys of nodes.
        signer: checks signatures with the cluster key.
        values: loads results.
        clock: the source of time.
        chance: adds jitter to the delays between attempts.
    """

    def __init__(
        self,
        store: Store,
        keys: FutureKeys,
        cluster: ClusterKeys,
        signer: Signer,
        values: ResultStorage,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._store = store
        self._keys = keys
        self._cluster = cluster
        self._signer = signer
        self._values = values
        self._clock = clock
        self._chance = chance

    def value(self, future_id: bytes, row: Realized) -> tuple[bool, object]:
        """Return (True, the value), or (False, None) if the value is lost and the caller must wait for it."""
        tries = 0
        while True:
            if row.result.location.kind != "freed":
                try:
                    return True, self._values.load(row.result, future_id)
                except (CopyGone, CopyCorrupt, FetchFailed):
                    tries += 1
            new_row = self._report_loss(future_id, row, unreachable=tries >= TRIES)
            if not isinstance(new_row, Realized):
                return False, None
            if new_row.result.version != row.result.version or new_row.result.location != row.result.location:
                tries = 0
            elif tries:
                self._clock.sleep(backoff(tries, self._chance, first_s=0.05))
            row = new_row

    def _report_loss(self, future_id: bytes, row: Realized, *, unreachable: bool) -> AnyRow | None:
        """Report a copy that could not be loaded. Return the current row."""
        version, node = row.result.version, row.result.location.node

        def lose(tx: Tx) -> AnyRow | None:
            return results.lose(
                tx, self._keys, self._cluster, future_id, version, node=node, unreachable=unreachable
            )

        return self._store.run(lose)

    def error(self, future_id: bytes, row: AnyRow | None) -> BaseException:
        """Return the error of a future that ended without a value. Each call returns a new object."""
        if row is None:
            return FutureUnknown(f"future {future_id.hex()} does not exist or was deleted")
        name, failure = self._store.run(lambda tx: _name_and_failure(tx, self._keys, future_id))
        label = f"{name} ({future_id.hex()})"
        match row:
            case Cancelled():
                return _with_record(FutureCancelled(f"{label} was cancelled"), failure)
            case Quarantined():
                message = f"{label} is quarantined: it crashed its worker too often{_tail(failure)}"
                return _with_record(TaskCrashed(message), failure)
            case Failed():
                return self._failed(label, row.kind, failure or Failure(kind=row.kind))
        return FutureFailed(f"{label} is {row.state.value}")

    def _failed(self, label: str, kind: str, failure: Failure) -> BaseException:
        original = failures.load_exception(failure, self._signer)
        # SystemExit and other BaseExceptions of a task must not end the caller's process.
        expected = TidemillError if kind == "deserialize" else Exception
        if isinstance(original, expected) and kind in RAISED_UNCHANGED:
            return original
        if kind == "actor":
            return _with_record(ActorDied(f"{label}: its actor is dead{_tail(failure)}"), failure)
        error_class = ERRORS.get(kind, FutureFailed)
        error = error_class(f"{label} failed{_tail(failure)}")
        if isinstance(error, UpstreamDependencyFailed):
            error = UpstreamDependencyFailed(f"{label} failed because an input failed{_chain(failure)}")
            error.chain = failure.upstream
        error.__cause__ = original
        return _with_record(error, failure)


def _name_and_failure(tx: Tx, keys: FutureKeys, future_id: bytes) -> tuple[str, Failure | None]:
    spec, error = tx.get_many([keys.spec[future_id], keys.error[future_id]])
    return (
        rows.decode_spec(spec).name if spec is not None else "?",
        rows.decode_failure(error) if error is not None else None,
    )


def _with_record(error: FutureError, failure: Failure | None) -> FutureError:
    """Attach the failure record to an error, and the remote traceback as a note."""
    if failure is not None:
        error.failure = failure
        if failure.traceback and error.__cause__ is None:
            where = f" on {failure.node}" if failure.node else ""
            error.add_note(f"remote traceback{where}:\n{failure.traceback}".rstrip())
    return error


def _tail(failure: Failure | None) -> str:
    if failure is None:
        return ""
    text = ": ".join(part for part in (failure.type, failure.message) if part)
    return f": {text}" if text else f" ({failure.kind})"


def _chain(failure: Failure) -> str:
    return "".join(f"\n  {'  ' * depth}{name}" for depth, name in enumerate(failure.upstream)) or _tail(
        failure
    )
