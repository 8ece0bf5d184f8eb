"""Number the lines of files that several tasks read at the same time.

Spark divides a large file into blocks, and a task knows only the order of the lines in its block. So a first
pass counts the lines of each block. Both passes read the same files, so they see the same blocks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tidemill.spark.ingest.foreign_files import ForeignFile, one_spelling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE: Final = "_tidemill_file"
BLOCK: Final = "_tidemill_block"
TEXT: Final = "_tidemill_text"
LINE: Final = "line"
_ID: Final = "_tidemill_id"


def numbered(spark: "SparkSession", lines: "DataFrame", files: Sequence[ForeignFile]) -> "DataFrame":
    """Add to each line its file (`file`), its number (`line`), and the first number in the file (`first`).

    Args:
        spark: the session.
        lines: frames with FILE, BLOCK and TEXT, directly from the scan.
        files: the files that the lines come from.
    """
    from pyspark.sql import functions as sf

    counted = lines.withColumn(_ID, sf.monotonically_increasing_id())
    located = counted.join(sf.broadcast(_blocks(spark, counted, files)), [FILE, BLOCK])
    return located.withColumn(LINE, sf.col(_ID) + sf.col("shift"))


def _blocks(spark: "SparkSession", counted: "DataFrame", files: Sequence[ForeignFile]) -> "DataFrame":
    """Return one row per block, which tells how to compute line numbers in that block.

    - file: the path of the block's file.
    - shift: add this to a record's id to get its line number.
    - first: the number of the first line of the file that is not blank.
    """
    from pyspark.sql import functions as sf

    # A record without text is good, so it counts as not blank.
    first_text = sf.min(sf.when(sf.coalesce(sf.trim(TEXT), sf.lit("x")) != "", sf.col(_ID)))
    blocks = counted.groupBy(FILE, BLOCK).agg(sf.min(_ID), sf.count(sf.lit(1)), first_text)
    rows = sorted((tuple(row) for row in blocks.collect()), key=lambda row: (row[0], row[1]))
    names = {one_spelling(file.uri): file.path for file in files}
    before: dict[str, int] = {}
    firsts: dict[str, int] = {}
    shifts = {}
    for path, block, start, count, first in rows:
        shifts[path, block] = before.get(path, 0) - start + 1
        before[path] = before.get(path, 0) + count
        if first is not None:
            firsts.setdefault(path, shifts[path, block] + first)
    located = [
        (path, block, shift, names[one_spelling(unquote(path))], firsts.get(path))
        for (path, block), shift in shifts.items()
    ]
    return spark.createDataFrame(
        located, f"{FILE} STRING, {BLOCK} BIGINT, shift BIGINT, file STRING, first BIGINT"
    )
