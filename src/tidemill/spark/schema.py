"""Convert schemas between DDL, Spark's types and Arrow's types.

parse(text) -> Schema           without Spark          str(schema) -> text
analysed(spark, text) -> Schema by Spark's parser      to_spark(schema) -> StructType
of_spark(StructType) -> Schema                         to_arrow(schema) -> pyarrow.Schema
of_arrow(pyarrow.Schema) -> Schema                     schema.fingerprint
"""

from typing import TYPE_CHECKING

from tidemill.errors import BadSchema
from tidemill.schemas.arrow import of_arrow, to_arrow
from tidemill.schemas.columns import Array, Column, Map, Schema, Simple, Struct, Type, quoted
from tidemill.schemas.ddl import parse
from tidemill.schemas.type_table import numbers_of, row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
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
    "empty_frame",
    "of_arrow",
    "of_spark",
    "of_type",
    "parse",
    "quoted",
    "to_arrow",
    "to_spark",
]


def analysed(spark: "SparkSession", text: str) -> Schema:
    """Parse DDL, and let Spark check it. Raise `BadSchema`, with Spark's message, if it is invalid."""
    from pyspark.errors import PySparkException

    try:
        empty_frame(spark, text)
    except PySparkException as error:
        raise BadSchema(f"the schema is invalid: {str(error).strip()}") from error
    return parse(text)


def empty_frame(spark: "SparkSession", text: str) -> "DataFrame":
    """Return a DataFrame without rows. CHAR and VARCHAR columns are STRING in it, as in every DataFrame."""
    return spark.createDataFrame([], str(parse(text).unlimited()) if "char" in text.lower() else text)


# --- Spark ----------------------------------------------------------------------------------------------


def to_spark(schema: Schema) -> "StructType":
    """Convert a schema to Spark's types."""
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

    row = row_of(name)
    make = getattr(st, row.spark)
    data_type: DataType
    match row.name:
        case "geometry" | "geography":
            data_type = make(*numbers_of(name)) if numbers_of(name) else make("ANY")
        case "string":
            collation = name.partition(" collate ")[2]
            data_type = make(collation) if collation else make()
        case other if other.startswith("interval "):
            start, _, end = name.removeprefix("interval ").partition(" to ")
            data_type = make(getattr(make, start.upper()), getattr(make, (end or start).upper()))
        case _:
            data_type = make(*numbers_of(name))
    return data_type


def of_spark(struct: "StructType") -> Schema:
    """Convert a Spark schema to a `Schema`. Raise `BadSchema` for a user-defined type."""
    kind = of_type(struct)
    assert isinstance(kind, Struct)
    return Schema(kind.fields)


def of_type(kind: "DataType") -> Type:
    """Convert a Spark type to a `Type`. Raise `BadSchema` for a user-defined type."""
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
                f"{type(kind).__name__} is a user-defined type, which is not supported",
                hint="use numbers, strings, arrays and structs instead",
            )
        case _:
            return Simple(kind.simpleString())
