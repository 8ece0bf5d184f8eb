"""Report the failures of a runner, and schedule retries after a pause."""

import contextlib

from tidemill.clock import backoff
from tidemill.errors import LeaseLost, StoreError, TidemillError, describe
from tidemill.publish.keys import PublishKeys
from tidemill.runner.loop_state import LoopState
from tidemill.scope import Scope
from tidemill.spark.java_process import check_java
from tidemill.triggers import runs
from tidemill.triggers.events import RunFailed
from tidemill.triggers.runs import Ticket

MOST_MESSAGES = 20
"""How many messages to keep for each name that fails. Without a limit, a runner that watches for months would
fill its memory."""

RELEASED_US = 200_000


class Failures:
    """Reports failures on one node, and postpones the runs that failed."""

    def __init__(self, scope: Scope, state: LoopState) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)
        self._state = state

    def add(self, name: str, error: Exception, ticket: Ticket | None = None) -> float:
        """Report a failure and postpone the run that failed; return the pause in seconds.

        If the runner is interrupting its work, the error does not count, and the run is released.

        If Spark has died, this raises `SparkDied`, which ends the process. The next one counts the death.
        """
        if self._state.interrupting:
            self.release(ticket)
            return 0.0
        check_java(error)
        failures = self._count(name, error)
        pause_s = backoff(failures, self._scope.chance, first_s=0.2, most_s=60.0)
        if ticket is not None:
            with contextlib.suppress(LeaseLost, StoreError):  # in that case the run expires with our lease
                self._scope.store.run(
                    lambda tx: runs.fail(
                        tx,
                        self._keys.triggers,
                        self._keys.cluster,
                        ticket,
                        backoff_us=int(pause_s * 1e6),
                        why=_message(error),
                    )
                )
        self.report(name, error, pause_s, failures)
        return pause_s

    def add_upkeep(self, name: str, error: Exception, pause_s: float) -> None:
        """Report a failure of an upkeep job. The job is repeated after a fixed pause."""
        if not self._state.interrupting:
            check_java(error)
            self.report(name, error, pause_s, self._count(name, error))

    def _count(self, name: str, error: Exception) -> int:
        """Store the message of a failure in the totals; return the number of failures in a row."""
        messages = self._state.totals.failures.setdefault(name, [])
        messages.append(_message(error))
        del messages[:-MOST_MESSAGES]
        return len(messages)

    def release(self, ticket: Ticket | None) -> None:
        """Release a run that was interrupted, or whose lease was lost.

        Then another node can continue the run at once, without waiting for our lease to expire.
        """
        if ticket is None or self._state.dead:
            return
        keys = self._keys
        with contextlib.suppress(LeaseLost, StoreError):  # in that case another node already has the run
            self._scope.store.run(
                lambda tx: runs.fail(
                    tx, keys.triggers, keys.cluster, ticket, backoff_us=RELEASED_US, counted=False
                )
            )

    def report(self, name: str, error: Exception, pause_s: float, failures: int = 1) -> None:
        """Emit an event with the error and the pause before the retry."""
        self._scope.emit(
            RunFailed(
                name=name,
                code=getattr(error, "code", type(error).__name__),
                message=_message(error),
                backoff_s=pause_s,
                failures=failures,
            )
        )


def _message(error: Exception) -> str:
    return error.message if isinstance(error, TidemillError) else describe(error)
