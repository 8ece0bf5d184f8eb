"""Order the records in a window of files: by file, then by their place in the file.

If a window upserts a key twice, the later upsert wins (LOT-40). So each record of a dataset with a key gets
an ordinal that sorts as (path of the file, place in the file): nine bits for the file, then the place. In a
Parquet file the place is the number of the row. In other formats the place has two parts: the start of the
block that a task read, in units of 1 MiB, and the number of the record within that task. Spark makes no
blocks smaller than 1 MiB.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.spark.ingest.foreign_files import ForeignFile, one_spelling
from tidemill.spark.ingest.formats import Format

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILES: Final = 1 << 9
PLACE_BITS: Final = 54
_ROW_BITS: Final = 33
_UNIT_BITS: Final = 20


def place(file_format: Format) -> "Column":
    """Return an expression for a record's place in its file. Select it directly from the scan."""
    from pyspark.sql import functions as sf

    if file_format is Format.PARQUET:
        return sf.col("_metadata.row_index")
    unit = sf.shiftright(sf.col("_metadata.file_block_start"), _UNIT_BITS)
    row = sf.monotonically_increasing_id().bitwiseAND((1 << _ROW_BITS) - 1)
    return sf.shiftleft(unit, _ROW_BITS) + row


def with_files(
    frame: "DataFrame", column: str, files: Sequence[ForeignFile], spark: "SparkSession"
) -> "DataFrame":
    """Add two columns: `file`, the path of each record's file, and `number`, the rank of that path.

    - column: the column with the file that Spark reports. The query fails if a record comes from a file that
      is not in `files`.
    """
    from pyspark.sql import functions as sf

    ordered = sorted(files, key=lambda file: file.path)
    assert len(ordered) <= FILES
    rows = [(one_spelling(file.uri), file.path, number) for number, file in enumerate(ordered)]
    table = spark.createDataFrame(rows, "_tidemill_uri STRING, file STRING, number BIGINT")
    # `url_decode` decodes a plus as a blank, as in forms; in these paths a plus means a plus.
    decoded = sf.url_decode(sf.replace(sf.col(column), sf.lit("+"), sf.lit("%2B")))
    joined = frame.withColumn("_tidemill_uri", decoded).join(sf.broadcast(table), "_tidemill_uri", "left")
    unknown = sf.raise_error(sf.concat(sf.lit("not a file of this window: "), sf.col(column)))
    return joined.withColumn("file", sf.coalesce(sf.col("file"), unknown.cast("string"))).drop(
        "_tidemill_uri"
    )


def ordinal(place_column: str) -> "Column":
    """Return a record's ordinal, computed from its file's `number` and its place in the file."""
    from pyspark.sql import functions as sf

    return sf.shiftleft(sf.col("number"), PLACE_BITS) + sf.col(place_column)
