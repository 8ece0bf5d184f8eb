"""Appends: rows of a producer become a lot, or wait for their interval to close (LOT-36, LOT-40 to LOT-42).

Rows that are in this process are written from here, without Spark; a Spark DataFrame is written by Spark.
The attempt's row is there before the first object, so a crash at any moment leaves either a lot, or something
that the cleaner finds. An append with a producer and a number may be repeated: it is taken once.
"""

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tidemill.errors import AppendRefused, UsageError
from tidemill.lots import datasets, layout
from tidemill.lots.datasets import Dataset, Kind
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Identity, Receipt
from tidemill.pipeline import rows as given
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.pipeline.site import Site, is_session
from tidemill.publish.attempts import Hold
from tidemill.publish.parts import PartDone, PartSink, PartTask, SinkWritten
from tidemill.spark import operations, schema
from tidemill.spark.writing import Written, write_frame, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        identity = Identity(producer, seq, body.digest())
    dataset = spelled(decl.dataset)
    site.store.run(lambda tx: datasets.declare(tx, site.keys.lots, dataset))
    door = site.door
    attempt = site.new_attempt()
    hold = door.begin_append(decl.id, attempt, identity)
    if isinstance(hold, Receipt):
        return hold
    return _written(site, decl, body, hold, identity)


def _written(site: Site, decl: DatasetDecl, body: "Body", hold: Hold, identity: Identity | None) -> Receipt:
    return site.door.commit_append(hold, made(site, decl, body, hold), identity)


def made(site: Site, decl: DatasetDecl, body: "Body", hold: Hold) -> LotRow:
    """Write rows and what lists them, under an attempt of ours; the row to publish."""
    target = hold.draft.targets[0]
    manifests = site.manifests
    manifests.intend(hold)
    prefix = layout.data_prefix(target.dataset.name, target.dataset.version, target.lot, hold.draft.id)
    written = body.write(site, prefix)
    done = PartDone(
        task=PartTask(
            kind="append",
            pipeline="",
            author=hold.draft.author,
            code=hold.draft.code,
            attempt=hold.draft.id,
            lot=target.lot,
            generation=target.generation,
            key="",
            sinks=(PartSink(dataset=target.dataset),),
        ),
        written=(SinkWritten(dataset=target.dataset, objects=written.objects, rows=written.rows),),
    )
    prints = {target.dataset: spelled(decl.dataset).fingerprint}
    part = manifests.part_made(hold, done, alone=True, fingerprints=prints)
    return manifests.finish(hold, [part], prints)[0]


def spelled(dataset: Dataset) -> Dataset:
    """A declaration with its schema in the one spelling that is compared and stored."""
    columns = schema.parse(dataset.schema)
    return msgspec.structs.replace(dataset, schema=str(columns), fingerprint=columns.fingerprint)


class Body:
    """Rows that are here."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def digest(self) -> str:
        return given.digest(self._table)

    def write(self, site: Site, prefix: str) -> Written:
        return write_table(self._table, site.objects, prefix)


class _FrameBody(Body):
    """Rows that Spark has."""

    def __init__(self, frame: "DataFrame") -> None:
        self._frame = frame

    def digest(self) -> str:
        return operations.digest(self._frame)

    def write(self, site: Site, prefix: str) -> Written:
        with site.spark():
            return write_frame(self._frame, site.storage, site.objects, prefix)


def body_of(decl: DatasetDecl, rows: Any, operation: operations.Operation) -> Body:
    """Rows as people have them, in the columns of their table; `AppendRefused` for those that do not fit."""
    declared = schema.parse(decl.schema)
    if operations.is_frame(rows):
        return _FrameBody(operations.stored_frame(rows, schema.to_spark(declared), decl.dataset, operation))
    if is_session(rows):
        raise AppendRefused(f"a Spark session is not rows for {decl.dataset.name}")
    wanted = schema.to_arrow(declared)
    if operation is operations.Operation.DELETE and decl.dataset.kind is Kind.KEYED:
        wanted_keys = pa.schema([field for field in wanted if field.name in decl.dataset.key])
        table = given.to_table(_keys_only(rows, wanted_keys.names), wanted_keys, decl.dataset.name)
        full = [
            table.column(field.name) if field.name in wanted_keys.names else pa.nulls(len(table), field.type)
            for field in wanted
        ]
        table = pa.table(full, schema=wanted)
    else:
        table = given.to_table(rows, wanted, decl.dataset.name)
    return Body(operations.stored_table(table, decl.dataset, operation))


def _keys_only(rows: Any, names: list[str]) -> Any:
    """What is deleted by key may be given as whole rows, as keys, or, if the key is one column, as values."""
    if isinstance(rows, list | tuple | set | frozenset):
        return [_key_of(row, names) for row in rows]
    if isinstance(rows, pa.Table):
        return rows.select([name for name in rows.column_names if name in names])
    return rows


def _key_of(row: Any, names: list[str]) -> Any:
    if isinstance(row, dict):
        return {name: value for name, value in row.items() if name in names}
    if len(names) == 1 and not isinstance(row, list | tuple):
        return (row,)
    return row
