"""Weighted rows in Spark: compute their identity, add up equal rows, and repeat rows by their weight.

**Identity.** H128 consists of two `xxhash64` values with different salts, over every column and a flag for
NULL. For nested values it includes inner NULLs and lengths; maps are hashed as entries sorted by key. The
identity only brings equal rows to the same place. Whether rows are equal depends on their columns, by the
rules of Spark's GROUP BY, so two different rows with the same hash stay two rows. NaN equals NaN, -0.0 equals
0.0, and the order of map entries does not matter.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.errors import BadSchema, ViewRefused
from tidemill.schemas.type_table import why_not_kept
from tidemill.spark import schema as schemas
from tidemill.spark.operations import WEIGHT
from tidemill.spark.queries import quoted
from tidemill.views.trace.row_equality import SALTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

HIGH: Final = "_h1"
LOW: Final = "_h2"
RESERVED: Final = frozenset({HIGH, LOW, WEIGHT, "_position"})


def check_columns(view: str, schema: "StructType") -> None:
    """Raise `ViewRefused` for a column that a view's table cannot store or compare."""
    names: dict[str, str] = {}
    for field in schema.fields:
        name = field.name
        if not name or name.lower() in RESERVED:
            raise ViewRefused(
                f"view {view}: the column name {name!r} is empty or reserved",
                hint="rename it: SELECT … AS name",
            )
        if name.lower() in names:
            raise ViewRefused(
                f"view {view}: the column name {name!r} appears twice",
                hint="rename one of the columns: SELECT … AS name",
            )
        names[name.lower()] = name
        why = _why_unsupported(field.dataType)
        if why:
            raise ViewRefused(
                f"column {name!r} of view {view} is {why}", hint="cast the column to another type, or omit it"
            )


def _why_unsupported(kind: "DataType") -> str:
    """Return why a column of this type cannot be stored or compared; empty if it can."""
    try:
        return why_not_kept(schemas.of_type(kind))
    except BadSchema:
        return "of a user-defined type"


def columns_of(schema: "StructType") -> "list[Column]":
    """Return the columns of a schema, with quoted names."""
    from pyspark.sql import functions as sf

    return [sf.col(quoted(field.name)) for field in schema.fields]


def identified(df: "DataFrame", schema: "StructType") -> "DataFrame":
    """Add each row's identity as new columns. The frame has these columns and a weight."""
    from pyspark.sql import functions as sf

    kinds = [field.dataType for field in schema.fields]
    high, low = identity(columns_of(schema), kinds)
    return df.select(*columns_of(schema), high.alias(HIGH), low.alias(LOW), sf.col(WEIGHT))


def identity(columns: "Sequence[Column]", kinds: "Sequence[DataType]") -> "tuple[Column, Column]":
    """Return both halves of H128 of these columns."""
    from pyspark.sql import functions as sf

    parts = [
        part
        for column, kind in zip(columns, kinds, strict=True)
        for part in (column.isNull(), _hashable(column, kind))
    ]
    high, low = (sf.xxhash64(sf.lit(salt), *parts) for salt in SALTS)
    return high, low


def netted(df: "DataFrame", schema: "StructType") -> "DataFrame":
    """Add up the weights of equal rows; drop rows that cancel out.

    The frame has these columns, identity and weight. Equal rows have the same identity.
    """
    from pyspark.sql import functions as sf

    total = sf.sum(sf.col(WEIGHT)).alias(WEIGHT)
    keys, maps = [], []
    for number, field in enumerate(schema.fields):
        column = sf.col(quoted(field.name))
        if _has_map(field.dataType):
            # Spark's grouping by a map loses its inner NULLs: group by its entries, and keep the first map.
            keys.append(_flagged(column, field.dataType).alias(f"_tidemill_key{number}"))
            maps.append(sf.first(column).alias(field.name))
        else:
            keys.append(column)
    grouped = df.groupBy(sf.col(HIGH), sf.col(LOW), *keys).agg(total, *maps)
    return grouped.where(sf.col(WEIGHT) != 0).select(*columns_of(schema), HIGH, LOW, WEIGHT)


def repeated(df: "DataFrame", schema: "StructType", also: Sequence[str] = ()) -> "DataFrame":
    """Repeat each row as many times as its weight says, and drop the weight."""
    from pyspark.sql import functions as sf

    again = sf.explode(sf.array_repeat(sf.lit(1), sf.col(WEIGHT).cast("int"))).alias("_tidemill_again")
    wide = df.where(sf.col(WEIGHT) > 0).select(*columns_of(schema), *also, again)
    return wide.select(*columns_of(schema), *also)


def _hashable(value: "Column", kind: "DataType") -> "Column":
    """Return a value for `xxhash64` that includes its inner NULLs and lengths."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    match kind:
        case st.ArrayType():
            items = sf.transform(value, lambda item: _flagged(item, kind.elementType))
            return sf.struct(sf.size(value).alias("n"), items.alias("v"))
        case st.MapType():
            entries = sf.transform(
                sf.array_sort(sf.map_entries(value), _by_key),
                lambda entry: sf.struct(
                    _hashable(entry["key"], kind.keyType).alias("k"),
                    _flagged(entry["value"], kind.valueType).alias("v"),
                ),
            )
            return sf.struct(sf.size(value).alias("n"), entries.alias("v"))
        case st.StructType():
            fields = [
                _flagged(value.getField(field.name), field.dataType).alias(f"f{number}")
                for number, field in enumerate(kind.fields)
            ]
            return sf.struct(*fields)
        case _:
            return value


def _flagged(value: "Column", kind: "DataType") -> "Column":
    from pyspark.sql import functions as sf

    return sf.struct(value.isNull().alias("null"), _hashable(value, kind).alias("v"))


def _has_map(kind: "DataType") -> bool:
    from pyspark.sql import types as st

    match kind:
        case st.MapType():
            return True
        case st.ArrayType():
            return _has_map(kind.elementType)
        case st.StructType():
            return any(_has_map(field.dataType) for field in kind.fields)
        case _:
            return False


def _by_key(left: "Column", right: "Column") -> "Column":
    from pyspark.sql import functions as sf

    return sf.when(left["key"] < right["key"], -1).when(left["key"] > right["key"], 1).otherwise(0)
