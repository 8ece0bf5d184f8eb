"""Group commit: many calls share one COMMIT (STO-5).

While a commit waits for the disk, further calls queue up. Then they run together: one BEGIN IMMEDIATE, one
function after the other, one COMMIT. Callers get their results only after the COMMIT. A function that raises
is rolled back alone; its caller also gets the error after the commit, because the function may have read what
other functions in the batch wrote.

A separate thread runs the batches. A caller could not do it: it may be interrupted (Ctrl-C) at any line, and
would abort the functions of other callers. If no other call is waiting, a caller runs its own function. That
saves two thread switches, which take about as long as a commit on a fast disk.

If a COMMIT fails, the outcome of its batch is unknown. Each open store has one operation row, and every batch
writes its number into that row. After the failure the store opens a new connection and reads the row.

- The row has the number: the batch is committed. But if the fsync of the log failed, the log may not be on
  the disk. So the store copies the log into the main file, which makes the batch durable, and then returns
  the results. Results are not stored: their callers are waiting in this process, and the results are in
  memory.
- The row has another number: the functions run again. Their commit also overwrites what the failed commit
  left in the log; otherwise those writes could reappear after a crash. If every retry fails, the callers get
  `CommitUnknown`. A full disk is different, because nothing complete was left in the log: the calls are then
  committed one by one.

Operation rows of stores that have not committed for two hours are removed.
"""

import copy
import queue
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from tidemill import crash
from tidemill.clock import Clock, backoff
from tidemill.errors import CommitUnknown, StoreError, StoreFull, UsageError
from tidemill.store import port
from tidemill.store.keys import pack
from tidemill.store.port import Mode, Tx
from tidemill.store.retry import MINUTE_US, OPERATION_TTL_US, OPERATIONS
from tidemill.store.sqlite.file import StoreFile, WriteLock
from tidemill.store.sqlite.header import GET, HEAD_KEY, PUT_TWO, Header, micros
from tidemill.store.sqlite.transaction import SqliteTx
from tidemill.store.sqlite.watch import Watches

T = TypeVar("T")

BATCH_CALLS = 256
BATCH_WRITES = 4_000  # and so fewer than 65,536 ordinals of `set_versioned`
BATCH_BYTES = 4_000_000
BATCH_S = 0.050  # how long the functions of a batch may run before it commits, so that no caller waits long
GATHER_S = 0.000_2  # how long the writer waits for each caller of the last batch to call again
RETRIES = 3
CLEAN_EVERY_US = 10 * MINUTE_US

CLEAN = """
    DELETE FROM kv WHERE k IN (
        SELECT k FROM (SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT 1000)
        WHERE substr(v, 1, 8) < ? LIMIT 100
    )
"""  # looks at the rows of the stores that were opened first, and deletes those that have expired


class Stats(msgspec.Struct):
    """Counters of a store since it was opened."""

    transactions: int = 0  # functions whose writes were committed
    commits: int = 0  # COMMITs that contained these transactions
    reads: int = 0  # functions that only read
    unknown: int = 0  # commits whose outcome had to be looked up


class CommitRequest(Generic[T]):
    """One call of `run` that the writer runs and commits."""

    __slots__ = ("abandoned", "done", "error", "fn", "mode", "result", "touched", "wrote")

    def __init__(self, fn: Callable[[Tx], T], mode: Mode) -> None:
        self.fn = fn
        self.mode: Mode = mode
        self.result: T | None = None
        self.error: BaseException | None = None
        self.touched: set[bytes] = set()
        self.wrote = False
        self.abandoned = False  # the caller was interrupted: skip the call if it has not begun
        self.done = threading.Lock()  # held until the call is answered
        self.done.acquire()


class _CommitFailed(Exception):
    """COMMIT failed: it is unknown whether the batch with this number is committed."""

    def __init__(self, commit: int, error: sqlite3.Error) -> None:
        super().__init__(commit)
        self.commit = commit
        self.error = error


class _BatchLost(Exception):
    """SQLite failed in this call's function, and may have rolled back the whole batch."""

    def __init__(self, call: CommitRequest[Any]) -> None:
        super().__init__()
        self.call = call


class GroupCommit:
    """The writer of one store: a queue of calls, a thread, and the only writing connection."""

    def __init__(
        self,
        file: StoreFile,
        connection: sqlite3.Connection,
        watches: Watches,
        *,
        clock: Clock,
        chance: random.Random,
        boot: str,
        commit_delay_s: float,
    ) -> None:
        self.stats = Stats()
        self._file = file
        self._connection: sqlite3.Connection | None = connection
        self._watches = watches
        self._clock = clock
        self._chance = chance
        self._boot = boot
        self._commit_delay_s = commit_delay_s
        self._turn = WriteLock(file.path, clock, chance, file.patience_s)
        self._operation = b""  # the key of this store's operation row
        self._registered = False  # True after the first commit: then the row is ours
        self._cleaned_us = 0
        self._expected = 1  # the number of callers in the last batch; as many may call again soon
        self._queue: queue.SimpleQueue[CommitRequest[Any] | None] = queue.SimpleQueue()
        self._backlog: deque[CommitRequest[Any]] = (
            deque()
        )  # calls left over by a batch that reached its limits
        self._lock = threading.Lock()
        self._busy = threading.Lock()  # held while a thread uses the connection
        self._gathering = False  # the thread has taken calls, and will run them next
        self._runs_here = threading.local()
        self._closed = False
        self._thread: threading.Thread | None = None

    # --- the callers' side

    def call(self, call: CommitRequest[T]) -> T:
        """Have the writer run and commit the call; return its result, or raise its error."""
        if not self._alone(call):
            self._queue_up(call)
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # the error refers to its frames, and they to the error: break the cycle
        return call.result  # type: ignore[return-value]

    def _alone(self, call: CommitRequest[Any]) -> bool:
        """Run the function in this thread if no other call is waiting: that saves two thread switches."""
        if self._expected > 1 or self._gathering or self._busy.locked():
            return False
        with self._busy:  # two calls at the same moment run one after the other
            if self._closed:
                raise UsageError("the store is closed", hint="open it again")
            self._runs_here.alone = True
            try:
                self._answer([call], joining=False)
            finally:
                self._runs_here.alone = False
        return True

    def _queue_up(self, call: CommitRequest[Any]) -> None:
        try:
            with self._lock:
                if self._closed:
                    raise UsageError("the store is closed", hint="open it again")
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._serve, name="tidemill-store-writer", daemon=True
                    )
                    self._thread.start()
                self._queue.put(call)
            call.done.acquire()
        except BaseException:
            call.abandoned = True
            raise

    @property
    def is_inside(self) -> bool:
        """Whether this thread is running a function now."""
        return self._thread is threading.current_thread() or getattr(self._runs_here, "alone", False)

    def close(self) -> None:
        """Answer all queued calls, then end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._busy:
            self._drop_connection()
        self._turn.close()

    # --- the writer's side

    def _serve(self) -> None:
        while (first := self._next()) is not None:
            self._gathering = True  # from here on other calls queue up
            with self._busy:
                calls = [first]
                while (
                    len(calls) < BATCH_CALLS and (more := self._next(len(calls) < self._expected)) is not None
                ):
                    calls.append(more)
                self._answer(calls, joining=True)
                self._expected = len(calls)
                self._gathering = False

    def _next(self, patient: bool | None = None) -> CommitRequest[Any] | None:
        """Return the next call, or None.

        `patient` says how long to wait for a call: None without limit, True briefly, False not at all.
        """
        if self._backlog:
            return self._backlog.popleft()
        try:
            if patient is None:
                return self._queue.get()
            call = self._queue.get(timeout=GATHER_S) if patient else self._queue.get_nowait()
        except queue.Empty:
            return None
        if call is None:
            self._queue.put(None)  # put the end mark back, so that it is read again after all calls
        return call

    def _answer(self, calls: list[CommitRequest[Any]], *, joining: bool) -> None:
        """Finish a batch and release its callers."""
        try:
            self._settle(calls, joining=joining)
        except BaseException as error:  # noqa: BLE001  also Crashed: the callers get it, and this thread continues
            for call in calls:
                call.result, call.error = None, error if len(calls) == 1 else _own_copy(error)
        for call in calls:
            call.done.release()

    def _settle(self, calls: list[CommitRequest[Any]], *, joining: bool) -> None:
        """Attempt the batch until its outcome is known."""
        failures = 0
        while calls:
            try:
                self._attempt(calls, joining=joining and not failures)
                return
            except _BatchLost as lost:
                calls.remove(lost.call)
                lost.call.done.release()
            except _CommitFailed as failed:
                doubt = self._file.translated(failed.error)
                if self._is_committed(failed.commit, doubt):
                    self._committed(failed.commit, calls)
                    return
                if isinstance(doubt, StoreFull):
                    self._one_by_one(calls, doubt)
                    return
                failures += 1
                if failures > RETRIES:
                    raise CommitUnknown(f"the commit failed {failures} times: {doubt.message}") from doubt
                self._clock.sleep(backoff(failures, self._chance))

    def _one_by_one(self, calls: list[CommitRequest[Any]], full: StoreFull) -> None:
        """Commit the calls of a batch separately when the disk is full: some may fit, or free space."""
        if len(calls) == 1:
            raise full
        for call in calls:
            self._answer([call], joining=False)
        calls.clear()

    # --- one attempt

    def _attempt(self, calls: list[CommitRequest[Any]], *, joining: bool) -> None:
        """Run the functions and commit; calls that arrive in time join the batch."""
        connection = self._begin()
        try:
            head = Header.read(connection, self._boot)
            self._watches.begun(head.commit)
            clock = head.raised(micros(self._clock))
            if not self._run_all(connection, calls, clock, joining=joining) and clock is head:
                connection.execute("ROLLBACK")
                self.stats.reads += len(calls)
                return
            self._commit(connection, clock)
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, sqlite3.Error):
                raise self._file.translated(error) from error
            raise
        self._committed(head.commit + 1, calls)

    def _begin(self) -> sqlite3.Connection:
        self._file.check_in_place()
        connection = self._connection
        if connection is None:
            connection = self._connection = self._file.connect(writing=True)
        elif connection.in_transaction:  # a caller that ran its own function was interrupted twice
            self._roll_back(connection)
        try:
            self._turn.begin(connection)
        except sqlite3.Error as error:
            self._drop_connection()
            raise self._file.translated(error) from error
        return connection

    def _run_all(
        self, connection: sqlite3.Connection, calls: list[CommitRequest[Any]], head: Header, *, joining: bool
    ) -> bool:
        """Run each function, within the limits of a batch; return whether anything was written."""
        until = self._clock.monotonic() + BATCH_S
        dirty = False
        ran = ordinal = writes = size = 0
        while True:
            if ran == len(calls):
                more = self._next(patient=False) if joining and ran < BATCH_CALLS else None
                if more is None:
                    return dirty
                calls.append(more)
            call = calls[ran]
            ran += 1
            if call.abandoned:
                continue
            tx = SqliteTx(connection, self._file, call.mode, self._clock, self._boot, head)
            ordinal = self._run(tx, call, head.commit + 1, ordinal)
            dirty = dirty or call.wrote
            writes += tx.writes
            size += tx.bytes_written
            if writes > BATCH_WRITES or size > BATCH_BYTES or self._clock.monotonic() > until:
                self._backlog.extendleft(reversed(calls[ran:]))
                del calls[ran:]
                return dirty

    def _run(self, tx: SqliteTx, call: CommitRequest[Any], commit: int, ordinal: int) -> int:
        call.wrote, call.error = False, None
        try:
            call.result = port.call(call.fn, tx)
            ordinal = tx.finish(commit, ordinal)
            call.wrote, call.touched = tx.dirty, tx.touched
        except BaseException as error:  # noqa: BLE001  the caller gets what fn raises
            call.result, call.error = None, error
            if tx.broken is None:
                tx.take_back()
        tx._end()
        if tx.broken is not None:
            call.error = call.error or tx.broken
            raise _BatchLost(call)
        return ordinal

    def _commit(self, connection: sqlite3.Connection, head: Header) -> None:
        commit = head.commit + 1
        now_us = head.now_us(micros(self._clock))
        try:
            self._name_operation(connection, now_us)
            if now_us - self._cleaned_us > CLEAN_EVERY_US:
                old = (max(0, now_us - OPERATION_TTL_US)).to_bytes(8, "big")
                connection.execute(CLEAN, (OPERATIONS, OPERATIONS + b"\xff", old))
                self._cleaned_us = now_us
            row = now_us.to_bytes(8, "big") + commit.to_bytes(8, "big")
            moved = msgspec.structs.replace(head, commit=commit).encoded()
            connection.execute(PUT_TWO, (HEAD_KEY, moved, self._operation, row))
            crash.point("store.sqlite.before_commit")
            if self._commit_delay_s:
                self._clock.sleep(self._commit_delay_s)
            self._watches.committing(commit)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _CommitFailed(commit, error) from error
        crash.point("store.sqlite.after_commit")

    def _name_operation(self, connection: sqlite3.Connection, now_us: int) -> None:
        """Choose the id of the operation row; stores with the same seed must not share a row."""
        while not self._registered:
            self._operation = OPERATIONS + pack(
                (now_us // MINUTE_US, UUID(int=self._chance.getrandbits(128), version=4))
            )
            if connection.execute(GET, (self._operation,)).fetchone() is None:
                return

    def _committed(self, commit: int, calls: list[CommitRequest[Any]]) -> None:
        self._registered = True
        self.stats.commits += 1
        self.stats.transactions += sum(call.wrote for call in calls)
        self._watches.committed(commit, [call.touched for call in calls if call.wrote])

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._watches.failed()
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_connection()

    # --- an unknown commit

    def _is_committed(self, commit: int, doubt: StoreError) -> bool:
        """Return whether a failed commit took effect: read its operation row on a new connection."""
        self.stats.unknown += 1
        give_up = self._clock.monotonic() + self._file.patience_s
        tries = 0
        while True:
            tries += 1
            self._drop_connection()
            try:
                self._file.check_in_place()
                connection = self._connection = self._file.connect(writing=True)
                row = connection.execute(GET, (self._operation,)).fetchone()
                if row is None or row[0][8:] != commit.to_bytes(8, "big"):
                    return False
                busy = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0]
                if not busy:
                    return True
            except (StoreError, sqlite3.Error) as error:
                doubt.add_note(f"while looking up the outcome: {error}")
            if self._clock.monotonic() > give_up:
                raise CommitUnknown(
                    f"a commit was interrupted, and it is unknown whether it took effect: {doubt.message}"
                ) from doubt
            self._clock.sleep(backoff(tries, self._chance))

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._file.disconnect(self._connection)
            self._connection = None


def _own_copy(error: BaseException) -> BaseException:
    """Copy an error of the whole batch for one caller: threads must not raise the same object."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001  an error that cannot be copied is still better than a different error
        return error
    copied.__cause__ = error
    return copied
