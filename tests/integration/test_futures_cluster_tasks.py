"""What a task may use of the cluster, and what `execute` is: a submitted future with a handle."""

import os
import signal

import pytest

import tidemill as tm
from tidemill.errors import FutureCancelled
from tidemill.futures.protocol.rows import decode_failure
from tidemill.futures.worker.task_context import current_task
from tidemill.testing.threads import STUCK_S


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with tm.connect(home=tmp_path_factory.mktemp("cluster-tasks"), workers=2) as client:
        yield client


def count_under_a_lock(path, times):
    task = current_task()
    assert task is not None
    for _ in range(times):
        with task.lock("counter").holding(STUCK_S) as held:
            held.check()
            before = int(path.read_text() or "0")
            path.write_text(str(before + 1))
        task.status(f"at {before + 1}")
    return task.id


def hold_a_permit(folder, number):
    task = current_task()
    assert task is not None
    with task.semaphore("door", 1).holding(STUCK_S):
        mine = folder / f"{number}"
        mine.touch()
        inside = len(list(folder.iterdir()))
        mine.unlink()
    return inside


def die_once(marker):
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second life"


@pytest.mark.rule("CLU-23")
def test_tasks_share_a_lock_and_say_what_they_do(client, tmp_path):
    path = tmp_path / "count"
    path.write_text("0")
    futures = [client.submit(count_under_a_lock, path, 10) for _ in range(2)]
    ids = client.gather(futures, timeout=STUCK_S)
    assert path.read_text() == "20"
    assert ids == [future.id for future in futures]


@pytest.mark.rule("CLU-23")
def test_a_semaphore_lets_no_more_in_than_it_has_permits(client, tmp_path):
    folder = tmp_path / "inside"
    folder.mkdir()
    futures = [client.submit(hold_a_permit, folder, number) for number in range(8)]
    assert client.gather(futures, timeout=STUCK_S) == [1] * 8


@pytest.mark.rule("CLU-24")
def test_execute_is_submit_a_handle_with_done_failure_and_cancel(client, tmp_path):
    seen = []
    good = client.submit(lambda: "done")
    good.add_done_callback(lambda future: seen.append(future.result()))
    assert good.result(STUCK_S) == "done"

    def no():
        raise LookupError("no such file")

    bad = client.submit(no)
    assert isinstance(bad.exception(STUCK_S), LookupError)

    def wait():
        task = current_task()
        assert task is not None
        task.wait_cancelled(STUCK_S)
        task.check()

    long = client.submit(wait)
    assert long.cancel()
    with pytest.raises(FutureCancelled):
        long.result(STUCK_S)
    assert seen == ["done"]


@pytest.mark.rule("CLU-24")
def test_a_task_that_killed_its_process_is_enqueued_again_and_its_node_is_on_record(client, tmp_path):
    future = client.submit(die_once, tmp_path / "marker")
    assert future.result(STUCK_S) == "second life"
    connection = client._link
    raw = connection.store.run(lambda tx: tx.get(connection.keys.error[future.id]))
    failure = decode_failure(raw)
    assert failure.kind == "crash"
    assert failure.node
