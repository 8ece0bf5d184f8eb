"""Publish pushed rows in lots, and answer each request when its rows are durable (LOT-35, CLU-19).

Requests that arrive together become one lot. The receiver takes the waiting requests as a batch, writes their
rows and publishes them in one transaction. If a request has a producer and a number, that transaction also
records the answer (LOT-36). The receiver answers only after the transaction has committed. So the rows of an
answered request are in the table. Rows of an unanswered request may or may not be stored. The sender repeats
the request with the same number; if the rows were already stored, the sender gets the original answer. The
queue is bounded: the receiver refuses a request that does not fit, and the sender tries again later.

If a batch exceeds a limit of the store, the receiver splits it and publishes each half. It refuses a single
request that exceeds a limit.

The receiving node holds a lease, and every publication checks the lease. After the lease has moved to another
node, the old node publishes nothing more.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tidemill.errors import (
    BadSource,
    DatasetChanged,
    LeaseLost,
    LimitExceeded,
    ProducerConflict,
    PushBusy,
    PushRefused,
    SourceUnavailable,
    TidemillError,
    TransactionTooLong,
)
from tidemill.lots import producers
from tidemill.lots.checks import without_drop
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Identity, Receipt
from tidemill.publish.attempts import Hold
from tidemill.publish.publisher import Publisher
from tidemill.publish.transaction import Positions
from tidemill.scope import Scope
from tidemill.sources import batch_lots, dataset_columns
from tidemill.sources.events import BatchReceived
from tidemill.sources.keys import SourceKeys
from tidemill.sources.row_converters import evolving_converter
from tidemill.sources.source import SourceTarget
from tidemill.spark.frame_checks import refuse
from tidemill.spark.table_checks import Evaluate, check_table
from tidemill.store import Tx

MOST_REQUESTS = 300
"""The maximum number of requests in one batch. Two rows for each of them fit in one transaction (LOT-43)."""

_AGAIN = "send it again to the node that receives now; `tidemill status` shows its address"


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the size of a batch and of the queue."""

    batch_requests: int = MOST_REQUESTS
    batch_bytes: int = 64 << 20
    waiting_bytes: int = 128 << 20
    linger_s: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.batch_requests <= MOST_REQUESTS:
            raise BadSource(
                f"invalid batch_requests={self.batch_requests}", hint=f"use a value from 1 to {MOST_REQUESTS}"
            )


class _Request(NamedTuple):
    """A waiting request. `rows` has the rows before conversion if the dataset gains columns."""

    table: pa.Table
    identity: Identity | None
    answer: "Future[Receipt]"
    rows: Any = None


class _Batch(NamedTuple):
    """Requests that are published together, with all their rows and how many rows failed each check.

    `columns` has the columns of the dataset if the rows add new ones; otherwise it is empty.
    """

    requests: list[_Request]
    rows: pa.Table
    counts: dict[str, int]
    columns: str = ""


class PushReceiver:
    """Takes requests for one dataset from any thread, and publishes them in batches on its own thread.

    Args:
        target: the dataset, which must not have intervals. A request whose rows fail a check is refused.
        scope: the node.
        fence: called in every publication, to check that this node still holds the lease for receiving.
        evaluate: evaluates the expressions of checks on Spark.
        limits: the size of a batch and of the queue.
    """

    def __init__(
        self,
        target: SourceTarget,
        scope: Scope,
        *,
        fence: Callable[[Tx], None],
        evaluate: Evaluate | None = None,
        limits: ReceiverLimits | None = None,
    ) -> None:
        if target.dataset.unit is not None:
            raise BadSource(
                f"{target.dataset.name} has intervals, but pushed rows become one lot per batch",
                hint="omit lots= for a dataset that has a source",
            )
        self.dataset = target.dataset
        self._source = target.id
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._fence = fence
        self._checks = without_drop(target.checks)
        self._evolving = evolving_converter(target.dataset)
        self._evaluate = evaluate
        self._limits = limits or ReceiverLimits()
        self._publisher = Publisher(scope)
        self._queue: queue.Queue[_Request | None] = queue.Queue()
        self._next: _Request | None = None  # it did not fit in the last batch
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"tidemill-receive-{target.dataset.name}", daemon=True
        )

    @property
    def closed(self) -> bool:
        """Whether the receiver refuses requests, after `close` or a failure."""
        with self._lock:
            return self._closed

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 30.0) -> None:
        """Refuse new requests, and publish the waiting ones."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def submit(
        self, table: pa.Table, identity: Identity | None = None, rows: Any = None
    ) -> "Future[Receipt]":
        """Submit rows of the declared columns; the future returns the receipt once the rows are durable.

        Raises `PushBusy` if the queue is full, and `SourceUnavailable` if this node no longer receives rows.
        The future raises `ProducerConflict` if the producer has used the number for other rows, and
        `CheckFailed` if the rows fail a check.

        - rows: the same rows before conversion, for a dataset that gains columns.
        """
        for name in self.dataset.key:
            if table.column(name).null_count:
                raise PushRefused(
                    f"the key column {name} is NULL in one of the rows",
                    hint="set the key column in every row",
                )
        if identity is not None:
            self._check_producer(identity)
        request = _Request(table, identity, Future(), rows if self._evolving is not None else None)
        with self._lock:
            if self._closed:
                raise SourceUnavailable(
                    f"this node no longer receives rows for {self.dataset.name}", hint=_AGAIN
                )
            if self._waiting_bytes and self._waiting_bytes + table.nbytes > self._limits.waiting_bytes:
                raise PushBusy(f"{self._waiting_bytes:,} bytes are already queued for {self.dataset.name}")
            self._waiting_bytes += table.nbytes
            self._queue.put(request)
        return request.answer

    def _check_producer(self, identity: Identity) -> None:
        """Refuse a producer whose name is too long for the key of a receipt."""
        key = self._keys.publish.lots.receipt[(*self.dataset.id.parts, identity.producer, identity.seq)]
        excess = len(key) - self._scope.store.limits.key_bytes
        if excess > 0:
            raise PushRefused(
                f"the producer's name is too long by {excess:,} bytes",
                hint="send a shorter name in Tidemill-Producer",
            )

    # --- batches

    def _run(self) -> None:
        while (requests := self._next_batch()) is not None:
            try:
                self._answer(requests)
            except LeaseLost as lost:
                moved = SourceUnavailable(
                    f"another node receives rows for {self.dataset.name} now: {lost}", hint=_AGAIN
                )
                self._refuse(requests, moved)
                self._give_up(str(lost))
                return
            except TidemillError as error:
                self._refuse(requests, error)
            except BaseException as error:  # noqa: BLE001 - a crash point, or a bug: no sender waits forever
                failed = SourceUnavailable(f"receiving failed: {type(error).__name__}", hint=_AGAIN)
                self._refuse(requests, failed)
                self._give_up(type(error).__name__)
                return

    def _next_batch(self) -> list[_Request] | None:
        """Wait for a request, and take as many more as fit in one lot; return None after `close`."""
        first = self._next or self._queue.get()
        self._next = None
        if first is None:
            return None
        batch, size = [first], first.table.nbytes
        deadline = self._scope.clock.monotonic() + self._limits.linger_s
        while len(batch) < self._limits.batch_requests:
            try:
                left_s = max(0.0, deadline - self._scope.clock.monotonic())
                following = self._queue.get(timeout=left_s) if left_s else self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            if size + following.table.nbytes > self._limits.batch_bytes:
                self._next = following
                break
            batch.append(following)
            size += following.table.nbytes
        with self._lock:  # before any answer: a sender that was answered may send at once
            self._waiting_bytes -= size
        return batch

    def _answer(self, requests: Sequence[_Request]) -> None:
        waiting = [self._new_requests(requests)]
        while waiting:
            batch = waiting.pop()
            try:
                self._publish_batch(batch)
            except LimitExceeded as exceeded:
                left = [request for request in batch if not request.answer.done()]
                if len(left) > 1:  # publish the first half next, so that numbers stay in order
                    waiting += [left[len(left) // 2 :], left[: len(left) // 2]]
                elif isinstance(exceeded, TransactionTooLong):
                    raise
                else:
                    self._refuse(left, PushRefused(f"the request is too large: {exceeded.message}"))

    def _publish_batch(self, requests: Sequence[_Request]) -> None:
        """Publish requests in one lot, and answer them."""
        left = list(requests)
        while left:
            batch = self._check_rows(self._convert(left))
            left = batch.requests
            if not left:
                return
            hold = self._begin()
            try:
                (row,) = batch_lots.write(
                    self._scope,
                    hold,
                    self.dataset,
                    batch_lots.stored(batch.rows, self.dataset),
                    counts=batch.counts,
                    columns=batch.columns,
                )
                receipt = self._publish(hold, row, batch)
            except ProducerConflict:
                # Another attempt published a request with one of these numbers: look up which remain.
                self._publisher.abandon(hold, "another attempt published one of its requests")
                left = self._new_requests(left)
                continue
            except DatasetChanged as changed:  # another lot added the same columns: convert again
                self._publisher.abandon(hold, changed.message)
                if not batch.columns:
                    raise
                continue
            except TidemillError as error:
                self._publisher.abandon(hold, error.message)
                raise
            for request in left:
                request.answer.set_result(receipt)
            self._scope.emit(
                BatchReceived(source=self._source, lot=receipt.lot, requests=len(left), rows=row.rows)
            )
            return

    def _convert(self, requests: Sequence[_Request]) -> _Batch:
        """Convert requests to the current columns of the dataset and the columns that the requests add.

        A request is refused if its rows do not fit columns that an earlier request of the batch adds.
        """
        if self._evolving is None:
            return _Batch(list(requests), pa.concat_tables([request.table for request in requests]), {})
        current = self._scope.store.run(lambda tx: dataset_columns.read(tx, self._keys, self.dataset.id))
        columns, fitting = current, []
        for request in requests:
            try:
                grown = self._evolving.columns(request.rows, columns)
                fitting.append(request._replace(table=self._evolving.convert(request.rows, grown)))
                columns = grown
            except TidemillError as error:
                request.answer.set_exception(error)
        tables = [self._evolving.convert(request.table, columns) for request in fitting]
        rows = pa.concat_tables(tables) if tables else pa.table({})
        return _Batch(fitting, rows, {}, columns if columns != current else "")

    def _check_rows(self, batch: _Batch) -> _Batch:
        """Check the rows of each request separately; keep the requests that pass, and refuse the others."""
        if not self._checks or not batch.requests:
            return batch
        stored = batch_lots.stored(batch.rows, self.dataset)
        expressions = [check.expression for check in self._checks if check.kind == "expect"]
        true = self._evaluate(stored, expressions) if self._evaluate is not None and expressions else []
        passed, tables, counts = [], [], dict.fromkeys((check.name for check in self._checks), 0)
        first = 0
        for request in batch.requests:
            count = request.table.num_rows
            part = [holds.slice(first, count) for holds in true]
            checked = check_table(
                stored.slice(first, count), self._checks, self.dataset.kind, lambda *_, part=part: part
            )
            try:
                refuse(self.dataset.name, self._checks, checked.counts, count)
                passed.append(request)
                tables.append(batch.rows.slice(first, count))
                counts = {name: counts[name] + checked.counts[name] for name in counts}
            except TidemillError as error:
                request.answer.set_exception(error)
            first += count
        rows = pa.concat_tables(tables) if tables else batch.rows.slice(0, 0)
        return _Batch(passed, rows, counts, batch.columns)

    def _new_requests(self, requests: Sequence[_Request]) -> list[_Request]:
        """Return the requests that must be published, in the order of their numbers; answer the others."""
        keys, dataset = self._keys.publish.lots, self.dataset.id

        def read(tx: Tx) -> list[Receipt | ProducerConflict | None]:
            answers: list[Receipt | ProducerConflict | None] = []
            for request in requests:
                try:
                    identity = request.identity
                    answer = None if identity is None else producers.find(tx, keys, dataset, identity)
                    answers.append(answer)
                except ProducerConflict as conflict:
                    answers.append(conflict)
            return answers

        left = []
        first: dict[tuple[str, int], _Request] = {}
        for request, answer in zip(requests, self._scope.store.run(read), strict=True):
            identity = request.identity
            if isinstance(answer, Receipt):
                request.answer.set_result(answer)
            elif answer is not None:
                request.answer.set_exception(answer)
            elif identity is not None and (identity.producer, identity.seq) in first:
                self._answer_duplicate(first[identity.producer, identity.seq], request)
            else:
                if identity is not None:
                    first[identity.producer, identity.seq] = request
                left.append(request)
        return sorted(left, key=_order)

    def _answer_duplicate(self, first: _Request, again: _Request) -> None:
        """Answer a request that is in the batch twice: the second one gets the answer of the first."""
        assert first.identity is not None
        assert again.identity is not None
        if first.identity != again.identity:
            producer, number = again.identity.producer, again.identity.seq
            conflict = f"producer {producer!r} already sent number {number} with other rows"
            again.answer.set_exception(ProducerConflict(conflict))
            return

        def copy(answer: "Future[Receipt]") -> None:
            error = answer.exception()
            if error is None:
                again.answer.set_result(answer.result())
            else:
                again.answer.set_exception(error)

        first.answer.add_done_callback(copy)

    def _begin(self) -> Hold:
        attempt, node = self._scope.new_attempt(), self._scope.node

        def begin(tx: Tx) -> Hold:
            self._fence(tx)
            return batch_lots.begin(tx, self._keys, node, self._source, attempt, self.dataset.id)

        return self._scope.step("sources.receive", begin)

    def _publish(self, hold: Hold, row: LotRow, batch: _Batch) -> Receipt:
        receipts: list[Receipt] = []

        def record(tx: Tx, positions: Positions) -> None:
            self._fence(tx)
            (position,) = positions.values()
            receipt = Receipt(dataset=self.dataset.id, lot=row.lot, position=position, visible_at=tx.wall())
            if batch.columns:
                dataset_columns.add(tx, self._keys, self.dataset.id, batch.columns)
            for request in batch.requests:
                if request.identity is not None:
                    producers.record(tx, self._keys.publish.lots, request.identity, receipt)
            receipts[:] = [receipt]

        self._publisher.publish(hold, [row], move=record)
        return receipts[0]

    # --- ends

    def _refuse(self, requests: Sequence[_Request], error: BaseException) -> None:
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(error)

    def _give_up(self, why: str) -> None:
        """Refuse all waiting requests, and all later ones."""
        with self._lock:
            self._closed = True
        left = [self._next] if self._next else []
        while True:
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                break
            if request is not None:
                left.append(request)
        stopped = SourceUnavailable(
            f"this node no longer receives rows for {self.dataset.name}: {why}", hint=_AGAIN
        )
        self._refuse(left, stopped)


def _order(request: _Request) -> tuple[str, int]:
    return (request.identity.producer, request.identity.seq) if request.identity else ("", -1)
