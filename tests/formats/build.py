"""Make the frozen home, and record what is in it: `python -m tests.formats.build`.

Run it once, with the release whose formats are to be frozen. Later releases must read what that one wrote. To
build the home again with a later release would hide that they cannot. A new format gets a second home.
"""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import tidemill as tm
from tests.formats import futures, history, home, pipeline, reading
from tests.servers.spark import SMALL, small_spark
from tidemill.events import Event
from tidemill.spark.sessions import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def make(root: Path, spark: "SparkSession") -> None:
    """The home, step by step."""
    for step in range(history.STEPS):
        with home.opened(root, spark, step, first=step == 0) as made:
            if step == 0:
                made.plan().apply("build")
            history.write(made, root, step)
            say(f"step {step}: {made.run()}")


def submit_futures(root: Path) -> dict[str, str]:
    """Futures in the home, by a process that dies; their ids by name."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "tests.formats.futures", str(root / "home"), scratch]
        ids: dict[str, str] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return ids


def check(made: tm.Pipeline, observed: home.Recorded, groups: Collection[str]) -> None:
    """Compare the views of groups that have seen everything with plain Spark over the tables they read."""
    with made.context.spark() as spark:
        frames = {name: made[name].df() for name in (*made.datasets, *pipeline.ARC_TABLES)}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        plain = {}
        for name, view in made.views.items():
            if view.sql and view.group in groups:
                plain[name] = spark.sql(view.sql)
                plain[name].createOrReplaceTempView(name)
        for name, expected in reading.frame_digests(plain).items():
            if expected != observed["tables"][name]:
                raise SystemExit(f"{name} is {observed['tables'][name]}, and by plain Spark {expected}")
        for name in (*frames, *plain):
            spark.catalog.dropTempView(name)


def main() -> None:
    socket.gethostname = lambda: futures.HOST
    spark = open_session(small_spark(SMALL))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, spark)
        ids = submit_futures(root)
        home.leave(root)
        home.pack(root)
    with tempfile.TemporaryDirectory() as folder:
        root, events = Path(folder), list[Event]()
        home.unpack(root)
        with home.opened(root, spark, history.STEPS) as made:
            kinds = reading.row_kinds(made)
            objects = reading.objects_of(made.context.objects)
            observed = home.observed(made)
            check(made, observed, {view.group for view in made.views.values()})
            after = home.stepped(made, root, events)
            check(made, after, after["steps"])
    recorded = {"rows": kinds, "objects": objects, "home": observed, "step": after, "futures": ids}
    home.RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
