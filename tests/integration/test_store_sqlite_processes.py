"""Several processes on one SQLite file: counting, being killed, waking each other, forking."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sqlite_child import READY, TAKEN, increment
from tidemill.crash import ENVIRONMENT
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.threads import STUCK_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def child(*arguments: object, crash: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.integration.sqlite_child", *map(str, arguments)]
    environment = {**os.environ, ENVIRONMENT: crash}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def answer(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=STUCK_S)
    assert process.returncode == 0, err
    return out.strip()


@pytest.mark.rule("STO-1", "STO-9", "CLU-18")
def test_processes_that_open_one_file_together_count_right(path: Path) -> None:
    children = [child("increment", path, 60) for _ in range(4)]
    with SqliteStore(path) as store:  # it is made by whoever comes first
        increment(store, 60)
        for process in children:
            answer(process)
        assert store.run(lambda tx: tx.get(b"n")) == b"300"


@pytest.mark.rule("STO-4")
@pytest.mark.parametrize(("point", "ready", "taken"), [("before_commit", 10, 0), ("after_commit", 0, 10)])
def test_a_process_killed_around_its_commit_has_taken_all_or_nothing(
    path: Path, point: str, ready: int, taken: int
) -> None:
    with SqliteStore(path) as store:
        store.run(lambda tx: tx.set_many([(b"r%d" % n, b"%d" % n) for n in range(10)]))
        taker = child("take", path, crash=f"store.sqlite.{point}")
        taker.communicate(timeout=STUCK_S)
        assert taker.returncode == -signal.SIGKILL
        assert len(store.run(lambda tx: tx.range(*READY))) == ready
        assert len(store.run(lambda tx: tx.range(*TAKEN))) == taken
        assert answer(child("take", path)) == str(ready)
        assert len(store.run(lambda tx: tx.range(*TAKEN))) == 10


@pytest.mark.rule("STO-5", "STO-9")
def test_confirmed_commits_survive_kill_9(path: Path) -> None:
    appender = child("append", path)
    assert appender.stdout is not None
    acknowledged = [int(appender.stdout.readline()) for _ in range(200)]
    appender.kill()
    acknowledged += [int(line) for line in appender.stdout.read().splitlines() if line]
    appender.communicate(timeout=STUCK_S)
    with SqliteStore(path) as store:
        rows = store.run(lambda tx: tx.range(b"a", b"b"))
        assert [row.key for row in rows[: len(acknowledged)]] == [b"a%08d" % n for n in acknowledged]
        assert len(rows) <= len(acknowledged) + 1
        store.run(lambda tx: tx.set(b"b", b""))
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.rule("STO-8")
def test_a_commit_of_another_process_wakes_a_waiting_watch(path: Path) -> None:
    with SqliteStore(path) as store:
        setter = child("set", path, "k")
        with store.watch([b"k"]) as watch:
            assert store.run(lambda tx: tx.get(b"k")) is None
            assert setter.stdin is not None
            setter.stdin.write("go\n")
            setter.stdin.flush()
            assert watch.wait(STUCK_S) is True
            while store.run(lambda tx: tx.get(b"k")) is None:
                assert watch.wait(STUCK_S)
        answer(setter)


def test_a_forked_child_is_kept_from_the_file(path: Path) -> None:
    assert answer(child("fork", path)) == "3", "the open store, a watch and a new store are all refused"
    with SqliteStore(path) as store:
        assert store.run(lambda tx: tx.get(b"after")) == b"fork"
