"""Objects of lots as frames: exactly those that a manifest lists, in one scan, with the declared columns.

A frame is read when an action runs, long after the functions here have returned. Whoever runs the action does
so in `naming(storage)`, which turns what Spark says of a file into an error that names the object.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from tidemill.errors import ObjectUnreadable, UsageError
from tidemill.lots.manifest import StoredObject, UriType
from tidemill.spark.footers import unreadable
from tidemill.spark.schema import Schema, of_spark, parse, quoted, to_spark
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

AnySchema: TypeAlias = "Schema | StructType | str"

POSITION: Final = "_position"
_PATH: Final = "_tidemill_path"
_FAILED: Final = re.compile(r"\[FAILED_READ_FILE\.(\w+)\][^\n]*? file (\S+?)\.(?:\s|$)")
_MEANING: Final = {
    "FILE_NOT_EXIST": "it is not there",
    "CANNOT_READ_FILE_FOOTER": "it is no whole Parquet file",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH": "a column of it has another type than was declared",
}


def read_objects(
    spark: "SparkSession", storage: Storage, schema: AnySchema, objects: Sequence[StoredObject]
) -> "DataFrame":
    """The rows of these objects: one scan however many they are, and no listing of folders.

    Args:
        spark: the session.
        storage: where the objects are.
        schema: the columns; one that a file lacks is NULL there, and any may be NULL.
        objects: what manifests list; each is one Parquet file.
    """
    keys = _keys(objects)
    columns = _columns(schema)
    if not keys:
        return no_rows(spark, columns)
    reader = spark.read.schema(columns).options(**storage.read_options())
    try:
        return reader.parquet(*[storage.read_uri(key) for key in keys])
    except Exception as error:
        missing = _missing(error, storage, keys)
        if missing is None:
            raise
        raise missing from error


def read_positioned(
    spark: "SparkSession",
    storage: Storage,
    schema: AnySchema,
    positions: Sequence[tuple[int, Sequence[StoredObject]]],
) -> "DataFrame":
    """As `read_objects`, with the position of each row's lot as a last column `_position`.

    Still one scan: which position a file belongs to is looked up by its path. A file whose position is not
    known fails the query, so that no row is lost or lands at no position.
    """
    from pyspark.sql import functions as sf

    positions = [(position, objects) for position, objects in positions if objects]
    rows = read_objects(spark, storage, schema, [item for _, objects in positions for item in objects])
    if len(positions) < 2:
        position = sf.lit(positions[0][0] if positions else None).cast("bigint")
        return rows.withColumn(POSITION, position)
    known = [(storage.file_path(item.uri), position) for position, objects in positions for item in objects]
    # As Arrow, which Spark reads by itself: a list of rows would start Python workers.
    table = spark.createDataFrame(
        pa.table({_PATH: [path for path, _ in known], POSITION: [position for _, position in known]})
    )
    columns = [sf.col(quoted(name)) for name in rows.columns]
    missing = sf.raise_error(sf.concat(sf.lit("no position is known of "), sf.col(_PATH))).cast("bigint")
    return (
        rows.select(*columns, sf.col("_metadata.file_path").alias(_PATH))
        .join(sf.broadcast(table), _PATH, "left")
        .select(*columns, sf.coalesce(sf.col(POSITION), missing).alias(POSITION))
    )


def no_rows(spark: "SparkSession", schema: AnySchema) -> "DataFrame":
    """No rows of these columns, made without a Python worker."""
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
                f"{item.uri!r} is a {item.type.value} of {item.format}, not one Parquet file",
                hint="frames are read from the files a manifest lists, each by its name",
            )
    return [item.uri for item in objects]


# --- what Spark says of files


@contextmanager
def naming(storage: Storage) -> Iterator[None]:
    """Where Spark fails because of a file, raise `ObjectUnreadable` with its key; leave the rest as it is."""
    try:
        yield
    except Exception as error:
        named = unreadable_of(error, storage)
        if named is None:
            raise
        raise named from error


def unreadable_of(error: BaseException, storage: Storage) -> ObjectUnreadable | None:
    """The object that an error of Spark is about, as an error of ours; None when it is about none of ours.

    An error that was raised far down in a job reaches the driver as text, so text is what is searched.
    """
    found = _FAILED.search(str(error))
    if found is None:
        return None
    try:
        key = storage.key(found[2])
    except UsageError:
        return None
    return unreadable(key, _MEANING.get(found[1], "it is no whole Parquet file, or was changed"))


def _missing(error: BaseException, storage: Storage, keys: Sequence[str]) -> ObjectUnreadable | None:
    """Which file is missing, when planning a read says so. That message has the path as it was given."""
    if "PATH_NOT_FOUND" not in str(error):
        return None
    for key in keys:
        path = storage.read_uri(key).partition(":")[2].lstrip("/")
        if path in str(error):
            return unreadable(key, "it is not there")
    return None
