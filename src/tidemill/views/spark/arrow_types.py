"""Convert between Spark types and the Arrow types of kernels; some Spark types have none (DBSP-21)."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import TypeRefused
from tidemill.schemas.type_table import why_not_native
from tidemill.spark.schema import of_arrow, of_type, parse, to_spark

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


LENGTH = re.compile(r"\b(var)?char\(\d+\)")
"""A text type with a length, which is a string in queries."""


@functools.cache
def arrow_of(kind: str) -> pa.DataType:
    """Return the Arrow type of a Spark type by name; raise `TypeRefused` if kernels do not support it."""
    try:
        inner = _type_of(LENGTH.sub("string", kind))
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


def spark_schema(schema: pa.Schema) -> "StructType":
    """Return the Spark schema of columns of kernels: the inverse of `arrow_of`.

    Every Spark type that kernels support has its own Arrow type, so the type of a column is not lost between
    Spark and a kernel: a timestamp without a time zone is a TIMESTAMP_NTZ.
    """
    return to_spark(of_arrow(schema))


def struct_of(names: Sequence[str], kinds: Sequence[str]) -> "StructType":
    """Return a Spark schema with these names and types."""
    from pyspark.sql import types as st

    return st.StructType(
        [st.StructField(*column) for column in zip(names, map(_type_of, kinds), strict=True)]
    )


@functools.cache
def _type_of(kind: str) -> "DataType":
    """Return a Spark type by its name. This needs no session, unlike `DataType.fromDDL`."""
    return to_spark(parse(f"c {kind}")).fields[0].dataType
