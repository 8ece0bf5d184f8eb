"""Rows with weights on Spark: their identity, their sum, and rows repeated as often as they are there.

**Identity.** H128 is two `xxhash64` with different salts over every column and whether it is NULL, of nested
values also over what is NULL inside of them and over their lengths; maps as their entries sorted by key. It
only brings equal rows together: rows are added up by the columns themselves, as Spark's own grouping compares
them, so two rows that share a hash stay two rows. NaN is equal to itself, -0.0 to 0.0, and maps whatever the
order of their entries.
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
KEPT: Final = f"{HIGH} BIGINT, {LOW} BIGINT, {WEIGHT} BIGINT"
"""The columns that stand beside a view's own in its files."""

RESERVED: Final = frozenset({HIGH, LOW, WEIGHT, "_position"})


def check_columns(view: str, schema: "StructType") -> None:
    """`ViewRefused` for columns that no table could have, or that cannot be compared."""
    seen: dict[str, str] = {}
    for field in schema.fields:
        name = field.name
        if not name or name.lower() in RESERVED:
            raise ViewRefused(
                f"view {view} has a column {name!r}", hint="give it another name: SELECT … AS name"
            )
        if name.lower() in seen:
            raise ViewRefused(
                f"view {view} has two columns {name!r}",
                hint="give one of them another name: SELECT … AS name",
            )
        seen[name.lower()] = name
        why = _unkept(field.dataType)
        if why:
            raise ViewRefused(f"column {name!r} of view {view} is {why}", hint="cast it, or leave it out")


def _unkept(kind: "DataType") -> str:
    """Why rows with a column of this type cannot be compared or kept; empty if they can."""
    try:
        return why_not_kept(schemas.of_type(kind))
    except BadSchema:
        return "of a user-defined type"


def columns_of(schema: "StructType") -> "list[Column]":
    """The columns of a schema, whatever their names."""
    from pyspark.sql import functions as sf

    return [sf.col(quoted(field.name)) for field in schema.fields]


def identified(df: "DataFrame", schema: "StructType") -> "DataFrame":
    """A frame of these columns and a weight, with the identity of each row beside them."""
    from pyspark.sql import functions as sf

    kinds = [field.dataType for field in schema.fields]
    high, low = identity(columns_of(schema), kinds)
    return df.select(*columns_of(schema), high.alias(HIGH), low.alias(LOW), sf.col(WEIGHT))


def identity(columns: "Sequence[Column]", kinds: "Sequence[DataType]") -> "tuple[Column, Column]":
    """Both halves of H128 of rows with these columns."""
    from pyspark.sql import functions as sf

    parts = [
        part
        for column, kind in zip(columns, kinds, strict=True)
        for part in (column.isNull(), _hashable(column, kind))
    ]
    high, low = (sf.xxhash64(sf.lit(salt), *parts) for salt in SALTS)
    return high, low


def netted(df: "DataFrame", schema: "StructType") -> "DataFrame":
    """Equal rows as one, with the sum of their weights; those that cancel out are gone.

    The frame has the columns, identity and weight; equal rows meet because their identity is equal.
    """
    from pyspark.sql import functions as sf

    total = sf.sum(sf.col(WEIGHT)).alias(WEIGHT)
    keys, kept = [], []
    for number, field in enumerate(schema.fields):
        column = sf.col(quoted(field.name))
        if _has_map(field.dataType):
            # Spark's grouping by a map loses NULLs inside of it: by its entries, with the column beside them.
            keys.append(_flagged(column, field.dataType).alias(f"_tidemill_key{number}"))
            kept.append(sf.first(column).alias(field.name))
        else:
            keys.append(column)
    grouped = df.groupBy(sf.col(HIGH), sf.col(LOW), *keys).agg(total, *kept)
    return grouped.where(sf.col(WEIGHT) != 0).select(*columns_of(schema), HIGH, LOW, WEIGHT)


def repeated(df: "DataFrame", schema: "StructType", also: Sequence[str] = ()) -> "DataFrame":
    """Each row as often as its weight says, without the weight."""
    from pyspark.sql import functions as sf

    again = sf.explode(sf.array_repeat(sf.lit(1), sf.col(WEIGHT).cast("int"))).alias("_tidemill_again")
    wide = df.where(sf.col(WEIGHT) > 0).select(*columns_of(schema), *also, again)
    return wide.select(*columns_of(schema), *also)


def _hashable(value: "Column", kind: "DataType") -> "Column":
    """A value as `xxhash64` takes it, with nothing of it passed over: NULLs inside count, and lengths."""
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
