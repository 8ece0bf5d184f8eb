"""The servers of the tests are what they claim to be: real, separate, and gone afterwards."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.process import wait_until
from tests.servers.s3 import S3Server
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).parents[2]


def one(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_every_test_has_an_empty_database_of_its_own(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE t (n int)")
    other = postgres_server.new_database()
    assert one(postgres_url, "SELECT count(*) FROM pg_tables WHERE tablename = 't'") == 1
    assert one(other, "SELECT count(*) FROM pg_tables WHERE tablename = 't'") == 0
    postgres_server.drop_database(other)


def test_a_template_is_copied_with_its_rows(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS n")
    copy = postgres_server.new_database(template=postgres_url.rpartition("/")[2])
    assert one(copy, "SELECT n FROM t") == 7
    postgres_server.drop_database(copy)


def test_tcp_asks_for_the_password_and_the_socket_does_not(postgres_server: PostgresServer) -> None:
    assert one(postgres_server.url(), "SELECT 1") == 1
    assert one(postgres_server.socket_url(), "SELECT 1") == 1
    wrong = postgres_server.url().replace(postgres_server.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_an_immediate_restart_cuts_connections_and_keeps_commits(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as before:
        before.execute("CREATE TABLE t AS SELECT 1 AS n")
        before.commit()
        before.execute("INSERT INTO t VALUES (2)")
        postgres_server.restart_immediate()
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
    assert one(postgres_url, "SELECT array_agg(n) FROM t") == [1]


def test_connections_can_be_cut_without_a_restart(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert postgres_server.cut_connections(postgres_url) == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_only_the_durable_server_syncs(
    postgres_server: PostgresServer, durable_postgres_server: PostgresServer
) -> None:
    assert one(postgres_server.url(), "SHOW fsync") == "off"
    assert one(durable_postgres_server.url(), "SHOW fsync") == "on"
    assert one(durable_postgres_server.url(), "SHOW synchronous_commit") == "on"


def test_a_server_ends_with_the_process_that_started_it(postgres_server: PostgresServer) -> None:
    del postgres_server  # only for its skip where there are no binaries
    script = (
        "import os, sys\n"
        "from tests.servers.postgres import PostgresServer\n"
        "server = PostgresServer(); server.start()\n"
        "print(server.pid, server._folder, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        os.kill(int(pid), 0)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not (Path(folder) / "data" / "postmaster.pid").exists(), timeout_s=STUCK_S)
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_real_server_refuses_to_create_twice(s3_server: S3Server) -> None:
    assert create_twice(s3_server) == [200, 412]


def test_a_careless_server_creates_twice(careless_s3: S3Server) -> None:
    assert create_twice(careless_s3) == [200, 200]


def create_twice(server: S3Server) -> list[int]:
    path = f"/{server.new_bucket()}/key"
    return [server.request("PUT", path, body, {"If-None-Match": "*"})[0] for body in (b"1", b"2")]


def test_requests_are_signed(s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    assert s3_server.request("PUT", f"/{bucket}/key", b"body")[0] == 200
    assert s3_server.request("GET", f"/{bucket}/key") == (200, b"body")
    right, s3_server.secret_key = s3_server.secret_key, "wrong"
    try:
        assert s3_server.request("GET", f"/{bucket}/key")[0] == 403
    finally:
        s3_server.secret_key = right
