"""Runners as processes: a supervisor that keeps the lease, and a child that may die."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import psutil
import pytest

from tests import leases, runner_parts, worker_tasks
from tests.integration.runner_stage import InThread, Stage, made, stage
from tests.runner_main import Settings
from tests.runner_parts import part
from tests.scopes import scope_of
from tests.workers import WorkerProcess, wait
from tidemill.cluster import nodes
from tidemill.errors import UNEXPECTED
from tidemill.futures.client.client import connect
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol.rows import Claimed, Quarantined, Realized, Unclaimed
from tidemill.publish.parts import PartDone, PartFailed
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.slots import EPOCHS_PER_START
from tidemill.testing.threads import STUCK_S

__all__ = ["stage"]


class RunnerProcess:
    """One supervisor of `tests.runner_main`, and the events it has told so far."""

    def __init__(self, stage: Stage, **settings: Any) -> None:
        self.told: list[dict[str, Any]] = []
        given = Settings(
            store=stage.url, objects=f"file://{stage.folder}/objects", folder=str(stage.folder), **settings
        )
        fd, log = tempfile.mkstemp(prefix="runner-", suffix=".err", dir=stage.folder)
        self.log = Path(log)
        with os.fdopen(fd, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.runner_main", msgspec.json.encode(given).decode()],
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.told.append(msgspec.json.decode(line))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.told) if event.get("type") == kind]

    def child(self, number: int = 1) -> dict[str, Any]:
        """What was told of the n-th child, once it has been started."""
        wait(
            lambda: len(self.events("ChildStarted")) >= number or self.process.poll() is not None,
            f"child {number} was started\n{self}",
        )
        return self.events("ChildStarted")[number - 1]

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(STUCK_S)
        self._reader.join(STUCK_S)
        return code

    def __str__(self) -> str:
        return f"{self.told[-10:]}\n{self.log.read_text(errors='replace')[-3000:]}"

    def __enter__(self) -> "RunnerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self)  # noqa: T201 - shown with the failure
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.end()


@pytest.mark.rule("FUT-49", "FUT-13")
def test_a_killed_child_is_replaced_and_what_it_held_is_done_once_more_at_once(stage: Stage) -> None:
    tasks = [part(0, stage.folder), part(1, stage.folder, go="go"), part(2, stage.folder, go="go")]
    with RunnerProcess(stage, ttl_s=600.0) as runner:  # nothing here can wait for a lease to run out
        waiting = InThread(stage.parts(), tasks)
        stage.wait_notes("ended 0 1", "began 1 1", "began 2 1")
        first = runner.child()
        os.kill(first["pid"], signal.SIGKILL)
        second = runner.child(2)
        assert second["epoch"] > first["epoch"]
        stage.wait_notes("began 1 3", "began 2 3")
        stage.touch("go")
        ends = waiting.result()
        assert made(ends) == ["0", "1", "2"]
        assert runner.end(signal.SIGTERM) == 0
    written = [end.written[0].objects[0].uri for end in ends if isinstance(end, PartDone)]
    assert len(set(written)) == 3
    assert sorted(line for line in stage.notes() if line.startswith("ended")) == [
        "ended 0 1",
        "ended 1 3",
        "ended 2 3",
    ]
    for task, reaps in zip(tasks, (0, 1, 1), strict=True):
        row = stage.row(task)
        assert isinstance(row, Realized)
        assert row.tally.reaps == reaps
    assert not [node for node in stage.nodes() if node.startswith("runner")]


def test_a_part_that_kills_every_child_is_set_aside_and_the_part_beside_it_is_not(home: Stage) -> None:
    folder = home.folder / "home"
    parts = PartFutures(
        scope_of(home.store, "default"), ClusterAddress.of_home(folder).key, runner_parts.make
    )
    with RunnerProcess(home, home=str(folder), ttl_s=600.0, most_pause_s=0.1) as runner:
        tasks = [part("deadly", home.folder, exit="never"), part("slow", home.folder, slow="0.3")]
        ends = {end.task.part: end for end in parts.run(tasks)}
        deadly = ends["deadly"]
        assert isinstance(deadly, PartFailed)
        assert deadly.kind == "reaped"
        assert isinstance(ends["slow"], PartDone)
        row = home.row(tasks[1])
        assert row is not None
        assert row.tally.reaps <= 2
        assert isinstance(home.row(tasks[0]), Quarantined)
        assert runner.end(signal.SIGTERM) == 0


@pytest.mark.rule("CLU-25", "FUT-17")
def test_sigterm_drains_what_runs_is_finished_or_given_back(home: Stage) -> None:
    tasks = [part(0, home.folder, go="go"), part(1, home.folder, go="never")]
    with RunnerProcess(home, grace_s=STUCK_S) as runner:
        waiting = InThread(home.parts(), tasks)
        home.wait_notes("began 0 1", "began 1 1")
        child = runner.child()
        runner.process.send_signal(signal.SIGTERM)
        home.touch("go")
        wait(lambda: isinstance(home.row(tasks[0]), Realized), "what can end within the grace has ended")
        assert runner.end(signal.SIGTERM) == 0  # which ends the grace
        assert f"drained {child['pid']}" in home.notes()
        assert isinstance(home.row(tasks[0]), Realized)
        row = home.row(tasks[1])
        assert isinstance(row, Unclaimed)
        assert (row.tally.reaps, row.tally.exceptions) == (0, 0)
        assert not psutil.pid_exists(child["pid"])
    home.touch("never")
    with home.runner("other"):
        assert made(waiting.result()) == ["0", "1"]


@pytest.mark.rule("FUT-13")
def test_a_lost_lease_kills_the_child_and_the_next_one_goes_on(home: Stage) -> None:
    task = part(0, home.folder, go="go", deaf="yes")
    with RunnerProcess(home, ttl_s=4.0) as runner:
        waiting = InThread(home.parts(), [task])
        home.wait_notes("began 0 1")
        first = runner.child()
        home.kill_entry(first["node"])
        second = runner.child(2)
        assert second["epoch"] > first["epoch"]
        assert not psutil.pid_exists(first["pid"])
        home.wait_notes("began 0 3")
        home.touch("go")
        assert made(waiting.result()) == ["0"]
        assert "ended 0 1" not in home.notes()
        assert runner.end(signal.SIGTERM) == 0


@pytest.mark.rule("FUT-55", "FUT-13")
def test_a_runner_that_was_paused_for_longer_than_its_lease_writes_nothing(home: Stage) -> None:
    task = part(0, home.folder, go="go", deaf="yes")
    with RunnerProcess(home, ttl_s=4.0) as runner:
        waiting = InThread(home.parts(), [task])
        home.wait_notes("began 0 1")
        child = runner.child()
        leases.stop_process(home.store, runner.process.pid)  # no process renews its lease
        home.end_lease(child["node"])
        wait(lambda: psutil.Process(child["pid"]).status() == psutil.STATUS_ZOMBIE, "the child has ended")
        with home.runner("other"):
            home.wait_notes("began 0 3")
            home.touch("go")
            assert made(waiting.result()) == ["0"]
            before = home.row(task)
            runner.process.send_signal(signal.SIGCONT)
            assert runner.child(2)["epoch"] > child["epoch"]
        assert runner.end(signal.SIGTERM) == 0
        assert home.row(task) == before
    assert "ended 0 1" not in home.notes()


def ended(pid: int) -> bool:
    """Whoever inherits an orphan may not have taken notice of its end yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_does_not_outlive_its_supervisor(home: Stage) -> None:
    with RunnerProcess(home) as runner:
        child = runner.child()
        wait(lambda: any(line.startswith("child") for line in home.notes()), "it works")
        runner.end(signal.SIGKILL)
        wait(lambda: ended(child["pid"]), "the child is gone")


def test_a_main_that_ends_by_itself_ends_the_runner_with_its_code(home: Stage) -> None:
    with RunnerProcess(home, main="tests.runner_main:once") as runner:
        assert runner.end() == 0
    assert home.notes().count("ended 0 1") == 1
    with RunnerProcess(home, main="tests.runner_main:wrong") as runner:
        assert runner.end() == UNEXPECTED
        (line,) = runner.log.read_text().splitlines()
        assert line.startswith("error: LookupError: no pipeline here (tests/runner_main.py:")
    with RunnerProcess(home, main="tests.runner_main:missing") as runner:
        assert runner.end() == 1
        assert "module:function" in runner.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_work_is_done_exits_with_128_plus_its_number(
    home: Stage, number: signal.Signals
) -> None:
    with RunnerProcess(home, main="tests.runner_main:unfinished", finishes=True) as runner:
        wait(lambda: "unfinished" in home.notes(), "the child runs")
        assert runner.end(number) == 128 + number
        assert not runner.events("RunnerInterrupted"), "the child has printed its result"
    with RunnerProcess(home, main="tests.runner_main:dies_draining", finishes=True) as runner:
        wait(lambda: "draining" in home.notes(), "the child runs")
        assert runner.end(number) == 128 + number
        assert runner.events("RunnerInterrupted"), "the child has printed nothing"


def test_sys_exit_in_a_child_ends_the_runner_and_starts_no_new_child(home: Stage) -> None:
    with RunnerProcess(home, main="tests.runner_main:leaves") as runner:
        assert runner.end() == 7
    assert home.notes().count("leaves") == 1


def test_a_child_that_is_killed_after_its_report_has_the_exit_code_that_it_reported(home: Stage) -> None:
    with RunnerProcess(home, main="tests.runner_main:killed_at_exit") as runner:
        assert runner.end() == 4


def test_children_that_die_young_are_started_again_after_pauses(home: Stage) -> None:
    with RunnerProcess(home, main="tests.runner_main:young") as runner:
        runner.child(3)
        home.touch("grown")
        assert runner.end() == 5
        assert all(event["kind"] == "crash" for event in runner.events("ChildEnded"))


def test_a_dead_thread_of_the_runner_ends_its_child_in_one_line_and_one_of_a_user_does_not(
    home: Stage,
) -> None:
    with RunnerProcess(home, main="tests.runner_main:threads_die") as runner:
        wait(lambda: "second life" in home.notes(), f"a second child has started\n{runner}")
        assert runner.end(signal.SIGTERM) == 0
        (ended,) = runner.events("ChildEnded")
        assert ended["kind"] == "again"
        assert "the thread 'presence' ended: ZeroDivisionError: fault (" in ended["message"]
        (warning,) = runner.log.read_text().splitlines()
        assert warning.startswith("warning: the thread 'of-user' ended: LookupError: mine (")


def test_a_child_whose_spark_died_is_replaced_and_the_reason_is_reported(home: Stage) -> None:
    with RunnerProcess(home, main="tests.runner_main:spark_dies") as runner:
        assert runner.end() == 5
        (ended,) = runner.events("ChildEnded")
        assert ended["message"].startswith("the Java process of Spark (pid 1) ended: out of memory, ")
        assert runner.log.read_text() == ""


def test_a_child_that_ends_lets_java_delete_its_temporary_files(home: Stage) -> None:
    with RunnerProcess(home, main="tests.runner_main:uses_java") as runner:
        assert runner.end() == 5, runner
        (temporary,) = home.notes()
        assert Path(temporary).name.startswith("spark-")
        assert not Path(temporary).exists()


# --- in a home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Stage]:
    place = ClusterAddress.of_home(tmp_path / "home")
    place.key  # noqa: B018 - makes the home
    stage = Stage(place.store, tmp_path)
    yield stage
    stage.close()


def test_a_new_life_of_a_killed_runner_has_its_name_and_a_higher_epoch(home: Stage) -> None:
    folder = str(home.folder / "home")
    with RunnerProcess(home, home=folder, ttl_s=600.0) as first:
        child = first.child()
        with RunnerProcess(home, home=folder) as second:
            assert (child["node"], second.child()["node"]) == ("runner-0", "runner-1")
            first.end(signal.SIGKILL)
            with RunnerProcess(home, home=folder) as third:
                again = third.child()
                assert again["node"] == "runner-0"
                assert again["epoch"] > child["epoch"] + EPOCHS_PER_START // 2
                assert third.end(signal.SIGTERM) == 0
            assert second.end(signal.SIGTERM) == 0
    # even after its entry has left the list, no epoch comes again
    assert home.nodes() == []
    with RunnerProcess(home, home=folder) as fourth:
        assert fourth.child()["epoch"] > again["epoch"] + EPOCHS_PER_START // 2


def test_what_a_killed_runner_held_in_a_home_goes_on_at_once_and_workers_leave_it_alone(home: Stage) -> None:
    folder = home.folder / "home"
    task = part(0, home.folder, go="go")
    parts = PartFutures(
        scope_of(home.store, "default"), ClusterAddress.of_home(folder).key, runner_parts.make
    )
    with WorkerProcess(folder) as worker, connect(home=folder) as client:
        worker.ready()
        waiting = InThread(parts, [task])
        assert client.submit(worker_tasks.add, 1).result(STUCK_S) == 2
        assert isinstance(home.row(task), Unclaimed)
        with RunnerProcess(home, home=str(folder), ttl_s=600.0) as first:
            home.wait_notes("began 0 1")
            row = home.row(task)
            assert isinstance(row, Claimed)
            assert row.holder == first.child()["node"] == "runner-0"
            entry = home.store.run(lambda tx: nodes.read(tx, home.cluster, "runner-0"))
            assert entry is not None
            assert entry.kind == "runner"
            first.end(signal.SIGKILL)
        with RunnerProcess(home, home=str(folder), ttl_s=600.0) as second:
            home.touch("go")
            assert made(waiting.result()) == ["0"]
            assert second.end(signal.SIGTERM) == 0
        assert not worker.events("FuturesStranded")
        worker.kill()
        with RunnerProcess(home, home=str(folder)) as third:  # and a runner leaves alone what is for workers
            plain = client.submit(worker_tasks.add, 2)
            assert made(list(parts.run([part(1, home.folder)]))) == ["1"]
            assert client.row_of(plain).state.value == "unclaimed"
            assert third.end(signal.SIGTERM) == 0
    assert not isinstance(home.row(task), Quarantined)
