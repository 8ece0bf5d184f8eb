"""List quarantined records, ingest corrected ones again, and discard others.

`ingest` appends the corrected records to their dataset, and then removes them from the quarantine. These are
two transactions. The append has the quarantine's lot as its producer and the lot's generation as its number
(LOT-36). So if the process dies in between, repeating the command does not store the records twice.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import AppendRefused, LotUnknown, NothingYet, ObjectMissing, UsageError
from tidemill.lots import lots
from tidemill.lots.checks import QUARANTINE_SCHEMA, quarantine_of
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.objects import Objects
from tidemill.pipeline import writes
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.pipeline.reader import stored_dataset
from tidemill.sources.json_objects import check_object
from tidemill.spark import schema
from tidemill.spark.input_rows import to_table
from tidemill.spark.operations import OP, ORDINAL, WEIGHT, RowOperation
from tidemill.spark.parquet_files import unreadable

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

PAGE = 500


class QuarantinedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record in the quarantine of a table.

    - version: the generation and layout of the lot when the record was read.
    - row: the number of the record in that version of the lot.
    - record: a JSON object if the record is one; otherwise its text; None if a whole file is unreadable.
    """

    lot: str
    version: str
    row: int
    error: str = ""
    check: str = ""
    file: str = ""
    line: int | None = None
    record: Any = None


def count(pipeline: "Pipeline") -> dict[str, int]:
    """Count the quarantined records of each table. Tables without such records are left out."""
    counts = {
        name.removesuffix("_quarantine"): sum(row.rows for row in _lot_rows(pipeline, name))
        for name in pipeline.quarantines
    }
    return {table: records for table, records in counts.items() if records}


def records(pipeline: "Pipeline", table: str, only: Sequence[str] = ()) -> Iterator[QuarantinedRecord]:
    """Yield the quarantined records of a table, from the given lots or from all lots."""
    rows = {row.lot: row for row in _lot_rows(pipeline, _quarantine(pipeline, table))}
    for lot in only or rows:
        row = _required(rows, table, lot)
        for number, values in enumerate(_contents(pipeline, row).to_pylist()):
            values |= {name: values[name] or "" for name in ("error", "check", "file")}
            values["record"] = _parsed(values["record"])
            yield QuarantinedRecord(lot=lot, version=_version(row), row=number, **values)


def ingest(pipeline: "Pipeline", table: str, corrected: Sequence[QuarantinedRecord]) -> dict[str, int]:
    """Append corrected records to their dataset, and remove them from the quarantine.

    Nothing is stored if one of the records does not fit the dataset, or is no longer in the quarantine.
    Return how many records of each lot were ingested.
    """
    name = _quarantine(pipeline, table)
    decl = pipeline.datasets.get(name.removesuffix("_quarantine"))
    if decl is None:
        raise UsageError(
            f"records cannot be ingested into {table}: an arc writes this table",
            hint="correct the rows that the arc reads, or fix the arc; then replay the arc's lots",
        )
    rows = {row.lot: row for row in _lot_rows(pipeline, name)}
    by_lot: dict[str, dict[int, dict[str, Any]]] = {}
    for record in corrected:
        row = _required(rows, table, record.lot)
        if record.version != _version(row) or not 0 <= record.row < row.rows:
            raise UsageError(
                f"record {record.row} of lot {record.lot} changed after it was exported", hint="export again"
            )
        by_lot.setdefault(record.lot, {})[record.row] = _object(record)
    operation = RowOperation.UPSERT if decl.dataset.kind is Kind.KEYED else RowOperation.APPEND
    writes.check_rows(decl, [row for entries in by_lot.values() for row in entries.values()], operation)
    for lot, entries in by_lot.items():
        row = rows[lot]
        writes.append(
            pipeline.context,
            decl,
            [entries[number] for number in sorted(entries)],
            operation=operation,
            producer=f"quarantine {lot}",
            seq=row.generation,
        )
        _remove(pipeline, name, row, set(entries))
    return {lot: len(entries) for lot, entries in by_lot.items()}


def discard(pipeline: "Pipeline", table: str, only: Sequence[str]) -> dict[str, int]:
    """Remove all records of the given lots from a table's quarantine; return how many each lot had."""
    name = _quarantine(pipeline, table)
    rows = {row.lot: row for row in _lot_rows(pipeline, name)}
    discarded = [_required(rows, table, lot) for lot in dict.fromkeys(only)]
    for row in discarded:
        _remove(pipeline, name, row, set(range(row.rows)))
    return {row.lot: row.rows for row in discarded}


def _quarantine(pipeline: "Pipeline", table: str) -> str:
    """Return the name of a table's quarantine; a user may also pass that name as `table`."""
    name = table if table in pipeline.quarantines else quarantine_of(DatasetId(table)).name
    if name not in pipeline.quarantines:
        owners = ", ".join(quarantine.removesuffix("_quarantine") for quarantine in pipeline.quarantines)
        raise UsageError(f"{table} has no quarantine", hint=f"tables with a quarantine: {owners or '(none)'}")
    return name


def _lot_rows(pipeline: "Pipeline", name: str) -> Iterator[LotRow]:
    """Yield the lots in a quarantine that contain records."""
    context, after = pipeline.context, ""
    try:
        dataset = stored_dataset(pipeline, name).id
    except NothingYet:
        return
    while True:
        page = context.store.run(
            lambda tx, after=after: lots.listed(tx, context.keys.lots, dataset, after, PAGE)  # type: ignore[misc]
        )
        yield from (row for row in page if row.rows)
        if len(page) < PAGE:
            return
        after = page[-1].lot


def _required(rows: dict[str, LotRow], table: str, lot: str) -> LotRow:
    if lot not in rows:
        raise LotUnknown(
            f"the quarantine of {table} has no records in lot {lot}",
            hint=f"see `tidemill quarantine show {table}`",
        )
    return rows[lot]


def _version(row: LotRow) -> str:
    return f"{row.generation}.{row.revision}"


def _contents(pipeline: "Pipeline", row: LotRow) -> pa.Table:
    """Read the records of a lot. Columns that a file lacks are NULL."""
    context, columns = pipeline.context, schema.to_arrow(schema.parse(QUARANTINE_SCHEMA))
    files = [_file(context.objects, item.uri) for item in context.manifests.lot_objects(row.manifest)]
    tables = [to_table(file, columns, row.dataset.name) for file in files]
    return pa.concat_tables([columns.empty_table(), *tables])


def _file(objects: Objects, key: str) -> pa.Table:
    try:
        table = pq.read_table(io.BytesIO(objects.get(key)[0]))
        table.validate(full=True)
    except ObjectMissing as error:
        raise unreadable(key, "it does not exist") from error
    except MemoryError:
        raise  # also Arrow's: the file is not the cause
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(key, f"it is not a complete Parquet file: {error}") from error
    return table


def _parsed(text: str | None) -> Any:
    """Parse a record as a JSON object, without Tidemill's own columns; return any other record as text.

    Python's parser accepts values that a file of records cannot hold: NaN, halves of surrogate pairs, deep
    nesting. A record with such a value stays text.
    """
    try:
        value = json.loads(text or "")
        if not isinstance(value, dict):
            return text
        if msgspec.json.decode(msgspec.json.encode(check_object(value))) != value:
            return text
    except (ValueError, RecursionError, AppendRefused):
        return text
    own = {OP: RowOperation.UPSERT.value, WEIGHT: 1, ORDINAL: value.get(ORDINAL)}
    return {name: item for name, item in value.items() if name not in own or item != own[name]}


def _object(record: QuarantinedRecord) -> dict[str, Any]:
    if not isinstance(record.record, dict):
        raise AppendRefused(
            f"record {record.row} of lot {record.lot} is not a JSON object",
            hint='write it as an object, for example "record": {"id": 1}, or remove its line',
        )
    return record.record


def _remove(pipeline: "Pipeline", name: str, row: LotRow, numbers: set[int]) -> None:
    """Remove records from a quarantine lot, by publishing its next generation without them."""
    dataset = stored_dataset(pipeline, name)
    decl = DatasetDecl(dataset=dataset, schema=dataset.schema, line=pipeline.quarantines[name])
    kept = [number for number in range(row.rows) if number not in numbers]
    if kept:
        rows = _contents(pipeline, row).take(kept)
        writes.replace(pipeline.context, decl, row.lot, rows, generation=row.generation)
    else:
        writes.remove(pipeline.context, decl, row.lot, why="resolved", generation=row.generation)
