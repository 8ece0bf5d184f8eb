"""Processes with little memory, and a view whose state is larger: `python -m … HOME MEGABYTES`.

Java's heap and its memory beside that are limited by Java; what Python workers and this process may allocate
by the operating system (`RLIMIT_DATA`, see `views_daemon`). What is mapped from files is not memory that
anybody was given. It says on stdout, as JSON, how large the state became, how many Python workers there were
at once, and whether views were right.
"""

import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil

import tidemill as tm
from tests.servers.spark import jvm_options, small_spark
from tidemill.events import Event
from tidemill.spark.sessions import open_session
from tidemill.triggers.events import RunFailed
from tidemill.views.spark import execution
from tidemill.views.steps import commits
from tidemill.views.steps.events import StepTimed
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version

HEAP_MB = 224
DIRECT_MB = 128
WIDTH = 2048
CUSTOMERS = 500
DAEMON = "tests.integration.views_daemon"

SOLD = "SELECT o.id, o.note, c.region FROM orders o JOIN customers c ON o.cust = c.id"
TOTALS = """
    SELECT c.id, c.region, count(*) AS n, sum(length(o.note)) AS length, max(o.note) AS last
    FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.id, c.region"""


class Stage:
    def __init__(self, home: Path) -> None:
        settings = small_spark(
            {
                "spark.driver.memory": f"{HEAP_MB}m",
                "spark.driver.extraJavaOptions": f"{jvm_options()} -XX:MaxDirectMemorySize={DIRECT_MB}m",
                "spark.testing.memory": str(HEAP_MB * 2**20),
                "spark.testing.reservedMemory": str(64 * 2**20),
                "spark.python.daemon.module": DAEMON,
                "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
                "spark.sql.shuffle.partitions": "8",
                "spark.sql.parquet.columnarReaderBatchSize": "256",  # of what views are checked by
            }
        )
        self.spark = open_session(msgspec.structs.replace(settings, master="local[1]"))
        self.told: list[Event] = []
        self.pipeline = tm.Pipeline("p", home=home, spark=self.spark)
        self.orders = self.pipeline.dataset("orders", "id BIGINT, cust INT, note STRING", deletes=True)
        self.customers = self.pipeline.dataset("customers", "id INT, region STRING", key="id")
        self.sold = self.pipeline.view("sold", SOLD)
        self.totals = self.pipeline.view("totals", TOTALS)

    def notes(self, first: int, count: int) -> Any:
        """Orders whose notes are noise: four characters are three octets, however they are compressed."""
        parts = [f"sha2(concat('{part}-', id), 512)" for part in range(WIDTH * 3 // 4 // 64)]
        note = f"base64(unhex(concat({', '.join(parts)}))) AS note"
        chosen = ["id", f"CAST(id % {CUSTOMERS} AS INT) AS cust", note]
        return self.spark.range(first, first + count).selectExpr(*chosen)

    def run(self) -> StepTimed:
        self.told.clear()
        report = self.pipeline.run(emit=self.told.append)
        failed = [f"{event.code}: {event.message}" for event in self.told if isinstance(event, RunFailed)]
        assert report.ok, failed
        return [event for event in self.told if isinstance(event, StepTimed)][-1]

    def check(self) -> bool:
        """Compare the views with plain Spark: of the wide view a count, a sum and a hash, not its rows."""
        self.orders.df().createOrReplaceTempView("orders")
        self.customers.df().createOrReplaceTempView("customers")
        self.sold.df().createOrReplaceTempView("sold")
        query = "SELECT count(*), sum(id), bit_xor(xxhash64(id, note, region)) FROM {}"
        same = (
            self.spark.sql(query.format("sold")).collect()
            == self.spark.sql(query.format(f"({SOLD})")).collect()
        )
        totals = sorted(map(tuple, self.totals.df().collect()))
        return same and totals == sorted(map(tuple, self.spark.sql(TOTALS).collect()))

    def version(self) -> TraceVersion:
        site = self.pipeline.context
        rows = site.store.run(lambda tx: commits.rows(tx, site.keys, "p", "main", 0, 1 << 60))
        return read_version(site.objects, [row.version for row in rows if row.version][-1])

    def state_bytes(self) -> int:
        return sum(entry.length for runs in self.version().traces.values() for entry in runs)


class Workers:
    """Counts the Python workers that are there at once, without the daemon that forks them."""

    def __init__(self) -> None:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Workers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            daemons = 0
            for child in psutil.Process().children(recursive=True):
                try:
                    daemons += DAEMON in child.cmdline()
                except psutil.Error:
                    continue  # it has ended
            self.most = max(self.most, daemons - 1)


def main(home: Path, megabytes: int) -> dict[str, Any]:
    execution.TASK_BYTES = 6 * 2**20  # a tenth of what workers of a usual size are given
    stage = Stage(home)
    with Workers() as workers:
        return {**lived(stage, megabytes), "workers": workers.most}


def lived(stage: Stage, megabytes: int) -> dict[str, Any]:
    """A load and three steps."""
    most = int(os.environ["TIDEMILL_WORKER_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # Java is already running, with its own limit
    count = megabytes * 2**20 // WIDTH
    stage.customers.upsert([(n, f"r{n % 7}") for n in range(CUSTOMERS)])
    parts = 8
    for part in range(parts):
        stage.orders.append(stage.notes(part * (count // parts), count // parts))
    result: dict[str, Any] = {"load_s": stage.run().load_s, "right": [stage.check()]}
    for step in range(3):
        stage.orders.append(stage.notes(10 * count + step * 1000, 1000))
        stage.orders.delete(stage.notes(step * 500, 500))
        stage.customers.upsert([(step, "moved"), (CUSTOMERS + step, "new")])
        result.setdefault("loaded_again", []).append(stage.run().load_s > 0)
    result["right"].append(stage.check())
    result["state_mb"] = stage.state_bytes() / 2**20
    result["rows"] = count
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
