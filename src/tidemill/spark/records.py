"""Records of files that others wrote, as frames: what they say, and whether they are wrong.

PARSED    the declared columns, as a struct
WRONG     is it no record of these columns?
FILE      the file it is in
TEXT      its text: of lines always, else of wrong ones
UNKNOWN   has it columns that are not declared, and are left out? (LOT-34)
LEFT      what of it is not in PARSED, as JSON, where that is rescued (LOT-34)
PLACE     where in its file it is, for a table with a key
BLOCK     the block of its file, of lines
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.lots.datasets import Kind
from tidemill.schemas.columns import Schema
from tidemill.spark import headers, ordinals
from tidemill.spark import schema as schemas
from tidemill.spark.culprits import ForeignFile
from tidemill.spark.drifting import is_no_object, rescued_columns, rescued_csv, rescued_json, unknown_json
from tidemill.spark.faults import CORRUPT, csv_options, is_wrong_json, json_options, named
from tidemill.spark.formats import Format, Reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

FILE: Final = "_tidemill_file"
BLOCK: Final = "_tidemill_block"
TEXT: Final = "_tidemill_text"
PARSED: Final = "_tidemill_parsed"
WRONG: Final = "_tidemill_wrong"
PLACE: Final = "_tidemill_place"
UNKNOWN: Final = "_tidemill_unknown"
LEFT: Final = "_tidemill_left"


class Records:
    """Reads records.

    Args:
        spark: the session.
        schema: the columns of the dataset.
        reading: what the files are.
        options: what Spark needs to reach them.
        kind: of the dataset.
        rescues: is what does not fit to be kept beside the row?
        beside: columns that are not declared, and read to be rescued.
    """

    def __init__(
        self,
        spark: "SparkSession",
        schema: "StructType",
        reading: Reading,
        *,
        options: Mapping[str, str],
        kind: Kind,
        rescues: bool,
        beside: Sequence[schemas.Column],
    ) -> None:
        self._spark = spark
        self._schema = schema
        self._reading = reading
        self._options = dict(options)
        self._kind = kind
        self._rescues = rescues
        self._beside = tuple(beside)

    def of(self, group: headers.Group, *, cut: bool) -> "DataFrame":
        """Records as (parsed, is it wrong?, file, text of a wrong one)."""
        if self._reading.by_lines and self._reading.format is not Format.CSV:
            return self.parsed(self.lines(group.files, cut=cut)).drop(BLOCK)
        return self.structured(group, cut=cut)

    def parsed(self, lines: "DataFrame") -> "DataFrame":
        """Lines that are records, with what they say and whether they are wrong."""
        from pyspark.sql import functions as sf

        text = sf.col(TEXT)
        if self._reading.format is Format.TEXT:
            parsed = sf.struct(text.alias(self._schema.names[0]))
            return lines.withColumns({PARSED: parsed, WRONG: ~sf.is_valid_utf8(text), **_nothing()})
        parsed = sf.from_json(text, _with_corrupt(self._schema), json_options(self._reading))
        corrupt = sf.col(PARSED).isNull() | sf.col(f"{PARSED}.{CORRUPT}").isNotNull()
        frame = lines.where(sf.trim(text) != "").withColumn(PARSED, parsed)
        broken = is_wrong_json(text) | ~sf.is_valid_utf8(text)
        if self._rescues:
            left = rescued_json(text, sf.col(PARSED), self._schema)
            rescued = frame.withColumns({LEFT: left, UNKNOWN: sf.expr("false")})
            return rescued.withColumn(WRONG, broken | is_no_object(text))
        unknown = unknown_json(text, sf.col(PARSED), self._schema.names)
        return frame.withColumns(
            {WRONG: corrupt | broken, UNKNOWN: unknown, LEFT: sf.lit(None).cast("string")}
        )

    def structured(self, group: headers.Group, *, cut: bool) -> "DataFrame":
        """As `of`, by Spark's own reader of a format."""
        from pyspark.sql import functions as sf

        reading = self._reading
        reader, uris = self._reader(cut=cut), [file.read_uri for file in group.files]
        columns: list[Column]
        if reading.format is Format.PARQUET:
            frame = reader.schema(self._wider(self._schema)).parquet(*uris)
            columns = [sf.col(named(name)) for name in self._schema.names]
            text: Column = sf.lit(None).cast("string")
        else:
            schema = self._schema if group.header is None else group.header.schema
            reader = reader.schema(_with_corrupt(self._wider(schema)))
            if reading.format is Format.CSV:
                frame = reader.options(**csv_options(reading)).csv(uris)
            else:
                frame = reader.options(**json_options(reading), multiLine="true").json(uris)
            there = set(schema.names)
            columns = [
                sf.col(named(field.name))
                if field.name in there
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in self._schema.fields
            ]
            text = sf.col(CORRUPT)
        places = [ordinals.place(reading.format).alias(PLACE)] if self._kind is Kind.KEYED else []
        wrong, rescued = text.isNotNull(), rescued_columns(self._beside)
        if self._rescues and reading.format is Format.CSV:
            rescued, wrong = rescued_csv(group.header or headers.Header(self._schema), text, reading)
        unknown = bool(group.header and group.header.unknown) and not self._rescues
        return frame.select(
            *places,
            sf.struct(*columns).alias(PARSED),
            wrong.alias(WRONG),
            sf.lit(unknown).alias(UNKNOWN),
            rescued.alias(LEFT),
            sf.col("_metadata.file_path").alias(FILE),
            text.alias(TEXT),
        )

    def _wider(self, schema: "StructType") -> "StructType":
        """With the columns that are read to be rescued."""
        from pyspark.sql.types import StructType

        beside = schemas.to_spark(Schema(self._beside)).fields if self._beside else []
        return StructType([*schema.fields, *beside])

    def lines(self, files: Sequence[ForeignFile], *, cut: bool) -> "DataFrame":
        from pyspark.sql import functions as sf

        places = [ordinals.place(self._reading.format).alias(PLACE)] if self._kind is Kind.KEYED else []
        return (
            self._reader(cut=cut)
            .text([file.read_uri for file in files])
            .select(
                *places,
                sf.col("value").alias(TEXT),
                sf.col("_metadata.file_path").alias(FILE),
                sf.col("_metadata.file_block_start").alias(BLOCK),
            )
        )

    def _reader(self, *, cut: bool) -> "DataFrameReader":
        reader = self._spark.read.options(**self._options)
        return reader.option("ignoreCorruptFiles", "true" if cut else "false")


def _nothing() -> "dict[str, Column]":
    """Of a record that cannot have columns beside the declared ones."""
    from pyspark.sql import functions as sf

    return {UNKNOWN: sf.expr("false"), LEFT: sf.lit(None).cast("string")}


def _with_corrupt(schema: "StructType") -> "StructType":
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    return StructType([*fields, StructField(CORRUPT, StringType())])
