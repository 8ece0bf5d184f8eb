"""The parts of a worker that need no process: messages, memory, placement, actor calls, wakeups."""

import os
import select
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.futures.actors.hosted import HostedActor
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Blob, Claimed, Failure, Location, Needs, Result, Spec
from tidemill.futures.worker import memory, wire
from tidemill.futures.worker.children import WorkerChild
from tidemill.futures.worker.jobs import FutureJob
from tidemill.futures.worker.placement import NOTHING, Placement, update_reservation
from tidemill.futures.worker.processes import SupervisedProcess
from tidemill.futures.worker.wakeup import LoopWakeup
from tidemill.futures.worker.wire import ChildMessage, Recalled, SharedPage, TaskBroken, TaskDone, TaskWaiting

# --- wire

MESSAGES: list[ChildMessage] = [
    TaskDone(7, Result(3, 0, 10, Location("inline"), b"head", b"signature"), 1_500),
    TaskBroken(8, Failure(kind="exception", message="x" * 1_000), 10),
    TaskWaiting(9, (b"a" * 16, b"b" * 16)),
    Recalled(10, 20),
]


@given(st.lists(st.integers(1, 200), max_size=40))
def test_messages_are_decoded_however_the_stream_is_split(cuts: list[int]) -> None:
    stream = b"".join(map(wire.frame, MESSAGES * 3))
    frames, decoded, at = wire.child_frames(), [], 0
    for cut in [*cuts, len(stream)]:
        decoded += frames.feed(stream[at : at + cut])
        at += cut
    assert decoded == MESSAGES * 3


def test_a_shared_page_shows_the_running_task_its_start_and_its_last_progress() -> None:
    fd = SharedPage.make()
    child, supervisor = SharedPage(fd), SharedPage(fd)
    os.close(fd)
    child.begin(5, 1_000)
    assert (supervisor.running, supervisor.began_us, supervisor.progress_us) == (5, 1_000, 1_000)
    child.progress(2_000)
    assert (supervisor.began_us, supervisor.progress_us) == (1_000, 2_000)
    child.end()
    assert supervisor.running == 0
    child.close()
    supervisor.close()


def test_a_wakeup_is_readable_until_it_is_cleared() -> None:
    wakeup = LoopWakeup()

    def readable() -> bool:
        return bool(select.select([wakeup.reader], [], [], 0)[0])

    assert not readable()
    for _ in range(3):
        wakeup.wake()
        wakeup.wake()
        assert readable()
        wakeup.clear()
        assert not readable()
    wakeup.close()


# --- memory


def machine(root: Path, *, total_kb: int, group: str, files: dict[str, str], vmstat: int) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal:       {total_kb} kB\nMemFree: 1 kB\n")
    (root / "proc/vmstat").write_text(f"pgfault 3\noom_kill {vmstat}\n")
    (root / "proc/self/cgroup").write_text(group)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "files"),
    [
        (
            "0::/tasks/job\n",
            {
                "tasks/job/memory.max": "2000000\n",
                "tasks/memory.max": "max\n",
                "tasks/job/memory.events": "oom 4\noom_kill 3\n",
            },
        ),
        (
            "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n",
            {
                "memory/job/memory.limit_in_bytes": "2000000\n",
                "memory/job/memory.oom_control": "oom_kill 3\n",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_memory_and_kills_are_those_of_the_control_group(
    tmp_path: Path, group: str, files: dict[str, str]
) -> None:
    root = machine(tmp_path, total_kb=8_000, group=group, files=files, vmstat=2)
    assert memory.total_bytes(root) == 2_000_000
    assert memory.kills(root) == 5


def test_without_a_control_group_memory_is_the_machines(tmp_path: Path) -> None:
    root = machine(tmp_path, total_kb=8_000, group="", files={}, vmstat=0)
    assert memory.total_bytes(root) == 8_192_000
    assert memory.kills(root) == 0


# --- placement


class FakeChild(WorkerChild):
    """A child without its process."""

    def __init__(self, number: int) -> None:
        self.pid = number
        self.actor = b""
        self.jobs = {}
        self.ready = True
        self.slotted = False
        self.reserved = NOTHING
        self.base = NOTHING
        self.recalling = False
        self.killed_for = ""
        self.resumed: list[int] = []
        self._next = 1

    def resume(self, number: int) -> None:
        self.resumed.append(number)


def job(needs: Needs = NOTHING, **changes: object) -> FutureJob:
    future_id = os.urandom(16)  # noqa: TID251 - any will do
    row = Claimed(holder="n", node_epoch=1, claimed_at=0)
    spec = Spec(id=future_id, name="f", code=b"c", args=Blob(b""), needs=needs, **changes)  # type: ignore[arg-type]
    return FutureJob(Claim(future_id, row, b""), spec, b"", needs, (), b"")


def assign(child: WorkerChild, new_job: FutureJob) -> None:
    child.assign(new_job)
    update_reservation(child)


def new_placement(slots: int, *, cpu: float = 8.0, ram: int = 1_000, short: bool = True) -> Placement:
    placement = Placement(slots, Capacity(cpu=cpu, ram=ram))
    placement.typical_s = 0.0001 if short else 1.0
    return placement


def test_jobs_go_to_idle_children_first_and_then_to_the_child_with_the_fewest_jobs() -> None:
    placement, children = new_placement(2), [FakeChild(1), FakeChild(2)]
    for expected in (1, 2, 1, 2, 1):
        new_job = job()
        child, _ = placement.choose(new_job, children)
        assert child is not None
        assert child.pid == expected
        assign(child, new_job)


def test_nothing_is_sent_ahead_while_tasks_are_long() -> None:
    placement, children = new_placement(1, short=False), [FakeChild(1)]
    assign(children[0], job())
    assert placement.choose(job(), children) == (None, False)
    assert placement.request(children) is None


@pytest.mark.rule("FUT-26")
def test_capacity_that_children_have_reserved_is_not_free() -> None:
    placement, children = new_placement(3, ram=1_000), [FakeChild(1), FakeChild(2)]
    assign(children[0], job(Needs(cpu=2, ram=600)))
    free = placement.free(children)
    assert (free.cpu, free.ram) == (6, 400)
    assert placement.choose(job(Needs(ram=500)), [children[1]])[0] is children[1]
    assert placement.choose(job(Needs(ram=500)), children)[0] is children[0]  # after its current job
    request = placement.request(children)
    assert request is not None
    assert request.free.ram == 400


@pytest.mark.rule("FUT-36")
def test_memory_of_stored_results_is_not_free() -> None:
    placement, children = new_placement(3, ram=1_000), [FakeChild(1), FakeChild(2)]
    assign(children[0], job(Needs(ram=200)))
    placement.stored_bytes = 300
    assert placement.free(children).ram == 500
    request = placement.request(children)
    assert request is not None
    assert request.free.ram == 500
    assert not placement.fits_now(job(Needs(ram=501)), children)
    assert placement.fits_now(job(Needs(ram=500)), children)


@pytest.mark.rule("FUT-41")
def test_a_waiting_task_frees_its_slot_and_cpu_but_not_its_memory_and_resumes_first() -> None:
    placement, children = new_placement(1, ram=1_000), [FakeChild(1), FakeChild(2)]
    first = job(Needs(cpu=8, ram=700))
    assign(children[0], first)
    assert placement.busy(children) == 1
    first.waiting = True
    placement.waiting.append(first)
    update_reservation(children[0])
    free = placement.free(children)
    assert (placement.busy(children), free.cpu, free.ram) == (0, 8, 300)
    assign(children[1], job())
    placement.waiting.remove(first)
    placement.resuming.append(first)
    placement.resume(children)
    assert children[0].resumed == []  # the slot is taken
    children[1].jobs.clear()
    update_reservation(children[1])
    placement.resume(children)
    assert children[0].resumed == [first.number]
    assert placement.busy(children) == 1


def test_a_slot_without_a_child_counts_only_if_one_can_be_started() -> None:
    placement = new_placement(2, short=False)
    assert placement.request([], startable=False) is None
    request = placement.request([], startable=True)
    assert request is not None
    assert (request.limit, request.slots) == (2, 2)


def test_nothing_is_sent_ahead_after_a_long_task_until_short_ones_finish() -> None:
    placement = new_placement(1)
    assert placement.ahead() > 10
    placement.record_long(0.2)
    assert placement.ahead() == 0
    for _ in range(60):
        placement.record_duration(0.0001)
    assert placement.ahead() > 0


# --- the order of an actor's calls


def call(ordinal: int, *, retries: int = 0) -> FutureJob:
    return job(actor=b"a" * 16, ordinal=ordinal, max_retries=retries)


@pytest.mark.rule("FUT-47")
def test_calls_of_an_actor_wait_for_those_before_them() -> None:
    actor = HostedActor(b"a" * 16, FakeChild(1))
    calls = {n: call(n) for n in (1, 2, 3, 4)}
    actor.add(calls[2])
    assert actor.ready() is None
    assert actor.stuck
    actor.add(calls[1])
    for n in (1, 2):
        assert actor.ready() is calls[n]
        actor.begin(calls[n])
    actor.add(calls[4])
    assert actor.ready() is None
    actor.next = 4  # the store says that call 3 has ended
    assert actor.ready() is calls[4]


@pytest.mark.rule("FUT-47")
def test_nothing_overtakes_a_call_that_may_be_retried() -> None:
    actor = HostedActor(b"a" * 16, FakeChild(1))
    first, second = call(1, retries=1), call(2)
    actor.add(first)
    actor.add(second)
    actor.begin(first)
    assert actor.ready() is None
    actor.ended(first, again=True)
    assert actor.ready() is None
    again = call(1, retries=1)
    actor.add(again)
    assert actor.ready() is again
    actor.begin(again)
    actor.ended(again, again=False)
    assert actor.ready() is second


@pytest.mark.rule("FUT-40")
def test_a_process_that_was_reaped_gets_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id may belong to another process by then."""
    process = subprocess.Popen(["true"], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    supervised = SupervisedProcess()
    supervised.pid = process.pid
    done: list[str] = []
    monkeypatch.setattr(os, "killpg", lambda *_: done.append("killpg"))
    monkeypatch.setattr(os, "kill", lambda *_: done.append("kill"))

    def wait() -> int:
        done.append("wait")
        return process.wait()

    supervised.kill("idle")
    assert supervised.reap_with(wait) == 0
    supervised.kill("late")
    assert done == ["killpg", "kill", "killpg", "wait"]
    assert supervised.killed_for == "idle"
