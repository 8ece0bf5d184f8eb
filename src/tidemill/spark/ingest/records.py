"""Read the records of files that other programs wrote, as frames with these columns:

PARSED    the declared columns, as a struct
BAD       whether the record does not fit these columns
FILE      the file that contains the record
TEXT      the text of the record: for bad records, and for all records of formats with one record per line
UNKNOWN   whether the record has undeclared columns that are left out (LOT-34)
RESCUED   the values of the record that are not in PARSED, as JSON, if the dataset keeps them (LOT-34)
PLACE     the place of the record in its file, for a dataset with a key
BLOCK     the block of the file, for formats with one record per line
NUMBER    the line of the record, if the source has a column for it
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from tidemill.lots.datasets import Kind
from tidemill.schemas.columns import Schema
from tidemill.spark import schema as schemas
from tidemill.spark.ingest import line_numbers, record_order
from tidemill.spark.ingest.csv_headers import CsvHeader, FileGroup
from tidemill.spark.ingest.foreign_files import ForeignFile
from tidemill.spark.ingest.formats import Format, FormatOptions
from tidemill.spark.ingest.line_numbers import BLOCK, FILE, TEXT
from tidemill.spark.ingest.record_errors import (
    CORRUPT,
    csv_options,
    has_half_surrogate,
    has_trailing_text,
    json_options,
)
from tidemill.spark.ingest.undeclared_columns import (
    is_not_object,
    rescued_columns,
    rescued_csv,
    rescued_json,
    unknown_json,
)
from tidemill.spark.queries import quoted
from tidemill.spark.sessions import prepare_thread

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

PARSED: Final = "_tidemill_parsed"
BAD: Final = "_tidemill_bad"
PLACE: Final = "_tidemill_place"
UNKNOWN: Final = "_tidemill_unknown"
RESCUED: Final = "_tidemill_rescued"
NUMBER: Final = "_tidemill_line"
_BLANK: Final = r"^[\x00-\x20]*$"
"""Lines that Spark's CSV reader skips."""


class RecordReader:
    """Reads records.

    Args:
        spark: the session.
        schema: the columns of the dataset.
        format_options: how to read the files.
        options: options that Spark needs to reach the files.
        kind: the kind of the dataset.
        rescues: whether the dataset keeps values that do not fit, in `_rescued`.
        undeclared: columns that are not declared, and whose values are rescued.
        numbers: whether to number the lines. This counts the lines of all files first.
    """

    def __init__(
        self,
        spark: "SparkSession",
        schema: "StructType",
        format_options: FormatOptions,
        *,
        options: Mapping[str, str],
        kind: Kind,
        rescues: bool,
        undeclared: Sequence[schemas.Column],
        numbers: bool = False,
    ) -> None:
        self._spark = spark
        self._schema = schema
        self._format_options = format_options
        self._options = dict(options)
        self._kind = kind
        self._rescues = rescues
        self._undeclared = tuple(undeclared)
        self._numbers = numbers

    def read(self, group: FileGroup, *, truncated: bool) -> "DataFrame":
        """Read the records of a group of files."""
        if self._format_options.by_lines and self._format_options.format is not Format.CSV:
            if self._numbers:
                return self.parse(self._numbered(group.files, truncated=truncated))
            return self.parse(self.lines(group.files, truncated=truncated)).drop(BLOCK)
        return self.structured(group, truncated=truncated)

    def read_all(self, groups: Sequence[FileGroup], truncated: Collection[str]) -> "DataFrame | None":
        """Read the records of all files. Return None if there are no files.

        - truncated: the paths of broken files. Spark reads each of them up to the damage.
        """
        frames = [self.read(part, truncated=is_truncated) for part, is_truncated in split(groups, truncated)]
        return union(frames) if frames else None

    def parse(self, lines: "DataFrame") -> "DataFrame":
        """Parse lines. Each line is one record."""
        from pyspark.sql import functions as sf

        text = sf.col(TEXT)
        if self._format_options.format is Format.TEXT:
            parsed = sf.struct(text.alias(self._schema.names[0]))
            return lines.withColumns({PARSED: parsed, BAD: ~sf.is_valid_utf8(text), **_no_drift()})
        parsed = sf.from_json(text, _with_corrupt(self._schema), json_options(self._format_options))
        corrupt = sf.col(PARSED).isNull() | sf.col(f"{PARSED}.{CORRUPT}").isNotNull()
        frame = lines.where(sf.trim(text) != "").withColumn(PARSED, parsed)
        broken = has_trailing_text(text) | ~sf.is_valid_utf8(text) | has_half_surrogate(text)
        if self._rescues:
            rescued = rescued_json(text, sf.col(PARSED), self._schema)
            parsed_frame = frame.withColumns({RESCUED: rescued, UNKNOWN: sf.expr("false")})
            return parsed_frame.withColumn(BAD, broken | is_not_object(text))
        unknown = unknown_json(text, sf.col(PARSED), self._schema.names)
        return frame.withColumns(
            {BAD: corrupt | broken, UNKNOWN: unknown, RESCUED: sf.lit(None).cast("string")}
        )

    def structured(self, group: FileGroup, *, truncated: bool) -> "DataFrame":
        """Read records with Spark's own reader for the format."""
        from pyspark.sql import functions as sf

        format_options = self._format_options
        reader, uris = self._reader(truncated=truncated), [file.read_uri for file in group.files]
        columns: list[Column]
        if format_options.format is Format.PARQUET:
            stored = self._with_undeclared(self._schema)
            prepare_thread(self._spark, stored)
            frame = reader.schema(stored).parquet(*uris)
            columns = [sf.col(quoted(name)) for name in self._schema.names]
            text: Column = sf.lit(None).cast("string")
        else:
            schema = self._schema if group.header is None else group.header.schema
            reader = reader.schema(_with_corrupt(self._with_undeclared(schema)))
            if format_options.format is Format.CSV and self._numbers:
                frame = self._numbered_csv(group, truncated=truncated)
            elif format_options.format is Format.CSV:
                frame = reader.options(**csv_options(format_options)).csv(uris)
            else:
                frame = reader.options(**json_options(format_options), multiLine="true").json(uris)
            present = set(schema.names)
            columns = [
                sf.col(quoted(field.name))
                if field.name in present
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in self._schema.fields
            ]
            text = sf.col(CORRUPT)
        places = [record_order.place(format_options.format).alias(PLACE)] if self._kind is Kind.KEYED else []
        file = sf.col("_metadata.file_path").alias(FILE)
        if format_options.format is Format.CSV and self._numbers:
            places = [sf.col(name) for name in (PLACE, NUMBER) if name in frame.columns]
            file = sf.col(FILE)
        bad, rescued = text.isNotNull(), rescued_columns(self._undeclared)
        if self._rescues and format_options.format is Format.CSV:
            rescued, bad = rescued_csv(group.header or CsvHeader(self._schema), text, format_options)
        unknown = bool(group.header and group.header.unknown) and not self._rescues
        return frame.select(
            *places,
            sf.struct(*columns).alias(PARSED),
            bad.alias(BAD),
            sf.lit(unknown).alias(UNKNOWN),
            rescued.alias(RESCUED),
            file,
            text.alias(TEXT),
        )

    def _numbered(self, files: Sequence[ForeignFile], *, truncated: bool) -> "DataFrame":
        """Read lines of text with their numbers."""
        lines = line_numbers.numbered(self._spark, self.lines(files, truncated=truncated), files)
        return lines.withColumnRenamed(line_numbers.LINE, NUMBER).drop(BLOCK, "shift", "first", "file")

    def _numbered_csv(self, group: FileGroup, *, truncated: bool) -> "DataFrame":
        """Read CSV records line by line, with the numbers of the lines, as Spark's CSV reader reads them."""
        from pyspark.sql import functions as sf

        schema = self._schema if group.header is None else group.header.schema
        lines = line_numbers.numbered(self._spark, self.lines(group.files, truncated=truncated), group.files)
        lines = lines.where(~sf.col(TEXT).rlike(_BLANK))
        if group.header is not None:
            lines = lines.where(sf.col(line_numbers.LINE) != sf.col("first"))
        columns = ", ".join(
            f"{quoted(field.name)} {field.dataType.simpleString()}"
            for field in _with_corrupt(self._with_undeclared(schema)).fields
        )
        options = {**csv_options(self._format_options), "header": "false"}
        places = [PLACE] if self._kind is Kind.KEYED else []
        parsed = lines.select(
            *places,
            sf.col(line_numbers.LINE).alias(NUMBER),
            FILE,
            sf.from_csv(TEXT, columns, options).alias(PARSED),
        )
        return parsed.select(*places, NUMBER, FILE, f"{PARSED}.*")

    def _with_undeclared(self, schema: "StructType") -> "StructType":
        """Add the undeclared columns whose values are rescued."""
        from pyspark.sql.types import StructType

        undeclared = schemas.to_spark(Schema(self._undeclared)).fields if self._undeclared else []
        return StructType([*schema.fields, *undeclared])

    def lines(self, files: Sequence[ForeignFile], *, truncated: bool) -> "DataFrame":
        """Read lines of text."""
        from pyspark.sql import functions as sf

        places = (
            [record_order.place(self._format_options.format).alias(PLACE)] if self._kind is Kind.KEYED else []
        )
        return (
            self._reader(truncated=truncated)
            .text([file.read_uri for file in files])
            .select(
                *places,
                sf.col("value").alias(TEXT),
                sf.col("_metadata.file_path").alias(FILE),
                sf.col("_metadata.file_block_start").alias(BLOCK),
            )
        )

    def _reader(self, *, truncated: bool) -> "DataFrameReader":
        reader = self._spark.read.options(**self._options)
        return reader.option("ignoreCorruptFiles", "true" if truncated else "false")


def _no_drift() -> "dict[str, Column]":
    """Return UNKNOWN and RESCUED for a format that cannot have undeclared columns."""
    from pyspark.sql import functions as sf

    return {UNKNOWN: sf.expr("false"), RESCUED: sf.lit(None).cast("string")}


def _with_corrupt(schema: "StructType") -> "StructType":
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def split(groups: Sequence[FileGroup], truncated: Collection[str]) -> Iterator[tuple[FileGroup, bool]]:
    """Split each group into whole files and truncated files; yield each part, and whether it is truncated."""
    for group in groups:
        for is_truncated in (False, True):
            files = tuple(file for file in group.files if (file.path in truncated) is is_truncated)
            if files:
                yield FileGroup(group.header, files), is_truncated


def union(frames: "Sequence[DataFrame]") -> "DataFrame":
    """Return the rows of all these frames."""
    return reduce(lambda left, right: left.unionByName(right), frames)
