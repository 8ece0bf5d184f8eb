"""When a node turns to the store, and what it does if the store does not answer.

The claim loop looks for work now and then although no wakeup came, compares its claims with the store's,
leaves a store that fails alone for a while, and finds out whether a refusal was the end of the node's lease.
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

    poll_s: float = 1.0  # until it looks for work without a wakeup
    audit_s: float = AUDIT_S  # until it compares its claims with the store's
    retry_s: float = 0.05  # after the store has failed or refused, the first time
    most_retry_s: float = 2.0  # and at most
    lease_s: float = 0.1  # until it looks again while its lease is not good


DEFAULT_PAUSES = Pauses()


class StoreSession:
    """The times at which one node polls, audits and retries.

    Args:
        ledger: of the node.
        clock: for the times.
        pauses: shorter ones where leases are short.
    """

    def __init__(self, ledger: Ledger, clock: Clock, pauses: Pauses = DEFAULT_PAUSES) -> None:
        self.poll_at = self.audit_at = self.retry_at = 0.0  # monotonic
        self.pauses = pauses
        self._ledger = ledger
        self._clock = clock
        self._failures = 0  # of the store, in a row

    @property
    def rests(self) -> bool:
        """Has the store failed so recently that it is left alone?"""
        return self._clock.monotonic() < self.retry_at

    def run(self, node: Node, step: Callable[[], None], refused: Callable[[bool], None]) -> None:
        """Run a step that reads and writes the store, unless the store rests.

        Args:
            node: our entry in the node list.
            step: does the work.
            refused: called when the store took our lease for over, with whether the lease is good all the
                same. Then too little of it was left to claim.
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
        """Leave the store alone for a while."""
        self._failures += 1
        first_s, most_s = self.pauses.retry_s, self.pauses.most_retry_s
        pause_s = backoff(self._failures, self._ledger.chance, first_s=first_s, most_s=most_s)
        self.retry_at = self._clock.monotonic() + pause_s
        self._ledger.emit(StoreAway(node=self._ledger.node_id, error=error.message))

    def _refused(self, node: Node, refused: Callable[[bool], None]) -> None:
        try:
            listed = self._ledger.is_listed(node)
        except StoreError as error:
            self.failed(error)
            return
        self.retry_at = self._clock.monotonic() + self.pauses.retry_s
        refused(listed)

    def is_poll_due(self) -> bool:
        """Is it time to look for work without a wakeup? If so, the next time is set."""
        now = self._clock.monotonic()
        if now < self.poll_at:
            return False
        self._ledger.forget_lanes()
        self.poll_at = now + self.pauses.poll_s * (0.5 + 0.5 * self._ledger.chance.random())
        return True

    def is_audit_due(self) -> bool:
        """Is it time to compare our claims with the store's?"""
        return self._clock.monotonic() >= self.audit_at

    def audited(self) -> None:
        """Our claims were compared; the next time is set."""
        self.audit_at = self._clock.monotonic() + self.pauses.audit_s
