"""The parts of a worker that need no process: frames, pages, memory, placement, actors' order, wake-ups."""

import os
import select
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
from tidemill.futures.worker.placement import NOTHING, Placement, settle
from tidemill.futures.worker.wakeup import LoopWakeup
from tidemill.futures.worker.wire import Recalled, SharedPage, TaskBroken, TaskDone, TaskWaiting, Up

# --- wire

MESSAGES: list[Up] = [
    TaskDone(7, Result(3, 0, 10, Location("inline"), b"head", b"signature"), 1_500),
    TaskBroken(8, Failure(kind="exception", message="x" * 1_000), 10),
    TaskWaiting(9, (b"a" * 16, b"b" * 16)),
    Recalled(10, 20),
]


@given(st.lists(st.integers(1, 200), max_size=40))
def test_frames_come_whole_however_the_stream_is_cut(cuts: list[int]) -> None:
    stream = b"".join(map(wire.frame, MESSAGES * 3))
    frames, found, at = wire.ups(), [], 0
    for cut in [*cuts, len(stream)]:
        found += frames.feed(stream[at : at + cut])
        at += cut
    assert found == MESSAGES * 3


def test_a_page_tells_what_runs_since_when_and_when_it_last_made_progress() -> None:
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


def test_a_wakeup_is_heard_once_and_after_each_hush_again() -> None:
    wakeup = LoopWakeup()

    def readable() -> bool:
        return bool(select.select([wakeup.reader], [], [], 0)[0])

    assert not readable()
    for _ in range(3):
        wakeup.ring()
        wakeup.ring()
        assert readable()
        wakeup.hush()
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


def given_to(child: WorkerChild, one: FutureJob) -> None:
    child.take(one)
    settle(child)


def placement(slots: int, *, cpu: float = 8.0, ram: int = 1_000, short: bool = True) -> Placement:
    made = Placement(slots, Capacity(cpu=cpu, ram=ram))
    made.typical_s = 0.0001 if short else 1.0
    return made


def test_jobs_go_to_idle_children_first_and_then_behind_the_shortest_line() -> None:
    floor, children = placement(2), [FakeChild(1), FakeChild(2)]
    for expected in (1, 2, 1, 2, 1):
        one = job()
        child, _ = floor.choose(one, children)
        assert child is not None
        assert child.pid == expected
        given_to(child, one)


def test_nothing_is_sent_ahead_while_tasks_are_long() -> None:
    floor, children = placement(1, short=False), [FakeChild(1)]
    given_to(children[0], job())
    assert floor.choose(job(), children) == (None, False)
    assert floor.request(children) is None


@pytest.mark.rule("FUT-26")
def test_what_children_have_reserved_is_not_free() -> None:
    floor, children = placement(3, ram=1_000), [FakeChild(1), FakeChild(2)]
    given_to(children[0], job(Needs(cpu=2, ram=600)))
    free = floor.free(children)
    assert (free.cpu, free.ram) == (6, 400)
    assert floor.choose(job(Needs(ram=500)), [children[1]])[0] is children[1]
    assert floor.choose(job(Needs(ram=500)), children)[0] is children[0]  # behind the first, in its stead
    wish = floor.request(children)
    assert wish is not None
    assert wish.free.ram == 400


@pytest.mark.rule("FUT-41")
def test_a_waiting_task_gives_its_slot_and_cpu_back_but_not_its_memory_and_is_resumed_first() -> None:
    floor, children = placement(1, ram=1_000), [FakeChild(1), FakeChild(2)]
    first = job(Needs(cpu=8, ram=700))
    given_to(children[0], first)
    assert floor.busy(children) == 1
    first.waiting = True
    floor.waiting.append(first)
    settle(children[0])
    free = floor.free(children)
    assert (floor.busy(children), free.cpu, free.ram) == (0, 8, 300)
    given_to(children[1], job())
    floor.waiting.remove(first)
    floor.resuming.append(first)
    floor.resume(children)
    assert children[0].resumed == []  # the slot is taken
    children[1].jobs.clear()
    settle(children[1])
    floor.resume(children)
    assert children[0].resumed == [first.number]
    assert floor.busy(children) == 1


def test_a_slot_without_a_child_counts_only_if_one_can_be_started() -> None:
    floor = placement(2, short=False)
    assert floor.request([], startable=False) is None
    wish = floor.request([], startable=True)
    assert wish is not None
    assert (wish.limit, wish.slots) == (2, 2)


def test_long_tasks_are_remembered_until_short_ones_are_seen_again() -> None:
    floor = placement(1)
    assert floor.ahead() > 10
    floor.saw_long(0.2)
    assert floor.ahead() == 0
    for _ in range(60):
        floor.saw(0.0001)
    assert floor.ahead() > 0


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
def test_nothing_overtakes_a_call_that_may_be_tried_again() -> None:
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
