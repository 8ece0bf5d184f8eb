"""A process that writes and reads lots with another Spark: `python -m … SETTINGS FOLDER`.

A client of Spark Connect or the driver of a cluster cannot share a process with the tests' session. The
process writes its results to stdout as JSON.
"""

import sys
import threading
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.servers.process import wait_until
from tidemill.clock import SYSTEM
from tidemill.errors import ObjectUnreadable
from tidemill.objects import open_objects
from tidemill.spark.lot_reader import read_errors, read_objects, read_positioned
from tidemill.spark.lot_writer import write_frame
from tidemill.spark.sessions import SparkSettings, interrupt, open_session, tagged
from tidemill.spark.storage import Storage
from tidemill.testing.threads import STUCK_S

COLUMNS = "id BIGINT, v STRING"


def interrupted(spark: SparkSession, started: Path) -> bool:
    """Return whether another thread can cancel the jobs of a tag.

    It cancels only after the job has begun: Spark Connect forgets an earlier interruption.
    """
    ended = threading.Event()
    mark = sf.udf(lambda x: started.touch() or x, "bigint")

    def long_job() -> None:
        try:
            with tagged(spark, "attempt-1"):
                spark.range(10**14).select(mark("id").alias("x")).agg(sf.sum("x")).collect()
        except Exception:  # noqa: BLE001 - the job is expected to fail
            ended.set()

    threading.Thread(target=long_job, daemon=True).start()
    wait_until(started.exists, timeout_s=STUCK_S)
    interrupt(spark, "attempt-1")
    return ended.wait(STUCK_S)


def main(settings: SparkSettings, folder: str) -> dict[str, object]:
    spark = open_session(settings)
    storage = Storage(open_objects(folder, clock=SYSTEM))
    twice = sf.udf(lambda x: 2 * x, "bigint")
    df = spark.range(100, numPartitions=2).select(
        twice("id").alias("id"), (sf.col("id") % 3).cast("string").alias("v")
    )
    first = write_frame(df, storage, "data/lot=1/attempt=a.b.1/")
    with tagged(spark, "lot-2"):
        second = write_frame(df.where("v <> '1'"), storage, "data/lot=2/attempt=a.c.1/", partition_by=["v"])
    positioned = read_positioned(spark, storage, COLUMNS, [(1, first.objects), (2, second.objects)])
    sums = positioned.groupBy("_position", "v").agg(sf.sum("id").alias("s")).collect()
    results: dict[str, object] = {
        "version": str(spark.version),
        "zone": spark.sql("SELECT current_timezone()").collect()[0][0],
        "rows": [first.rows, second.rows],
        "partitions": [item.partition for item in second.objects],
        "sums": sorted([row["_position"], row["v"], row["s"]] for row in sums),
        "interrupted": interrupted(spark, Path(folder) / "started"),
    }
    victim = first.objects[0].uri
    storage.objects.put(victim, b"no parquet, but bytes")
    try:
        with read_errors(storage):
            read_objects(spark, storage, COLUMNS, first.objects).collect()
    except ObjectUnreadable as error:
        results["named"] = error.key == victim
    spark.stop()
    return results


if __name__ == "__main__":
    results = main(msgspec.json.decode(sys.argv[1], type=SparkSettings), sys.argv[2])
    sys.stdout.write(msgspec.json.encode(results).decode())
