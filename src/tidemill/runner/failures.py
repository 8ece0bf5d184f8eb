"""Reports the failures of a runner, and schedules retries after a pause."""

import contextlib

from tidemill.clock import backoff
from tidemill.errors import LeaseLost, StoreError, TidemillError
from tidemill.publish.keys import PublishKeys
from tidemill.runner.loop_state import LoopState
from tidemill.scope import Scope
from tidemill.triggers import runs
from tidemill.triggers.events import RunFailed
from tidemill.triggers.runs import Ticket

MOST_MESSAGES = 20
"""How many messages to keep per failing name: a runner may watch for months."""

RELEASED_US = 200_000


class Failures:
    """Reports failures on one node, and postpones the runs that failed."""

    def __init__(self, scope: Scope, state: LoopState) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)
        self._state = state

    def add(self, name: str, error: Exception, ticket: Ticket | None = None) -> float:
        """Report a failure and postpone the run that failed; return the pause in seconds.

        An error after the runner has interrupted its work does not count: the run is released.
        """
        if self._state.interrupting:
            self.release(ticket)
            return 0.0
        failures = self._count(name, error)
        pause_s = backoff(failures, self._scope.chance, first_s=0.2, most_s=60.0)
        if ticket is not None:
            with contextlib.suppress(LeaseLost, StoreError):  # the run then expires with our lease
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
        """Report a failure of upkeep, which is repeated after a fixed pause."""
        if not self._state.interrupting:
            self.report(name, error, pause_s, self._count(name, error))

    def _count(self, name: str, error: Exception) -> int:
        """Keep the message of a failure for the report of the run; return the number of failures in a row."""
        messages = self._state.totals.failures.setdefault(name, [])
        messages.append(_message(error))
        del messages[:-MOST_MESSAGES]
        return len(messages)

    def release(self, ticket: Ticket | None) -> None:
        """Release a run whose lease was lost, or that was interrupted.

        If the run is still ours, another node can continue it at once.
        """
        if ticket is None or self._state.dead:
            return
        keys = self._keys
        with contextlib.suppress(LeaseLost, StoreError):  # another node then has it already
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
    return error.message if isinstance(error, TidemillError) else f"{type(error).__name__}: {error}"
