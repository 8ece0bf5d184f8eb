"""Measure the discovery of new files in a bucket of 100,000, compared with only listing the bucket.

The server is a real one on loopback. Our side does what a runner does at every poll of a source: list,
compare with the taken files, and take the ten new ones, which are anywhere among the others. The plain
listing uses the same object library, page by page, and counts. Both alternate. The first discovery of a
runner that has just started, with an empty memory, is reported too.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from bench.comparison import rounded
from bench.report import Report, at_most
from tests.servers.s3 import S3Server, SeaweedS3
from tidemill.clock import SYSTEM
from tidemill.cluster.nodes import Node
from tidemill.objects import open_objects
from tidemill.scope import Scope
from tidemill.sources.bucket import bucket
from tidemill.sources.discovery import FileDiscovery
from tidemill.store.sqlite import SqliteStore

FILES, QUICK_FILES = 100_000, 2_000
NEW = 10
WRITERS = 32
DAYS = 100
SOURCE = "source:bench/orders"


def measure(report: Report, folder: Path) -> None:
    files = QUICK_FILES if report.quick else FILES
    with SeaweedS3() as server, SqliteStore(folder / "listing.db") as store:
        scene = _Scene(server, store)
        report.say(f"putting {files:,} files into a bucket")
        scene.put([_name(number, files) for number in range(files)])
        report.say("taking them")
        first = time.perf_counter()
        taken = scene.discovery().discover()
        first = time.perf_counter() - first
        assert taken.taken == files, taken
        started = time.perf_counter()
        discovery = scene.discovery()
        discovery.discover()
        started = time.perf_counter() - started
        ours, plain, number = [], [], 0
        for turn in range(report.repetitions + 1):
            scene.put(
                [f"{_name((turn * 7919 + n * 9973) % files, files)}-new-{turn}.json" for n in range(NEW)]
            )
            number += NEW
            took, discovered = _timed(discovery.discover)
            assert (discovered.listed, discovered.taken) == (files + number, NEW), discovered
            listed_s, listed = _timed(scene.plain)
            assert listed == files + number
            if turn:  # the first of each is the warm-up
                ours.append(took)
                plain.append(listed_s)
    pairs = [our_s / plain_s for our_s, plain_s in zip(ours, plain, strict=True)]
    raw = {
        "files": files,
        "new": NEW,
        "ours_s": [rounded(seconds) for seconds in ours],
        "plain_s": [rounded(seconds) for seconds in plain],
        "ratio_of_each_pair": [rounded(ratio) for ratio in pairs],
        "first_look_of_a_runner_s": rounded(started),
        "look_that_takes_all_s": rounded(first),
    }
    report.figure("listing_vs_plain", sorted(pairs)[len(pairs) // 2], raw, target=at_most(1.3))


def _name(number: int, files: int) -> str:
    """Return paths of files of some days, in folders."""
    return f"day={number * DAYS // files:03}/orders-{number:07}.json"


def _timed(call: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


class _Scene:
    """A bucket, its files, and the discovery on it."""

    def __init__(self, server: S3Server, store: SqliteStore) -> None:
        self._store = store
        name = server.new_bucket()
        self._url = (
            f"s3://{server.access_key}:{server.secret_key}@{name}"
            f"?endpoint={server.endpoint}&region={server.region}&listing=flat"
        )
        self._plain = S3Store(
            name,
            config={
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                "endpoint": server.endpoint,
                "region": server.region,
                "virtual_hosted_style_request": False,
            },
            client_options={"allow_http": True},
        )
        where, _, settings = self._url.partition("?")
        self._source = bucket(f"{where}/landing/**/*.json?{settings}")
        self._objects = open_objects(self._url, clock=SYSTEM, probe=False)

    def put(self, names: list[str]) -> None:
        def one(name: str) -> None:
            self._objects.put(f"landing/{name}", b'{"id": 1}\n')

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(one, names))

    def discovery(self) -> FileDiscovery:
        scope = Scope(
            store=self._store,
            cluster="bench",
            objects=self._objects,
            node=Node(id="bench", epoch=1),
            chance=random.Random(),
        )
        return FileDiscovery(SOURCE, self._source.listing(), self._source.policy, scope)

    def plain(self) -> int:
        """List with the library alone: one request for each thousand files."""
        return sum(len(page) for page in self._plain.list("landing/", chunk_size=1000))
