"""The store session of a node: schedules polls and audits, and handles failures of the store.

The claim loop polls for work even without a wakeup, and compares its claims with the store (an audit) about
twice a minute. After a failure it waits before it uses the store again. If the store refuses a write, the
session checks whether the node still holds its lease.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidemill.clock import Clock, backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import CommitUnknown, LeaseLost, StoreError, TidemillError
from tidemill.futures.worker.events import StoreAway
from tidemill.futures.worker.ledger import Ledger

AUDIT_S = 30.0


class Pauses(NamedTuple):
    """How long a claim loop waits, in seconds."""

    poll_s: float = 1.0  # before it looks for work without a wakeup
    audit_s: float = AUDIT_S  # between two comparisons of its claims with the store
    retry_s: float = 0.05  # after the first failure or refusal of the store
    most_retry_s: float = 2.0  # after many failures in a row
    lease_s: float = 0.1  # between two checks while it has no valid lease


DEFAULT_PAUSES = Pauses()


class StoreSession:
    """The times at which one node polls, audits and retries.

    Args:
        ledger: the node's ledger.
        clock: the source of time.
        pauses: how long to wait; use shorter pauses if leases are short.
    """

    def __init__(self, ledger: Ledger, clock: Clock, pauses: Pauses = DEFAULT_PAUSES) -> None:
        self.poll_at = self.audit_at = self.retry_at = 0.0  # monotonic
        self.pauses = pauses
        self._ledger = ledger
        self._clock = clock
        self._failures = 0  # how often in a row the store has failed or refused a step

    @property
    def rests(self) -> bool:
        """Whether the session is waiting after a failure of the store."""
        return self._clock.monotonic() < self.retry_at

    def run(self, node: Node, step: Callable[[], None], refused: Callable[[bool], None]) -> None:
        """Run a step that reads and writes the store, unless the session is waiting after a failure.

        Args:
            node: our entry in the node list.
            step: does the work.
            refused: called when the store refused our lease. Its argument says whether the lease is still
                valid. If it is, the store refused because the lease expires too soon to claim anything.
        """
        if self.rests:
            return
        try:
            step()
            self._failures = 0
        except LeaseLost:
            self._refused(node, refused)
        except CommitUnknown as error:
            self.audit_at = 0.0  # the commit may have claimed futures that we do not know
            self.failed(error)
        except TidemillError as error:
            self.failed(error)

    def failed(self, error: TidemillError) -> None:
        """Record a failure and wait before the store is used again."""
        self._pause()
        self._ledger.emit(StoreAway(node=self._ledger.node_id, error=error.message))

    def _refused(self, node: Node, refused: Callable[[bool], None]) -> None:
        try:
            listed = self._ledger.is_listed(node)
        except StoreError as error:
            self.failed(error)
            return
        self._pause()
        refused(listed)

    def _pause(self) -> None:
        self._failures += 1
        first_s, most_s = self.pauses.retry_s, self.pauses.most_retry_s
        pause_s = backoff(self._failures, self._ledger.chance, first_s=first_s, most_s=most_s)
        self.retry_at = self._clock.monotonic() + pause_s

    def is_poll_due(self) -> bool:
        """Return whether it is time to look for work without a wakeup. If so, schedule the next poll."""
        now = self._clock.monotonic()
        if now < self.poll_at:
            return False
        self._ledger.forget_lanes()
        self.poll_at = now + self.pauses.poll_s * (0.5 + 0.5 * self._ledger.chance.random())
        return True

    def is_audit_due(self) -> bool:
        """Return whether it is time to compare our claims with the store."""
        return self._clock.monotonic() >= self.audit_at

    def audited(self) -> None:
        """Record that our claims were compared with the store, and schedule the next comparison."""
        self.audit_at = self._clock.monotonic() + self.pauses.audit_s
