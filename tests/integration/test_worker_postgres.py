"""Two workers on PostgreSQL: the same loop on a store whose transactions really run at the same time."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.leases import end_lease
from tests.workers import WorkerProcess, wait
from tidemill.errors import FutureFailed
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Claimed
from tidemill.futures.values.signatures import ENVIRONMENT
from tidemill.testing.threads import STUCK_S


@pytest.fixture
def client(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv(ENVIRONMENT, "ab" * 32)
    with connect(store=postgres_url, objects=str(tmp_path / "objects")) as client:
        yield client


@pytest.fixture
def workers(client: Client, postgres_url: str, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    environment = {"TIDEMILL_STORE": postgres_url, "TIDEMILL_OBJECTS": str(tmp_path / "objects")}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(WorkerProcess(tmp_path / "logs", slots=2, environment=environment))
            for _ in range(2)
        ]


@pytest.mark.rule("FUT-13", "FUT-41")
def test_two_workers_share_the_work_on_postgresql(
    client: Client, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    first = client.map(tasks.add, range(400))
    second = client.map(tasks.add, first)
    failing = [
        client.submit(tasks.fails_until, str(tmp_path), 1, retries=2),
        client.submit(tasks.raises, "no"),
    ]
    tree = client.submit(tasks.fib, 5)
    large = client.submit(tasks.length, client.submit(tasks.large, 100_000))
    assert client.gather(second, timeout=STUCK_S) == list(range(2, 402))
    assert tree.result(STUCK_S) == 5
    assert large.result(STUCK_S) == 100_000
    assert failing[0].result(STUCK_S) == "done"
    with pytest.raises((LookupError, FutureFailed)):
        failing[1].result(STUCK_S)
    parents = client.gather([client.submit(tasks.whoami) for _ in range(40)], timeout=STUCK_S)
    assert {parent for _, parent in parents} <= {worker.pid for worker in workers}


@pytest.mark.rule("FUT-49", "FUT-53")
def test_a_killed_child_and_a_killed_worker_on_postgresql(
    client: Client, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    killed, survivor = (worker.ready() for worker in workers)
    futures = [client.submit(tasks.waits_for, str(tmp_path), f"go{n}") for n in range(4)]
    wait(lambda: len(tasks.notes(tmp_path)) == 4, "every slot of both workers runs a future")
    claims = [client.row_of(future) for future in futures]
    assert all(isinstance(claim, Claimed) for claim in claims)
    killed.kill()
    for child in survivor.children():
        os.kill(child, signal.SIGKILL)
    end_lease(client._link.store, client._link.cluster, killed.id)
    for n in range(4):
        (tmp_path / f"go{n}").touch()
    assert client.gather(futures, timeout=STUCK_S) == [f"go{n}" for n in range(4)]
    tallies = [client.row_of(future).tally for future in futures]
    assert sorted((tally.crashes, tally.reaps) for tally in tallies) == [(0, 1), (0, 1), (1, 0), (1, 0)]
    assert all(now.epoch > claim.tally.epoch for now, claim in zip(tallies, claims, strict=True))
