"""Compare an arc over 200 small lots with a plain Spark loop over the same files, alternating.

Both use one session, `local[2]`, in this process. The peer reads, filters and writes each file, and finally
reads everything it wrote: a program without states, retries and exactly-once.
"""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import tidemill as tm
from bench.comparison import Comparison, Series
from bench.report import Report, at_most
from tidemill.spark.sessions import SparkSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOTS, ROWS = 200, 100


def measure(report: Report, folder: Path) -> None:
    """Measure `vs_plain_spark`: our time divided by the loop's."""
    lots = 4 if report.quick else LOTS
    files = folder / "files"
    files.mkdir(parents=True)
    for number in range(lots):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": list(ids), "amount": [row_id % 7 - 1 for row_id in ids]})
        pq.write_table(table, files / f"{number:05}.parquet")
    spark = open_session(SparkSettings(master="local[2]"))
    ours, peer = Series("tidemill", "s"), Series("a plain Spark loop", "s")
    _plain(spark, files, folder / "warm", min(lots, 10))
    for repetition in range(1 if report.quick else 3):
        for series, run in ((ours, _ours), (peer, _plain)):
            began, cpu = time.perf_counter(), time.process_time()
            outcome = run(spark, files, folder / f"{series.name}-{repetition}", lots)
            series.values.append(time.perf_counter() - began - outcome.set_up_s)
            series.cpu_s.append(time.process_time() - cpu)
            assert outcome.rows == sum(1 for row_id in range(lots * ROWS) if row_id % 7 > 1), outcome
            report.say(f"{series.name}: {series.values[-1]:.1f} s")
            shutil.rmtree(folder / f"{series.name}-{repetition}", ignore_errors=True)
    report.compare("vs_plain_spark", Comparison(ours, peer), target=at_most(1.3))
    spark.stop()


class Ran:
    """Return the rows read at the end, and the seconds of 200 appends, which are not counted."""

    def __init__(self, rows: int, set_up_s: float = 0.0) -> None:
        self.rows = rows
        self.set_up_s = set_up_s


def _plain(spark: "SparkSession", files: Path, folder: Path, lots: int) -> Ran:
    for number in range(lots):
        frame = spark.read.schema("id BIGINT, amount BIGINT").parquet(str(files / f"{number:05}.parquet"))
        frame.where("amount > 0").write.parquet(str(folder / f"lot={number}"))
    paths = [str(folder / f"lot={number}") for number in range(lots)]
    return Ran(spark.read.schema("id BIGINT, amount BIGINT").parquet(*paths).count())


def _ours(spark: "SparkSession", files: Path, folder: Path, lots: int) -> Ran:
    began = time.perf_counter()
    with tm.Pipeline("bench", home=folder / "home", spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT, amount BIGINT")

        @pipeline.arc(reads=orders, writes="clean")
        def clean(df: "DataFrame") -> "DataFrame":
            return df.where("amount > 0")

        for number in range(lots):
            orders.append(pq.read_table(files / f"{number:05}.parquet"))
        set_up_s = time.perf_counter() - began
        report = pipeline.run()
        assert report.ok, report
        return Ran(pipeline["clean"].df().count(), set_up_s)
