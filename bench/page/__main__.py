"""The page over 100,000 lots and 10,000 futures: its first answer, and its slowest.

Keys, targets and how to read them: bench/README.md.
"""

import http.client
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from bench import machine
from bench.comparison import rounded
from bench.gaps import lots
from bench.report import Report, at_most, main
from tidemill.arcs import declarations
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.clock import SYSTEM
from tidemill.futures.protocol import submit
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.rows import Blob, Spec
from tidemill.lots import owners
from tidemill.pipeline import pipeline_file
from tidemill.pipeline.pipeline import Pipeline
from tidemill.publish.parts import PartSink
from tidemill.store import Store, open_store
from tidemill.ui.server import PageOptions, in_background, make_server

LOTS, QUICK_LOTS = 33_500, 1_000  # in each of three tables
FUTURES, QUICK_FUTURES = 10_000, 300
PAGE = 100
ADDRESSES: dict[str, tuple[str, dict[str, object]]] = {
    "overview": ("/", {}),
    "lineage": ("/lineage", {}),
    "table": ("/table", {"table": "cleaned"}),
    "runs": ("/runs", {}),
    "views": ("/views", {}),
    "cluster": ("/cluster", {}),
    "futures": ("/futures", {}),
    "futures, by a name that none has": ("/futures", {"name": "nothing"}),
    "api summary": ("/api/v1/summary", {}),
    "api grid": ("/api/v1/grid", {}),
    "api lots": ("/api/v1/lots", {"table": "summed", "limit": 500}),
    "api futures": ("/api/v1/futures", {"limit": 500}),
    "metrics": ("/metrics", {}),
}


@dataclass(frozen=True)
class Took:
    """How long a request took, and the CPU time of this process, which has the server and the client."""

    wall_ms: float
    cpu_ms: float

    @property
    def raw(self) -> dict[str, float]:
        return {"wall_ms": rounded(self.wall_ms), "cpu_ms": rounded(self.cpu_ms)}


def measure(report: Report) -> None:
    report.versions["ours"] = machine.versions("tidemill", "starlette", "uvicorn", "jinja2", "msgspec")
    with machine.scratch("page") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        _measure(report, folder)


def _measure(report: Report, folder: Path) -> None:
    lot_count, future_count = (QUICK_LOTS, QUICK_FUTURES) if report.quick else (LOTS, FUTURES)
    (folder / "mill.py").write_text(lots.FILE)
    with pipeline_file.find(f"{folder / 'mill.py'}:mill") as mill:
        report.say(f"filling a home with {3 * lot_count:,} lots of three tables and {future_count:,} futures")
        lots.fill(mill, lot_count)
        _declare(mill)
        _submit(mill.context.store, FutureKeys(mill.context.place.cluster), future_count)
        url, cluster = mill.context.place.store, mill.context.place.cluster
    with open_store(url) as store:
        server = make_server(store, cluster, PageOptions(port=0))
        with in_background(server):
            first, _ = _get(server.url, "/", {})
            times = {name: list(_repeated(report, server.url, *where)) for name, where in ADDRESSES.items()}
            times["table, older lots"] = list(_older(report, server.url))
    raw = {name: [took.raw for took in requests] for name, requests in times.items()}
    report.figure("first_ms", first.wall_ms, first.raw, target=at_most(500))
    worst_ms = max(took.wall_ms for requests in times.values() for took in requests)
    report.figure("worst_ms", worst_ms, raw, target=at_most(1_000))


def _declare(mill: Pipeline) -> None:
    """Declare the arcs and the owners of tables, as a run does."""
    keys = ArcKeys(mill.context.place.cluster)
    store = mill.context.store
    for name, source, sink in (("clean", lots.CLICKS, lots.CLEANED), ("sum", lots.CLEANED, lots.SUMMED)):
        spec = ArcSpec(pipeline="mill", name=name, reads=(source,), sinks=(PartSink(dataset=sink),))
        store.run(partial(declarations.declare, keys=keys, spec=spec))
    for table in (lots.CLICKS, lots.CLEANED, lots.SUMMED):
        store.run(partial(owners.declare, keys=keys.publish.lots, dataset=table, pipeline="mill"))


def _submit(store: Store, keys: FutureKeys, count: int) -> None:
    chance = random.Random(1)
    for _ in range(0, count, PAGE):
        specs = [
            Spec(id=new_id(int(SYSTEM.wall() * 1000), chance), name="work", code=b"d", args=Blob(b""))
            for _ in range(PAGE)
        ]
        store.run(partial(submit.submit, keys=keys, specs=specs))


def _repeated(report: Report, url: str, path: str, parameters: dict[str, object]) -> Iterator[Took]:
    for _ in range(report.repetitions):
        yield _get(url, path, parameters)[0]


def _older(report: Report, url: str) -> Iterator[Took]:
    """Follow the pages of a table's lots."""
    before = ""
    for _ in range(report.repetitions):
        took, body = _get(url, "/api/v1/lots", {"table": "summed", "before": before})
        before = body.rpartition('"next":"')[2].partition('"')[0]
        assert before
        yield took


def _get(url: str, path: str, parameters: dict[str, object]) -> tuple[Took, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    began, cpu_s = time.perf_counter(), time.process_time()
    connection.request("GET", f"{path}?{urlencode(parameters)}" if parameters else path)
    response = connection.getresponse()
    body = response.read().decode()
    took = Took((time.perf_counter() - began) * 1000, (time.process_time() - cpu_s) * 1000)
    connection.close()
    assert response.status == 200, (path, response.status, body[:500])
    return took, body


if __name__ == "__main__":
    main("page", __doc__, measure)
