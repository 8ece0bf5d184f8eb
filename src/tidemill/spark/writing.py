"""Frames and tables as objects of a lot, with exact counts (LOT-7, LOT-17, LOT-24).

A job writes into a folder that is its own, so what lies there when the job has ended is what it wrote. The
folder is listed once, right then; rows are counted in the write pass (`observe`) and again by the footers of
the files, and the two must agree. What is returned is durable.

Partition columns become folders, from copies of the columns: the columns themselves stay inside the files, so
that their types and NULLs are exact and a reader needs nothing but the files. See `partitions`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill import crash
from tidemill.errors import BadSchema, UsageError, WriteMismatch
from tidemill.lots.manifest import StoredObject
from tidemill.objects import Info, Objects
from tidemill.schemas.type_table import file_bytes
from tidemill.spark import footers
from tidemill.spark.packing import packed
from tidemill.spark.partitions import Partitioning
from tidemill.spark.reading import naming
from tidemill.spark.schema import of_type
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

TARGET_BYTES: Final = 128 * 1024 * 1024
_LEAST_ROWS: Final = 10_000  # of a file, however wide its rows are taken to be
_ROWS: Final = "rows"


class Written(msgspec.Struct, frozen=True):
    """What was written: the objects, in the order of their keys, and their rows."""

    objects: tuple[StoredObject, ...] = ()
    rows: int = 0


def write_frame(
    df: "DataFrame",
    storage: Storage,
    objects: Objects,
    prefix: str,
    *,
    partition_by: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    block_bytes: int | None = None,
) -> Written:
    """Run a frame and keep its rows as Parquet; no rows make no objects.

    Args:
        df: what to compute.
        storage: where, for Spark.
        objects: the same place, for us.
        prefix: a folder (it ends in `/`) that nobody has written into yet.
        partition_by: columns whose values become folders below it.
        target_bytes: about how large a file should be; small ones come together, large ones are split.
        block_bytes: about how large a row group should be, where files are read in part; None for Spark's.
    """
    written = write_flagged(
        df,
        storage,
        objects,
        prefix,
        partition_by=partition_by,
        target_bytes=target_bytes,
        block_bytes=block_bytes,
    )
    return written.get("", Written())


def write_flagged(
    df: "DataFrame",
    storage: Storage,
    objects: Objects,
    prefix: str,
    *,
    partition_by: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    block_bytes: int | None = None,
    flag: str | None = None,
) -> Mapping[str, Written]:
    """As `write_frame`, with rows kept apart by the texts in one column, which is not kept itself; in one
    pass, so that each row is computed once and is in exactly one place.

    - flag: the column; its texts are short and plain, and never empty. Without one, all is under "".
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    if not prefix.endswith("/"):
        raise UsageError(f"not a folder: {prefix!r}", hint="end it with /")
    partitioning = Partitioning(df, partition_by, prefix, flag)
    counted = Observation()
    frame = partitioning.prepare(df).observe(counted, sf.count(sf.lit(1)).alias(_ROWS))
    writer = (
        frame.write.mode("error")
        .options(**storage.write_options())
        .option("maxRecordsPerFile", max(_LEAST_ROWS, target_bytes // row_bytes(df.schema)))
    )
    if block_bytes is not None:
        writer = writer.option("parquet.block.size", block_bytes)
    if partitioning.folders:
        writer = writer.partitionBy(*partitioning.folders)
    crash.point("spark.write.before")
    try:
        with naming(storage):
            writer.parquet(storage.uri(prefix))
    except Exception as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise UsageError(
                f"something was written into {prefix!r} before", hint="each write has a folder of its own"
            ) from error
        raise
    written = _collect(objects, prefix, int(counted.get.get(_ROWS, 0)), partitioning)
    storage.sync(item.uri for one in written.values() for item in one.objects)
    crash.point("spark.write.after")
    return written


def _collect(objects: Objects, prefix: str, rows: int, partitioning: Partitioning) -> Mapping[str, Written]:
    """What a job has left in its folder, checked; files without rows are removed."""
    found = list(objects.list(prefix))
    files = [info for info in found if info.key.endswith(".parquet")]
    counts = footers.count_rows(objects, files)
    if sum(counts) != rows:
        raise WriteMismatch(
            f"{rows} rows were computed for {prefix!r}, and {sum(counts)} are in its {len(files)} files"
        )
    kept = [(info, count) for info, count in zip(files, counts, strict=True) if count]
    listed = {info.key for info, _ in kept}
    objects.delete_many(info.key for info in found if info.key not in listed)
    apart: dict[str, list[StoredObject]] = {}
    for info, count in kept:
        path = info.key.removeprefix(prefix)
        of = "" if partitioning.flag is None else path.partition("/")[0].partition("=")[2]
        item = stored(info, count, partitioning.values(objects, info, path))
        apart.setdefault(of, []).append(item)
    return {of: Written(tuple(items), sum(item.rows or 0 for item in items)) for of, items in apart.items()}


def stored(info: Info, rows: int, partition: dict[str, str | None] | None = None) -> StoredObject:
    """An object as a manifest lists it."""
    return StoredObject(uri=info.key, size=info.size, rows=rows, etag=info.etag, partition=partition or {})


def write_table(
    table: pa.Table,
    objects: Objects,
    prefix: str,
    *,
    target_bytes: int = TARGET_BYTES,
    group_rows: int | None = None,
    pack: bool = False,
) -> Written:
    """Keep the rows of an Arrow table as Parquet that Spark reads, without Spark; no rows make no objects.

    Writing the same table again under the same prefix writes the same bytes.

    Args:
        table: the rows; its types as `schema.to_arrow` gives them.
        objects: where.
        prefix: a folder (it ends in `/`) of its own.
        target_bytes: about how large a file should be.
        group_rows: rows of a row group, where files are read in part; None for Arrow's own.
        pack: make it smaller than Spark would, see `packing`.
    """
    if not prefix.endswith("/"):
        raise UsageError(f"not a folder: {prefix!r}", hint="end it with /")
    if table.num_rows == 0:
        return Written()
    options = packed(table.schema) if pack else {"compression": "snappy"}
    files = max(1, -(-table.nbytes // target_bytes))
    step = -(-table.num_rows // files)
    made = []
    for number, start in enumerate(range(0, table.num_rows, step)):
        piece = table.slice(start, step)
        sink = pa.BufferOutputStream()
        # Arrow's own schema is left out: Spark's reading of the file must not depend on who wrote it.
        pq.write_table(
            piece,
            sink,
            store_schema=False,
            coerce_timestamps="us",
            row_group_size=group_rows,
            **options,
        )
        crash.point("spark.write_table.before")
        info = objects.put(f"{prefix}part-{number:05}.parquet", sink.getvalue().to_pybytes())
        crash.point("spark.write_table.after")
        made.append(stored(info, piece.num_rows))
    return Written(tuple(made), table.num_rows)


def row_bytes(schema: "DataType") -> int:
    """About how many bytes a row takes in a file, by its types; at least 1."""
    try:
        return max(1, file_bytes(of_type(schema)))
    except BadSchema:  # a user-defined type
        return 32
