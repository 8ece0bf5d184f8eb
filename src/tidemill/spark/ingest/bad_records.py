"""Find the bad records in a window of files: where each record is, and why it is bad.

This is a second pass over the files. It runs only if the first pass counted bad records.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemill.spark.ingest import line_numbers, record_order
from tidemill.spark.ingest.csv_headers import FileGroup
from tidemill.spark.ingest.foreign_files import Salvaged
from tidemill.spark.ingest.formats import Format, FormatOptions
from tidemill.spark.ingest.line_numbers import BLOCK, FILE, TEXT
from tidemill.spark.ingest.record_errors import error_of
from tidemill.spark.ingest.records import BAD, PARSED, RecordReader, split, union
from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

BAD_SCHEMA: Final = "file STRING, line BIGINT, record STRING, error STRING"
_VALID: Final = "_tidemill_valid"


class IngestFaults(NamedTuple):
    """Files that were refused or are truncated, and the number of records that are bad or have no key.

    - refused: the reason for each path.
    - truncated: what could be salvaged, for each path.
    - keyless: records that are otherwise good, but in which a key column is NULL.
    """

    refused: Mapping[str, str]
    truncated: Mapping[str, Salvaged]
    bad: int
    keyless: int

    @property
    def total(self) -> int:
        return len(self.refused) + len(self.truncated) + self.bad + self.keyless


def is_keyless(key: Sequence[str]) -> "Column":
    """Return whether one of a record's key columns is NULL."""
    from pyspark.sql import functions as sf

    missing = [sf.col(f"{PARSED}.{quoted(name)}").isNull() for name in key]
    return reduce(lambda left, right: left | right, missing, sf.expr("false"))


class BadRecords:
    """Finds bad records in files.

    Args:
        spark: the session.
        schema: the columns of the dataset.
        format_options: how to read the files.
        records: reads the files.
        key: the key columns of the dataset.
    """

    def __init__(
        self,
        spark: "SparkSession",
        schema: "StructType",
        format_options: FormatOptions,
        records: RecordReader,
        key: Sequence[str],
    ) -> None:
        self._spark = spark
        self._schema = schema
        self._format_options = format_options
        self._records = records
        self._key = tuple(key)

    def find(self, groups: Sequence[FileGroup], faults: IngestFaults) -> "DataFrame":
        """Return one row of `BAD_SCHEMA` for each bad file or record, with the reason."""
        refused = [(path, None, None, why) for path, why in faults.refused.items()]
        tails = [
            (path, salvaged.lines + 1, salvaged.tail or None, "the compressed data is broken from here on")
            for path, salvaged in faults.truncated.items()
        ]
        frames = [self._spark.createDataFrame([*refused, *tails], BAD_SCHEMA)] if refused or tails else []
        if faults.bad:
            frames += [
                self._bad(part, truncated=is_truncated)
                for part, is_truncated in split(groups, faults.truncated)
            ]
        if faults.keyless:
            frames.append(self._without_key(groups, faults.truncated))
        return union(frames)

    def _without_key(self, groups: Sequence[FileGroup], truncated: Collection[str]) -> "DataFrame":
        """Return good records that have no key. Their line in the file is not known."""
        from pyspark.sql import functions as sf

        records = self._records.read_all(groups, truncated)
        assert records is not None
        keyless = self._unpruned(records).where(~sf.col(BAD) & is_keyless(self._key))
        files = [file for group in groups for file in group.files]
        columns = [sf.col(f"{PARSED}.{quoted(name)}").alias(name) for name in self._schema.names]
        record = sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"})
        return record_order.with_files(keyless, FILE, files, self._spark).select(
            "file",
            sf.lit(None).cast("bigint").alias("line"),
            record.alias("record"),
            sf.lit(f"its key ({', '.join(self._key)}) is NULL").alias("error"),
        )

    def _bad(self, group: FileGroup, *, truncated: bool) -> "DataFrame":
        """Return the bad records of a group of files, each with its line and the reason.

        If a record can have several lines, records are counted instead, because one task reads all of such
        a file.
        """
        from pyspark.sql import functions as sf

        if self._format_options.by_lines:
            counted = self._records.lines(group.files, truncated=truncated)
        else:
            records = self._unpruned(self._records.read(group, truncated=truncated))
            counted = records.withColumn(BLOCK, sf.lit(0))
        located = line_numbers.numbered(self._spark, counted, group.files)
        if not self._format_options.by_lines:
            bad = located.where(BAD)
        elif self._format_options.format is Format.CSV:
            # Whether a line is bad depends only on its text. So a line is bad if its text equals that of a
            # bad record and it is not the header.
            records = self._unpruned(self._records.structured(group, truncated=truncated))
            texts = records.where(BAD).select(FILE, sf.make_valid_utf8(TEXT).alias(_VALID))
            lines = located if group.header is None else located.where(sf.col("line") != sf.col("first"))
            # Spark's CSV reader replaces invalid bytes, but its reader of lines does not.
            lines = lines.withColumn(_VALID, sf.make_valid_utf8(TEXT))
            bad = lines.join(texts.distinct(), [FILE, _VALID], "left_semi")
        else:
            bad = self._records.parse(located).where(BAD)
        schema = self._schema if group.header is None else group.header.schema
        return bad.select(
            sf.col("file"),
            sf.col("line"),
            sf.make_valid_utf8(TEXT).alias("record"),
            error_of(sf.col(TEXT), schema, self._format_options).alias("error"),
        )

    def _unpruned(self, records: "DataFrame") -> "DataFrame":
        """Make Spark read every column. It would not notice a bad value in a column that it skips."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        nulls = [sf.col(f"{PARSED}.{quoted(name)}").isNull().cast("int") for name in self._schema.names]
        total = reduce(lambda left, right: left + right, nulls)
        return records.observe(Observation(), sf.max(total).alias("n"))
