"""Several hosts: what otherwise runs over loopback runs here between machines with their own addresses.

PostgreSQL is on one host and is reached over TLS. Workers are on the others and fetch results from each other
over Flight with TLS. Links are slow, are cut and heal.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests import worker_tasks as tasks
from tests.leases import end_lease
from tests.servers.fixtures import _or_skip
from tests.servers.hosts import Hosts
from tests.servers.postgres import PostgresServer
from tests.workers import WorkerProcess, wait
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Claimed, Realized
from tidemill.futures.values.signatures import ENVIRONMENT
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
