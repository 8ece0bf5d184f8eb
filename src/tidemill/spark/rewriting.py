"""The rows of some objects in other files, fewer and larger: nothing is lost and nothing is new (LOT-37)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tidemill.lots.manifest import StoredObject
from tidemill.spark import digests
from tidemill.spark.reading import naming, read_objects
from tidemill.spark.storage import Storage
from tidemill.spark.writing import TARGET_BYTES, Written, write_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and the digests of the content as it was read and as it can be read now."""

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
    """Write the rows of these objects into a folder of its own, in files of about a size; then read them all.

    Args:
        spark: the session.
        storage: where.
        schema: the columns of the files.
        items: what to read; what partitions it has, the new files have.
        prefix: the folder.
        target_bytes: about how large a file should be.
    """
    frame = read_objects(spark, storage, schema, items)
    by = list(items[0].partition) if items else []
    files = max(1, -(-sum(item.size for item in items) // target_bytes))
    with naming(storage):
        before = digests.content(frame)
        written = write_frame(
            frame if by else frame.coalesce(files),
            storage,
            storage.objects,
            prefix,
            partition_by=by,
            target_bytes=target_bytes,
        )
        after = digests.content(read_objects(spark, storage, schema, written.objects))
    return Rewritten(written=written, before=before, after=after)
