"""Children of a supervisor: forked by the zygote, given work, recalled, killed, judged."""

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
from tidemill.futures.worker.wire import ChildHello, Recalled, TaskDone, Up
from tidemill.futures.worker.zygote import Zygote
from tidemill.store import open_store

KEY = ClusterKey(b"k" * 32)


class Nest:
    """A zygote and its children without a supervisor."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.children = WorkerChildren(self.selector, Zygote(), SYSTEM, random.Random())
        self.signer = Signer(KEY)
        self.blobs = Blobs(open_store("memory://"), FutureKeys("c"), self.signer, None)
        self.said: dict[WorkerChild, list[Up]] = {}
        self.ends: dict[WorkerChild, ChildExit] = {}
        self.turn_until(lambda: self.children.zygote.ready)

    def start(self) -> WorkerChild:
        child = self.children.start(ChildHello("c", "memory://", "", KEY.secret, "node", 1, "", ""))
        self.said[child] = []
        self.turn_until(lambda: bool(self.said[child]))  # it says that it is ready
        return child

    def turn(self) -> None:
        for key, _ in self.selector.select(0.05):
            if key.data is self.children.zygote:
                self.children.hear_zygote()
            elif key.data in self.children.all:
                messages, gone = key.data.receive()
                self.said[key.data] += messages
                for message in messages:
                    if isinstance(message, TaskDone):
                        key.data.jobs.pop(message.number)
                if gone:
                    self.ends[key.data] = self.children.bury(key.data)

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

    def give(self, child: WorkerChild, *jobs: FutureJob) -> None:
        for job in jobs:
            child.take(job)
        child.give(jobs)


@pytest.fixture(scope="module")
def nest() -> Iterator[Nest]:
    nest = Nest()
    yield nest
    nest.children.close()
    nest.selector.close()


@pytest.mark.rule("FUT-20", "FUT-53")
def test_the_task_that_was_executing_is_known_after_the_death_of_its_process(
    nest: Nest, tmp_path: Path
) -> None:
    child = nest.start()
    jobs = [nest.job(tasks.add, 1), nest.job(tasks.ends_at_once, 5), nest.job(tasks.add, 2)]
    nest.give(child, *jobs)
    nest.turn_until(lambda: child in nest.ends)
    end = nest.ends[child]
    assert (end.kind, end.running, end.code) == ("crash", jobs[1].number, 5)
    assert list(child.jobs) == [jobs[1].number, jobs[2].number]  # the last one never began


def test_a_death_between_two_tasks_is_nobodys_fault(nest: Nest) -> None:
    child = nest.start()
    nest.give(child, nest.job(tasks.add, 1))
    nest.turn_until(lambda: not child.jobs and child.page.running == 0)
    os.kill(child.pid, signal.SIGKILL)
    nest.turn_until(lambda: child in nest.ends)
    assert (nest.ends[child].running, nest.ends[child].code) == (0, -signal.SIGKILL)


@pytest.mark.rule("FUT-20", "FUT-52")
def test_a_kill_while_the_kernel_kills_for_want_of_memory_is_one_for_memory(
    nest: Nest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = nest.start()
    nest.give(child, nest.job(tasks.deaf, str(tmp_path)))
    wait(lambda: bool(tasks.notes(tmp_path)), "it runs")
    before = memory.kills()
    monkeypatch.setattr(memory, "kills", lambda: before + 1)
    os.kill(child.pid, signal.SIGKILL)
    nest.turn_until(lambda: child in nest.ends)
    assert nest.ends[child].kind == "oom"


def test_what_was_sent_ahead_is_given_back_while_a_task_runs(nest: Nest, tmp_path: Path) -> None:
    child = nest.start()
    jobs = [nest.job(tasks.waits_for, str(tmp_path), "go"), nest.job(tasks.add, 1), nest.job(tasks.add, 2)]
    nest.give(child, *jobs)
    wait(lambda: bool(tasks.notes(tmp_path)), "the first one runs")
    child.recall()
    nest.turn_until(lambda: any(isinstance(one, Recalled) for one in nest.said[child]))
    assert nest.said[child][-1] == Recalled(jobs[1].number, jobs[2].number + 1)
    (tmp_path / "go").touch()
    nest.give(child, nest.job(tasks.add, 40))
    nest.turn_until(lambda: sum(isinstance(one, TaskDone) for one in nest.said[child]) == 2)
    assert [one.number for one in nest.said[child] if isinstance(one, TaskDone)] == [1, 4]  # never 2 and 3


def test_what_a_task_started_ends_with_it_and_leaves_no_zombie(nest: Nest, tmp_path: Path) -> None:
    child = nest.start()
    nest.give(child, nest.job(tasks.starts_a_process, str(tmp_path)))
    wait(lambda: bool(tasks.notes(tmp_path)), "it has started one")
    started = psutil.Process(int(tasks.notes(tmp_path)[0]))
    child.kill("hang")
    nest.turn_until(lambda: child in nest.ends)
    assert nest.ends[child].kind == "hang"

    def gone() -> bool:
        nest.children.reap_orphans()
        return not started.is_running()

    wait(gone, "its process is gone")


def test_a_zygote_that_dies_is_started_again_and_children_go_on(nest: Nest) -> None:
    child = nest.start()
    first = nest.children.zygote.pid
    os.kill(first, signal.SIGKILL)
    nest.turn_until(lambda: nest.children.zygote.pid != first and nest.children.zygote.ready)
    second = nest.start()
    for one in (child, second):
        nest.give(one, nest.job(tasks.add, 1))
    nest.turn_until(lambda: not child.jobs and not second.jobs)


def test_a_child_ends_with_its_supervisors_line(nest: Nest) -> None:
    child = nest.start()
    process = psutil.Process(child.pid)
    nest.selector.unregister(child.work)
    nest.selector.unregister(child.control)
    nest.children.all.remove(child)
    child.close()

    def gone() -> bool:
        nest.children.reap_orphans()
        return not process.is_running()

    wait(gone, "it has ended")


def test_more_than_a_line_takes_is_sent_when_it_is_read(nest: Nest, tmp_path: Path) -> None:
    child = nest.start()
    nest.give(child, nest.job(tasks.waits_for, str(tmp_path), "go"))
    wait(lambda: bool(tasks.notes(tmp_path)), "it runs, and reads nothing")
    nest.give(child, *(nest.job(tasks.length, bytes(15_000)) for _ in range(60)))
    nest.children.watch_writes(child)
    assert not child.flush()  # nearly a megabyte
    (tmp_path / "go").touch()

    def over() -> bool:
        nest.children.watch_writes(child)
        return not child.jobs

    nest.turn_until(over)
    assert child.flush()
