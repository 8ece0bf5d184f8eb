"""Convert between column types and Arrow types.

`to_arrow` returns the Arrow schema for rows that are appended without Spark. Spark later reads the files of
these rows with the declared types.
"""

from typing import Final

import pyarrow as pa

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Array, Column, Map, Schema, Simple, Struct, Type
from tidemill.schemas.type_table import TYPE_TABLE, Family, numbers_of, row_of

_OF_ARROW: Final = {
    **{row.arrow: row.name for row in TYPE_TABLE.values() if row.arrow is not None},
    **{arrow: row.name for row in TYPE_TABLE.values() for arrow in row.read_from},
    pa.uint64(): "decimal(20,0)",
}


def to_arrow(schema: Schema) -> pa.Schema:
    """Convert columns to Arrow; raise `BadSchema` for a type that Arrow does not have."""
    return pa.schema([_arrow_field(column) for column in schema.columns])


def _arrow_field(column: Column) -> pa.Field:
    try:
        return pa.field(column.name, arrow_of(column.type), column.nullable)
    except KeyError as missing:
        raise BadSchema(
            f"column {column.name!r} has the type {missing.args[0]}, which only Spark can write",
            hint="append a Spark DataFrame instead",
        ) from None


def arrow_of(kind: Type) -> pa.DataType:
    """Return the Arrow type for a column type. Raise `KeyError` with the type's name if there is none."""
    match kind:
        case Array():
            return pa.list_(pa.field("element", arrow_of(kind.element), kind.nullable))
        case Map():
            return pa.map_(
                pa.field("key", arrow_of(kind.key), nullable=False),
                pa.field("value", arrow_of(kind.value), kind.nullable),
            )
        case Struct():
            return pa.struct([_arrow_field(column) for column in kind.fields])
        case Simple():
            row = row_of(kind)
            if row.family is Family.DECIMAL:
                return pa.decimal128(*numbers_of(kind.name))
            if row.family is Family.TEXT:
                return pa.string()
            if row.arrow is None:
                raise KeyError(kind.name)
            return row.arrow


def of_arrow(schema: pa.Schema) -> Schema:
    """Convert an Arrow schema. Each Arrow type becomes the narrowest Spark type that has all its values."""
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
    raise BadSchema(
        f"column {path!r} has the Arrow type {kind}, which Spark does not support",
        hint="cast it to another type",
    )
