"""Compact lots with Spark: write the same rows into fewer, larger files (LOT-37)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tidemill.lots.manifest import StoredObject
from tidemill.spark.lot_reader import read_errors, read_objects
from tidemill.spark.lot_writer import TARGET_BYTES, Written, write_frame
from tidemill.spark.queries import quoted
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

_SALTS: Final = (0x636F_6E74, 0x656E_7473)


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction: the written files, and the digests of the content before and after."""

    written: Written
    before: str
    after: str


def rewrite(
    spark: "SparkSession",
    storage: Storage,
    schema: str,
    items: Sequence[StoredObject],
    prefix: str,
    *,
    target_bytes: int = TARGET_BYTES,
) -> Rewritten:
    """Write the rows of these objects into files of similar size, and compute digests of old and new files.

    Args:
        spark: the session.
        storage: where lots are.
        schema: the columns of the files.
        items: the objects to read. The new files have the same partition folders.
        prefix: an empty folder for the new files.
        target_bytes: the size of a file, roughly.
    """
    frame = read_objects(spark, storage, schema, items)
    partition_by = list(items[0].partition) if items else []
    files = max(1, -(-sum(item.size for item in items) // target_bytes))
    with read_errors(storage):
        before = content_digest(frame)
        written = write_frame(
            frame if partition_by else frame.coalesce(files),
            storage,
            prefix,
            partition_by=partition_by,
            target_bytes=target_bytes,
        )
        after = content_digest(read_objects(spark, storage, schema, written.objects))
    return Rewritten(written=written, before=before, after=after)


def content_digest(frame: "DataFrame") -> str:
    """Return the digest of a frame's content. Neither the order of rows nor the split into files matters.

    The digest consists of the number of rows and two sums of row hashes, with different salts. A row hash is
    an `xxhash64` over all columns, with an is-null flag for each column. Nested values are hashed as JSON,
    with their NULLs. Equal content has equal digests. Two different contents have equal digests with a
    probability of about 1 in 2^128, unless someone constructs the rows to collide.
    """
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
