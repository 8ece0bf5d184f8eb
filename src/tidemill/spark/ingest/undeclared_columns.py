"""Add, count or rescue the undeclared columns of files, and rescue values that do not fit (LOT-34).

A CSV file names its columns in the header, a Parquet file in its footer, and a JSON file in each object. Only
names at the top level count: undeclared fields within a struct are ignored, as Spark ignores them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Column, Simple, Type
from tidemill.spark.drift import VOID, storable
from tidemill.spark.ingest import csv_headers
from tidemill.spark.ingest.csv_headers import CsvHeader
from tidemill.spark.ingest.foreign_files import ForeignFile
from tidemill.spark.ingest.formats import Format, FormatOptions
from tidemill.spark.ingest.record_errors import CORRUPT, csv_options, json_options
from tidemill.spark.queries import quoted
from tidemill.spark.schema import of_arrow, of_spark

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

Open = Callable[[str], BinaryIO]
MOST_NAMES = 10_000
"""How many names of JSON objects to look at, if Spark cannot infer their types."""


def find(
    spark: "SparkSession",
    schema: "StructType",
    format_options: FormatOptions,
    files: Sequence[ForeignFile],
    *,
    options: Mapping[str, str],
    open_file: Open,
) -> list[Column]:
    """Find the undeclared columns of these files, with their types.

    A file that cannot be read adds no columns. JSON files are read once for this, and Spark infers the types.
    Columns of CSV files are STRING. A column that has different types in two Parquet files is left out.
    """
    declared = {name.casefold() for name in schema.names}
    match format_options.format:
        case Format.CSV if format_options.header:
            names = _header_names(files, schema, format_options, open_file)
            columns = [Column(name, Simple("string")) for name in names]
        case Format.PARQUET:
            columns = _agreed(_footer(file, open_file) for file in files)
        case Format.JSON if files:
            columns = _inferred(spark.read.options(**options), format_options, files)
        case _:
            columns = []
    undeclared: dict[str, Column] = {}
    for column in columns:
        if column.name.casefold() not in declared and column.name != CORRUPT:
            undeclared.setdefault(column.name.casefold(), column)
    return list(undeclared.values())


def _inferred(
    reader: "DataFrameReader", format_options: FormatOptions, files: Sequence[ForeignFile]
) -> list[Column]:
    """Let Spark infer the columns of JSON files.

    Spark refuses an object that has the same name twice. Then all columns of JSON lines are STRING, and
    objects of several lines add no columns.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sf

    uris = [file.read_uri for file in files]
    reader = reader.option("ignoreCorruptFiles", "true")
    try:
        options = {"multiLine": str(not format_options.by_lines), **json_options(format_options)}
        inferred = of_spark(reader.options(**options).json(uris).schema)
    except AnalysisException:
        if not format_options.by_lines:
            return []
        names = reader.text(uris).select(sf.explode(sf.json_object_keys("value")).alias("name")).distinct()
        return [
            Column(row["name"], Simple("string")) for row in names.sort("name").limit(MOST_NAMES).collect()
        ]
    return [Column(column.name, storable(column.type)) for column in inferred.columns if column.type != VOID]


def _header_names(
    files: Sequence[ForeignFile], schema: "StructType", format_options: FormatOptions, open_file: Open
) -> list[str]:
    groups = csv_headers.grouped(files, schema, format_options, open_file, {})
    return [name for group in groups if group.header for name in group.header.unknown.values()]


def count_in_parquet(files: Sequence[ForeignFile], schema: "StructType", open_file: Open) -> int:
    """Count the rows of those Parquet files that have undeclared columns."""
    declared = {name.casefold() for name in schema.names}
    rows = 0
    for file in files:
        try:
            with open_file(file.path) as raw:
                footer = pq.ParquetFile(raw)
                if any(name.casefold() not in declared for name in footer.schema_arrow.names):
                    rows += footer.metadata.num_rows
        except Exception:  # noqa: BLE001, S112 - the ingestion itself reports a file that cannot be read
            continue
    return rows


def _footer(file: ForeignFile, open_file: Open) -> list[Column]:
    try:
        with open_file(file.path) as raw:
            fields = pq.ParquetFile(raw).schema_arrow
    except Exception:  # noqa: BLE001 - the ingestion itself reports a file that cannot be read
        return []
    columns: list[Column] = []
    for field in fields:
        try:
            columns += of_arrow(pa.schema([field])).columns
        except BadSchema:
            continue  # a type that Spark does not have
    return columns


def _agreed(files: Iterable[list[Column]]) -> list[Column]:
    types_of: dict[str, set[Type]] = {}
    names: dict[str, str] = {}
    for columns in files:
        for column in columns:
            types_of.setdefault(column.name.casefold(), set()).add(column.type)
            names.setdefault(column.name.casefold(), column.name)
    return [Column(names[name], next(iter(types))) for name, types in types_of.items() if len(types) == 1]


# --- record by record


def unknown_json(text: "Expression", parsed: "Expression", names: Sequence[str]) -> "Expression":
    """Return whether an object has names that are not declared.

    Each name is followed by a colon. So an object with no more colons than non-NULL columns has only declared
    names, and need not be parsed again.
    """
    from pyspark.sql import functions as sf

    colons = sf.octet_length(text) - sf.octet_length(sf.replace(text, sf.lit(":"), sf.lit("")))
    present = reduce(
        lambda left, right: left + right,
        [parsed.getField(name).isNotNull().cast("int") for name in names],
    )
    keys = sf.coalesce(sf.json_object_keys(text), sf.array().cast("array<string>"))
    unknown = sf.size(sf.array_except(keys, sf.array(*[sf.lit(name) for name in names]))) > 0
    return sf.when(colons > present, unknown).otherwise(sf.expr("false"))


def is_not_object(text: "Expression") -> "Expression":
    """Return whether a text is not a JSON object."""
    from pyspark.sql import functions as sf

    return sf.try_parse_json(text).isNull() | ~sf.startswith(sf.ltrim(text), sf.lit("{"))


def rescued_json(text: "Expression", parsed: "Expression", schema: "StructType") -> "Expression":
    """Return the values of a JSON object that are not in its row, as JSON; NULL if there are none.

    The result has each name with its value as text.

    Spark keeps the part of a nested value that fits. So if any value of a record did not fit, the record's
    nested values are rescued too.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    values = sf.from_json(text, "map<string,string>")
    complete = parsed.getField(CORRUPT).isNull()
    fitting = []
    for field in schema.fields:
        present = parsed.getField(field.name).isNotNull()
        nested = isinstance(field.dataType, st.ArrayType | st.MapType | st.StructType)
        fitting.append(sf.when(present & complete if nested else present, sf.lit(field.name)))
    fits = sf.array_compact(sf.array(*fitting))
    rescued = sf.map_filter(values, lambda name, value: value.isNotNull() & ~sf.array_contains(fits, name))
    return sf.when(sf.size(rescued) > 0, sf.to_json(rescued))


def rescued_csv(
    header: CsvHeader, text: "Expression", format_options: FormatOptions
) -> "tuple[Expression, Expression]":
    """Return the values of a CSV record that are not in its row (as JSON), and whether the record is bad.

    A record with the wrong number of values is bad, because no one knows which value belongs to which column.
    """
    from pyspark.sql import functions as sf

    texts = ", ".join(f"{quoted(name)} STRING" for name in header.schema.names)
    options = {**csv_options(format_options), "header": "false"}
    raw = sf.from_csv(text, f"{texts}, {CORRUPT} STRING", options)
    pairs = []
    for field in header.schema.fields:
        value = sf.col(quoted(field.name))
        if field.name in header.unknown:
            pairs.append((header.unknown[field.name], value))
        else:
            unfit = sf.when(text.isNotNull() & value.isNull(), raw.getField(field.name))
            pairs.append((field.name, unfit))
    values = sf.create_map(*[part for name, value in pairs for part in (sf.lit(name), value)])
    rescued = sf.map_filter(values, lambda _, value: value.isNotNull())
    broken = text.isNotNull() & (raw.isNull() | raw.getField(CORRUPT).isNotNull())
    return sf.when(sf.size(rescued) > 0, sf.to_json(rescued)), broken


def rescued_columns(columns: Sequence[Column]) -> "Expression":
    """Return the values of undeclared columns, as JSON; NULL if all are NULL."""
    from pyspark.sql import functions as sf

    if not columns:
        return sf.lit(None).cast("string")
    values = [sf.col(quoted(column.name)) for column in columns]
    present = reduce(lambda left, right: left | right, [value.isNotNull() for value in values])
    return sf.when(present, sf.to_json(sf.struct(*values)))
