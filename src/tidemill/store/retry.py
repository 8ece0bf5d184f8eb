"""Retry transactions after conflicts and pauses, for the memory, PostgreSQL and FoundationDB backends.

One call of `run` has one operation id, not one per attempt (STO-5). If an attempt writes, it also inserts a
row with the key `op/<minute>/<id>` in the same transaction. The value is the number of the attempt. If the
outcome of a commit is unknown (the connection broke, the server restarted), the loop reads that row before it
repeats anything:

- The row has the number i: attempt i committed. Its result is still in memory and is returned.
- There is no row: nothing was committed, and nothing can be committed later, because the lookup *fences* the
  lost attempt. The lookup inserts the row with number 0, so a commit that is still on its way fails on that
  key. The call continues under a new id.

Results are not stored: only the caller of this `run` needs them, and `run` keeps the result of each attempt
in memory. So a result may be any Python value.
"""

import random
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar
from uuid import UUID

from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.errors import CommitUnknown, StoreBusy, StoreUnavailable, TransactionTooLong
from tidemill.store.keys import pack
from tidemill.store.port import SLOW_ATTEMPTS, SYSTEM_PREFIX, Mode, Store, Tx, call

T = TypeVar("T")

OPERATIONS = SYSTEM_PREFIX + b"op"
OPERATION_TTL_US = 2 * 3600 * 1_000_000
MINUTE_US = 60_000_000


class Conflict(Exception):
    """This attempt conflicted with another transaction; nothing was committed."""


class Unknown(Exception):
    """The connection broke during the commit; the attempt may or may not have been committed."""


class Unreached(Exception):
    """The store could not be reached, and nothing was committed."""


class RetriedCall(Generic[T]):
    """One call of `run`: its function, its id, and the result of each attempt so far."""

    def __init__(self, fn: Callable[[Tx], T], mode: Mode, chance: random.Random) -> None:
        self.mode: Mode = mode
        self.attempt = 0
        self.results: dict[int, T] = {}
        self._fn = fn
        self._chance = chance
        self.renew_id()

    def fn(self, tx: Tx) -> T:
        """Call the function. When it returns, `tx` becomes unusable, even for code that kept it."""
        try:
            return call(self._fn, tx)
        finally:
            tx._end()

    def renew_id(self) -> None:
        """Use a new id, because the old one is fenced."""
        self.id = UUID(int=self._chance.getrandbits(128), version=4)
        self._key: bytes | None = None

    def key(self, now_us: int) -> bytes:
        """Return the key of the operation's row. Keys begin with the minute, so old rows form one range."""
        if self._key is None:
            self._key = OPERATIONS + pack((now_us // MINUTE_US, self.id))
        return self._key

    def row(self) -> bytes:
        return pack((self.attempt,))


def expired_operations(now_us: int) -> tuple[bytes, bytes]:
    """Return the range of expired operation rows."""
    return OPERATIONS, OPERATIONS + pack((max(0, now_us - OPERATION_TTL_US) // MINUTE_US,))


class RetryingStore(Store):
    """A store whose `run` retries conflicts and unknown commits, with jitter, for a limited time."""

    def __init__(
        self, *, clock: Clock = SYSTEM, chance: random.Random | None = None, patience_s: float = 30.0
    ) -> None:
        super().__init__(clock=clock, chance=chance)
        self.patience_s = patience_s  # how long to retry conflicts, or wait for a server
        self.conflict_pause_s = 1.0  # the longest pause after a conflict
        self.ids = self.chance  # for operation ids; replaced by backends that several processes share
        self.conflicts = 0

    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        operation = RetriedCall(fn, mode, self.ids)
        give_up = self.clock.monotonic() + self.patience_s
        slow = 0
        while True:
            operation.attempt += 1
            pause_s = 1.0
            try:
                return self._attempt(operation)
            except Conflict as conflict:
                self.conflicts += 1
                pause_s = self.conflict_pause_s
                if self.clock.monotonic() > give_up:
                    raise StoreBusy(
                        f"transactions on {self.url} conflicted for {self.patience_s:g} s"
                    ) from conflict
            except TransactionTooLong:
                slow += 1
                if slow == SLOW_ATTEMPTS:
                    raise
            except Unreached as reason:
                if self.clock.monotonic() > give_up:
                    raise StoreUnavailable(f"no answer from {self.url}: {reason}") from None
            except Unknown as doubt:
                committed = self._settle(operation, give_up, doubt)
                if committed:
                    return operation.results[committed]
                operation.renew_id()
            self.clock.sleep(backoff(operation.attempt, self.chance, most_s=pause_s))

    def _settle(self, operation: RetriedCall[T], give_up: float, doubt: Unknown) -> int:
        """Return the number of the attempt that committed; 0 if none did, and none can commit any more."""
        tries = 0
        while True:
            tries += 1
            try:
                return self._fence(operation)
            except (Conflict, Unreached, Unknown):
                if self.clock.monotonic() > give_up:
                    message = f"the outcome of a commit on {self.url} is unknown: {doubt}"
                    raise CommitUnknown(message) from None
            self.clock.sleep(backoff(tries, self.chance))

    @abstractmethod
    def _attempt(self, operation: RetriedCall[T]) -> T:
        """Make one attempt: begin, call fn, store the result in `results[attempt]`, and commit.

        If fn wrote, also insert the operation's row. Raise Conflict if that row exists, because the attempt
        was fenced. For other failures, raise Conflict, Unknown or Unreached.
        """

    @abstractmethod
    def _fence(self, operation: RetriedCall[T]) -> int:
        """Return the number in the operation's row.

        If there is no row, insert it with the number 0, so that a late commit fails, and return 0.
        """
