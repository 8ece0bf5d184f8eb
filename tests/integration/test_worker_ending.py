"""Tasks that are asked to end: by a cancel, by a deadline, by a worker that leaves (FUT-56, CLU-25)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.integration.worker_stage import client, home, look
from tests.workers import Look, WorkerProcess, wait
from tidemill.errors import DeadlineExceeded, FutureCancelled
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Cancelled, Claimed, Failed, Unclaimed
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look"]  # fixtures


@pytest.fixture(scope="module")
def worker(home: Path) -> Iterator[WorkerProcess]:
    """One that kills a task soon after it was asked to end."""
    with WorkerProcess(home, "--cancel-grace", "0.5", slots=2) as worker:
        yield worker.ready()


@pytest.mark.rule("FUT-56")
def test_a_task_that_listens_ends_by_itself_when_it_is_cancelled(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with (
        WorkerProcess(home, "--cancel-grace", str(STUCK_S)) as worker,  # it is not killed
        connect(home=home) as client,
        Look(home) as look,
    ):
        future = client.submit(tasks.listens, str(tmp_path), retries=3)
        wait(lambda: tasks.notes(tmp_path) == ["began"], "it runs")
        client.cancel(future)
        with pytest.raises(FutureCancelled):
            future.result(STUCK_S)
        assert isinstance(look.row(future), Cancelled)
        assert tasks.notes(tmp_path) == ["began", "heard"]
        assert worker.events("ChildEnded") == []


@pytest.mark.rule("FUT-56")
def test_a_task_that_does_not_listen_is_killed_after_the_grace(
    client: Client, look: Look, tmp_path: Path
) -> None:
    future = client.submit(tasks.deaf, str(tmp_path), retries=3)
    wait(lambda: tasks.notes(tmp_path) == ["began"], "it runs")
    client.cancel(future)
    with pytest.raises(FutureCancelled):
        future.result(STUCK_S)
    row = look.row(future)
    assert isinstance(row, Cancelled)
    assert (row.tally.crashes, row.tally.exceptions) == (0, 0)
    assert client.submit(tasks.add, 1).result(STUCK_S) == 2


@pytest.mark.rule("FUT-56")
def test_a_deadline_ends_what_runs_and_what_waits(client: Client, look: Look, tmp_path: Path) -> None:
    runs = client.submit(tasks.deaf, str(tmp_path), deadline=0.6)
    waits = client.submit(tasks.add, runs, deadline=0.6)
    for future in (runs, waits):
        with pytest.raises(DeadlineExceeded):
            future.result(STUCK_S)
        row = look.row(future)
        assert isinstance(row, Failed)
        assert row.kind == "deadline"


@pytest.mark.rule("FUT-57")
def test_a_queue_runs_as_many_at_once_as_its_limit_says_and_all_in_the_end(
    client: Client, look: Look, tmp_path: Path
) -> None:
    client.limit("narrow", running=1)
    folder = str(tmp_path)
    futures = [client.submit(tasks.waits_for, folder, f"go {n}", queue="narrow") for n in range(3)]
    for n in range(3):
        wait(lambda n=n: len(tasks.notes(tmp_path)) == 2 * n + 1, "one of them runs")
        assert sum(isinstance(look.row(future), Claimed) for future in futures) == 1
        running = tasks.notes(tmp_path)[-1].removeprefix("began ")
        (tmp_path / running).touch()
    assert sorted(client.gather(futures, timeout=STUCK_S)) == ["go 0", "go 1", "go 2"]


@pytest.mark.rule("CLU-25", "FUT-17", "FUT-48")
def test_a_worker_that_is_asked_to_leave_finishes_what_it_can_and_gives_the_rest_back(
    tmp_path: Path,
) -> None:
    home, folder = tmp_path / "home", str(tmp_path)
    with WorkerProcess(home, "--grace", str(STUCK_S), slots=2) as worker, connect(home=home) as client:
        worker.ready()
        finishes = client.submit(tasks.waits_for, folder, "go")
        stays = client.submit(tasks.waits_for, folder, "much later")
        wait(lambda: len(tasks.notes(tmp_path)) == 2, "both run")
        rest = client.map(tasks.add, range(20))
        worker.process.terminate()
        (tmp_path / "go").touch()
        assert finishes.result(STUCK_S) == "go"
        worker.process.terminate()  # a second time: the grace is over
        assert worker.process.wait(STUCK_S) == 0
        with Look(home) as look:
            given = look.row(stays)
            assert isinstance(given, Unclaimed)
            assert (given.tally.crashes, given.tally.reaps) == (0, 0)
            assert all(isinstance(look.row(future), Unclaimed) for future in rest)
            assert [node.kind for node in look.nodes()] == ["client"]
        (tmp_path / "much later").touch()
        with WorkerProcess(home, slots=2):
            assert client.gather(rest, timeout=STUCK_S) == list(range(1, 21))
            assert stays.result(STUCK_S) == "much later"
