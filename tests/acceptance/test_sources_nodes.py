"""Nodes share what arrives, while one is killed, one is stopped and continued, and one joins."""

import io
import json
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import leases
from tests.integration.processes import Process
from tests.servers.kafka import KafkaServer
from tests.servers.process import wait_until
from tests.servers.s3 import S3Server
from tests.unit.sources_stage import SOURCE, taken_page
from tidemill.clock import SYSTEM
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.objects import Objects, open_objects
from tidemill.publish.manifests import Manifests
from tidemill.sources.keys import SourceKeys
from tidemill.store import Store, open_store
from tidemill.testing.threads import STUCK_S, Racer

KEYS = SourceKeys("c")
NODE = "tests.integration.source_node"
TTL_S = 2.5


class Nodes:
    """Processes by name, and what each has told."""

    def __init__(self, stack: ExitStack, settings: dict[str, Any]) -> None:
        self._stack = stack
        self._settings = settings
        self.processes: dict[str, Process] = {}
        self.lots: dict[str, list[int]] = {}
        self.listed: dict[str, int] = {}

    def start(self, *names: str) -> None:
        """Begin at once, when all are ready."""
        for name in names:
            given = json.dumps({**self._settings, "name": name})
            self.processes[name] = self._stack.enter_context(Process(NODE, given))
        for name in names:
            assert self.processes[name].hear() == {"ready": True}
        for name in names:
            self.lots[name], self.listed[name] = [], 0
            threading.Thread(target=self._hear, args=(name,), daemon=True).start()
            self.processes[name].tell("begin")

    def _hear(self, name: str) -> None:
        output = self.processes[name].process.stdout
        assert output is not None
        for line in output:
            message = json.loads(line)
            if "lot" in message:
                self.lots[name].append(message["rows"])
            self.listed[name] += "listed" in message

    @property
    def done(self) -> int:
        return sum(len(sizes) for sizes in self.lots.values())

    def until(self, ready: Callable[[], object], what: str) -> None:
        wait_until(lambda: bool(ready()), timeout_s=STUCK_S, every_s=0.05)
        ended = {name: node.process.poll() for name, node in self.processes.items()}
        assert ready(), (what, self.lots, ended)

    def trouble(self, store: Store, lots_before: int) -> None:
        """One is killed, one is stopped until its time is over and goes on, and one joins."""
        self.until(lambda: self.done >= lots_before, "the first lots")
        self.processes["a"].process.kill()
        leases.stop_process(store, self.processes["b"].process.pid)
        self.start("d")
        SYSTEM.wait(threading.Event(), TTL_S + 1.0)
        self.processes["b"].process.send_signal(signal.SIGCONT)


def ids_of(store: Store, objects: Objects, read: Callable[[bytes], list[int]]) -> list[int]:
    manifests = Manifests(objects, SYSTEM)
    ids: list[int] = []
    for row in rows(store):
        for item in manifests.lot_objects(row.manifest):
            ids += read(objects.get(item.uri)[0])
    return sorted(ids)


def share_a_bucket(folder: Path, server: S3Server, count: int, **settings: Any) -> None:
    name = server.new_bucket()
    credentials = f"{server.access_key}:{server.secret_key}"
    query = f"?endpoint={server.endpoint}&region={server.region}"
    landing = open_objects(f"s3://{credentials}@{name}{query}", clock=SYSTEM, probe=False)
    for number in range(count):
        landing.put(f"landing/{number:05}.json", b'{"id":%d}\n' % number)
    given = {
        "kind": "bucket",
        "store": f"sqlite:///{folder}/s.db",
        "objects": f"s3://{credentials}@{name}/lake{query}",
        "at": f"s3://{credentials}@{name}/landing/*.json{query}",
        "ttl_s": TTL_S,
        **settings,
    }
    windows = count // settings["max_files"]
    # Each node does a share and then waits for the others, so that a busy machine leaves none out.
    lift, share = folder / "lift", windows // 4
    given |= {"share": share, "lift": str(lift)}
    with ExitStack() as stack:
        store = stack.enter_context(open_store(given["store"]))
        objects = open_objects(given["objects"], clock=SYSTEM, probe=False)
        nodes = Nodes(stack, given)
        nodes.start("a", "b", "c")
        nodes.trouble(store, windows // 8)

        def there() -> list[int]:
            return ids_of(store, objects, lambda raw: [row[1]["id"] for row in json.loads(raw)])

        def all_taken() -> bool:
            return sum(row.rows for row in rows(store)) >= count

        helpers = ("b", "c", "d")
        nodes.until(lambda: all(len(nodes.lots[helper]) >= share for helper in helpers), "all help")
        lift.touch()
        nodes.until(all_taken, "every file")
        assert there() == list(range(count)), "each file once"
        taken = store.run(lambda tx: taken_page(tx, KEYS, SOURCE, limit=10 * count))
        assert len(list(taken)) == count
        most = max(len(sizes) for sizes in nodes.lots.values())
        assert most <= 0.75 * windows, f"nobody does nearly all: {nodes.lots}"
        nodes.until(lambda: sum(listed > 0 for listed in nodes.listed.values()) >= 2, "several list")


def rows(store: Store) -> list[lots.LotRow]:
    listed: list[lots.LotRow] = []
    after = ""
    while page := store.run(
        lambda tx, after=after: lots.listed(tx, KEYS.publish.lots, DatasetId("orders"), after)
    ):
        listed += page
        after = page[-1].lot
    return listed


@pytest.mark.rule("CLU-21", "CLU-22", "LOT-35")
def test_three_nodes_share_a_bucket_while_one_is_killed_one_stopped_and_one_joins(
    tmp_path: Path, s3_server: S3Server
) -> None:
    share_a_bucket(tmp_path, s3_server, 240, max_files=4, least_files=100, pause_s=0.1)


@pytest.mark.crash
@pytest.mark.rule("CLU-21", "CLU-22", "LOT-35")
def test_three_nodes_share_a_bucket_of_two_thousand_files(tmp_path: Path, s3_server: S3Server) -> None:
    share_a_bucket(tmp_path, s3_server, 2000, max_files=20, pause_s=0.1)


@pytest.mark.crash
@pytest.mark.rule("CLU-20", "CLU-22", "LOT-35")
def test_nodes_share_a_topic_with_a_rebalance_in_the_middle(
    tmp_path: Path, kafka_server: KafkaServer
) -> None:
    least, partitions = 20_000, 6
    topic = kafka_server.new_topic(partitions)
    objects = open_objects((tmp_path / "objects").as_uri(), clock=SYSTEM)
    given = {
        "kind": "kafka",
        "store": f"sqlite:///{tmp_path}/s.db",
        "objects": (tmp_path / "objects").as_uri(),
        "at": topic,
        "brokers": kafka_server.brokers,
        "max_records": 100,
        "ttl_s": TTL_S,
    }
    with ExitStack() as stack:
        store = stack.enter_context(open_store(given["store"]))
        nodes = Nodes(stack, given)
        nodes.start("a", "b", "c")

        over = threading.Event()
        stack.callback(over.set)

        def send() -> int:
            """Send until all help; return how many messages were sent."""
            sent = 0
            while sent < least or not over.is_set():
                batch = [(n % partitions, b'{"id":%d,"name":"x"}' % n) for n in range(sent, sent + 500)]
                kafka_server.send(topic, list(batch))
                sent += 500
                SYSTEM.wait(over, 0.1)
            return sent

        sender = Racer(send)
        sender.start()
        nodes.trouble(store, 10)
        nodes.until(lambda: all(nodes.lots[helper] for helper in ("b", "c", "d")), "all help")
        over.set()
        count = sender.outcome()
        nodes.until(lambda: sum(row.rows for row in rows(store)) >= count, "every message")

        def read(raw: bytes) -> list[int]:
            return list(pq.read_table(io.BytesIO(raw)).column("id").to_pylist())

        assert ids_of(store, objects, read) == list(range(count)), "each message once"
