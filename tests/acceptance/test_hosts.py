"""Several hosts: what otherwise runs over loopback runs here between machines with their own addresses.

PostgreSQL and S3 are on one host, and PostgreSQL is reached over TLS. The others run Spark's master and
workers, runners, and workers of futures that fetch results from each other over Flight with TLS. Links are
slow, are cut and heal.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests import shop
from tests import worker_tasks as tasks
from tests.acceptance.pipeline_processes import ROOT, Run
from tests.leases import end_lease
from tests.servers.fixtures import _or_skip
from tests.servers.hosts import Hosts
from tests.servers.jars import fetched
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerUnavailable
from tests.servers.s3 import S3Server, SeaweedS3
from tests.servers.spark import SMALL, SparkStandalone, small_spark
from tests.workers import WorkerProcess, wait
from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Claimed, Realized
from tidemill.futures.values.signatures import ENVIRONMENT
from tidemill.store import Tx, open_store
from tidemill.testing.threads import STUCK_S

KEY = "ab" * 32


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with _or_skip(lambda: Hosts("store", "a", "b")) as hosts:
        yield hosts


@pytest.fixture
def postgres(hosts: Hosts) -> Iterator[PostgresServer]:
    with _or_skip(lambda: PostgresServer(host=hosts["store"])) as server:
        yield server


class Cluster:
    """A cluster of two workers on two hosts, and a client on none: it uses the socket of PostgreSQL."""

    def __init__(self, hosts: Hosts, postgres: PostgresServer, folder: Path, stack: ExitStack) -> None:
        self.hosts = hosts
        self.folder = folder
        self._stack = stack
        self._objects = str(folder / "objects")
        self._database = psycopg.conninfo.conninfo_to_dict(postgres.new_database())["dbname"]
        self._url = postgres.tls_url(str(self._database))
        self.socket_url = postgres.socket_url(str(self._database))
        self.client: Client = stack.enter_context(connect(store=self.socket_url, objects=self._objects))

    def worker(self, name: str) -> WorkerProcess:
        """Start a worker on a host; it also offers a resource with the name of the host."""
        host = self.hosts[name]
        certificate = (str(host.certificate.chain), str(host.certificate.key))
        serving = ("--listen", f"{host.address}:0", "--certificate", *certificate, "--trust", certificate[0])
        environment = {
            **host.environment,
            "TIDEMILL_STORE": self._url,
            "TIDEMILL_OBJECTS": self._objects,
            ENVIRONMENT: KEY,
        }
        return self._stack.enter_context(
            WorkerProcess(
                self.folder / f"logs-{name}",
                *serving,
                "--resource",
                name,
                environment=environment,
                prefix=host.prefix,
            )
        )

    def encrypted(self) -> list[bool]:
        """Whether each connection of another host to the database is encrypted."""
        query = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_addr IS NOT NULL"
        with psycopg.connect(self.socket_url) as connection:
            return [bool(row[0]) for row in connection.execute(query).fetchall()]


@pytest.fixture
def cluster(
    hosts: Hosts, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    monkeypatch.setenv(ENVIRONMENT, KEY)
    with ExitStack() as stack:
        yield Cluster(hosts, postgres, tmp_path, stack)


@pytest.mark.rule("FUT-29", "FUT-55", "FUT-13")
def test_results_travel_between_hosts_and_a_host_that_was_cut_off_writes_nothing(cluster: Cluster) -> None:
    hosts, client, folder = cluster.hosts, cluster.client, str(cluster.folder)
    hosts.delay(0.005)
    a, b = cluster.worker("a"), cluster.worker("b")
    a.ready()
    b.ready()
    made = client.submit(tasks.large, 3_000_000, resources=["a"])
    assert client.submit(tasks.length, made, resources=["b"]).result(STUCK_S) == 3_000_000
    served = client.row_of(made)
    assert isinstance(served, Realized)
    assert served.result.location.address.startswith(f"grpc+tls://{hosts['a'].address}:")
    encrypted = cluster.encrypted()
    assert len(encrypted) >= 2
    assert all(encrypted)

    lost = client.submit(tasks.waits_for, folder, "go")
    wait(lambda: tasks.notes(cluster.folder) == ["began go"], "it runs")
    claim = client.row_of(lost)
    assert isinstance(claim, Claimed)
    cut, other, name = (a, b, "a") if claim.holder == a.id else (b, a, "b")
    hosts.cut(name)
    end_lease(client._link.store, client._link.cluster, cut.id)
    wait(lambda: tasks.notes(cluster.folder) == ["began go"] * 2, "the other host runs it")
    taken = client.row_of(lost)
    assert isinstance(taken, Claimed)
    assert taken.holder == other.id
    (cluster.folder / "go").touch()  # now both finish it
    assert lost.result(STUCK_S) == "go"
    wait(
        lambda: tasks.notes(cluster.folder).count("ended go") == 2, "the host that is cut off finished it too"
    )
    ended = client.row_of(lost)
    hosts.heal(name)
    cut.wait_for("NodeJoined", count=2)
    assert client.row_of(lost) == ended
    assert isinstance(ended, Realized)
    assert ended.result.version == taken.tally.epoch > claim.tally.epoch
    other.kill()
    assert client.submit(tasks.add, 1, resources=[name]).result(STUCK_S) == 2, "it works again"


FILE = """
import json, os
import tidemill as tm
from tests.shop import _runner, note
from tests.servers.process import wait_until
from tidemill.spark.sessions import SparkSettings

given = json.loads({given!r})
shop = tm.Pipeline("shop", **given["at"], spark=SparkSettings(**given["spark"][os.environ["SPARK_PLACE"]]))
orders = shop.dataset("orders", "id BIGINT, region STRING, amount BIGINT")
shop.source(orders, tm.bucket(given["landing"], settle_s=0.0, max_files=1))


@shop.arc(reads=orders, writes="cleaned")
def clean(df):
    note(given["notes"], "clean")
    if os.environ.get("GATE") and _runner():
        wait_until(lambda: os.path.exists(os.environ["GATE"]), timeout_s={stuck_s})
    return df.where("amount > 0")


shop.view("totals", "SELECT region, sum(amount) AS amount, count(*) AS n FROM cleaned GROUP BY region")
"""

READ = """
import json
from tests import shop
from tidemill.pipeline import pipeline_file

with pipeline_file.find("shop.py:shop") as pipeline:
    rows = {name: shop.table(pipeline, name) for name in ("orders", "cleaned")}
    totals = [row for row, count in shop.view(pipeline).items() for _ in range(count)]
    print(json.dumps({**rows, "totals": sorted(totals)}))
"""


class Lake:
    """A pipeline with its store in PostgreSQL and all data on S3, both on another host than its runners."""

    def __init__(
        self,
        hosts: Hosts,
        postgres: PostgresServer,
        s3: S3Server,
        spark: SparkStandalone,
        folder: Path,
        jars: Sequence[Path],
    ) -> None:
        self.hosts = hosts
        self.folder = folder
        self._s3 = s3
        self._bucket = s3.new_bucket()
        database = str(psycopg.conninfo.conninfo_to_dict(postgres.new_database())["dbname"])
        self.store = postgres.socket_url(database)
        self.notes = folder / "notes"
        self.notes.touch()
        key = folder / "cluster.key"
        key.write_text(KEY)
        key.chmod(0o600)
        place = f"s3://{s3.access_key}:{s3.secret_key}@{self._bucket}"
        settings = f"?endpoint={s3.endpoint}&region={s3.region}"
        conf = {**SMALL, "spark.jars": ",".join(map(str, jars))}
        a = hosts["a"].address
        cluster = spark.settings({**conf, "spark.driver.host": a, "spark.driver.bindAddress": a})
        given = {
            "at": {
                "store": postgres.tls_url(database),
                "objects": f"{place}/lake{settings}",
                "key_file": str(key),
            },
            "landing": f"{place}/landing/*.json{settings}",
            "notes": str(self.notes),
            "spark": {
                "cluster": msgspec.to_builtins(cluster),
                "local": msgspec.to_builtins(small_spark(conf)),
            },
        }
        (folder / "shop.py").write_text(FILE.format(given=json.dumps(given), stuck_s=STUCK_S))
        (folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')

    def made(self) -> int:
        """How many parts were begun, finished or not."""
        return sum(shop.runners(str(self.notes), "clean").values())

    def land(self, number: int) -> None:
        rows = [{"id": n, "region": f"r{n % 2}", "amount": n} for n in range(4 * number, 4 * number + 4)]
        body = "".join(json.dumps(row) + "\n" for row in rows).encode()
        assert self._s3.request("PUT", f"/{self._bucket}/landing/f{number}.json", body)[0] == 200

    def run(self, name: str, spark: str, **more: str) -> Run:
        host = self.hosts[name]
        environment = {**host.environment, "SPARK_PLACE": spark, **more}
        return Run(self, prefix=host.at(self.folder), environment=environment)  # type: ignore[arg-type]

    def tidemill(self, name: str, *arguments: str) -> str:
        """Run a program on a host; what it printed."""
        host = self.hosts[name]
        done = subprocess.run(
            [*host.at(self.folder), sys.executable, *arguments],
            env={**os.environ, **host.environment, "SPARK_PLACE": "local", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def check(self, files: int) -> None:
        """Every row of the files is in the tables once."""
        orders = [[n, f"r{n % 2}", n] for n in range(4 * files)]
        regions = {f"r{odd}": [n for n in range(1, 4 * files) if n % 2 == odd] for odd in (0, 1)}
        assert json.loads(self.tidemill("b", "-c", READ)) == {
            "orders": orders,
            "cleaned": orders[1:],
            "totals": [[region, sum(ids), len(ids)] for region, ids in regions.items()],
        }


def vacate(tx: Tx, keys: ClusterKeys) -> None:
    """End the leader's lease: with long leases, that of a run that has ended lasts for ten minutes."""
    leader = leases.read(tx, keys.leader)
    if leader is not None and leases.release(tx, keys.leader, leader):
        tx.add(keys.vacancies, 1)


@pytest.mark.crash
@pytest.mark.rule("LOT-26", "CLU-20")
def test_a_pipeline_on_three_hosts_survives_a_lost_spark_worker_a_new_host_and_a_cut(
    hosts: Hosts, postgres: PostgresServer, tmp_path: Path
) -> None:
    try:
        jars = fetched("s3a")
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    hosts.delay(0.001)
    with ExitStack() as stack:
        s3 = stack.enter_context(_or_skip(lambda: SeaweedS3(host=hosts["store"])))
        spark = stack.enter_context(_or_skip(lambda: SparkStandalone(hosts=[hosts["a"], hosts["b"]])))
        lake = Lake(hosts, postgres, s3, spark, tmp_path, jars)

        # a Spark worker on another host is lost in the middle
        for number in range(4):
            lake.land(number)
        run = lake.run("a", "cluster")
        stack.callback(run.end)
        run.until(lambda: lake.made() > 0, "lots are being made")
        spark.kill_worker(1)
        assert run.report()["ok"]
        lake.check(4)

        # a host joins that has no cache, and the ranges are doubled
        lake.tidemill("b", "-m", "tidemill.cli", "scale", "--ranges", "4")
        lake.land(4)
        assert lake.run("b", "local").report()["ok"]
        lake.check(5)

        # a host is cut off while it makes a lot; another one makes it
        lake.land(5)
        before = lake.made()
        cut = lake.run("a", "local", GATE=str(tmp_path / "gate"))
        stack.callback(cut.end)
        cut.until(lambda: lake.made() > before, "the lot is being made")
        hosts.cut("a")
        with open_store(lake.store) as store:
            keys = ClusterKeys("default")
            for node in store.run(lambda tx: nodes.read_all(tx, keys)):
                end_lease(store, keys, node.id)
            store.run(partial(vacate, keys=keys))
        assert lake.run("b", "local").report()["ok"]
        lake.check(6)
        (tmp_path / "gate").touch()
        hosts.heal("a")
        assert cut.report()["ok"], "it joined again, and found nothing to do"
        lake.check(6)
