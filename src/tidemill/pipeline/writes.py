"""Write to a dataset: append, upsert and delete rows, replace and remove lots (LOT-30, LOT-36, LOT-40).

An append becomes a lot immediately, or waits until its interval closes. A correction becomes the next
generation of its lot. If the rows are in memory, this process writes them without Spark. If they are a Spark
DataFrame, Spark writes them.

The row of the attempt is stored before the first object is written. So a crash at any moment leaves either a
published lot, or an attempt that the cleaner finds. An append with a producer and a sequence number may be
repeated: it takes effect only once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import (
    AppendRefused,
    AttemptUnknown,
    CheckFailed,
    CorrectionRefused,
    LeaseLost,
    LotConflict,
    StoreUnavailable,
    UsageError,
)
from tidemill.lots import datasets, owners
from tidemill.lots.checks import QUARANTINE_SCHEMA, Check, can_drop, quarantine_of, without_drop
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Identity, Receipt
from tidemill.pipeline.context import PipelineContext, is_session
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.pipeline.key_columns import check_columns, deletions
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold, Published
from tidemill.publish.parts import SinkWritten
from tidemill.spark import input_rows, operations, schema
from tidemill.spark.drift import effective, evolved
from tidemill.spark.frame_checks import Checked, LotFolders, refuse, write_checked
from tidemill.spark.lot_writer import Written, write_table
from tidemill.spark.operations import RowOperation
from tidemill.spark.table_checks import check_table
from tidemill.store import Tx

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_LEASES = 3
"""How many times an append is tried if this process loses its lease each time."""


def append(
    context: PipelineContext,
    decl: DatasetDecl,
    rows: Any,
    *,
    operation: RowOperation,
    producer: str | None = None,
    seq: int | None = None,
) -> Receipt:
    """Make rows durable. They become visible at once, or when their interval closes.

    Args:
        context: the context of the pipeline.
        decl: the dataset.
        rows: as the user passed them.
        operation: append, upsert or delete.
        producer: the name of the sender; with `seq`, a repeated append returns the receipt of the first one.
        seq: the producer's number for this append.
    """
    if (producer is None) != (seq is None):
        raise UsageError("producer= and seq= must be used together", hint="pass both, or neither")
    body = _body_of(decl, rows, operation)
    identity = None
    if producer is not None and seq is not None:
        identity = Identity(producer, seq, body.digest(context))
    quarantine = quarantine_of(decl.id) if can_drop(decl.expected) else None
    _declare(context, decl, quarantine)
    for _ in range(MAX_LEASES):
        node = context.node
        attempt = context.scope.new_attempt()
        try:
            hold = context.publisher.begin_append(decl.id, attempt, identity, quarantine)
            if isinstance(hold, Receipt):
                return hold
            row, *quarantined = _write_lot(context, decl, body, hold)
            return context.publisher.commit_append(hold, row, identity, *quarantined)
        except LeaseLost:  # the machine slept, for example; nothing is published unless the attempt is
            if _is_published(context, attempt):
                raise
            context.wait_to_rejoin(node)
    raise StoreUnavailable(
        f"this process lost its lease {MAX_LEASES} times while it wrote {decl.dataset.name}",
        hint="append fewer rows at once, or find out why this process stalls",
    )


def check_rows(decl: DatasetDecl, rows: Any, operation: RowOperation) -> None:
    """Raise `AppendRefused` for rows that `append` would refuse."""
    _body_of(decl, rows, operation)


def replace(
    context: PipelineContext, decl: DatasetDecl, lot: str, rows: Any, *, generation: int | None = None
) -> Receipt:
    """Publish these rows as the next generation of a lot.

    Raise `CheckFailed` for rows that fail a check, even one that drops rows: a correction has no quarantine.

    - generation: the generation that the caller has read; raise `CorrectionRefused` if it is not the latest.
    """
    _refuse_keyed(decl, lot)
    body = _body_of(decl, rows, RowOperation.APPEND)
    hold = _begin_correction(context, decl, lot, generation=generation)
    (row,) = _write_lot(context, decl, body, hold)
    return _publish_correction(context, hold, row)


def remove(
    context: PipelineContext, decl: DatasetDecl, lot: str, *, why: str = "", generation: int | None = None
) -> Receipt:
    """Publish the next generation of a lot, without rows and marked as removed.

    - generation: as in `replace`.
    """
    _refuse_keyed(decl, lot)
    hold = _begin_correction(context, decl, lot, remove=True, generation=generation)
    return _publish_correction(context, hold, context.manifests.write_removal(hold, why or "removed"))


def _declare(context: PipelineContext, decl: DatasetDecl, quarantine: DatasetId | None = None) -> None:
    dataset = effective(decl.dataset)

    def step(tx: Tx) -> None:
        datasets.declare(tx, context.keys.lots, dataset, evolved)
        owners.declare(tx, context.keys.lots, dataset.id, context.pipeline)
        if quarantine is not None:
            bad = DatasetRow(name=quarantine.name, version=quarantine.version, schema=QUARANTINE_SCHEMA)
            datasets.declare(tx, context.keys.lots, effective(bad))
            owners.declare(tx, context.keys.lots, bad.id, context.pipeline)

    context.store.run(step)


def _is_published(context: PipelineContext, attempt: str) -> bool:
    try:
        row = context.store.run(lambda tx: attempts.read(tx, context.keys, attempt))
    except AttemptUnknown:
        return False
    return isinstance(row, Published)


def _refuse_keyed(decl: DatasetDecl, lot: str) -> None:
    if decl.dataset.kind is Kind.KEYED:
        raise CorrectionRefused(
            f"lot {lot} cannot be corrected, because {decl.id} has a key", hint="upsert the corrected rows"
        )


def _begin_correction(
    context: PipelineContext,
    decl: DatasetDecl,
    lot: str,
    *,
    remove: bool = False,
    generation: int | None = None,
) -> Hold:
    _declare(context, decl)
    hold = context.publisher.begin_correction(decl.id, lot, context.scope.new_attempt(), remove=remove)
    if generation is not None and hold.draft.generation != generation + 1:
        refused = CorrectionRefused(f"another process corrected lot {lot} of {decl.id} at the same time")
        context.publisher.abandon(hold, refused.message)
        raise refused
    return hold


def _publish_correction(context: PipelineContext, hold: Hold, row: LotRow) -> Receipt:
    try:
        position = context.publisher.publish(hold, [row]).positions[0]
    except LotConflict as conflict:
        context.publisher.abandon(hold, conflict.message)
        raise CorrectionRefused(
            f"another process corrected lot {row.lot} of {row.dataset} at the same time"
        ) from conflict
    wall_us = context.store.run(lambda tx: tx.wall())
    return Receipt(dataset=row.dataset, lot=row.lot, position=position, visible_at=wall_us)


def _write_lot(context: PipelineContext, decl: DatasetDecl, body: "Body", hold: Hold) -> list[LotRow]:
    """Write the rows and their manifests under our attempt; return a `LotRow` for each lot, to publish."""

    def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
        prefix, *quarantine = folders.values()
        checks = decl.expected if quarantine else without_drop(decl.expected)
        checked = body.write(context, prefix, "".join(quarantine), decl, checks)
        parts = zip(folders, (checked.rows, checked.quarantined), (checked.counts, {}), strict=False)
        return [
            SinkWritten(dataset=sink, objects=written.objects, rows=written.rows, checks=counts)
            for sink, written, counts in parts
        ]

    fingerprints = {hold.draft.targets[0].dataset: effective(decl.dataset).fingerprint}
    try:
        return context.manifests.write_lot(hold, write, fingerprints)
    except (AppendRefused, CheckFailed) as failed:
        context.publisher.abandon(hold, failed.message)
        raise


class Body:
    """The rows of one write, in the memory of this process."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def digest(self, context: PipelineContext) -> str:
        """Return a digest of the rows as the user passed them (LOT-36)."""
        return input_rows.digest(self._table)

    def write(
        self,
        context: PipelineContext,
        prefix: str,
        bad_prefix: str,
        decl: DatasetDecl,
        checks: Sequence[Check],
    ) -> Checked:
        """Write rows that pass the checks under `prefix`, and rows that checks drop under `bad_prefix`."""
        table, name, kind = self._table, decl.dataset.name, decl.dataset.kind
        if any(check.kind == "expect" for check in checks):  # Spark evaluates expressions
            with context.spark() as spark:
                ddl = operations.stored_schema(effective(decl.dataset).schema, kind)
                frame = spark.createDataFrame(table).to(schema.to_spark(schema.parse(ddl).stored()))
                folders = LotFolders(rows=prefix, bad=bad_prefix)
                return write_checked(frame, context.storage, folders, checks, table=name, kind=kind)
        checked = check_table(table, checks, kind)
        refuse(name, checks, checked.counts, checked.rows.num_rows)
        bad = write_table(checked.quarantined, context.objects, bad_prefix) if bad_prefix else Written()
        return Checked(
            rows=write_table(checked.rows, context.objects, prefix), quarantined=bad, counts=checked.counts
        )


class _FrameBody(Body):
    """The rows of one write, as a Spark DataFrame."""

    def __init__(self, frame: "DataFrame", table: str) -> None:
        self._frame = frame
        self._name = table

    @contextmanager
    def _spark_errors(self, context: PipelineContext) -> Iterator[None]:
        """Convert Spark errors inside the block to `AppendRefused`, for example if a value does not fit."""
        from pyspark.errors import PySparkException

        try:
            with context.spark():
                yield
        except PySparkException as error:
            text = " ".join(str(error).split("\n\nJVM stacktrace")[0].split())[:600]
            raise AppendRefused(f"the DataFrame for {self._name} cannot be written: {text}") from error

    def digest(self, context: PipelineContext) -> str:
        with self._spark_errors(context):
            return operations.digest(self._frame)

    def write(
        self,
        context: PipelineContext,
        prefix: str,
        bad_prefix: str,
        decl: DatasetDecl,
        checks: Sequence[Check],
    ) -> Checked:
        with self._spark_errors(context):
            return write_checked(
                self._frame,
                context.storage,
                LotFolders(rows=prefix, bad=bad_prefix),
                checks,
                table=decl.dataset.name,
                kind=decl.dataset.kind,
            )


def _body_of(decl: DatasetDecl, rows: Any, operation: RowOperation) -> Body:
    """Convert the user's rows to the columns of the table. Raise `AppendRefused` for rows that do not fit."""
    columns = schema.parse(effective(decl.dataset).schema)
    check_columns(decl.dataset)
    if operations.is_frame(rows):
        frame = operations.stored_frame(rows, schema.to_spark(columns.unlimited()), decl.dataset, operation)
        return _FrameBody(frame, decl.dataset.name)
    if is_session(rows):
        raise AppendRefused(
            f"a Spark session was passed as the rows for {decl.dataset.name}",
            hint="pass a DataFrame or other rows",
        )
    arrow = schema.to_arrow(columns)
    if operation is RowOperation.DELETE and decl.dataset.kind is Kind.KEYED:
        table = deletions(decl.dataset, rows, arrow)
    else:
        table = input_rows.to_table(rows, arrow, decl.dataset.name)
    return Body(operations.stored_table(table, decl.dataset, operation))
