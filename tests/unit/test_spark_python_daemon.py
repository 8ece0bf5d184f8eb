"""The daemon of Spark's Python workers: what it prints when Java closes a connection."""

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.spark.sessions import SparkSettings
from tidemill.testing.threads import STUCK_S

DAEMON = "tidemill.spark.python_daemon"
LENGTH_BYTES = 4

FLUSHES_LATE = '''
"""A worker module: its task writes a result only when the test has closed the connection."""
def main(infile, outfile):
    infile.read()
    outfile.write(b"result")
'''
FAILS = '''
"""A worker module: its task fails outside of pyspark's handling of errors."""
def main(infile, outfile):
    raise ZeroDivisionError("a mistake")
'''


class Daemon:
    """A daemon without Java: the test plays the part of Spark."""

    def __init__(self, folder: Path, worker_module: str = "pyspark.worker") -> None:
        environment = {
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            "SPARK_REUSE_WORKER": "1",
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", DAEMON, worker_module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdout is not None
        length = int.from_bytes(self.process.stdout.read(LENGTH_BYTES))
        self.address = self.process.stdout.read(length).decode()

    def connect(self) -> tuple[socket.socket, int]:
        """Return a connection to a new worker, and a descriptor that is readable when the worker ends."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(STUCK_S)
        connection.connect(self.address)
        pid = int.from_bytes(connection.recv(LENGTH_BYTES, socket.MSG_WAITALL))
        return connection, os.pidfd_open(pid)

    def close(self) -> bytes:
        """End the daemon, and return what it and its workers have printed."""
        _, printed = self.process.communicate(timeout=STUCK_S)
        return printed


def wait_for_end(worker: int) -> None:
    ready, _, _ = select.select([worker], [], [], STUCK_S)
    os.close(worker)
    assert ready, "the worker did not end"


def test_an_idle_worker_ends_silently_when_its_connection_is_closed(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    connection, worker = daemon.connect()
    connection.close()
    wait_for_end(worker)
    assert daemon.close() == b""


def test_a_worker_ends_silently_when_nothing_reads_its_result(tmp_path: Path) -> None:
    (tmp_path / "pyspark_late.py").write_text(FLUSHES_LATE)
    daemon = Daemon(tmp_path, "pyspark_late")
    connection, worker = daemon.connect()
    connection.send(b"a task")
    connection.close()
    wait_for_end(worker)
    assert daemon.close() == b""


def test_other_errors_of_a_worker_are_printed(tmp_path: Path) -> None:
    (tmp_path / "pyspark_fails.py").write_text(FAILS)
    daemon = Daemon(tmp_path, "pyspark_fails")
    connection, worker = daemon.connect()
    connection.send(b"a task")
    wait_for_end(worker)
    connection.close()
    assert b"ZeroDivisionError: a mistake" in daemon.close()


def test_only_a_local_session_with_this_interpreter_uses_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    name = "spark.python.daemon.module"
    assert SparkSettings().all_conf()[name] == DAEMON
    assert SparkSettings(conf={name: "other.daemon"}).all_conf()[name] == "other.daemon"
    assert name not in SparkSettings(master="spark://host:7077").all_conf()
    assert name not in SparkSettings(conf={"spark.pyspark.python": "/opt/python"}).all_conf()
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert name not in SparkSettings().all_conf()
