"""Publish fetched batches: each batch becomes a lot and advances checkpoints (LOT-35, CLU-22).

A checkpoint records how far a source was fetched: an ETag, or an offset for each partition of a topic. A
batch names the checkpoints that it advances, with their values before and after the batch. The transaction
that publishes the lot also advances the checkpoints, but only if each of them still has its earlier value. So
every fetched record is in exactly one lot. If a node dies before this transaction, nothing has changed, and
the next node fetches the same records again. If another node has advanced one of the checkpoints, the
transaction fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from tidemill.errors import LeaseLost, TidemillError
from tidemill.publish.attempts import Hold
from tidemill.publish.publisher import Publisher
from tidemill.scope import Scope
from tidemill.sources import batch_lots, dataset_columns, records
from tidemill.sources.events import BatchFetched
from tidemill.sources.keys import SourceKeys
from tidemill.sources.records import BAD, ParsedRecords, SourceRecord
from tidemill.sources.row_converters import converter, evolving_converter
from tidemill.sources.source import SourceTarget
from tidemill.spark.frame_checks import refuse
from tidemill.spark.table_checks import Evaluate, check_table
from tidemill.store import Tx

Fence = Callable[[Tx], None]


class CheckpointMove(NamedTuple):
    """A checkpoint, its value before the batch, and its value after the batch."""

    name: str
    before: bytes | None
    after: bytes


class PublishedBatch(NamedTuple):
    """The lot of a batch, and how many good and bad rows it has. `lot` is empty if there were no records."""

    lot: str = ""
    rows: int = 0
    bad: int = 0


class BatchPublisher:
    """Publishes the batches that a source fetches for one dataset.

    Args:
        target: the dataset. It must have a quarantine, and must not have intervals.
        scope: the node.
        evaluate: evaluates the expressions of checks on Spark.
    """

    def __init__(self, target: SourceTarget, scope: Scope, evaluate: Evaluate | None = None) -> None:
        assert target.quarantine is not None
        self.source = target.id
        self.dataset = target.dataset
        self._quarantine = target.quarantine
        self._checks = target.checks
        self._convert = converter(target.dataset)
        self._evolving = evolving_converter(target.dataset)
        self._evaluate = evaluate
        self.scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._publisher = Publisher(scope)
        self._reported: dict[str, str] = {}  # checkpoint -> its problem, as stored

    def checkpoints(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the values of the checkpoints with these names, in the same order."""
        keys = [self._keys.checkpoint[self.source, name] for name in names]
        return list(self.scope.store.run(lambda tx: tx.get_many(keys)))

    def report(self, problems: Mapping[str, str]) -> None:
        """Record in the store why checkpoints do not advance. An empty text removes the record."""
        changed = {
            name: problem[:2000]
            for name, problem in problems.items()
            if self._reported.get(name) != problem[:2000]
        }
        if not changed:
            return

        def write(tx: Tx) -> None:
            for name, problem in changed.items():
                key = self._keys.trouble[self.source, name]
                if problem:
                    tx.set(key, problem.encode(errors="backslashreplace"), quiet=True)
                elif tx.get(key) is not None:
                    tx.clear(key)

        self.scope.store.run(write)
        self._reported |= changed

    def parse(self, fetched: Sequence[SourceRecord]) -> ParsedRecords:
        """Convert fetched records to rows, with the columns that the dataset has now."""
        columns = ""
        if self._evolving is not None:
            columns = self.scope.store.run(lambda tx: dataset_columns.read(tx, self._keys, self.dataset.id))
        return records.parse(
            fetched, self._convert, self.dataset.key, evolving=self._evolving, columns=columns
        )

    def publish(self, batch: ParsedRecords, moves: Sequence[CheckpointMove], fence: Fence) -> PublishedBatch:
        """Publish a batch and advance its checkpoints. If the batch is empty, only advance the checkpoints.

        Raise `LeaseLost` if another node has advanced one of the checkpoints, and `CheckFailed` if rows fail
        a check with `on_fail="fail"`. In both cases nothing is published, and no checkpoint advances.
        """
        stored = batch_lots.stored(batch.rows, self.dataset)
        checked = check_table(stored, self._checks, self.dataset.kind, self._evaluate)
        if stored.num_rows:
            refuse(self.dataset.name, self._checks, checked.counts, checked.rows.num_rows)
        bad = pa.concat_tables([batch.bad, _padded(checked.quarantined)])
        if not stored.num_rows and not bad.num_rows:
            self.scope.step("sources.checkpoint", lambda tx: self._advance(tx, moves, fence))
            return PublishedBatch()
        hold = self._begin(fence)
        try:
            rows = batch_lots.write(
                self.scope,
                hold,
                self.dataset,
                checked.rows,
                counts=checked.counts,
                columns=batch.columns,
                quarantined=bad,
            )
            self._publisher.publish(
                hold, rows, move=lambda tx, _: self._move(tx, moves, fence, batch.columns)
            )
        except TidemillError as error:
            self._publisher.abandon(hold, error.message)
            raise
        published = PublishedBatch(hold.draft.lot, checked.rows.num_rows, bad.num_rows)
        self.scope.emit(
            BatchFetched(source=self.source, lot=published.lot, rows=published.rows, bad=published.bad)
        )
        return published

    def _begin(self, fence: Fence) -> Hold:
        attempt, node = self.scope.new_attempt(), self.scope.node

        def begin(tx: Tx) -> Hold:
            fence(tx)
            dataset, quarantine = self.dataset.id, self._quarantine
            return batch_lots.begin(tx, self._keys, node, self.source, attempt, dataset, quarantine)

        return self.scope.step("sources.fetch", begin)

    def _move(self, tx: Tx, moves: Sequence[CheckpointMove], fence: Fence, columns: str) -> None:
        self._advance(tx, moves, fence)
        if columns:
            dataset_columns.add(tx, self._keys, self.dataset.id, columns)

    def _advance(self, tx: Tx, moves: Sequence[CheckpointMove], fence: Fence) -> None:
        fence(tx)
        current = tx.get_many([self._keys.checkpoint[self.source, move.name] for move in moves])
        for move, value in zip(moves, current, strict=True):
            if value != move.before:
                raise LeaseLost(f"another node advanced the checkpoint {move.name} of {self.source}")
            tx.set(self._keys.checkpoint[self.source, move.name], move.after, quiet=True)


def _padded(quarantined: pa.Table) -> pa.Table:
    """Convert rows that checks removed to the columns of a quarantine dataset."""
    missing = {
        "file": pa.nulls(quarantined.num_rows, pa.string()),
        "line": pa.nulls(quarantined.num_rows, pa.int64()),
    }
    return pa.table(
        [missing[name] if name in missing else quarantined[name] for name in BAD.names], schema=BAD
    )


def problems(tx: Tx, keys: SourceKeys, source: str, limit: int = 5) -> tuple[str, ...]:
    """Return the reasons why checkpoints of a source do not advance, for at most `limit` checkpoints."""
    rows = tx.range(*keys.trouble.under(source), limit=limit, snapshot=True)
    return tuple(f"{keys.trouble.unpack(row.key)[1]!s}: {row.value.decode()}" for row in rows)
