"""What tasks can do and be: large code and values, locks, a status, output, and not be held up by others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.integration.worker_stage import client, home, look
from tests.workers import Look, WorkerProcess, wait
from tidemill.futures.client.client import Client, connect
from tidemill.futures.protocol.rows import Realized
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "home", "look"]  # fixtures


@pytest.fixture(scope="module")
def worker(home: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(home, "--listen", "127.0.0.1:0", slots=2) as worker:
        yield worker.ready()


@pytest.mark.rule("FUT-21")
def test_code_and_arguments_above_the_limit_of_a_value_reach_their_task(client: Client) -> None:
    ballast = bytes(range(256)) * 400

    def heavy(more: bytes) -> int:
        return len(ballast) + len(more)

    assert client.submit(heavy, bytes(200_000)).result(STUCK_S) == 302_400


@pytest.mark.rule("FUT-29")
def test_a_durable_result_is_an_object_and_is_deleted_with_its_last_handle(
    client: Client, look: Look, home: Path
) -> None:
    future = client.submit(tasks.large, 100_000, durable=True)
    assert len(future.result(STUCK_S)) == 100_000
    row = look.row(future)
    assert isinstance(row, Realized)
    assert row.result.location.kind == "object"
    stored = home / "objects" / row.result.location.name
    assert stored.exists()
    del future
    wait(lambda: not stored.exists(), "the leader's worker has deleted it")


@pytest.mark.rule("FUT-29")
def test_a_worker_that_listens_tells_where_its_results_can_be_fetched(
    client: Client, look: Look, worker: WorkerProcess
) -> None:
    future = client.submit(tasks.large, 100_000)
    wait(future.done, "it is done")
    row = look.row(future)
    assert isinstance(row, Realized)
    node = next(node for node in look.nodes() if node.id == worker.id)
    assert node.address.startswith(f"{row.result.location.address}/")
    assert row.result.location.address.startswith("grpc+tcp://127.0.0.1:")


@pytest.mark.rule("CLU-23")
def test_tasks_share_a_lock_and_a_semaphore(client: Client, tmp_path: Path) -> None:
    futures = [client.submit(tasks.adds_under_lock, str(tmp_path), 10) for _ in range(3)]
    client.gather(futures, timeout=STUCK_S)
    assert (tmp_path / "count").read_text() == "30"
    assert client.submit(tasks.takes_permits, 2).result(STUCK_S) == [True, True, False]


@pytest.mark.rule("CLU-23", "FUT-56")
def test_a_task_says_what_it_does_and_is_silent_when_it_is_over(
    client: Client, look: Look, tmp_path: Path
) -> None:
    future = client.submit(tasks.tells, str(tmp_path), "half of it")

    def status() -> bytes | None:
        return look.store.run(lambda tx: tx.get(look.keys.status[future.id]))

    wait(lambda: status() == b"half of it", "its status is there")
    (tmp_path / "go").touch()
    assert future.result(STUCK_S) == "told"
    wait(lambda: status() is None, "and gone with the task")


def test_what_a_task_prints_goes_to_standard_error(client: Client, worker: WorkerProcess) -> None:
    client.submit(tasks.prints, "a word from a task").result(STUCK_S)
    wait(lambda: "a word from a task" in str(worker), "it was printed")
    assert all("type" in event for event in worker.told)


def test_short_tasks_do_not_wait_behind_a_long_one(client: Client, tmp_path: Path) -> None:
    """They were sent ahead to the same process while all tasks were short; it is asked to give them back."""
    client.gather(client.map(tasks.add, range(500)), timeout=STUCK_S)
    folder = str(tmp_path)
    mixed = client.map(tasks.long_if, [folder] * 100, [n == 0 for n in range(100)])
    assert client.gather(mixed[1:], timeout=STUCK_S) == [False] * 99
    assert not mixed[0].done()
    (tmp_path / "go").touch()
    assert mixed[0].result(STUCK_S) is True


def test_what_one_worker_cannot_run_now_another_one_gets(
    home: Path, worker: WorkerProcess, tmp_path: Path
) -> None:
    folder, own = str(tmp_path), tmp_path / "home"
    with connect(home=own) as client, WorkerProcess(own) as first:
        first.ready()
        client.gather(client.map(tasks.add, range(500)), timeout=STUCK_S)
        mixed = client.map(tasks.long_if, [folder] * 50, [n == 0 for n in range(50)])
        wait(lambda: bool(tasks.notes(tmp_path)), "the long one runs, on the only slot")
        with WorkerProcess(own) as second:
            second.ready()
            assert client.gather(mixed[1:], timeout=STUCK_S) == [False] * 49
            assert not mixed[0].done()
        (tmp_path / "go").touch()
        assert mixed[0].result(STUCK_S) is True
