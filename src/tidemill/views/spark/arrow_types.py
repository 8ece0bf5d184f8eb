"""The Arrow types in which kernels see Spark's types; some they do not see at all (DBSP-21)."""

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
    """The Arrow type of a Spark type, as Spark's analysis writes it; `TypeRefused` says why there is none."""
    try:
        inner = _type_of(kind)
    except Exception as error:
        raise TypeRefused(f"no kernel takes a {kind}", hint="the view is recomputed") from error
    why = why_not_native(of_type(inner))
    if why:
        raise TypeRefused(f"no kernel takes {why}", hint="the view is recomputed")
    return _in_utc()(inner)


@functools.cache
def _in_utc() -> "Callable[[DataType], pa.DataType]":
    """Return Spark's own conversion with timestamps in UTC, which older versions give without an argument."""
    from pyspark.sql.pandas.types import to_arrow_type

    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return functools.partial(to_arrow_type, timezone="UTC")
    return to_arrow_type


def struct_of(names: Sequence[str], kinds: Sequence[str]) -> "StructType":
    """Columns with these names and types."""
    from pyspark.sql import types as st

    return st.StructType([st.StructField(*one) for one in zip(names, map(_type_of, kinds), strict=True)])


@functools.cache
def _type_of(kind: str) -> "DataType":
    from pyspark.sql import types as st

    found = st.DataType.fromDDL(f"c {kind}")
    assert isinstance(found, st.StructType)
    return found.fields[0].dataType
