"""The digest of a frame's content, whatever its files and the order of its rows (LOT-37).

The number of rows, and two sums of H128-like hashes of them: two `xxhash64` with different salts over every
column and whether it is NULL. Nested values are hashed as their JSON, with their NULLs. Equal content has
equal digests; other content has another one but for a chance of about 1 in 2^128 that nobody can steer who
does not choose the rows.
"""

from typing import TYPE_CHECKING, Final

from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_SALTS: Final = (0x636F_6E74, 0x656E_7473)


def content(frame: "DataFrame") -> str:
    """One pass over the rows."""
    from pyspark.sql import functions as sf

    parts = [
        part
        for field in frame.schema.fields
        for part in (sf.col(quoted(field.name)).isNull(), _hashable(field))
    ]
    sums = [
        sf.sum(sf.xxhash64(sf.lit(salt), *parts).cast("decimal(38,0)")).alias(f"h{number}")
        for number, salt in enumerate(_SALTS)
    ]
    row = frame.agg(sf.count(sf.lit(1)), *sums).collect()[0]
    return f"{row[0]}:{row[1] or 0}:{row[2] or 0}"


def _hashable(field: "StructField") -> "Column":
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    column = sf.col(quoted(field.name))
    if isinstance(field.dataType, st.ArrayType | st.MapType | st.StructType | st.VariantType):
        return sf.to_json(column, {"ignoreNullFields": "false"})
    return column
