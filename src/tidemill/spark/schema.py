"""Schemas: a text, Spark's types, Arrow's types and a fingerprint of one and the same columns.

    parse(text) -> Schema           without Spark          str(schema) -> text
    analysed(spark, text) -> Schema by Spark's parser      to_spark(schema) -> StructType
    of_spark(StructType) -> Schema                         to_arrow(schema) -> pyarrow.Schema
    of_arrow(pyarrow.Schema) -> Schema                     schema.fingerprint

`to_arrow` is how rows are kept that are appended without Spark; Spark reads such files as the declared types.
"""

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidemill.errors import BadSchema
from tidemill.spark.columns import Array, Column, Map, Schema, Simple, Struct, Type, quoted
from tidemill.spark.ddl import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "Array",
    "Column",
    "Map",
    "Schema",
    "Simple",
    "Struct",
    "Type",
    "analysed",
    "of_arrow",
    "of_spark",
    "of_type",
    "parse",
    "quoted",
    "to_arrow",
    "to_spark",
]

_NUMBERS: Final = re.compile(r"\((\d+)(?:,(\d+))?\)")
_ARROW: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "interval day to second": pa.duration("us"),
}
_OF_ARROW: Final[dict[Any, str]] = {
    **{kind: name for name, kind in _ARROW.items()},
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float16(): "float",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date64(): "date",
}


def analysed(spark: "SparkSession", text: str) -> Schema:
    """The columns a text declares, by Spark's own parser; `BadSchema` with what it says."""
    from pyspark.errors import PySparkException

    try:
        return of_spark(spark.createDataFrame([], text).schema)
    except PySparkException as error:
        raise BadSchema(f"not a schema: {str(error).strip()}") from error


# --- Spark ----------------------------------------------------------------------------------------------


def to_spark(schema: Schema) -> "StructType":
    """The columns as Spark's types."""
    kind = _spark(Struct(schema.columns))
    from pyspark.sql.types import StructType

    assert isinstance(kind, StructType)
    return kind


def _spark(kind: Type) -> "DataType":
    from pyspark.sql import types as st

    match kind:
        case Array():
            return st.ArrayType(_spark(kind.element), kind.nullable)
        case Map():
            return st.MapType(_spark(kind.key), _spark(kind.value), kind.nullable)
        case Struct():
            return st.StructType(
                [
                    st.StructField(
                        column.name,
                        _spark(column.type),
                        column.nullable,
                        {"comment": column.comment} if column.comment else None,
                    )
                    for column in kind.fields
                ]
            )
        case Simple():
            return _spark_simple(kind.name)


def _spark_simple(name: str) -> "DataType":
    from pyspark.sql import types as st

    plain: dict[str, Any] = {
        "boolean": st.BooleanType,
        "tinyint": st.ByteType,
        "smallint": st.ShortType,
        "int": st.IntegerType,
        "bigint": st.LongType,
        "float": st.FloatType,
        "double": st.DoubleType,
        "string": st.StringType,
        "binary": st.BinaryType,
        "date": st.DateType,
        "timestamp": st.TimestampType,
        "timestamp_ntz": st.TimestampNTZType,
        "variant": st.VariantType,
        "void": st.NullType,
        "interval": st.CalendarIntervalType,
    }
    if name in plain:
        made: DataType = plain[name]()
        return made
    word, _, rest = name.partition("(")
    numbers = [int(number) for number in re.findall(r"\d+", rest)]
    match word:
        case "decimal":
            return st.DecimalType(*numbers)
        case "char":
            return st.CharType(*numbers)
        case "varchar":
            return st.VarcharType(*numbers)
        case "time":
            return st.TimeType(*numbers)
        case "geometry":
            return st.GeometryType(numbers[0] if numbers else "ANY")
        case "geography":
            return st.GeographyType(numbers[0] if numbers else "ANY")
    if name.startswith("string collate "):
        return st.StringType(name.removeprefix("string collate "))
    start, _, end = name.removeprefix("interval ").partition(" to ")
    kind = st.YearMonthIntervalType if start in ("year", "month") else st.DayTimeIntervalType
    return kind(getattr(kind, start.upper()), getattr(kind, (end or start).upper()))


def of_spark(struct: "StructType") -> Schema:
    """The columns of Spark's types; `BadSchema` for a type of the user's own making."""
    kind = of_type(struct)
    assert isinstance(kind, Struct)
    return Schema(kind.fields)


def of_type(kind: "DataType") -> Type:
    """One of Spark's types; `BadSchema` for a type of the user's own making."""
    from pyspark.sql import types as st

    match kind:
        case st.StructType():
            return Struct(
                tuple(
                    Column(
                        field.name,
                        of_type(field.dataType),
                        field.nullable,
                        str((field.metadata or {}).get("comment", "")),
                    )
                    for field in kind.fields
                )
            )
        case st.ArrayType():
            return Array(of_type(kind.elementType), kind.containsNull)
        case st.MapType():
            return Map(of_type(kind.keyType), of_type(kind.valueType), kind.valueContainsNull)
        case st.UserDefinedType():
            raise BadSchema(
                f"{type(kind).__name__} is a type of somebody's own making",
                hint="keep what it is made of: numbers, text, arrays and structs",
            )
        case _:
            return Simple(kind.simpleString())


# --- Arrow ----------------------------------------------------------------------------------------------


def to_arrow(schema: Schema) -> pa.Schema:
    """The columns as Arrow's types; `BadSchema` for one that Arrow does not have."""
    return pa.schema([_arrow_field(column) for column in schema.columns])


def _arrow_field(column: Column) -> pa.Field:
    try:
        return pa.field(column.name, _arrow(column.type), column.nullable)
    except KeyError as missing:
        raise BadSchema(
            f"{column.name!r} is {missing.args[0]}, which has no form outside Spark",
            hint="append a Spark DataFrame instead",
        ) from None


def _arrow(kind: Type) -> pa.DataType:
    match kind:
        case Array():
            return pa.list_(pa.field("element", _arrow(kind.element), kind.nullable))
        case Map():
            return pa.map_(
                pa.field("key", _arrow(kind.key), nullable=False),
                pa.field("value", _arrow(kind.value), kind.nullable),
            )
        case Struct():
            return pa.struct([_arrow_field(column) for column in kind.fields])
        case Simple():
            word, _, _ = kind.name.partition("(")
            if word == "decimal":
                return pa.decimal128(*_digits(kind.name))
            if word in ("char", "varchar") or kind.name.startswith("string collate "):
                return pa.string()
            if word == "time":
                return pa.time64("us")
            return _ARROW[kind.name]


def _digits(name: str) -> tuple[int, int]:
    found = _NUMBERS.search(name)
    assert found is not None
    return int(found[1]), int(found[2])


def of_arrow(schema: pa.Schema) -> Schema:
    """The columns of Arrow's types, in the narrowest type of Spark's that holds every value of them."""
    return Schema(tuple(_of_field(field, "") for field in schema))


def _of_field(field: pa.Field, path: str) -> Column:
    return Column(field.name, _of_arrow(field.type, f"{path}{field.name}"), field.nullable)


def _of_arrow(kind: pa.DataType, path: str) -> Type:
    types = pa.types
    if types.is_dictionary(kind):
        return _of_arrow(kind.value_type, path)
    if types.is_map(kind):
        value = _of_arrow(kind.item_type, f"{path}.value")
        return Map(_of_arrow(kind.key_type, f"{path}.key"), value, kind.item_field.nullable)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return Array(_of_arrow(kind.value_type, f"{path}[]"), kind.value_field.nullable)
    if types.is_struct(kind):
        return Struct(tuple(_of_field(field, f"{path}.") for field in kind))
    if types.is_timestamp(kind):
        return Simple("timestamp_ntz" if kind.tz is None else "timestamp")
    if types.is_time(kind):
        return Simple("time(6)")
    if types.is_duration(kind):
        return Simple("interval day to second")
    if types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return Simple(f"decimal({kind.precision},{kind.scale})")
    if kind in _OF_ARROW:
        return Simple(_OF_ARROW[kind])
    raise BadSchema(f"{path!r} is Arrow's {kind}, which Spark does not have", hint="cast it to another type")
