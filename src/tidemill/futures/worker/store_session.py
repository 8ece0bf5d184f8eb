"""Dealings: when a node that runs futures turns to the store, and what it does if the store does not answer.

A worker's supervisor and a runner's hands deal with the store in the same way, through their books: they look
for work now and then although nobody rang, compare their claims with the store's, read what claims need to
run, leave a store that fails alone for a while, and find out whether a refusal was the end of their lease.
"""

import random
from collections.abc import Callable, Container
from typing import NamedTuple

from tidemill.clock import Clock, backoff
from tidemill.cluster.nodes import Node
from tidemill.errors import CommitUnknown, LeaseLost, StoreError, TidemillError
from tidemill.events import Emit
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.worker.events import ClaimsGivenBack, StoreAway
from tidemill.futures.worker.ledger import Books, Loaded, Round

AUDIT_S = 30.0
CLAIM_MARGIN_S = 2.6
"""How much of its lease a node must have left to claim (`claim.LEAST_LEFT_US`, and the way there)."""


class Pauses(NamedTuple):
    """How long a node waits until it looks though nobody rang, until it compares its claims with the store's,
    and after the store has failed, the first time and at most.
    """

    poll_s: float = 1.0
    audit_s: float = AUDIT_S
    retry_s: float = 0.05
    most_retry_s: float = 2.0


USUAL = Pauses()


class Dealings:
    """One node's dealings with the store.

    Args:
        books: of the node.
        node_id: its name, for what is told.
        pauses: shorter ones, where leases are.
    """

    def __init__(
        self,
        books: Books,
        node_id: str,
        *,
        clock: Clock,
        chance: random.Random,
        emit: Emit,
        pauses: Pauses = USUAL,
    ) -> None:
        self.poll_at = self.audit_at = self.retry_at = 0.0  # monotonic
        self.unloaded: list[tuple[Claim, bytes | None]] = []  # claims that could not be read yet
        self._books = books
        self._node_id = node_id
        self._clock = clock
        self._chance = chance
        self._emit = emit
        self._pauses = pauses
        self._failures = 0  # of the store, in a row

    def settle(self, node: Node, step: Callable[[], None], refused: Callable[[bool], None]) -> None:
        """Bring the store in step with the node, unless it has failed just now.

        Args:
            node: as it is now.
            step: does it.
            refused: called when the store took us for gone, with whether our lease is good all the same: then
                too little of it was left to claim.
        """
        if self._clock.monotonic() < self.retry_at:
            return
        try:
            step()
            self._failures = 0
        except LeaseLost:
            self._doubt(node, refused)
        except CommitUnknown as error:
            self.audit_at = 0.0  # there may be claims of ours that we do not know of
            self.failed(error)
        except TidemillError as error:
            self.failed(error)

    def failed(self, error: TidemillError) -> None:
        """Leave the store alone for a while."""
        self._failures += 1
        first_s, most_s = self._pauses.retry_s, self._pauses.most_retry_s
        pause_s = backoff(self._failures, self._chance, first_s=first_s, most_s=most_s)
        self.retry_at = self._clock.monotonic() + pause_s
        self._emit(StoreAway(node=self._node_id, error=error.message))

    def _doubt(self, node: Node, refused: Callable[[bool], None]) -> None:
        try:
            stands = self._books.stands(node)
        except StoreError as error:
            self.failed(error)
            return
        refused(stands)

    # --- now and then

    def is_poll_due(self) -> bool:
        """Is it time to look, although nobody rang? Then the next time is set."""
        now = self._clock.monotonic()
        if now < self.poll_at:
            return False
        self._books.forget_lanes()
        self.poll_at = now + self._pauses.poll_s * (0.5 + 0.5 * self._chance.random())
        return True

    def is_audit_due(self) -> bool:
        """Is it time to compare our claims with the store's?"""
        return self._clock.monotonic() >= self.audit_at

    def audit_later(self) -> None:
        """They were compared."""
        self.audit_at = self._clock.monotonic() + self._pauses.audit_s

    def strays(self, node: Node, known: Container[bytes]) -> int:
        """Give back all claims of ours that we know nothing of; how many."""
        return self.all_of(lambda: self._books.strays(node, known))

    def all_of(self, page: Callable[[], tuple[int, bool]]) -> int:
        """Something that is done in pages, to its end: how many there were."""
        total, more = page()
        while more:
            some, more = page()
            total += some
        return total

    def tell_given_back(self, claims: int) -> None:
        """Say how many claims were given back, if there were any."""
        if claims:
            self._emit(ClaimsGivenBack(node=self._node_id, claims=claims))

    # --- what was claimed

    def claimed(self, found: Round) -> None:
        """These are to be read."""
        specs = found.specs or [None] * len(found.claims)
        self.unloaded += zip(found.claims, specs, strict=True)

    def load(self) -> Loaded:
        """Read what the claims need to run. If the store does not answer they are kept for the next time."""
        claims = [one for one, _ in self.unloaded]
        specs = [raw for _, raw in self.unloaded]
        loaded = self._books.load(claims, specs if None not in specs else ())
        self.unloaded.clear()
        return loaded
