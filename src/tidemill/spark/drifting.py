"""Columns of files that were not declared, and values that do not fit: found, counted, or kept (LOT-34).

What a file has beyond the declared columns is told by its header (CSV), its footer (Parquet) or, record by
record, by the names in its objects (JSON). Only names at the top are looked at: fields within a struct that
are not declared are passed over, as Spark does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Array, Column, Map, Simple, Struct, Type
from tidemill.spark import headers
from tidemill.spark.culprits import ForeignFile
from tidemill.spark.faults import CORRUPT, csv_options, json_options, named
from tidemill.spark.formats import Format, Reading
from tidemill.spark.schema import of_arrow, of_spark

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

Open = Callable[[str], BinaryIO]


def discovered(
    spark: "SparkSession",
    schema: "StructType",
    reading: Reading,
    files: Sequence[ForeignFile],
    *,
    options: Mapping[str, str],
    open_file: Open,
) -> list[Column]:
    """Columns of these files that are not declared, with their types; files that cannot be read have none.

    JSON is read once for it, by Spark's own inference. In CSV they are texts. One that two Parquet files have
    in different types is left out.
    """
    known = {name.casefold() for name in schema.names}
    match reading.format:
        case Format.CSV if reading.header:
            found = [
                Column(name, Simple("string")) for name in _header_names(files, schema, reading, open_file)
            ]
        case Format.PARQUET:
            found = _agreed(_footer(file, open_file) for file in files)
        case Format.JSON if files:
            reader = spark.read.options(**options, **json_options(reading), ignoreCorruptFiles="true")
            if not reading.by_lines:
                reader = reader.option("multiLine", "true")
            inferred = of_spark(reader.json([file.read_uri for file in files]).schema)
            found = [Column(one.name, filled(one.type)) for one in inferred.columns if one.type != _NOTHING]
        case _:
            found = []
    seen: dict[str, Column] = {}
    for column in found:
        if column.name.casefold() not in known and column.name != CORRUPT:
            seen.setdefault(column.name.casefold(), column)
    return list(seen.values())


_NOTHING = Simple("void")


def filled(kind: Type) -> Type:
    """A type that files can hold: what was NULL everywhere is a text."""
    match kind:
        case Array():
            return Array(filled(kind.element))
        case Map():
            return Map(filled(kind.key), filled(kind.value))
        case Struct():
            return Struct(tuple(Column(one.name, filled(one.type)) for one in kind.fields))
        case Simple():
            return Simple("string") if kind == _NOTHING else kind


def _header_names(
    files: Sequence[ForeignFile], schema: "StructType", reading: Reading, open_file: Open
) -> list[str]:
    groups = headers.grouped(files, schema, reading, open_file, {})
    return [name for group in groups if group.header for name in group.header.unknown.values()]


def footers_unknown(files: Sequence[ForeignFile], schema: "StructType", open_file: Open) -> int:
    """How many rows are in Parquet files that have columns which are not declared."""
    known = {name.casefold() for name in schema.names}
    rows = 0
    for file in files:
        try:
            with open_file(file.path) as raw:
                footer = pq.ParquetFile(raw)
                if any(name.casefold() not in known for name in footer.schema_arrow.names):
                    rows += footer.metadata.num_rows
        except Exception:  # noqa: BLE001, S112 - one that cannot be read is told of where it is read
            continue
    return rows


def _footer(file: ForeignFile, open_file: Open) -> list[Column]:
    try:
        with open_file(file.path) as raw:
            fields = pq.ParquetFile(raw).schema_arrow
    except Exception:  # noqa: BLE001 - one that cannot be read is told of where it is read
        return []
    found: list[Column] = []
    for field in fields:
        try:
            found += of_arrow(pa.schema([field])).columns
        except BadSchema:
            continue  # a type that Spark has not
    return found


def _agreed(files: Iterable[list[Column]]) -> list[Column]:
    kinds: dict[str, set[Type]] = {}
    names: dict[str, str] = {}
    for columns in files:
        for column in columns:
            kinds.setdefault(column.name.casefold(), set()).add(column.type)
            names.setdefault(column.name.casefold(), column.name)
    return [Column(names[name], next(iter(types))) for name, types in kinds.items() if len(types) == 1]


# --- record by record


def unknown_json(text: "Expression", parsed: "Expression", names: Sequence[str]) -> "Expression":
    """Has this object names that are not declared?

    A name brings a colon with it. If there are no more colons than columns that are not NULL, all names are
    known, and the object is not taken apart a second time.
    """
    from pyspark.sql import functions as sf

    colons = sf.octet_length(text) - sf.octet_length(sf.replace(text, sf.lit(":"), sf.lit("")))
    there = reduce(
        lambda left, right: left + right,
        [parsed.getField(name).isNotNull().cast("int") for name in names],
    )
    keys = sf.coalesce(sf.json_object_keys(text), sf.array().cast("array<string>"))
    strange = sf.size(sf.array_except(keys, sf.array(*[sf.lit(name) for name in names]))) > 0
    return sf.when(colons > there, strange).otherwise(sf.expr("false"))


def is_no_object(text: "Expression") -> "Expression":
    """Is this no JSON object at all?"""
    from pyspark.sql import functions as sf

    return sf.try_parse_json(text).isNull() | ~sf.startswith(sf.ltrim(text), sf.lit("{"))


def rescued_json(text: "Expression", parsed: "Expression", schema: "StructType") -> "Expression":
    """What of an object is not in its row, as JSON: names with their values as texts; NULL if all is.

    Of a nested value Spark keeps what fits: where anything of a record did not, nested ones are kept as well.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    given = sf.from_json(text, "map<string,string>")
    sound = parsed.getField(CORRUPT).isNull()
    here = []
    for field in schema.fields:
        there = parsed.getField(field.name).isNotNull()
        nested = isinstance(field.dataType, st.ArrayType | st.MapType | st.StructType)
        here.append(sf.when(there & sound if nested else there, sf.lit(field.name)))
    fits = sf.array_compact(sf.array(*here))
    left = sf.map_filter(given, lambda name, value: value.isNotNull() & ~sf.array_contains(fits, name))
    return sf.when(sf.size(left) > 0, sf.to_json(left))


def rescued_csv(
    header: "headers.Header", text: "Expression", reading: Reading
) -> "tuple[Expression, Expression]":
    """What of a record is not in its row, as JSON, and whether the record cannot be understood at all.

    A record of another number of values says nothing about which is which.
    """
    from pyspark.sql import functions as sf

    texts = ", ".join(f"{named(name)} STRING" for name in header.schema.names)
    options = {**csv_options(reading), "header": "false"}
    raw = sf.from_csv(text, f"{texts}, {CORRUPT} STRING", options)
    pairs = []
    for field in header.schema.fields:
        here = sf.col(named(field.name))
        if field.name in header.unknown:
            pairs.append((header.unknown[field.name], here))
        else:
            unfit = sf.when(text.isNotNull() & here.isNull(), raw.getField(field.name))
            pairs.append((field.name, unfit))
    values = sf.create_map(*[part for name, value in pairs for part in (sf.lit(name), value)])
    left = sf.map_filter(values, lambda _, value: value.isNotNull())
    broken = text.isNotNull() & (raw.isNull() | raw.getField(CORRUPT).isNotNull())
    return sf.when(sf.size(left) > 0, sf.to_json(left)), broken


def rescued_columns(columns: Sequence[Column]) -> "Expression":
    """The values of columns that are not declared, as JSON; NULL if all are NULL."""
    from pyspark.sql import functions as sf

    if not columns:
        return sf.lit(None).cast("string")
    values = [sf.col(named(one.name)) for one in columns]
    there = reduce(lambda left, right: left | right, [value.isNotNull() for value in values])
    return sf.when(there, sf.to_json(sf.struct(*values)))
