"""Leadership: a lease, and duties that only its holder may carry out.

There is no "I am the leader" outside a transaction. Every step of a duty runs through `Tenure.run`, whose
transaction reads the leader's row: a deposed leader's step finds another epoch there and aborts (CLU-9).
Between its steps a duty asks `tenure.check()`, which raises `LeaseLost` once our own deadline has passed,
so that a duty that is still running when leadership moves is cancelled at its next step.
"""

from collections.abc import Callable
from typing import TypeVar

from tidemill.cluster.keeper import Held
from tidemill.errors import LeaseLost, NotLeader
from tidemill.store import Store, Tx

T = TypeVar("T")


class Tenure:
    """One leader's time in office: its epoch, and the only way to act as leader."""

    def __init__(self, store: Store, held: Held) -> None:
        self.store = store
        self.held = held

    @property
    def epoch(self) -> int:
        return self.held.epoch

    def alive(self) -> bool:
        return self.held.alive()

    def check(self) -> None:
        """`LeaseLost` when our time is over."""
        self.held.check()

    def run(self, fn: Callable[[Tx], T]) -> T:
        """Commit a step of a duty, or `NotLeader` and nothing written."""
        self.check()

        def fenced(tx: Tx) -> T:
            try:
                self.held.fence(tx)
            except LeaseLost as lost:
                raise NotLeader(f"leader epoch {self.epoch} is over") from lost
            return fn(tx)

        return self.store.run(fenced)


Duty = Callable[[Tenure], float]
"""A leader's duty: one round of work, in steps of `tenure.run`; returns the seconds until its next round."""
