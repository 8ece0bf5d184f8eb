"""Read exactly the objects that a manifest lists into one frame, in a single scan.

Spark reads a frame when an action runs, long after these functions have returned. Run the action inside
`read_errors(storage)`, which replaces Spark's error about a file with an error that names the object.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from tidemill.errors import ObjectUnavailable, ObjectUnreadable, UsageError
from tidemill.lots.manifest import StoredObject, UriType
from tidemill.spark.outages import NO_RESPONSE
from tidemill.spark.parquet_files import unreadable
from tidemill.spark.schema import Schema, of_spark, parse, quoted, to_spark
from tidemill.spark.sessions import frame_of, prepare_thread
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

AnySchema: TypeAlias = "Schema | StructType | str"

POSITION: Final = "_position"
_PATH: Final = "_tidemill_path"
_FAILED: Final = re.compile(r"\[FAILED_READ_FILE\.(\w+)\][^\n]*? file (\S+?)\.(?:\s|$)")
_MEANING: Final = {
    "FILE_NOT_EXIST": "it does not exist",
    "CANNOT_READ_FILE_FOOTER": "it is not a complete Parquet file",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH": "one of its columns does not have the declared type",
}


def read_objects(
    spark: "SparkSession", storage: Storage, schema: AnySchema, objects: Sequence[StoredObject]
) -> "DataFrame":
    """Read the rows of these objects in one scan, without listing folders.

    Args:
        spark: the session.
        storage: where the objects are.
        schema: the columns. All are nullable; a column that a file lacks is NULL for the rows of that file.
        objects: the objects that manifests list; each is one Parquet file.
    """
    keys = _keys(objects)
    columns = _columns(schema)
    if not keys:
        return no_rows(spark, columns)
    prepare_thread(spark, columns)
    reader = spark.read.schema(columns).options(**storage.read_options())
    try:
        return reader.parquet(*[storage.read_uri(key) for key in keys])
    except Exception as error:
        cause = _planning_error(error, storage, keys)
        if cause is None:
            raise
        raise cause from error


def read_positioned(
    spark: "SparkSession",
    storage: Storage,
    schema: AnySchema,
    positions: Sequence[tuple[int, Sequence[StoredObject]]],
) -> "DataFrame":
    """Read like `read_objects`, and add a last column `_position`: the position of the row's lot.

    This is still one scan: a join with a small table finds the position of each file by its path. The query
    fails if a file has no known position, so that no row is lost.
    """
    from pyspark.sql import functions as sf

    positions = [(position, objects) for position, objects in positions if objects]
    rows = read_objects(spark, storage, schema, [item for _, objects in positions for item in objects])
    if len(positions) < 2:
        position = sf.lit(positions[0][0] if positions else None).cast("bigint")
        return rows.withColumn(POSITION, position)
    paths = [(storage.file_path(item.uri), position) for position, objects in positions for item in objects]
    # Pass an Arrow table: a list of rows would start Python workers.
    table = frame_of(
        spark, pa.table({_PATH: [path for path, _ in paths], POSITION: [position for _, position in paths]})
    )
    columns = [sf.col(quoted(name)) for name in rows.columns]
    missing = sf.raise_error(sf.concat(sf.lit("no position for the file "), sf.col(_PATH))).cast("bigint")
    return (
        rows.select(*columns, sf.col("_metadata.file_path").alias(_PATH))
        .join(sf.broadcast(table), _PATH, "left")
        .select(*columns, sf.coalesce(sf.col(POSITION), missing).alias(POSITION))
    )


def no_rows(spark: "SparkSession", schema: AnySchema) -> "DataFrame":
    """Return a frame with these columns and no rows, without starting a Python worker."""
    from pyspark.sql import functions as sf

    return spark.range(0).select(sf.lit(None).cast(_columns(schema)).alias("row")).select("row.*")


def _columns(schema: AnySchema) -> "StructType":
    if isinstance(schema, str):
        schema = parse(schema)
    elif not isinstance(schema, Schema):
        schema = of_spark(schema)
    return to_spark(schema.stored())


def _keys(objects: Sequence[StoredObject]) -> list[str]:
    for item in objects:
        if item.type is not UriType.IDENTIFIER or item.format != "parquet":
            raise UsageError(
                f"{item.uri!r} is not a single Parquet file (type {item.type.value}, format {item.format})",
                hint="pass the Parquet files that a manifest lists",
            )
    return [item.uri for item in objects]


# --- errors of Spark


@contextmanager
def read_errors(storage: Storage) -> Iterator[None]:
    """Raise an error with the key if Spark fails on a file; leave other errors as they are.

    The error is `ObjectUnavailable` if the object storage did not respond, otherwise `ObjectUnreadable`.
    """
    try:
        yield
    except Exception as error:
        unreadable_error = unreadable_of(error, storage)
        if unreadable_error is None:
            raise
        raise unreadable_error from error


def unreadable_of(error: BaseException, storage: Storage) -> ObjectUnreadable | ObjectUnavailable | None:
    """Convert a Spark error about a file to an error that names the object; None for any other error.

    An error deep inside a job reaches the driver as text, so this function searches the text.
    """
    failed = _FAILED.search(str(error))
    if failed is None:
        return None
    try:
        key = storage.key(failed[2])
    except UsageError:
        return None
    outage = _outage(error, storage, key)
    return outage or unreadable(
        key, _MEANING.get(failed[1], "it is not a complete Parquet file, or it was changed")
    )


def _outage(error: BaseException, storage: Storage, key: str) -> ObjectUnavailable | None:
    """Return the error for an object that was not read because the storage did not respond."""
    reason = None if storage.local else NO_RESPONSE.search(str(error))
    if reason is None:
        return None
    return ObjectUnavailable(f"{key!r} cannot be read: object storage does not respond ({reason[0]})")


def _planning_error(
    error: BaseException, storage: Storage, keys: Sequence[str]
) -> ObjectUnreadable | ObjectUnavailable | None:
    """Return the error for an object that Spark could not find, if Spark reported its path while planning."""
    for key in keys:
        path = storage.read_uri(key).partition(":")[2].lstrip("/")
        if path in str(error):
            missing = "PATH_NOT_FOUND" in str(error)
            return unreadable(key, "it does not exist") if missing else _outage(error, storage, key)
    return None
