"""Convert Spark types to the Arrow types of kernels. Kernels do not support all Spark types (DBSP-21)."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import TypeRefused
from tidemill.schemas.type_table import why_not_native
from tidemill.spark.schema import of_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


@functools.cache
def arrow_of(kind: str) -> pa.DataType:
    """Return the Arrow type of a Spark type by name; raise `TypeRefused` if kernels do not support it."""
    try:
        inner = _type_of(kind)
    except Exception as error:
        raise TypeRefused(
            f"no kernel supports the type {kind}", hint="no action is needed: Spark recomputes the view"
        ) from error
    why = why_not_native(of_type(inner))
    if why:
        raise TypeRefused(f"no kernel supports {why}", hint="no action is needed: Spark recomputes the view")
    return _in_utc()(inner)


@functools.cache
def _in_utc() -> "Callable[[DataType], pa.DataType]":
    """Return Spark's conversion with timestamps in UTC; older Spark versions always use UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return functools.partial(to_arrow_type, timezone="UTC")
    return to_arrow_type


def struct_of(names: Sequence[str], kinds: Sequence[str]) -> "StructType":
    """Return a Spark schema with these names and types."""
    from pyspark.sql import types as st

    return st.StructType(
        [st.StructField(*column) for column in zip(names, map(_type_of, kinds), strict=True)]
    )


@functools.cache
def _type_of(kind: str) -> "DataType":
    from pyspark.sql import types as st

    schema = st.DataType.fromDDL(f"c {kind}")
    assert isinstance(schema, st.StructType)
    return schema.fields[0].dataType
