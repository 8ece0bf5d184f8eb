"""`tidemill run` whose Java process dies, and whose supervisor is killed: one line, and no stack traces.

A line that does not fit into memory ends Java too, but only once.
"""

import re
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.acceptance.pipeline_processes import Place, Run
from tests.leases import end_lease
from tests.servers.process import wait_until
from tests.servers.spark import SMALL, small_spark
from tidemill.cluster.keys import ClusterKeys
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import pipeline_file
from tidemill.pipeline.arrow_reader import arrow_table
from tidemill.pipeline.status import status_of
from tidemill.testing.threads import STUCK_S

FILE = """
import time
from pathlib import Path
import psutil
import tidemill as tm
from pyspark.sql.functions import udf

here = Path({folder!r})
spark = tm.SparkSettings(**__import__("json").loads({spark!r}))
shop = tm.Pipeline("shop", home=here / "home", spark=spark)
orders = shop.dataset("orders", "id BIGINT")

@shop.arc(reads=orders, writes="cleaned")
def clean(df):
    @udf("bigint")
    def wait(id):
        if not (here / "killed").exists():
            (here / "killed").touch()
            java = psutil.Process().parent().parent()
            java.kill()
            return id
        (here / "in-python").touch()
        while True:
            time.sleep(0.01)

    return df.select(wait("id").alias("id"))
"""


def test_a_dead_java_process_and_a_killed_supervisor_leave_one_line_each_at_most(tmp_path: Path) -> None:
    place = Place(tmp_path / "place", small_spark(SMALL))
    settings = msgspec.json.encode(small_spark(SMALL)).decode()
    (place.folder / "shop.py").write_text(FILE.format(folder=str(place.folder), spark=settings))
    with pipeline_file.find(f"{place.folder / 'shop.py'}:shop") as shop:
        shop["orders"].append([{"id": 1}])
        run = Run(place, "--watch")
        try:
            run.until((place.folder / "in-python").exists, "the part runs again, with a new Java process")
            below = psutil.Process(run.process.pid).children(recursive=True)
            run.process.kill()
            run.process.wait()
            wait_until(
                lambda: not any(child.is_running() and child.status() != "zombie" for child in below),
                timeout_s=STUCK_S,
            )
        finally:
            run.end()
        progress = ("shop ", "orders ", "clean ")
        (death,) = [line for line in run.said().splitlines() if not line.startswith(progress)]
        assert re.fullmatch(
            r"runner-0 +starts its child process again: the Java process of Spark \(pid \d+\) ended:"
            r" killed by SIGKILL, [\d.]+ s after its start",
            death,
        )
        assert not re.search(r"Traceback|Error|^\s+at ", run.said(), re.MULTILINE)
        end_lease(shop.context.store, ClusterKeys("default"), "runner-0")
        (clean,) = status_of(shop).runs
        assert (clean.node, clean.state, clean.partial, clean.missing) == ("", "scheduled", 0, 0)


HUGE = """
import json
import tidemill as tm

spark = tm.SparkSettings(**json.loads({spark!r}))
shop = tm.Pipeline("shop", home={folder!r} + "/home", spark=spark)
orders = shop.dataset("orders", "id BIGINT, name STRING")
shop.source(orders, tm.folder({folder!r} + "/landing/*.json", settle_s=0.0))
"""


@pytest.mark.crash
@pytest.mark.rule("LOT-34")
def test_a_line_that_ends_java_goes_to_quarantine_and_the_files_beside_it_are_read(tmp_path: Path) -> None:
    place = Place(tmp_path / "place", small_spark(SMALL))
    memory = {"spark.driver.memory": "600m", "spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}
    settings = msgspec.json.encode(small_spark({**SMALL, **memory})).decode()
    (place.folder / "shop.py").write_text(HUGE.format(folder=str(place.folder), spark=settings))
    with (place.landing / "huge.json").open("wb") as file:
        file.write(b'{"id": 1, "name": "')
        for _ in range(300):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n')
    (place.landing / "small.json").write_text('{"id": 2}\n')
    run = Run(place)
    try:
        assert run.report()["ok"], run.said()
    finally:
        run.end()
    assert len(re.findall("the Java process of Spark .* ended", run.said())) == 1, run.said()
    with pipeline_file.find(f"{place.folder / 'shop.py'}:shop") as shop:
        assert [row["id"] for row in shop["orders"].arrow().to_pylist()] == [2]
        (bad,) = arrow_table(shop, quarantine_of(DatasetId("orders")).name).to_pylist()
        assert (bad["file"], bad["error"][:18]) == ("huge.json", "line 1 has more th")
