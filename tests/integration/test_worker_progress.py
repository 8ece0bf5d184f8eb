"""Tasks that hang are killed, and tasks that report progress are not (FUT-40).

The tests write the time of the last progress into the page that the worker shares with its child. So they do
not depend on how busy the machine is.
"""

from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.integration.test_worker_store import Unreliable, client, look, place, store, supervising
from tests.workers import Look, wait
from tidemill.clock import SYSTEM
from tidemill.futures.client.client import Client
from tidemill.futures.home import ClusterAddress
from tidemill.futures.worker.children import WorkerChild
from tidemill.futures.worker.supervisor import WorkerSupervisor
from tidemill.testing.threads import STUCK_S

__all__ = ["client", "look", "place", "store"]  # fixtures

TIMEOUT_S = 3600.0


def silence(supervisor: WorkerSupervisor, seconds: float) -> WorkerChild:
    """Pretend that the running task reported no progress for so long, and wait until the worker checks it."""
    (child,) = (child for child in supervisor.pool.children.all if child.page.running)
    child.page.progress(int((SYSTEM.monotonic() - seconds) * 1e6))
    watchdog = supervisor.pool.watchdog
    for _ in range(2):  # the first check may have begun before
        last = watchdog.next_check_at
        wait(lambda last=last: watchdog.next_check_at > last, "the worker has checked its tasks")
    return child


@pytest.mark.rule("FUT-40")
def test_a_task_without_progress_is_killed_and_retried(
    client: Client, store: Unreliable, place: ClusterAddress, look: Look, tmp_path: Path
) -> None:
    with supervising(store, place) as supervisor:
        future = client.submit(tasks.hangs, str(tmp_path), progress_timeout=TIMEOUT_S)
        wait(lambda: tasks.notes(tmp_path) == ["try"], "it runs")
        silence(supervisor, TIMEOUT_S + 1.0)
        assert future.result(STUCK_S) == "done"
        assert tasks.notes(tmp_path) == ["try"] * 2
        assert look.row(future).tally.crashes == 1
        assert look.failure(future).kind == "hang"


@pytest.mark.rule("FUT-40", "FUT-56")
def test_a_task_that_reports_progress_is_not_killed(
    client: Client, store: Unreliable, place: ClusterAddress, look: Look, tmp_path: Path
) -> None:
    with supervising(store, place) as supervisor:
        future = client.submit(tasks.makes_progress, str(tmp_path), 3, progress_timeout=TIMEOUT_S)
        wait(lambda: tasks.notes(tmp_path) == ["began"], "it runs")
        for step in range(3):
            child = silence(supervisor, 0.9 * TIMEOUT_S)
            silent = child.page.progress_us
            (tmp_path / f"go {step}").touch()
            wait(lambda step=step: f"progress {step}" in tasks.notes(tmp_path), "it reports its progress")
            assert step == 2 or child.page.progress_us > silent
        assert future.result(STUCK_S) == "done"
        assert look.row(future).tally.crashes == 0
