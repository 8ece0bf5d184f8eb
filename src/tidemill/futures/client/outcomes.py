"""What a future came to: its value, or the error that says why there is none.

A failure is stored as data, and its kind decides which error of ours is raised (`errors`). An exception of
the user's is raised as itself, if it can be loaded here, with the remote traceback as a note (FUT-50).

A value that is not where its row says is looked for again: only a node that is gone, or a fetch that failed
repeatedly, makes a loss, which is reported against the version that was read (FUT-63). What is lost is then
computed again, and whoever asked waits for it.
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
"""How often a copy on a live node is asked for before it counts as lost."""

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
"""The error of each kind of failure; those of a cancelled future and of a dead actor are no failures."""

OWN = ("exception", "deserialize")
"""Failures whose exception is raised as itself."""


class Outcomes:
    """Loads values and errors for one client.

    Args:
        store: where the rows are.
        keys: of the cluster's futures.
        cluster: of its nodes.
        signer: has the cluster key.
        values: loads results.
        clock: for pauses between two tries.
        chance: for their length.
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
        """(True, the value), or (False, None) when it has to be computed again and must be awaited."""
        tries = 0
        while True:
            if row.result.location.kind != "freed":
                try:
                    return True, self._values.load(row.result, future_id)
                except (CopyGone, CopyCorrupt, FetchFailed):
                    tries += 1
            now = self._lost(future_id, row, unreachable=tries >= TRIES)
            if not isinstance(now, Realized):
                return False, None
            if now.result.version != row.result.version or now.result.location != row.result.location:
                tries = 0
            elif tries:
                self._clock.sleep(backoff(tries, self._chance, first_s=0.05))
            row = now

    def _lost(self, future_id: bytes, row: Realized, *, unreachable: bool) -> AnyRow | None:
        """Report what could not be had; the row as it is now."""
        version, node = row.result.version, row.result.location.node

        def lose(tx: Tx) -> AnyRow | None:
            return results.lose(
                tx, self._keys, self._cluster, future_id, version, node=node, unreachable=unreachable
            )

        return self._store.run(lose)

    def error(self, future_id: bytes, row: AnyRow | None) -> BaseException:
        """The error of a future that ended without a value; a new one with each call."""
        if row is None:
            return FutureUnknown(f"there is no future {future_id.hex()}, or no longer")
        name, failure = self._store.run(lambda tx: _name_and_failure(tx, self._keys, future_id))
        who = f"{name} ({future_id.hex()})"
        match row:
            case Cancelled():
                return _with(FutureCancelled(f"{who} was cancelled"), failure)
            case Quarantined():
                words = "is quarantined: it ended its worker too often"
                return _with(TaskCrashed(f"{who} {words}{_tail(failure)}"), failure)
            case Failed():
                return self._failed(who, row.kind, failure or Failure(kind=row.kind))
        return FutureFailed(f"{who} is {row.state.value}")

    def _failed(self, who: str, kind: str, failure: Failure) -> BaseException:
        original = failures.load_exception(failure, self._signer)
        # what is no Exception (SystemExit, a task's own lost lease) must not end the process that asks
        if isinstance(original, TidemillError if kind == "deserialize" else Exception) and kind in OWN:
            return original
        if kind == "actor":
            return _with(ActorDied(f"{who}: its actor is dead{_tail(failure)}"), failure)
        kinds = ERRORS.get(kind, FutureFailed)
        error = kinds(f"{who} failed{_tail(failure)}")
        if isinstance(error, UpstreamDependencyFailed):
            error = UpstreamDependencyFailed(f"{who} failed because an input did{_chain(failure)}")
            error.chain = failure.upstream
        error.__cause__ = original
        return _with(error, failure)


def _name_and_failure(tx: Tx, keys: FutureKeys, future_id: bytes) -> tuple[str, Failure | None]:
    spec, error = tx.get_many([keys.spec[future_id], keys.error[future_id]])
    return (
        rows.decode_spec(spec).name if spec is not None else "?",
        rows.decode_failure(error) if error is not None else None,
    )


def _with(error: FutureError, failure: Failure | None) -> FutureError:
    """The error with the record, and the remote traceback for whoever reads it."""
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
