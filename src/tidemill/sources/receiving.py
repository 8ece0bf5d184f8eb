"""Receiving: rows that are pushed become lots, and are answered when they are durable (LOT-35, CLU-19).

Requests that arrive together become one lot: what waits is taken as a batch, written, and published in the
one transaction, which also keeps the answer to every request that has a producer and a number (LOT-36). Only
then is anybody answered. So a request that was answered is in the table; one that was not may be, and is sent
again under its number, to be answered as the first time. How much may wait is bounded: what is more is
refused, and the sender waits.

Whoever receives holds a lease, and shows it in every publication: when it moves to another node, the old one
publishes nothing more.
"""

import queue
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tidemill import crash
from tidemill.clock import Clock
from tidemill.cluster.nodes import Node
from tidemill.errors import (
    BadSource,
    DatasetChanged,
    LeaseLost,
    ProducerConflict,
    PushBusy,
    PushRefused,
    SourceUnavailable,
    TidemillError,
)
from tidemill.events import Emit, ignore
from tidemill.lots import layout, lots, producers
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.producers import Identity, Receipt
from tidemill.objects.port import Objects
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import SinkWritten
from tidemill.publish.publisher import Publisher
from tidemill.publish.transaction import Positions
from tidemill.scope import Scope
from tidemill.sources.events import BatchReceived
from tidemill.sources.growing import columns_of, fingerprint, grow, rescued
from tidemill.sources.keys import SourceKeys
from tidemill.sources.records import Growing
from tidemill.spark import operations
from tidemill.spark.checking import refuse
from tidemill.spark.checking_arrow import check_table
from tidemill.spark.evaluating import Evaluate
from tidemill.spark.writing import write_table
from tidemill.store import Store, Tx

MOST_REQUESTS = 300
"""Of one batch: two rows for each fit the transaction (LOT-43)."""

_AGAIN = "send it again, to the node that receives now"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is taken at once, and how much may wait."""

    batch_requests: int = MOST_REQUESTS
    batch_bytes: int = 64 << 20
    waiting_bytes: int = 128 << 20
    linger_s: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.batch_requests <= MOST_REQUESTS:
            raise BadSource(f"batch_requests={self.batch_requests}", hint=f"1 to {MOST_REQUESTS}")


class _Waiting(NamedTuple):
    table: pa.Table
    identity: Identity | None
    answer: "Future[Receipt]"
    rows: Any = None  # as they came, where the columns are settled with the batch


class _Batch(NamedTuple):
    """What is written together: requests, their rows, what was counted of them, and columns that are new."""

    requests: list[_Waiting]
    rows: pa.Table
    counts: dict[str, int]
    columns: str = ""


class Receiver:
    """Takes requests for one dataset, from any thread, and publishes them in batches by a thread of its own.

    Args:
        source: the author of its attempts.
        dataset: as declared; one without intervals.
        fence: the lease under which we receive, checked in every publication.
        checks: what is expected of the rows of each request; one that fails is refused, its sender told.
        growing: makes rows for a dataset that gains the columns which they bring.
        evaluate: tells which rows expressions are true for, on Spark.
    """

    def __init__(
        self,
        source: str,
        dataset: Dataset,
        *,
        store: Store,
        keys: SourceKeys,
        node: Node,
        objects: Objects,
        clock: Clock,
        chance: random.Random,
        fence: Callable[[Tx], None],
        checks: Sequence[Check] = (),
        growing: Growing | None = None,
        evaluate: Evaluate | None = None,
        limits: Limits | None = None,
        emit: Emit = ignore,
    ) -> None:
        if dataset.unit is not None:
            raise BadSource(
                f"{dataset.name} has intervals, and what is pushed is a lot at once",
                hint="leave lots= out for a dataset that is pushed to",
            )
        self.dataset = dataset
        self._source = source
        self._store = store
        self._keys = keys
        self._node = node
        self._objects = objects
        self._clock = clock
        self._chance = chance
        self._fence = fence
        self._checks = checks
        self._growing = growing
        self._evaluate = evaluate
        self._limits = limits or Limits()
        self._emit = emit
        scope = Scope(
            store=store,
            cluster=keys.publish.lots.cluster,
            objects=objects,
            node=node,
            clock=clock,
            chance=chance,
            emit=emit,
        )
        self._scope = scope
        self._publisher = Publisher(scope)
        self._manifests = Manifests(objects, clock)
        self._queue: queue.Queue[_Waiting | None] = queue.Queue()
        self._held: _Waiting | None = None  # taken from the queue, too large for the last batch
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"tidemill-receive-{dataset.name}", daemon=True
        )

    @property
    def closed(self) -> bool:
        """Is nothing taken any more, asked to or not?"""
        with self._lock:
            return self._closed

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 30.0) -> None:
        """Take nothing more, and publish what waits."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def submit(
        self, table: pa.Table, identity: Identity | None = None, rows: Any = None
    ) -> "Future[Receipt]":
        """Rows of the declared columns; the receipt comes when they are durable.

        `PushBusy` when too much waits, `SourceUnavailable` when nothing is received here any more. The future
        raises `ProducerConflict` for a number that was used for other rows, and `CheckFailed`.

        - rows: the same as they came, for a dataset that gains columns.
        """
        for name in self.dataset.key:
            if table.column(name).null_count:
                raise PushRefused(
                    f"the key column {name} is NULL in one of the rows", hint="each row has its key"
                )
        waiting = _Waiting(table, identity, Future(), rows if self._growing is not None else None)
        with self._lock:
            if self._closed:
                raise SourceUnavailable(f"{self.dataset.name} is not received here any more", hint=_AGAIN)
            if self._waiting_bytes and self._waiting_bytes + table.nbytes > self._limits.waiting_bytes:
                raise PushBusy(f"{self._waiting_bytes:,} bytes wait for {self.dataset.name}")
            self._waiting_bytes += table.nbytes
            self._queue.put(waiting)
        return waiting.answer

    # --- batches

    def _run(self) -> None:
        while (batch := self._batch()) is not None:
            try:
                self._answer(batch)
            except LeaseLost as lost:
                self._refuse(batch, SourceUnavailable(f"{self.dataset.name} moved: {lost}", hint=_AGAIN))
                self._give_up(str(lost))
                return
            except TidemillError as error:
                self._refuse(batch, error)
            except BaseException as error:  # noqa: BLE001 - a crash point, or a bug: nobody waits for ever
                gone = SourceUnavailable(f"receiving failed: {type(error).__name__}", hint=_AGAIN)
                self._refuse(batch, gone)
                self._give_up(type(error).__name__)
                return
            finally:
                with self._lock:
                    self._waiting_bytes -= sum(one.table.nbytes for one in batch)

    def _batch(self) -> list[_Waiting] | None:
        """What waits, as much as one lot takes; waits for the first. None when we are closed."""
        first = self._held or self._queue.get()
        self._held = None
        if first is None:
            return None
        batch, size = [first], first.table.nbytes
        deadline = self._clock.monotonic() + self._limits.linger_s
        while len(batch) < self._limits.batch_requests:
            try:
                left_s = max(0.0, deadline - self._clock.monotonic())
                following = self._queue.get(timeout=left_s) if left_s else self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            if size + following.table.nbytes > self._limits.batch_bytes:
                self._held = following
                break
            batch.append(following)
            size += following.table.nbytes
        return batch

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        left = self._unknown(batch)
        while left:
            taken = self._checked(self._fitted(left))
            left = taken.requests
            if not left:
                return
            hold = self._begin()
            try:
                self._manifests.intend(hold)
                row = self._write(hold, taken)
                receipt = self._publish(hold, row, taken)
            except ProducerConflict:
                # Another request with one of these numbers was published meanwhile: who is left is looked up.
                self._publisher.abandon(hold, "a request of it was published by another try")
                left = self._unknown(left)
                continue
            except DatasetChanged as changed:  # others brought the same columns: these are fitted again
                self._publisher.abandon(hold, changed.message)
                if not taken.columns:
                    raise
                continue
            except TidemillError as error:
                self._publisher.abandon(hold, error.message)
                raise
            for one in left:
                one.answer.set_result(receipt)
            self._emit(BatchReceived(source=self._source, lot=receipt.lot, requests=len(left), rows=row.rows))
            return

    def _fitted(self, batch: Sequence[_Waiting]) -> _Batch:
        """The rows of a batch, with the columns that the dataset has by now and those they bring together. A
        request whose rows do not fit what was there first is refused.
        """
        if self._growing is None:
            return _Batch(list(batch), pa.concat_tables([one.table for one in batch]), {})
        known = self._store.run(lambda tx: columns_of(tx, self._keys, self.dataset.id))
        columns, kept = known, []
        for one in batch:
            try:
                grown = self._growing.columns(one.rows, columns)
                kept.append(one._replace(table=self._growing.convert(one.rows, grown)))
                columns = grown
            except TidemillError as error:
                one.answer.set_exception(error)
        tables = [self._growing.convert(one.table, columns) for one in kept]
        rows = pa.concat_tables(tables) if tables else pa.table({})
        return _Batch(kept, rows, {}, columns if columns != known else "")

    def _checked(self, batch: _Batch) -> _Batch:
        """The requests whose rows pass, each by itself; the others are refused."""
        if not self._checks or not batch.requests:
            return batch
        stored = self._stored(batch.rows)
        evaluated = [one.expression for one in self._checks if one.kind == "expect"]
        true = self._evaluate(stored, evaluated) if self._evaluate is not None and evaluated else []
        kept, tables, counts = [], [], dict.fromkeys((one.name for one in self._checks), 0)
        first = 0
        for one in batch.requests:
            count = one.table.num_rows
            part = [holds.slice(first, count) for holds in true]
            found = check_table(
                stored.slice(first, count), self._checks, self.dataset.kind, lambda *_, part=part: part
            )
            try:
                refuse(self.dataset.name, self._checks, found.counts, count)
                kept.append(one)
                tables.append(batch.rows.slice(first, count))
                counts = {name: counts[name] + found.counts[name] for name in counts}
            except TidemillError as error:
                one.answer.set_exception(error)
            first += count
        rows = pa.concat_tables(tables) if tables else batch.rows.slice(0, 0)
        return _Batch(kept, rows, counts, batch.columns)

    def _stored(self, rows: pa.Table) -> pa.Table:
        keyed = self.dataset.kind is Kind.KEYED
        operation = operations.Operation.UPSERT if keyed else operations.Operation.APPEND
        return operations.stored_table(rows, self.dataset, operation)

    def _unknown(self, batch: Sequence[_Waiting]) -> list[_Waiting]:
        """The requests that are new, numbered ones in their order; the others are answered here."""
        keys, dataset = self._keys.publish.lots, self.dataset.id

        def look(tx: Tx) -> list[Receipt | ProducerConflict | None]:
            found: list[Receipt | ProducerConflict | None] = []
            for one in batch:
                try:
                    known = None if one.identity is None else producers.find(tx, keys, dataset, one.identity)
                    found.append(known)
                except ProducerConflict as conflict:
                    found.append(conflict)
            return found

        left = []
        seen: dict[tuple[str, int], _Waiting] = {}
        for one, known in zip(batch, self._store.run(look), strict=True):
            if isinstance(known, Receipt):
                one.answer.set_result(known)
            elif known is not None:
                one.answer.set_exception(known)
            elif one.identity is not None and (one.identity.producer, one.identity.seq) in seen:
                self._follow(seen[one.identity.producer, one.identity.seq], one)
            else:
                if one.identity is not None:
                    seen[one.identity.producer, one.identity.seq] = one
                left.append(one)
        return sorted(
            left, key=lambda one: (one.identity.producer, one.identity.seq) if one.identity else ("", -1)
        )

    def _follow(self, first: _Waiting, again: _Waiting) -> None:
        """The same request twice in one batch: the second is answered as the first is."""
        assert first.identity is not None
        assert again.identity is not None
        if first.identity != again.identity:
            conflict = f"producer {again.identity.producer!r} used {again.identity.seq} for other rows"
            again.answer.set_exception(ProducerConflict(conflict))
            return

        def tell(done: "Future[Receipt]") -> None:
            error = done.exception()
            if error is None:
                again.answer.set_result(done.result())
            else:
                again.answer.set_exception(error)

        first.answer.add_done_callback(tell)

    def _begin(self) -> Hold:
        attempt = self._scope.new_attempt()

        def begin(tx: Tx) -> Hold:
            self._fence(tx)
            lot = str(lots.next_append(tx, self._keys.publish.lots, self.dataset.id))
            targets = (Target(self.dataset.id, lot),)
            draft = Draft(id=attempt, author=self._source, lot=lot, targets=targets)
            return attempts.begin(tx, self._keys.publish, self._node, draft)

        crash.point("sources.receive.before")
        hold = self._store.run(begin)
        crash.point("sources.receive.after")
        return hold

    def _write(self, hold: Hold, batch: _Batch) -> lots.LotRow:
        table = self._stored(batch.rows)
        target = hold.draft.targets[0]
        prefix = layout.data_prefix(*target.dataset.parts, target.lot, hold.draft.id)
        written = write_table(table, self._objects, prefix)
        sink = SinkWritten(
            dataset=target.dataset,
            objects=written.objects,
            rows=written.rows,
            checks=batch.counts | rescued(self.dataset, table),
            schema=batch.columns,
        )
        prints = {target.dataset: fingerprint(self.dataset, batch.columns)}
        made = self._manifests.part_made(hold, "", [sink], alone=True, fingerprints=prints)
        return self._manifests.finish(hold, [made], prints)[0]

    def _publish(self, hold: Hold, row: lots.LotRow, batch: _Batch) -> Receipt:
        receipts: list[Receipt] = []

        def record(tx: Tx, positions: Positions) -> None:
            self._fence(tx)
            (position,) = positions.values()
            receipt = Receipt(dataset=self.dataset.id, lot=row.lot, position=position, visible_at=tx.wall())
            if batch.columns:
                grow(tx, self._keys, self.dataset.id, batch.columns)
            for one in batch.requests:
                if one.identity is not None:
                    producers.record(tx, self._keys.publish.lots, one.identity, receipt)
            receipts[:] = [receipt]

        self._publisher.publish(hold, [row], move=record)
        return receipts[0]

    # --- ends

    def _refuse(self, batch: Sequence[_Waiting], error: BaseException) -> None:
        for one in batch:
            if not one.answer.done():
                one.answer.set_exception(error)

    def _give_up(self, why: str) -> None:
        """Refuse everything that waits and all that comes."""
        with self._lock:
            self._closed = True
        left = [self._held] if self._held else []
        while True:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                break
            if one is not None:
                left.append(one)
        gone = f"{self.dataset.name} is not received here any more: {why}"
        self._refuse(left, SourceUnavailable(gone, hint=_AGAIN))
