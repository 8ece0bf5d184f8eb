"""Workers that die, pause and come back: what they held goes on elsewhere, late writes are refused."""

import signal
from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.workers import Look, WorkerProcess, wait
from tidemill.futures.client.client import connect
from tidemill.futures.protocol.rows import Claimed, Realized
from tidemill.testing.threads import STUCK_S


@pytest.mark.rule("FUT-49", "FUT-13")
def test_what_a_killed_worker_held_is_reaped_by_the_leader_and_finished_by_another(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", str(tmp_path)
    with WorkerProcess(home) as first, connect(home=home) as client, Look(home) as look:
        first.ready()
        future = client.submit(tasks.waits_for, folder, "go")
        wait(lambda: tasks.notes(tmp_path) == ["began go"], "it runs")
        before = look.row(future)
        with WorkerProcess(home) as second:
            second.ready()
            first.kill()
            look.end_lease(first)
            (tmp_path / "go").touch()
            assert future.result(STUCK_S) == "go"
            after = look.row(future)
            assert isinstance(after, Realized)
            assert after.tally.epoch > before.tally.epoch
            assert (after.tally.reaps, after.tally.crashes) == (1, 0)
            assert tasks.notes(tmp_path) == ["began go", "began go", "ended go"]


@pytest.mark.rule("FUT-55", "FUT-13", "FUT-40")
def test_a_paused_worker_that_wakes_after_its_lease_writes_nothing(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", str(tmp_path)
    with WorkerProcess(home) as first, connect(home=home) as client, Look(home) as look:
        first.ready()
        future = client.submit(tasks.waits_for, folder, "go")
        wait(lambda: tasks.notes(tmp_path) == ["began go"], "it runs")
        look.stop(first)
        with WorkerProcess(home) as second:
            second.ready()
            look.end_lease(first)
            wait(lambda: tasks.notes(tmp_path) == ["began go"] * 2, "the other worker has it too")
            taken = look.row(future)
            assert isinstance(taken, Claimed)
            assert taken.holder == second.id
            (tmp_path / "go").touch()  # now both make a result: the first one's child was never stopped
            wait(lambda: tasks.notes(tmp_path).count("ended go") == 2, "both have made it")
            assert future.result(STUCK_S) == "go"
            made = look.row(future)
            first.signal(signal.SIGCONT)
            first.wait_for("WorkDropped")
            first.wait_for("NodeJoined", count=2)
            assert look.row(future) == made
            assert isinstance(made, Realized)
            assert made.result.version == taken.tally.epoch
            # and the woken one is a good worker again
            second.kill()
            assert client.submit(tasks.add, 1).result(STUCK_S) == 2


@pytest.mark.rule("FUT-39", "FUT-48", "FUT-37")
def test_a_restarted_worker_gives_back_what_its_address_held_without_waiting_for_the_lease(
    tmp_path: Path,
) -> None:
    home, folder = tmp_path / "home", str(tmp_path)
    with connect(home=home) as client, Look(home) as look:
        with WorkerProcess(home, with_parent=False) as first:
            first.ready()
            future = client.submit(tasks.waits_for, folder, "go")
            wait(lambda: tasks.notes(tmp_path) == ["began go"], "it runs")
            first.kill()
        with WorkerProcess(home, with_parent=False) as second:
            (tmp_path / "go").touch()
            assert future.result(STUCK_S) == "go"
            row = look.row(future)
            assert (row.tally.reaps, row.tally.crashes) == (1, 0)
            assert second.id != first.id
            assert [node.id for node in look.nodes() if node.kind == "worker"] == [second.id]
            assert not second.events("FuturesReaped")


@pytest.mark.rule("FUT-45", "FUT-51", "FUT-7", "FUT-63")
def test_an_input_that_died_with_its_worker_is_computed_again(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", str(tmp_path)
    with connect(home=home) as client, Look(home) as look:
        with WorkerProcess(home) as first:
            first.ready()
            made = client.submit(tasks.large, 300_000, folder)
            client.gather([made], timeout=STUCK_S)
            first.kill()
            look.end_lease(first)
        uses = [client.submit(tasks.length, made) for _ in range(3)]
        with WorkerProcess(home):
            assert client.gather(uses, timeout=STUCK_S) == [300_000] * 3
            assert tasks.notes(tmp_path) == ["made", "made"]
            row = look.row(made)
            assert isinstance(row, Realized)
            assert (row.tally.rebuilds, row.tally.exceptions) == (1, 0)
