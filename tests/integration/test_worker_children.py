"""The children of a supervisor: fork, send jobs, recall, kill, and read the exit."""

import os
import random
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import worker_tasks as tasks
from tests.workers import wait
from tidemill.clock import SYSTEM
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Claimed, Spec
from tidemill.futures.values import calls
from tidemill.futures.values.blobs import Blobs
from tidemill.futures.values.signatures import ClusterKey, Signer, sign_spec
from tidemill.futures.worker import memory
from tidemill.futures.worker.children import ChildExit, WorkerChild, WorkerChildren
from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.wire import ChildHello, ChildMessage, Recalled, TaskDone
from tidemill.futures.worker.zygote import Zygote
from tidemill.store import open_store

KEY = ClusterKey(b"k" * 32)


class Pool:
    """A zygote and its children, without a supervisor."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.children = WorkerChildren(self.selector, Zygote(), SYSTEM, random.Random())
        self.signer = Signer(KEY)
        self.blobs = Blobs(open_store("memory://"), FutureKeys("c"), self.signer, None)
        self.messages: dict[WorkerChild, list[ChildMessage]] = {}
        self.ends: dict[WorkerChild, ChildExit] = {}
        self.turn_until(lambda: self.children.zygote.ready)

    def start(self) -> WorkerChild:
        child = self.children.start(ChildHello("c", "memory://", "", KEY.secret, "node", 1, "", ""))
        self.messages[child] = []
        self.turn_until(lambda: bool(self.messages[child]))  # the first message is `Ready`
        return child

    def turn(self) -> None:
        for key, _ in self.selector.select(0.05):
            if key.data is self.children.zygote:
                self.children.read_zygote()
            elif key.data in self.children.all:
                messages, closed = key.data.receive()
                self.messages[key.data] += messages
                for message in messages:
                    if isinstance(message, TaskDone):
                        key.data.jobs.pop(message.number)
                if closed:
                    self.ends[key.data] = self.children.reap(key.data)

    def turn_until(self, ready: Callable[[], bool]) -> None:
        wait(lambda: bool(self.turn() or ready()), "a child did as expected")

    def job(self, function: Callable[..., Any], *args: Any) -> FutureJob:
        content = calls.dump_code(function)
        future_id = os.urandom(16)  # noqa: TID251 - any will do
        spec = Spec(
            id=future_id,
            name=function.__name__,
            code=self.blobs.digest(content),
            args=self.blobs.store_args(future_id, calls.dump_args(args, {}).content),
        )
        spec = sign_spec(self.signer, spec)
        row = Claimed(holder="node", node_epoch=1, claimed_at=0)
        return FutureJob(Claim(future_id, row, b""), spec, rows.encode(spec), spec.needs, (), content)

    def send(self, child: WorkerChild, *jobs: FutureJob) -> None:
        for job in jobs:
            child.assign(job)
        child.send_jobs(jobs)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.children.close()
    pool.selector.close()


@pytest.mark.rule("FUT-20", "FUT-53")
def test_the_exit_of_a_child_names_the_task_that_it_was_running(pool: Pool, tmp_path: Path) -> None:
    child = pool.start()
    jobs = [pool.job(tasks.add, 1), pool.job(tasks.ends_at_once, 5), pool.job(tasks.add, 2)]
    pool.send(child, *jobs)
    pool.turn_until(lambda: child in pool.ends)
    end = pool.ends[child]
    assert (end.kind, end.running, end.code) == ("crash", jobs[1].number, 5)
    assert list(child.jobs) == [jobs[1].number, jobs[2].number]  # the last one never began


def test_the_exit_of_a_child_between_two_tasks_names_no_task(pool: Pool) -> None:
    child = pool.start()
    pool.send(child, pool.job(tasks.add, 1))
    pool.turn_until(lambda: not child.jobs and child.page.running == 0)
    os.kill(child.pid, signal.SIGKILL)
    pool.turn_until(lambda: child in pool.ends)
    assert (pool.ends[child].running, pool.ends[child].code) == (0, -signal.SIGKILL)


@pytest.mark.rule("FUT-20", "FUT-53")
def test_a_child_that_closes_its_socket_and_runs_on_is_killed_and_counts_as_crashed(
    pool: Pool, tmp_path: Path
) -> None:
    child = pool.start()
    job = pool.job(tasks.closes_all_files, str(tmp_path))
    pool.send(child, job)
    pool.turn_until(lambda: child in pool.ends)
    end = pool.ends[child]
    assert (end.kind, end.running, end.code) == ("crash", job.number, -signal.SIGKILL)
    assert "SIGKILL" in end.message
    assert "closed its socket" in end.message


@pytest.mark.rule("FUT-20", "FUT-52")
def test_a_sigkill_while_the_kernel_kills_for_memory_counts_as_out_of_memory(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = pool.start()
    pool.send(child, pool.job(tasks.deaf, str(tmp_path)))
    wait(lambda: bool(tasks.notes(tmp_path)), "it runs")
    before = memory.kills()
    monkeypatch.setattr(memory, "kills", lambda: before + 1)
    os.kill(child.pid, signal.SIGKILL)
    pool.turn_until(lambda: child in pool.ends)
    assert pool.ends[child].kind == "oom"


def test_jobs_sent_ahead_can_be_recalled_while_a_task_runs(pool: Pool, tmp_path: Path) -> None:
    child = pool.start()
    jobs = [pool.job(tasks.waits_for, str(tmp_path), "go"), pool.job(tasks.add, 1), pool.job(tasks.add, 2)]
    pool.send(child, *jobs)
    wait(lambda: bool(tasks.notes(tmp_path)), "the first one runs")
    child.recall()
    pool.turn_until(lambda: any(isinstance(message, Recalled) for message in pool.messages[child]))
    assert pool.messages[child][-1] == Recalled(jobs[1].number, jobs[2].number + 1)
    (tmp_path / "go").touch()
    pool.send(child, pool.job(tasks.add, 40))
    pool.turn_until(lambda: sum(isinstance(message, TaskDone) for message in pool.messages[child]) == 2)
    assert [message.number for message in pool.messages[child] if isinstance(message, TaskDone)] == [
        1,
        4,
    ]  # never 2 and 3


def test_processes_started_by_a_task_end_with_it_and_leave_no_zombie(pool: Pool, tmp_path: Path) -> None:
    child = pool.start()
    pool.send(child, pool.job(tasks.starts_a_process, str(tmp_path)))
    wait(lambda: bool(tasks.notes(tmp_path)), "it has started one")
    started = psutil.Process(int(tasks.notes(tmp_path)[0]))
    child.kill("hang")
    pool.turn_until(lambda: child in pool.ends)
    assert pool.ends[child].kind == "hang"

    def gone() -> bool:
        pool.children.reap_orphans()
        return not started.is_running()

    wait(gone, "its process is gone")


def test_a_dead_zygote_is_restarted_and_its_children_continue(pool: Pool) -> None:
    child = pool.start()
    first = pool.children.zygote.pid
    os.kill(first, signal.SIGKILL)
    pool.turn_until(lambda: pool.children.zygote.pid != first and pool.children.zygote.ready)
    second = pool.start()
    for running_child in (child, second):
        pool.send(running_child, pool.job(tasks.add, 1))
    pool.turn_until(lambda: not child.jobs and not second.jobs)


def test_a_child_ends_when_its_supervisor_closes_the_sockets(pool: Pool) -> None:
    child = pool.start()
    process = psutil.Process(child.pid)
    pool.selector.unregister(child.work)
    pool.selector.unregister(child.control)
    pool.children.all.remove(child)
    child.close()

    def gone() -> bool:
        pool.children.reap_orphans()
        return not process.is_running()

    wait(gone, "it has ended")


def test_messages_that_do_not_fit_into_the_socket_are_sent_later(pool: Pool, tmp_path: Path) -> None:
    child = pool.start()
    pool.send(child, pool.job(tasks.waits_for, str(tmp_path), "go"))
    wait(lambda: bool(tasks.notes(tmp_path)), "it runs, and reads nothing")
    pool.send(child, *(pool.job(tasks.length, bytes(15_000)) for _ in range(60)))
    pool.children.watch_writes(child)
    assert not child.flush()  # nearly a megabyte
    (tmp_path / "go").touch()

    def over() -> bool:
        pool.children.watch_writes(child)
        return not child.jobs

    pool.turn_until(over)
    assert child.flush()
