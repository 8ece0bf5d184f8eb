"""Appends: rows of a producer become a lot, or wait for their interval to close (LOT-36, LOT-40 to LOT-42).

Rows that are in this process are written from here, without Spark; a Spark DataFrame is written by Spark.
The attempt's row is there before the first object, so a crash at any moment leaves either a lot, or something
that the cleaner finds. An append with a producer and a number may be repeated: it is taken once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import (
    AppendRefused,
    AttemptUnknown,
    CheckFailed,
    LeaseLost,
    StoreUnavailable,
    UsageError,
)
from tidemill.lots import datasets
from tidemill.lots.checks import QUARANTINE_SCHEMA, Check, drops, quarantine_of, strict
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Identity, Receipt
from tidemill.pipeline.context import Site, is_session
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.pipeline.plan import datasets as keyed
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold, Published
from tidemill.publish.parts import SinkWritten
from tidemill.spark import input_rows as given
from tidemill.spark import operations, schema
from tidemill.spark.drift import effective, evolved
from tidemill.spark.frame_checks import Checked, refuse, write_checked
from tidemill.spark.lot_writer import Written, write_table
from tidemill.spark.table_checks import check_table
from tidemill.store import Tx

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEASES = 3
"""How often an append is made anew because the lease of this process was lost on the way."""


def append(
    site: Site,
    decl: DatasetDecl,
    rows: Any,
    *,
    operation: operations.Operation,
    producer: str | None = None,
    seq: int | None = None,
) -> Receipt:
    """Make rows durable, and visible at once or when their interval closes.

    - operation: what is done with the rows: appended, upserted or deleted.
    - producer, seq: who sends this, and the how-manieth it is: the same again is answered as the first time.
    """
    if (producer is None) != (seq is None):
        raise UsageError("producer= and seq= go together", hint="give both, or neither")
    body = body_of(decl, rows, operation)
    identity = None
    if producer is not None and seq is not None:
        identity = Identity(producer, seq, body.digest(site))
    dataset = spelled(decl.dataset)
    quarantine = quarantine_of(decl.id) if drops(decl.expected) else None

    def declare(tx: Tx) -> None:
        datasets.declare(tx, site.keys.lots, dataset, evolved)
        if quarantine is not None:
            bad = Dataset(name=quarantine.name, version=quarantine.version, schema=QUARANTINE_SCHEMA)
            datasets.declare(tx, site.keys.lots, spelled(bad))

    site.store.run(declare)
    for _ in range(LEASES):
        node = site.node
        attempt = site.scope.new_attempt()
        try:
            hold = site.publisher.begin_append(decl.id, attempt, identity, quarantine)
            if isinstance(hold, Receipt):
                return hold
            return _written(site, decl, body, hold, identity)
        except LeaseLost:  # this machine slept, say: nothing was published, unless the attempt says so
            if not site.store.run(lambda tx, attempt=attempt: _is_unpublished(tx, site, attempt)):  # type: ignore[misc]
                raise
            site.wait_to_join_again(node)
    raise StoreUnavailable(
        f"the lease of this process was lost {LEASES} times while {decl.dataset.name} was written",
        hint="append less at once, or see why this process comes to a halt",
    )


def _is_unpublished(tx: Tx, site: Site, attempt: str) -> bool:
    try:
        return not isinstance(attempts.read(tx, site.keys, attempt), Published)
    except AttemptUnknown:
        return True


def _written(site: Site, decl: DatasetDecl, body: "Body", hold: Hold, identity: Identity | None) -> Receipt:
    row, *out = _made(site, decl, body, hold)
    return site.publisher.commit_append(hold, row, identity, *out)


def made(site: Site, decl: DatasetDecl, body: "Body", hold: Hold) -> LotRow:
    """Write rows and what lists them, under an attempt of ours; the row to publish.

    `CheckFailed` for rows that fail a check, also one that would take them out: there is no place for them.
    """
    return _made(site, decl, body, hold)[0]


def _made(site: Site, decl: DatasetDecl, body: "Body", hold: Hold) -> list[LotRow]:
    try:
        return _checked(site, decl, body, hold)
    except (AppendRefused, CheckFailed) as failed:
        site.publisher.abandon(hold, failed.message)
        raise


def _checked(site: Site, decl: DatasetDecl, body: "Body", hold: Hold) -> list[LotRow]:
    def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
        prefix, *quarantine = folders.values()
        checks = decl.expected if quarantine else strict(decl.expected)
        checked = body.write(site, prefix, "".join(quarantine), decl, checks)
        parts = zip(folders, (checked.rows, checked.quarantined), (checked.counts, {}), strict=False)
        return [
            SinkWritten(dataset=sink, objects=written.objects, rows=written.rows, checks=counts)
            for sink, written, counts in parts
        ]

    fingerprints = {hold.draft.targets[0].dataset: spelled(decl.dataset).fingerprint}
    return site.manifests.write_lot(hold, write, fingerprints)


def spelled(dataset: Dataset) -> Dataset:
    """A declaration with its schema in the one spelling that is compared and stored."""
    return effective(dataset)


class Body:
    """Rows that are here."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def digest(self, site: Site) -> str:
        """Of the rows as they were given (LOT-36)."""
        return given.digest(self._table)

    def write(
        self, site: Site, prefix: str, bad_prefix: str, decl: DatasetDecl, checks: Sequence[Check]
    ) -> Checked:
        """Keep the rows that pass the checks in one folder, and those that are taken out in another."""
        table, name, kind = self._table, decl.dataset.name, decl.dataset.kind
        if any(one.kind == "expect" for one in checks):  # expressions are Spark's
            with site.spark() as spark:
                wanted = operations.stored_schema(spelled(decl.dataset).schema, kind)
                frame = spark.createDataFrame(table).to(schema.to_spark(schema.parse(wanted).stored()))
                return write_checked(
                    frame, site.storage, site.objects, prefix, bad_prefix, checks, table=name, kind=kind
                )
        checked = check_table(table, checks, kind)
        refuse(name, checks, checked.counts, checked.rows.num_rows)
        bad = write_table(checked.quarantined, site.objects, bad_prefix) if bad_prefix else Written()
        return Checked(
            rows=write_table(checked.rows, site.objects, prefix), quarantined=bad, counts=checked.counts
        )


class _FrameBody(Body):
    """Rows that Spark has."""

    def __init__(self, frame: "DataFrame", table: str) -> None:
        self._frame = frame
        self._name = table

    @contextmanager
    def _readable(self, site: Site) -> Iterator[None]:
        """Inside of it Spark computes the frame: what it says of a value that does not fit is a refusal."""
        from pyspark.errors import PySparkException

        try:
            with site.spark():
                yield
        except PySparkException as error:
            said = " ".join(str(error).split("\n\nJVM stacktrace")[0].split())[:600]
            raise AppendRefused(f"the frame for {self._name} cannot be taken: {said}") from error

    def digest(self, site: Site) -> str:
        with self._readable(site):
            return operations.digest(self._frame)

    def write(
        self, site: Site, prefix: str, bad_prefix: str, decl: DatasetDecl, checks: Sequence[Check]
    ) -> Checked:
        name, kind = decl.dataset.name, decl.dataset.kind
        with self._readable(site):
            return write_checked(
                self._frame, site.storage, site.objects, prefix, bad_prefix, checks, table=name, kind=kind
            )


def body_of(decl: DatasetDecl, rows: Any, operation: operations.Operation) -> Body:
    """Rows as people have them, in the columns of their table; `AppendRefused` for those that do not fit."""
    declared = schema.parse(spelled(decl.dataset).schema)
    keyed.check_columns(decl.dataset)
    if operations.is_frame(rows):
        frame = operations.stored_frame(rows, schema.to_spark(declared), decl.dataset, operation)
        return _FrameBody(frame, decl.dataset.name)
    if is_session(rows):
        raise AppendRefused(f"a Spark session is not rows for {decl.dataset.name}")
    wanted = schema.to_arrow(declared)
    if operation is operations.Operation.DELETE and decl.dataset.kind is Kind.KEYED:
        table = keyed.deletions(decl.dataset, rows, wanted)
    else:
        table = given.to_table(rows, wanted, decl.dataset.name)
    return Body(operations.stored_table(table, decl.dataset, operation))
