"""Ingest small files without Spark, where the rows are certainly those that Spark would read.

Most windows are small: Spark needs longer to plan their job than Arrow to read them, and seconds to start.
So this module reads a window itself if every record of it is good and plain (`plain_records`), and if the
checks of the dataset remove no row. In any other case it returns None, and Spark reads the window: it finds
bad records, gives the reasons, and reads every spelling of a value.
"""

from collections.abc import Callable, Sequence
from typing import BinaryIO, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from tidemill.lots.checks import Check
from tidemill.lots.datasets import Kind
from tidemill.schemas.columns import Column, Schema
from tidemill.spark import operations, table_checks
from tidemill.spark.ingest import csv_headers
from tidemill.spark.ingest.foreign_files import ForeignFile
from tidemill.spark.ingest.formats import Format, FormatOptions, compression_of
from tidemill.spark.ingest.origin_columns import NO_ORIGIN, FileOrigin
from tidemill.spark.ingest.plain_records import (
    NotPlain,
    converter,
    csv_values,
    json_objects,
    json_text,
    lines_of,
)
from tidemill.spark.ingest.record_order import PLACE_BITS
from tidemill.spark.schema import to_arrow
from tidemill.spark.table_checks import CheckedTable, Evaluate

MOST_BYTES: Final = 8 * 1024**2
"""The largest window that is read here; reading a plain record takes about 10 microseconds."""

MOST_BYTES_BESIDE_SPARK: Final = 1024**2
"""The same, if Spark has been started."""

MOST_PARQUET_VALUES: Final = 16 * 1024**2
MOST_PARQUET_BYTES: Final = 256 * 1024**2
"""The largest table of a Parquet file that is read here. A file of a few kilobytes may repeat a value a
billion times; Spark never has all of its rows in memory."""

_BLANKS: Final = "".join(map(chr, range(33)))
"""The characters that Java's `trim` removes."""

_FIRST_DAY: Final = -25567  # 1900-01-01, in days since 1970
_MICROSECONDS_A_DAY: Final = 86_400_000_000

Open = Callable[[str], BinaryIO]


class PlainRows(NamedTuple):
    """The rows of a window, and how many of its records have columns that are not declared."""

    rows: pa.Table
    unknown: int


def read_plain(
    declared: Schema,
    kind: Kind,
    key: Sequence[str],
    format_options: FormatOptions,
    files: Sequence[ForeignFile],
    open_file: Open,
    origin: FileOrigin = NO_ORIGIN,
) -> PlainRows | None:
    """Read the records of files, with the columns that a lot stores; return None if Spark must read them.

    Args:
        declared: the columns of the dataset.
        kind: the kind of the dataset.
        key: its key.
        format_options: how to read the files.
        files: the files.
        open_file: opens a file by its path.
        origin: the columns that say where a row comes from.
    """
    if any(compression_of(file.path) for file in files) or not _is_usual(format_options):
        return None
    try:
        reader = _Reader(declared, format_options, open_file, origin)
        tables = []
        for number, file in enumerate(sorted(files, key=lambda file: file.path)):
            rows = reader.read(file)
            if any(rows.column(name).null_count for name in key):
                return None
            tables.append(_stored(rows, kind, number))
        return PlainRows(pa.concat_tables(tables), reader.unknown) if tables else None
    except (NotPlain, pa.ArrowException, OSError, UnicodeEncodeError):
        return None  # Spark reads the files, and reports what is wrong with them


def _is_usual(format_options: FormatOptions) -> bool:
    usual = FormatOptions(format=format_options.format, header=format_options.header)
    return len(format_options.separator) == 1 and usual == msgspec.structs.replace(
        format_options, separator=usual.separator
    )


def check_plain(
    rows: pa.Table, checks: Sequence[Check], kind: Kind, evaluate: Evaluate
) -> CheckedTable | None:
    """Check rows; return None if Spark must check them, because some rows go to quarantine."""
    for check in checks:
        kinds = [rows.schema.field(name).type for name in check.columns if name in rows.column_names]
        if check.kind == "unique" and any(map(pat.is_floating, kinds)):
            return None  # Spark does not distinguish both zeros
    checked = table_checks.check_table(rows, checks, kind, evaluate)
    return None if checked.quarantined.num_rows else checked


def _stored(rows: pa.Table, kind: Kind, file: int) -> pa.Table:
    """Add the columns that a lot stores besides the declared ones.

    - file: the place of the file in the window. Of two records with the same key, the later one wins.
    """
    count = rows.num_rows
    if kind is Kind.CHANGES:
        return rows.append_column(operations.WEIGHT, pa.repeat(pa.scalar(1, pa.int64()), count))
    if kind is Kind.KEYED:
        operation = pa.repeat(pa.scalar(operations.RowOperation.UPSERT.value, pa.string()), count)
        ordinals = pa.array(range(file << PLACE_BITS, (file << PLACE_BITS) + count), pa.int64())
        return rows.append_column(operations.OP, operation).append_column(operations.ORDINAL, ordinals)
    return rows


class _Reader:
    """Reads the files of one window, and counts the records that have undeclared columns."""

    def __init__(
        self, declared: Schema, format_options: FormatOptions, open_file: Open, origin: FileOrigin
    ) -> None:
        self._format_options = format_options
        self._open = open_file
        self._origin = origin
        self._stored = to_arrow(
            Schema(tuple(Column(column.name, column.type) for column in declared.columns))
        )
        columns = origin.columns.without(declared).columns
        self._columns = [Column(column.name, column.type) for column in columns]
        self._converters = [converter(column.type) for column in self._columns]
        self._arrow = to_arrow(Schema(tuple(self._columns)))
        self._folded = {name.casefold() for name in self._arrow.names}
        self.unknown = 0

    def read(self, file: ForeignFile) -> pa.Table:
        """Read a file; raise `NotPlain` if Spark must read it."""
        read = {
            Format.JSON: self._json,
            Format.CSV: self._csv,
            Format.TEXT: self._text,
            Format.PARQUET: self._parquet,
        }
        self._lines: list[int] = []
        with self._open(file.path) as raw:
            return self._with_origin(read[self._format_options.format](raw), file)

    def _with_origin(self, rows: pa.Table, file: ForeignFile) -> pa.Table:
        """Add the columns that say where a row comes from."""
        names, count = self._origin.columns, rows.num_rows
        if not names.names:
            return rows
        filled = {
            names.file: lambda: pa.repeat(pa.scalar(file.path), count),
            names.line: lambda: pa.array(self._lines, pa.int64()),
            names.arrived: lambda: pa.repeat(pa.scalar(self._origin.arrived_us, pa.int64()), count),
        }
        arrays = [
            filled[field.name]().cast(field.type) if field.name in filled else rows.column(field.name)
            for field in self._stored
        ]
        return pa.table(arrays, schema=self._stored)

    def _json(self, raw: BinaryIO) -> pa.Table:
        columns: list[list[object]] = [[] for _ in self._columns]
        declared = frozenset(self._arrow.names)
        lines = lines_of(raw.read())
        self._lines = [number for number, line in enumerate(lines, 1) if line.strip(" ")]
        for record in json_objects(lines):
            if not record.keys() <= declared:
                self._refuse_near_names(record.keys() - declared)
                self.unknown += 1
            for column, convert, values in zip(self._columns, self._converters, columns, strict=True):
                text = json_text(record.get(column.name), column.type)
                values.append(None if text is None else convert(text))
        return pa.table(
            [pa.array(values, field.type) for values, field in zip(columns, self._arrow, strict=True)],
            schema=self._arrow,
        )

    def _refuse_near_names(self, names: set[str]) -> None:
        """Leave names that differ from a declared one only in case to Spark."""
        if any(name.casefold() in self._folded for name in names):
            raise NotPlain

    def _csv(self, raw: BinaryIO) -> pa.Table:
        options = self._format_options
        body = raw.read()
        if any(special.encode() in body for special in (options.quote, options.escape, "\0") if special):
            raise NotPlain
        all_lines = lines_of(body)
        self._lines = [number for number, line in enumerate(all_lines, 1) if line.strip(_BLANKS)]
        lines = [all_lines[number - 1] for number in self._lines]
        names: list[str] = self._arrow.names
        if options.header:
            names = csv_headers.split(lines.pop(0), options) if lines else []
            del self._lines[:1]
            exact = set(self._arrow.names)
            unknown = [name for name in names if name not in exact]
            self._refuse_near_names(set(unknown))
            if names and (len(set(names)) < len(names) or len(unknown) == len(names)):
                raise NotPlain
            self.unknown += len(lines) if unknown else 0
        records = [csv_values(line, options.separator, len(names)) for line in lines]
        place = {name: number for number, name in enumerate(names)}
        arrays = []
        for field, convert in zip(self._arrow, self._converters, strict=True):
            at = place.get(field.name)
            texts = [None] * len(records) if at is None else [record[at] for record in records]
            arrays.append(pa.array([None if text is None else convert(text) for text in texts], field.type))
        return pa.table(arrays, schema=self._arrow)

    def _text(self, raw: BinaryIO) -> pa.Table:
        if [str(column.type) for column in self._columns] != ["string"]:
            raise NotPlain
        lines = lines_of(raw.read())
        self._lines = list(range(1, len(lines) + 1))
        return pa.table([pa.array(lines, pa.string())], schema=self._arrow)

    def _parquet(self, raw: BinaryIO) -> pa.Table:
        stored = pq.read_metadata(raw)
        names = stored.schema.to_arrow_schema().names
        if stored.num_rows * len(names) > MOST_PARQUET_VALUES:
            raise NotPlain
        leaves = [stored.schema.column(number) for number in range(len(stored.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        # A text that is stored once and repeated is read in the same form.
        file = pq.ParquetFile(raw, metadata=stored, read_dictionary=texts)
        unknown = set(names) - set(self._arrow.names)
        self._refuse_near_names(unknown)
        if len(set(names)) < len(names) or len(unknown) == len(names) or any("." in name for name in names):
            raise NotPlain
        rows = file.read([name for name in names if name not in unknown], use_threads=False)
        self.unknown += rows.num_rows if unknown else 0
        arrays = []
        for field in self._arrow:
            if field.name in rows.column_names:
                arrays.append(_plain_column(_decoded(rows.column(field.name)), field.type))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        return pa.table(arrays, schema=self._arrow)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts of a column that is stored as a dictionary; raise `NotPlain` if they are too large."""
    if not pat.is_dictionary(column.type):
        return column
    size = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        size += pc.sum(lengths.take(chunk.indices).cast(pa.int64())).as_py() or 0
    if size > MOST_PARQUET_BYTES:
        raise NotPlain
    return column.cast(column.type.value_type)


def _plain_column(column: pa.ChunkedArray, declared: pa.DataType) -> pa.ChunkedArray:
    """Return a column with the declared type; raise `NotPlain` if its values may change."""
    if pat.is_large_string(column.type) and pat.is_string(declared):
        column = column.cast(declared)
    elif pat.is_timestamp(declared) and pat.is_timestamp(column.type) and declared.tz and column.type.tz:
        if column.type.unit != declared.unit:
            raise NotPlain
        column = column.cast(declared)
    if column.type != declared:
        raise NotPlain
    column.validate(full=True)
    if pat.is_date(declared) or pat.is_timestamp(declared):
        days = column.cast(pa.int32() if pat.is_date(declared) else pa.int64())
        first = _FIRST_DAY if pat.is_date(declared) else _FIRST_DAY * _MICROSECONDS_A_DAY
        least = pc.min(days).as_py()
        if least is not None and least < first:
            raise NotPlain
    return column
