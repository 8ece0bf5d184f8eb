"""Make the archive of Spark's classes that `tests.servers.spark` starts its Sparks with.

A child runs what tests run most and ends; its Java then writes every class it had loaded into the archive
(application class data sharing). `python -m tests.servers.spark_archive` makes it anew.
"""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from tests.servers.process import ServerUnavailable
from tests.servers.spark import ARCHIVE, QUICK, require_spark, small_spark

_PATIENCE_S = 120


def run_most_used(archive: str, folder: str) -> None:
    """Do what tests do with Spark, once each, and print the id of the Java process."""
    from pyspark.sql import functions as sf

    from tidemill.clock import SYSTEM
    from tidemill.objects import open_objects
    from tidemill.spark.lot_reader import read_positioned
    from tidemill.spark.lot_writer import write_frame
    from tidemill.spark.sessions import open_session
    from tidemill.spark.storage import Storage

    options = f'{QUICK} "-XX:ArchiveClassesAtExit={archive}" -Xlog:disable'
    spark = open_session(small_spark({"spark.driver.extraJavaOptions": options}))
    storage = Storage(open_objects(f"{folder}/objects", clock=SYSTEM))
    rows = spark.range(1000).withColumn("v", (sf.col("id") % 3).cast("string"))
    first = write_frame(rows, storage, "one/")
    second = write_frame(rows, storage, "two/", partition_by=["v"])
    back = read_positioned(spark, storage, "id BIGINT, v STRING", [(1, first.objects), (2, second.objects)])
    back.createOrReplaceTempView("back")
    spark.sql("SELECT v, count(*) n, sum(id) s, max(id) m FROM back GROUP BY v HAVING n > 1").collect()
    back.join(rows, "id").select(sf.udf(lambda x: x, "bigint")("id"), sf.xxhash64("id", back.v)).collect()
    back.mapInArrow(lambda batches: batches, back.schema).toArrow()
    for kind in ("json", "csv"):
        rows.write.format(kind).save(f"{folder}/{kind}")
        spark.read.schema("id BIGINT, v STRING").format(kind).load(f"{folder}/{kind}").collect()
    below = psutil.Process().children(recursive=True)
    print(next(process.pid for process in below if process.name() == "java"))


def main() -> None:
    """Make the archive, or say why there is none."""
    try:
        require_spark()
    except ServerUnavailable as reason:
        raise SystemExit(str(reason)) from None
    with tempfile.TemporaryDirectory(prefix="tidemill-archive-") as folder:
        made = Path(folder) / "classes.jsa"
        words = [sys.executable, "-m", "tests.servers.spark_archive", str(made), folder]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"Spark ended with {done.returncode}\n{done.stderr}")
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int(done.stdout)).wait(_PATIENCE_S)  # it writes the archive when it ends
        if not made.exists():
            raise SystemExit("Java left no archive of classes")
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        made.chmod(0o644)
        fresh = ARCHIVE.with_suffix(".new")
        fresh.write_bytes(made.read_bytes())
        fresh.replace(ARCHIVE)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_most_used(*sys.argv[1:])
    else:
        main()
