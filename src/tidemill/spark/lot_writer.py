"""Write frames and tables as the objects of a lot, and count their rows (LOT-7, LOT-17, LOT-24).

A job writes into its own folder, so all files there are its output. The writer lists the folder once, right
after the job. It counts the rows in the write pass (`observe`) and again in the footers of the files, and the
two counts must agree. When a function of this module returns, its objects are durable.

Copies of the partition columns become folders. The columns themselves stay inside the files, so that their
types and NULLs are exact and a reader needs only the files. See `partition_folders`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from tidemill import crash
from tidemill.errors import BadSchema, UsageError, WriteMismatch
from tidemill.lots.manifest import StoredObject
from tidemill.objects import ObjectInfo, Objects
from tidemill.schemas.type_table import file_bytes
from tidemill.spark import parquet_files
from tidemill.spark.lot_reader import read_errors
from tidemill.spark.partition_folders import Partitioning
from tidemill.spark.schema import of_type
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

TARGET_BYTES: Final = 128 * 1024 * 1024
_LEAST_ROWS: Final = 10_000  # a file may always have this many rows, however wide they are
_ROWS: Final = "rows"
_NARROW_BITS: Final = 32


class Written(msgspec.Struct, frozen=True):
    """The written objects, in the order of their keys, and the number of their rows."""

    objects: tuple[StoredObject, ...] = ()
    rows: int = 0


def write_frame(
    df: "DataFrame",
    storage: Storage,
    prefix: str,
    *,
    partition_by: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    block_bytes: int | None = None,
) -> Written:
    """Compute a frame and write its rows as Parquet; a frame without rows writes no objects.

    Args:
        df: the frame.
        storage: the object storage.
        prefix: an empty folder; it ends in `/`.
        partition_by: columns whose values become folders below `prefix`.
        target_bytes: the size of a file, roughly. Small files are merged, large ones are split.
        block_bytes: the size of a row group, roughly, for files that are read in part; None for Spark's
            default.
    """
    written = write_flagged(
        df,
        storage,
        prefix,
        partition_by=partition_by,
        target_bytes=target_bytes,
        block_bytes=block_bytes,
    )
    return written.get("", Written())


def write_flagged(
    df: "DataFrame",
    storage: Storage,
    prefix: str,
    *,
    partition_by: Sequence[str] = (),
    target_bytes: int = TARGET_BYTES,
    block_bytes: int | None = None,
    flag: str | None = None,
) -> Mapping[str, Written]:
    """Write a frame like `write_frame`, but separate the rows by the text in one column (the flag).

    Returns what was written for each flag. This is one pass: each row is computed once and written once.

    - flag: the name of that column, which is not written to the files. Its texts are short, plain and never
      empty. If `flag` is None, the result has one entry, under "".
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    if not prefix.endswith("/"):
        raise UsageError(f"{prefix!r} is not a folder", hint="end it with /")
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
        with read_errors(storage):
            writer.parquet(storage.uri(prefix))
    except Exception as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise UsageError(
                f"the folder {prefix!r} is not empty", hint="write into an empty folder"
            ) from error
        raise
    written = _collect(storage.objects, prefix, int(counted.get.get(_ROWS, 0)), partitioning)
    storage.sync(item.uri for part in written.values() for item in part.objects)
    crash.point("spark.write.after")
    return written


def _collect(objects: Objects, prefix: str, rows: int, partitioning: Partitioning) -> Mapping[str, Written]:
    """List and check the output of a job; remove files without rows."""
    listed = list(objects.list(prefix))
    files = [info for info in listed if info.key.endswith(".parquet")]
    counts = parquet_files.count_rows(objects, files)
    if sum(counts) != rows:
        raise WriteMismatch(
            f"{rows} rows were computed for {prefix!r}, but its {len(files)} files have {sum(counts)}"
        )
    nonempty = [(info, count) for info, count in zip(files, counts, strict=True) if count]
    nonempty_keys = {info.key for info, _ in nonempty}
    objects.delete_many(info.key for info in listed if info.key not in nonempty_keys)
    by_flag: dict[str, list[StoredObject]] = {}
    for info, count in nonempty:
        path = info.key.removeprefix(prefix)
        flag = "" if partitioning.flag is None else path.partition("/")[0].partition("=")[2]
        item = stored(info, count, partitioning.values(objects, info, path))
        by_flag.setdefault(flag, []).append(item)
    return {
        flag: Written(tuple(items), sum(item.rows or 0 for item in items)) for flag, items in by_flag.items()
    }


def stored(info: ObjectInfo, rows: int, partition: dict[str, str | None] | None = None) -> StoredObject:
    """Return the entry of an object in a manifest."""
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
    """Write an Arrow table as Parquet without Spark; a table without rows writes no objects.

    Writing the same table again under the same prefix writes the same bytes.

    Args:
        table: the rows, with the types of `schema.to_arrow`.
        objects: where to write.
        prefix: a folder; it ends in `/`.
        target_bytes: the size of a file, roughly.
        group_rows: the number of rows in a row group, for files that are read in part; None for Arrow's
            default.
        pack: make the files smaller than Spark would; see `packed`.
    """
    if not prefix.endswith("/"):
        raise UsageError(f"{prefix!r} is not a folder", hint="end it with /")
    if table.num_rows == 0:
        return Written()
    options = packed(table.schema) if pack else {"compression": "snappy"}
    files = max(1, -(-table.nbytes // target_bytes))
    step = -(-table.num_rows // files)
    written = []
    for number, start in enumerate(range(0, table.num_rows, step)):
        part = table.slice(start, step)
        sink = pa.BufferOutputStream()
        # Do not store Arrow's schema: how Spark reads a file must not depend on its writer.
        pq.write_table(
            part,
            sink,
            store_schema=False,
            coerce_timestamps="us",
            row_group_size=group_rows,
            **options,
        )
        crash.point("spark.write_table.before")
        info = objects.put(f"{prefix}part-{number:05}.parquet", sink.getvalue().to_pybytes())
        crash.point("spark.write_table.after")
        written.append(stored(info, part.num_rows))
    return Written(tuple(written), table.num_rows)


def row_bytes(schema: "DataType") -> int:
    """Estimate the bytes of a row in a file from its types; at least 1."""
    try:
        return max(1, file_bytes(of_type(schema)))
    except BadSchema:  # a user-defined type
        return 32


def packed(schema: pa.Schema) -> dict[str, Any]:
    """Return options for Arrow's Parquet writer, for files that are written once and read often.

    Texts and narrow numbers get dictionaries, because their values mostly repeat. Wide numbers (ids, sums and
    timestamps) mostly do not repeat: their dictionary would be as large as the values. If they do repeat,
    zstd compresses them.
    """
    names = [field.name for field in schema if _repeats(field.type)]
    return {"compression": "zstd", "use_dictionary": names or False}


def _repeats(arrow_type: pa.DataType) -> bool:
    fixed = pat.is_primitive(arrow_type) or pat.is_decimal(arrow_type)
    return not fixed or int(arrow_type.bit_width) <= _NARROW_BITS
