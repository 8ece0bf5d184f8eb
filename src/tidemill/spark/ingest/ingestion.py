"""Ingest files that other programs wrote: good records become rows, bad ones go to quarantine.

A small window of good records needs no Spark (`arrow_ingestion`). Otherwise one pass writes the good records
and counts the bad ones. If there are bad records, a second pass reads their files again, finds their lines
and gives a reason for each. A file that cannot be read goes to quarantine as a whole. If a compressed file is
truncated, the lines before the damage become rows, and the rest goes to quarantine. So nothing is lost.

**Strict.** Spark reads `{"a": 1}{"a": 2}` as one record and drops the second object. Here such a line is bad,
and so is an object followed by any other text. A number in a STRING column becomes a string. Any other value
that does not have the declared type is bad. A column that a record lacks is NULL.

**Drift.** The drift policy decides what happens to undeclared columns. `freeze` leaves them out, and counts
the records that have any. `evolve` adds them to the declared ones. `rescue` keeps them as JSON in the column
`_rescued`, together with values that do not have the declared type. See `undeclared_columns`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from tidemill.errors import BadSource, SourceFileChanged, SourceMiscounted
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Drift, Kind
from tidemill.schemas.columns import Schema
from tidemill.spark import drift, operations
from tidemill.spark import schema as schemas
from tidemill.spark.frame_checks import Checked, LotFolders, refuse, write_checked
from tidemill.spark.ingest import csv_headers, foreign_files, record_order, undeclared_columns
from tidemill.spark.ingest.arrow_ingestion import (
    MOST_BYTES,
    MOST_BYTES_BESIDE_SPARK,
    check_plain,
    read_plain,
)
from tidemill.spark.ingest.bad_records import BadRecords, IngestFaults, is_keyless
from tidemill.spark.ingest.csv_headers import CsvHeader, FileGroup
from tidemill.spark.ingest.foreign_files import ForeignFile, Salvaged
from tidemill.spark.ingest.formats import Format, FormatOptions, why_not_read
from tidemill.spark.ingest.line_numbers import FILE, TEXT
from tidemill.spark.ingest.origin_columns import NO_ORIGIN, FileOrigin
from tidemill.spark.ingest.record_errors import HALF_SURROGATE, has_half_surrogate
from tidemill.spark.ingest.records import (
    BAD,
    NUMBER,
    PARSED,
    PLACE,
    RESCUED,
    UNKNOWN,
    RecordReader,
)
from tidemill.spark.lot_writer import Written, write_frame, write_table
from tidemill.spark.on_demand import is_started
from tidemill.spark.queries import quoted
from tidemill.spark.storage import Storage
from tidemill.spark.table_checks import evaluator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Session: TypeAlias = SparkSession  # for packages that do not import pyspark

Write = Callable[["DataFrame", str], Written]
"""Writes the rows of a frame. The string is the name of a subfolder for a retry; empty for the first try."""


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ingestion.

    - rows, quarantined: the written objects.
    - checks: how many rows failed each check, and how many records drifted.
    - schema: the columns of the rows, as DDL, if they differ from the declared ones; otherwise empty.
    """

    rows: Written
    quarantined: Written = Written()
    checks: dict[str, int] = {}
    schema: str = ""


class IngestColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a dataset (as DDL), its kind, key, checks and drift policy, and the source."""

    schema: str
    kind: Kind = Kind.ROWS
    key: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    table: str = ""
    drift: Drift = Drift.FREEZE
    origin: FileOrigin = NO_ORIGIN


def ingest(
    spark: "SparkSession",
    storage: Storage,
    folders: LotFolders,
    dataset: IngestColumns,
    format_options: FormatOptions,
    files: Sequence[ForeignFile],
    *,
    options: Mapping[str, str],
    open_file: Callable[[str], BinaryIO],
    careful: bool = False,
) -> Ingested:
    """Read files, and write their records as objects of a lot.

    Args:
        spark: the session.
        storage: the object storage of lots.
        folders: where to write.
        dataset: the columns of the rows.
        format_options: how to read the files.
        files: the files.
        options: options that Spark needs to reach the files.
        open_file: opens a file by its path.
        careful: look for lines that are too long before Spark reads the files, because an earlier try failed:
            a line that does not fit into memory ends Java.
    """
    ingested = _ingest_plain(spark, storage, folders, dataset, format_options, files, open_file)
    if ingested is not None:
        return ingested

    refused: dict[str, str] = {}
    if careful and format_options.by_lines:
        refused = foreign_files.with_long_lines(files, open_file)
        files = [file for file in files if file.path not in refused]

    def find_undeclared(declared: Schema) -> list[schemas.Column]:
        columns = schemas.to_spark(dataset.origin.columns.without(declared).unlimited())
        return undeclared_columns.find(
            spark, columns, format_options, files, options=options, open_file=open_file
        )

    columns = _resolve_columns(
        schemas.analysed(spark, dataset.schema), dataset, format_options, find_undeclared
    )
    ingestion = Ingestion(
        spark,
        schemas.to_spark(dataset.origin.columns.without(columns.stored.unlimited())),
        format_options,
        options=options,
        open_file=open_file,
        kind=dataset.kind,
        key=dataset.key,
        rescues=dataset.drift is Drift.RESCUE,
        undeclared=columns.rescued,
        origin=dataset.origin,
        names=columns.stored.names,
    )
    writer = _LotWriter(storage, folders, dataset)
    ingested = ingestion.run(files, writer.write_rows, writer.write_bad, refused)
    bad, removed = ingested.quarantined, writer.checked.quarantined
    return Ingested(
        rows=ingested.rows,
        quarantined=Written(bad.objects + removed.objects, bad.rows + removed.rows),
        checks={**ingested.checks, **writer.checked.counts},
        schema=str(columns.stored) if columns.stored != columns.declared else "",
    )


def _ingest_plain(
    spark: "SparkSession",
    storage: Storage,
    folders: LotFolders,
    dataset: IngestColumns,
    format_options: FormatOptions,
    files: Sequence[ForeignFile],
    open_file: Callable[[str], BinaryIO],
) -> Ingested | None:
    """Ingest a small window without a Spark job; return None if Spark must read it."""
    most_bytes = MOST_BYTES_BESIDE_SPARK if is_started(spark) else MOST_BYTES
    if dataset.drift is not Drift.FREEZE or folders.partition_by:
        return None
    if sum(file.size for file in files) > most_bytes:
        return None
    declared = schemas.parse(dataset.schema)
    read = read_plain(declared, dataset.kind, dataset.key, format_options, files, open_file, dataset.origin)
    checked = None if read is None else check_plain(read.rows, dataset.checks, dataset.kind, evaluator(spark))
    if read is None or checked is None:
        return None
    refuse(dataset.table, dataset.checks, checked.counts, checked.rows.num_rows)
    unknown = {"unknown_columns": read.unknown} if read.unknown else {}
    return Ingested(
        rows=write_table(checked.rows, storage.objects, folders.rows), checks={**unknown, **checked.counts}
    )


class _Columns(NamedTuple):
    """The declared columns, the columns of the rows, and undeclared columns whose values are rescued."""

    declared: Schema
    stored: Schema
    rescued: Sequence[schemas.Column] = ()


def _resolve_columns(
    declared: Schema,
    dataset: IngestColumns,
    format_options: FormatOptions,
    find_undeclared: Callable[[Schema], Sequence[schemas.Column]],
) -> _Columns:
    """Apply the dataset's drift policy to the columns of the files."""
    if dataset.drift is Drift.RESCUE:
        declared = Schema(tuple(column for column in declared.columns if column.name != drift.RESCUED))
        # Lines and CSV records are rescued one by one, without reading undeclared columns.
        by_record = format_options.format is Format.CSV or format_options.by_lines
        columns = _Columns(declared, declared, () if by_record else find_undeclared(declared))
    elif dataset.drift is Drift.EVOLVE:
        columns = _Columns(declared, drift.added(declared, find_undeclared(declared)))
    else:
        columns = _Columns(declared, declared)
    of_files = dataset.origin.columns.without(columns.stored)
    types = [str(column.type) for column in of_files.columns]
    if format_options.format is Format.TEXT and types != ["string"]:
        raise BadSource(
            f"format='text' needs exactly one STRING column, but the columns are {', '.join(of_files.names)}",
            hint="declare one column of type STRING",
        )
    for column in of_files.unlimited().columns:
        reason = why_not_read(format_options.format, column.type)
        if reason:
            raise BadSource(
                f"column {column.name} cannot be read from {format_options.format} files: {reason}",
                hint="declare another type, for example STRING, and convert it in an arc or a view",
            )
    return columns


class _LotWriter:
    """Writes the rows and the bad records of one ingestion.

    `checked` is the result of the last call of `write_rows`.
    """

    def __init__(self, storage: Storage, folders: LotFolders, dataset: IngestColumns) -> None:
        self._storage = storage
        self._folders = folders
        self._dataset = dataset
        self.checked = Checked(rows=Written())

    def write_rows(self, frame: "DataFrame", folder: str) -> Written:
        folders = LotFolders(
            rows=self._folders.rows + folder,
            bad=f"{self._folders.bad}{folder}checks/",
            partition_by=self._folders.partition_by,
        )
        dataset = self._dataset
        self.checked = write_checked(
            frame, self._storage, folders, dataset.checks, table=dataset.table, kind=dataset.kind
        )
        return self.checked.rows

    def write_bad(self, frame: "DataFrame", folder: str) -> Written:
        return write_frame(frame, self._storage, self._folders.bad + folder)


class Ingestion:
    """Ingests the files of one window.

    Args:
        spark: the session.
        schema: the columns of the dataset that the files contain.
        format_options: how to read the files.
        options: options that Spark needs to reach the files.
        open_file: opens a file by its path, to read headers and truncated files.
        kind: the kind of the dataset; records are appended, or upserted if it has a key.
        key: the key columns; a record in which one of them is NULL is bad (LOT-40).
        rescues: whether the dataset keeps values that do not fit, in `_rescued`.
        undeclared: columns that are not declared, and whose values are rescued.
        origin: the columns that say where a row comes from.
        names: the names of all columns of the dataset, in their order.
    """

    def __init__(
        self,
        spark: "SparkSession",
        schema: "StructType",
        format_options: FormatOptions,
        *,
        options: Mapping[str, str],
        open_file: Callable[[str], BinaryIO],
        kind: Kind = Kind.ROWS,
        key: Sequence[str] = (),
        rescues: bool = False,
        undeclared: Sequence[schemas.Column] = (),
        origin: FileOrigin = NO_ORIGIN,
        names: Sequence[str] = (),
    ) -> None:
        self._spark = spark
        self._schema = schema
        self._format_options = format_options
        self._open = open_file
        self._kind = kind
        self._origin = origin
        self._key = tuple(name for name in key if name not in origin.columns.names)  # those are never NULL
        self._names = tuple(names)
        self._rescues = rescues
        self._records = RecordReader(
            spark,
            schema,
            format_options,
            options=options,
            kind=kind,
            rescues=rescues,
            undeclared=undeclared,
            numbers=bool(origin.columns.line),
        )

    def run(
        self,
        files: Sequence[ForeignFile],
        write_rows: Write,
        write_bad: Write,
        unreadable: Mapping[str, str] = MappingProxyType({}),
    ) -> Ingested:
        """Write good records with `write_rows` and bad ones with `write_bad`.

        - unreadable: the reason for each other file of the window, which goes to quarantine unread.
        """
        from pyspark.sql import Observation

        refused = dict(unreadable)
        truncated: dict[str, Salvaged] = {}
        groups = self._inspected(files, refused)
        attempts = 0
        while True:
            readable = [file for group in groups for file in group.files]
            counted = Observation()
            try:
                frame = self._good(groups, truncated, counted)
                folder = f"try-{attempts}/" if attempts else ""
                written = Written() if frame is None else write_rows(frame, folder)
                break
            except Exception as error:
                file = foreign_files.failed_file(error, readable) or self._failing(error, readable)
                if file is None or file.path in truncated:
                    raise
                groups = [csv_headers.without(group, file) for group in groups]
                self._set_aside(file, error, refused, truncated, groups)
                attempts += 1
        counts = {} if frame is None else counted.get
        faults = IngestFaults(refused, truncated, int(counts.get("bad", 0)), int(counts.get("keyless", 0)))
        drifted = {
            "unknown_columns": int(counts.get("unknown", 0)) + self._unknown_in_parquet(readable),
            "rescued": int(counts.get("rescued", 0)),
        }
        checks = {name: count for name, count in drifted.items() if count}
        if not faults.total:
            return Ingested(rows=written, checks=checks)
        finder = BadRecords(self._spark, self._schema, self._format_options, self._records, self._key)
        quarantined = write_bad(finder.find(groups, faults), "records/")
        if quarantined.rows != faults.total:
            raise SourceMiscounted(
                f"the first pass counted {faults.total} bad records,"
                f" but the second one counted {quarantined.rows}"
            )
        return Ingested(rows=written, quarantined=quarantined, checks=checks)

    def _unknown_in_parquet(self, files: Sequence[ForeignFile]) -> int:
        """Count the rows of those Parquet files that have undeclared columns."""
        if self._format_options.format is not Format.PARQUET or self._rescues:
            return 0
        return undeclared_columns.count_in_parquet(files, self._schema, self._open)

    # --- files

    def _inspected(self, files: Sequence[ForeignFile], refused: dict[str, str]) -> list[FileGroup]:
        """Group files that are read in the same way. Refuse files with a broken header or footer."""
        format_options = self._format_options
        if format_options.format is Format.PARQUET:
            for file in files:
                fault = foreign_files.parquet_fault(file.size, lambda path=file.path: self._open(path))  # type: ignore[misc]
                if fault:
                    refused[file.path] = fault
        elif format_options.format is Format.JSON and not format_options.by_lines:
            refused |= dict.fromkeys(self._half_surrogates(files), HALF_SURROGATE)
        elif format_options.format is Format.CSV and format_options.header:
            return csv_headers.grouped(files, self._schema, format_options, self._open, refused)
        return [FileGroup(None, tuple(file for file in files if file.path not in refused))]

    def _half_surrogates(self, files: Sequence[ForeignFile]) -> list[str]:
        """Return the files of objects with several lines in which a text has half of a surrogate pair.

        Spark would replace it, and does not say in which object. A JSON text cannot span lines.
        """
        lines = self._records.lines(files, truncated=True)
        rows = lines.where(has_half_surrogate(lines[TEXT])).select(FILE).distinct().collect()
        with_halves = {foreign_files.one_spelling(unquote(row[0])) for row in rows}
        return [file.path for file in files if foreign_files.one_spelling(file.uri) in with_halves]

    def _set_aside(
        self,
        file: ForeignFile,
        error: Exception,
        refused: dict[str, str],
        truncated: dict[str, Salvaged],
        groups: list[FileGroup],
    ) -> None:
        """Set aside a file that a job failed on, as refused or truncated.

        Raise the error instead if the cause is the access to the file, and not its content.
        """
        if foreign_files.is_missing(error):
            raise SourceFileChanged(f"{file.path} disappeared") from error
        if foreign_files.is_unreachable(error):
            raise error
        again = self._error_of(file)
        if again is None:
            raise error  # the file can be read on its own: a retry may succeed
        salvaged = (
            foreign_files.salvage_gzip(file.path, self._open) if self._format_options.by_lines else None
        )
        if salvaged is not None and salvaged.lines and salvaged.lines == self._count_lines(file):
            truncated[file.path] = salvaged
            groups.append(
                FileGroup(_header_of(file, self._schema, self._format_options, self._open), (file,))
            )
        else:
            refused[file.path] = foreign_files.reason(again)

    def _failing(self, error: Exception, files: Sequence[ForeignFile]) -> ForeignFile | None:
        """Return the file that a job failed on, if Spark's error does not name it: read each file alone."""
        if not foreign_files.is_of_spark(error) or foreign_files.is_unreachable(error):
            return None
        return next((file for file in files if self._error_of(file) is not None), None)

    def _count_lines(self, file: ForeignFile) -> int:
        """Count the lines that Spark can read from a truncated file."""
        return self._records.lines([file], truncated=True).count()

    def _error_of(self, file: ForeignFile) -> Exception | None:
        """Read one file; return the error that Spark raises, or None if it raises none."""
        header = _header_of(file, self._schema, self._format_options, self._open)
        try:
            frame = self._records.read(FileGroup(header, (file,)), truncated=False)
            frame.write.format("noop").mode("overwrite").save()
        except Exception as error:  # noqa: BLE001 - it is the result
            return error
        return None

    # --- good records

    def _good(
        self, groups: Sequence[FileGroup], truncated: Mapping[str, Salvaged], counted: object
    ) -> "DataFrame | None":
        """Return the rows of the good records, and count the bad ones. Return None if there are no files."""
        from pyspark.sql import functions as sf

        records = self._records.read_all(groups, truncated)
        if records is None:
            return None
        bad, keyless = sf.col(BAD), is_keyless(self._key)
        # The observation comes right after parsing, so that each record is parsed only once.
        observed = records.observe(
            counted,  # type: ignore[arg-type]
            sf.count_if(bad).alias("bad"),
            sf.count_if(~bad & keyless).alias("keyless"),
            sf.count_if(~bad & sf.col(UNKNOWN)).alias("unknown"),
            sf.count_if(~bad & sf.col(RESCUED).isNotNull()).alias("rescued"),
        )
        rows = observed.where(~bad & ~keyless)
        files = [file for group in groups for file in group.files]
        if self._kind is Kind.KEYED or self._origin.columns.file:
            rows = record_order.with_files(rows, FILE, files, self._spark)
        filled = {
            self._origin.columns.file: sf.col("file"),
            self._origin.columns.line: sf.col(NUMBER),
            self._origin.columns.arrived: sf.timestamp_micros(sf.lit(self._origin.arrived_us)),
        }
        columns = [
            filled[name].alias(name) if name in filled else sf.col(f"{PARSED}.{quoted(name)}")
            for name in self._names or self._schema.names
        ]
        if self._rescues:
            columns.append(sf.col(RESCUED).alias(drift.RESCUED))
        if self._kind is Kind.CHANGES:
            columns.append(sf.lit(1).cast("bigint").alias(operations.WEIGHT))
        if self._kind is Kind.KEYED:
            columns.append(sf.lit(operations.RowOperation.UPSERT.value).alias(operations.OP))
            columns.append(record_order.ordinal(PLACE).alias(operations.ORDINAL))
        return rows.select(*columns)


def _header_of(
    file: ForeignFile,
    schema: "StructType",
    format_options: FormatOptions,
    open_file: Callable[[str], BinaryIO],
) -> CsvHeader | None:
    if format_options.format is not Format.CSV or not format_options.header:
        return None
    groups = csv_headers.grouped([file], schema, format_options, open_file, {})
    return groups[0].header if groups else None
