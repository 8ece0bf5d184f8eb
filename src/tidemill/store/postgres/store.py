"""Keep the store in a PostgreSQL database, for pipelines that run on several machines.

One table holds byte keys and byte values (`schema`). `serial` is SERIALIZABLE; `take` is READ COMMITTED with
SKIP LOCKED (`transaction`). A transaction can fail in three ways (`store.retry`): a conflict, a server that
cannot be reached before COMMIT is sent, or a connection that breaks after COMMIT is sent. Only the third
leaves the outcome unknown. The operation's row then decides: the transaction inserts that row, and a later
check inserts it too. The primary key lets only one of them succeed. When the server restarts, the store waits
for it.

`ProcessState` holds the connections and the notifying thread of one process; a forked child gets a new one.
"""

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tidemill.clock import SYSTEM, Clock, backoff
from tidemill.errors import StoreUnavailable, TransactionTooLong, UsageError
from tidemill.store.keys import pack, unpack
from tidemill.store.port import SYSTEM_PREFIX, Mode, Row, Tx, Watch
from tidemill.store.postgres.address import Address
from tidemill.store.postgres.connection import (
    BoundStatement,
    ConnectionLost,
    PostgresConnection,
    StatementFailed,
    integer,
)
from tidemill.store.postgres.lease_clock import LeaseClock
from tidemill.store.postgres.pool import Pool, connect, verdict
from tidemill.store.postgres.schema import open_tables, plain
from tidemill.store.postgres.transaction import PostgresTx, rows_of
from tidemill.store.postgres.watch import Notifier, PostgresWatch
from tidemill.store.retry import RetriedCall, RetryingStore, Unreached

T = TypeVar("T")

SNAPSHOT = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
)
"""Begin a transaction that reads the rows of one moment, for as long as it takes."""

SNAPSHOT_PAGE = 1_000
OPENING_PATIENCE_S = 3.0  # a wrong address is more likely than a restart


class ProcessState:
    """The connections and threads of one process."""

    def __init__(self, store: "PostgresStore") -> None:
        self.pid = os.getpid()
        self.pool = Pool(store.address, store.sql, most=store.connections)
        self.notifier = Notifier(
            self.pool.fresh, store.sql, clock=store.clock, lease=store.lease, chance=store.chance
        )
        self.active = threading.local()


class PostgresStore(RetryingStore):
    """A store in one PostgreSQL database. It connects when it is created.

    Args:
        url: as in libpq (`postgresql://user@host/db?sslmode=require`), with `schema=` for our tables.
        connections: how many transactions can run at once in this process.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
        patience_s: float = 30.0,
        connections: int = 16,
    ) -> None:
        super().__init__(clock=clock, chance=chance, patience_s=patience_s)
        # Never from a seed: two processes with the same seed, or a child after a fork, would get the same
        # ids and confuse their operations.
        self.ids = random.SystemRandom()
        # Blind writes to one row conflict under SERIALIZABLE; the transaction that loses must retry soon.
        self.conflict_pause_s = 0.1
        self.address = Address(url)
        self.connections = connections
        self.lease = LeaseClock(clock)
        self._closed = False
        link = self._first_link()
        self._left_behind: list[ProcessState] = []  # of the parent process: never used or closed here
        self._state = ProcessState(self)
        self._state.pool.add(link)

    @property
    def url(self) -> str:
        return self.address.shown

    def close(self) -> None:
        self._closed = True
        if self._state.pid == os.getpid():
            self._state.notifier.close()
            self._state.pool.close()

    def watch(self, keys: Iterable[bytes]) -> Watch:
        return PostgresWatch(self._local().notifier, keys)

    # --- opening

    def _first_link(self) -> PostgresConnection:
        give_up = self.clock.monotonic() + min(self.patience_s, OPENING_PATIENCE_S)
        tries = 0
        while True:
            tries += 1
            try:
                return self._opened()
            except Unreached as absent:
                if self.clock.monotonic() > give_up:
                    raise StoreUnavailable(f"no answer from {self.url}: {absent}") from None
            self.clock.sleep(backoff(tries, self.chance))

    def _opened(self) -> PostgresConnection:
        link = connect(self.address, opening=True)
        try:
            self.sql = open_tables(link, self.address.schema)
            if not link.pooled:
                link.prepare(self.sql.prepared)
        except (ConnectionLost, StatementFailed) as error:
            trouble = verdict(error)
        except BaseException:
            link.close()
            raise
        else:
            return link
        link.close()
        raise trouble

    def _local(self) -> ProcessState:
        if self._closed:
            raise UsageError("the store is closed", hint="open it again")
        if self._state.pid != os.getpid():
            self._left_behind.append(self._state)
            self._state = ProcessState(self)
        return self._state

    # --- running

    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        if getattr(self._local().active, "busy", False):
            raise UsageError(
                "store.run was called inside a transaction", hint="pass tx to the inner function"
            )
        return super().run(fn, mode=mode)

    def snapshot(self) -> Iterator[Row]:
        state = self._local()
        link = state.pool.take(self.patience_s)
        try:
            link.exchange([plain(text) for text in SNAPSHOT])
            after = b""
            while True:
                (result,) = link.exchange(
                    [BoundStatement(self.sql.range, (after, SYSTEM_PREFIX, integer(SNAPSHOT_PAGE)))]
                )
                page = rows_of(result)
                yield from page
                if len(page) < SNAPSHOT_PAGE:
                    return
                after = page[-1].key + b"\x00"
        except (ConnectionLost, StatementFailed) as error:
            trouble = verdict(error)
        finally:
            self._leave(link)
            state.pool.give(link)
        raise trouble

    def _attempt(self, operation: RetriedCall[T]) -> T:
        state = self._local()
        link = state.pool.take(self.patience_s)
        tx = PostgresTx(self, link, operation.mode)
        try:
            self._rebase(link)
            result = operation.results[operation.attempt] = self._call(state, operation.fn, tx)
            tx.commit(operation)
        finally:
            if tx.begun:
                self._leave(link)
            state.pool.give(link)
        if tx.touched:
            state.notifier.notify(tx.touched)
        return result

    def _call(self, state: ProcessState, fn: Callable[[Tx], T], tx: PostgresTx) -> T:
        state.active.busy = True
        try:
            return fn(tx)
        except TransactionTooLong:
            tx.check_patience()
            raise
        finally:
            state.active.busy = False
            tx._end()

    def _leave(self, link: PostgresConnection) -> None:
        """End a transaction that did not commit; close the connection if that fails."""
        if link.usable and link.in_transaction:
            try:
                link.exchange([BoundStatement(self.sql.rollback)])
            except (ConnectionLost, StatementFailed):
                link.close()

    def _rebase(self, link: PostgresConnection) -> None:
        """Let lease time continue, for all processes, after the server's clock was set back."""
        reached = self.lease.step_back()
        if reached is not None:
            try:
                link.exchange([BoundStatement(self.sql.rebase, (integer(reached),))])
            except (ConnectionLost, StatementFailed):
                link.close()  # it may hold the clock's lock; the next reader of the clock retries

    def _fence(self, operation: RetriedCall[T]) -> int:
        state = self._local()
        link = state.pool.take(self.patience_s)
        key = operation.key(0)
        try:
            calls = [
                *self.sql.beginning("take", pooled=link.pooled),
                BoundStatement(self.sql.fence, (key, pack((0,)))),
                BoundStatement(self.sql.outcome, (key,)),
                BoundStatement(self.sql.commit),
            ]
            row = link.exchange(calls)[-2].get_value(0, 0)
        except (ConnectionLost, StatementFailed) as error:
            trouble = verdict(error)
        else:
            (number,) = unpack(row or b"")
            assert isinstance(number, int)
            return number
        finally:
            self._leave(link)
            state.pool.give(link)
        raise trouble
