"""Tasks that await other tasks: their slot is given back, and beyond the cap they are parked (FUT-41)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.workers import Look, WorkerProcess, wait
from tidemill.futures.client.client import connect
from tidemill.testing.threads import STUCK_S


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def look(home: Path) -> Iterator[Look]:
    with Look(home) as look:
        yield look


@pytest.mark.rule("FUT-41")
def test_one_worker_with_one_slot_runs_a_recursive_fib_of_ten(home: Path) -> None:
    with WorkerProcess(home, slots=1) as worker, connect(home=home) as client:
        worker.ready()
        assert client.submit(tasks.fib, 10).result(STUCK_S) == 55
        assert not worker.events("TaskParked")
        assert not worker.events("TaskFailed")


@pytest.mark.rule("FUT-41", "FUT-62")
def test_beyond_the_cap_waiting_tasks_are_parked_and_find_their_children_again(
    home: Path, tmp_path: Path
) -> None:
    with WorkerProcess(home, "--max-waiting", "2", slots=1) as worker, connect(home=home) as client:
        worker.ready()
        assert client.submit(tasks.nested, 6, str(tmp_path)).result(STUCK_S) == 6
        began = tasks.notes(tmp_path)
        assert len(worker.events("TaskParked")) == 4
        assert began.count("began 6") == began.count("began 5") == 1
        assert began.count("began 0") == 1  # a parent that begins again does not submit it twice
        assert sorted(set(began)) == [f"began {depth}" for depth in range(7)]


@pytest.mark.rule("FUT-41")
def test_a_waiting_task_keeps_its_memory_and_makes_room_when_nothing_else_helps(
    home: Path, tmp_path: Path, look: Look
) -> None:
    """It awaits a task that does not fit beside it: with too little for both it would wait for ever."""
    with WorkerProcess(home, "--ram", "300MB", slots=2) as worker, connect(home=home) as client:
        worker.ready()
        parent = client.submit(tasks.awaits_large, "200MB", ram="200MB")
        assert parent.result(STUCK_S) == 1
        assert worker.events("TaskParked")
        assert look.row(parent).tally.crashes == 0


@pytest.mark.rule("FUT-41")
def test_other_work_runs_in_the_slot_of_a_waiting_task(home: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)
    with WorkerProcess(home, slots=1) as worker, connect(home=home) as client:
        worker.ready()
        slow = client.submit(tasks.awaits_file, folder, "go", key="slow")
        wait(lambda: "began go" in tasks.notes(tmp_path), "the inner task runs")
        assert not slow.done()
        (tmp_path / "go").touch()
        assert slow.result(STUCK_S) == "go"
