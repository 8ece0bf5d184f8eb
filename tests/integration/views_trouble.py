"""A process with a Spark of its own that tries tasks four times: `python -m … HOME TROUBLE`.

It runs steps of views while their workers are in trouble (see `views_daemon`), and says on stdout, as JSON,
what became of them.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import tidemill as tm
from tests.servers.spark import small_spark
from tidemill.events import Event
from tidemill.spark.sessions import open_session
from tidemill.triggers.events import RunFailed
from tidemill.views.steps import commits
from tidemill.views.steps.collector import Collector
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version

TOTALS = """
    SELECT r.name, count(*) AS n, sum(o.amount) AS total
    FROM orders o JOIN regions r ON o.region = r.region GROUP BY r.name"""


class Stage:
    def __init__(self, home: Path, trouble: Path) -> None:
        settings = small_spark({"spark.python.daemon.module": "tests.integration.views_daemon"})
        self.spark = open_session(msgspec.structs.replace(settings, master="local[2,4]"))
        self.trouble = trouble
        self.folder = home / "objects"
        self.pipeline = tm.Pipeline("p", home=home, spark=self.spark)
        self.orders = self.pipeline.dataset("orders", "id BIGINT, region STRING, amount BIGINT")
        self.regions = self.pipeline.dataset("regions", "region STRING, name STRING", key="region")
        self.totals = self.pipeline.view("totals", TOTALS)
        self.left = self.pipeline.view(
            "left_over", "SELECT o.id, r.name FROM orders o LEFT JOIN regions r ON o.region = r.region"
        )

    def run(self) -> list[str]:
        """Run, and return the reason of each failure."""
        events: list[Event] = []
        report = self.pipeline.run(emit=events.append)
        failed = [f"{event.code}: {event.message}" for event in events if isinstance(event, RunFailed)]
        assert report.ok == (not failed)
        return failed

    def rows(self) -> list[Any]:
        """What the views hold: totals as they are, of the others how many there are."""
        counts = Counter(row["name"] for row in self.left.df().collect())
        return [
            sorted(map(list, self.totals.df().collect()), key=repr),
            sorted(map(list, counts.items()), key=repr),
        ]

    def version(self) -> tuple[TraceVersion, str]:
        """The last committed version of the state, and its file."""
        site = self.pipeline.context
        rows = site.store.run(lambda tx: commits.rows(tx, site.keys, "p", "main", 0, 1 << 60))
        key = [row.version for row in rows if row.version][-1]
        return read_version(site.objects, key), key

    def runs(self) -> set[str]:
        """All bundles that are there."""
        return {info.key for info in self.pipeline.context.objects.list("") if info.key.endswith(".runs")}

    def collect(self) -> None:
        site = self.pipeline.context
        while Collector(site.store, site.keys, "p", site.objects, grace_s=0).collect(1000):
            pass

    def broken(self, what: str) -> list[str]:
        """Run while a run file, or the version file, is not as it was."""
        version, key = self.version()
        files = [key] if what == "newer" else version.files()
        bodies = {place: place.read_bytes() for place in (self.folder / file for file in files)}
        try:
            for place, body in bodies.items():
                if what == "missing":
                    place.unlink()
                else:
                    newer = body.replace(b'"format":1', b'"format":99')
                    place.write_bytes(newer if what == "newer" else bytes(255 - byte for byte in body))
            return self.run()
        finally:
            for place, body in bodies.items():
                place.write_bytes(body)

    def during(self, what: str, then: Callable[[], Any]) -> Any:
        (self.trouble / what).touch()
        try:
            return then()
        finally:
            (self.trouble / what).unlink()


def main(home: Path, trouble: Path) -> dict[str, Any]:
    stage = Stage(home, trouble)
    result: dict[str, Any] = {}
    stage.regions.upsert([("a", "x"), ("b", "y")])
    stage.orders.append([(n, "ab?"[n % 3], n) for n in range(30)])
    result["failed"] = stage.during("kill", stage.run)
    result["rows"] = stage.rows()
    marks = {mark.name: mark.read_text() for mark in trouble.glob("killed-*")}
    result["marks"] = sorted(marks)
    result["orphans"] = sorted(set(marks.values()) & stage.runs())
    listed = stage.version()[0].files()
    result["listed"] = sorted(set(marks.values()) & listed)
    stage.collect()
    result["left"] = sorted(stage.runs() - listed)
    result["lacking"] = sorted(listed - stage.runs())

    stage.orders.append([(100, "a", 1000)])
    for what in ("full", "memory", "corrupt", "missing", "newer"):
        failed = stage.during(what, stage.run) if what in ("full", "memory") else stage.broken(what)
        result[what] = {"failed": failed, "rows": stage.rows()}
    result["over"] = {"failed": stage.run(), "rows": stage.rows()}
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2])), default=str) + "\n")
