"""InProcessWorker: threads of a runner that make parts; parts as durable futures."""

import msgspec
import pytest

from tests.integration.runner_stage import CLUSTER, KEY, InThread, Stage, made, stage
from tests.runner_parts import make, part
from tests.workers import wait
from tidemill import crash
from tidemill.cluster import nodes
from tidemill.cluster.leases import LeaseTiming
from tidemill.crash import Crashed
from tidemill.errors import DiskFull, LeaseLost
from tidemill.futures.protocol.rows import Claimed, Failed, Realized, Unclaimed
from tidemill.futures.worker.events import WorkDropped
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Target
from tidemill.publish.keys import PublishKeys
from tidemill.publish.parts import PartDone, PartFailed
from tidemill.runner.future_run import current
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.presence import OwnPresence
from tidemill.testing.threads import STUCK_S, Racer

__all__ = ["stage"]


@pytest.mark.rule("LOT-17")
def test_parts_run_in_parallel_threads_of_this_process_each_in_a_folder_of_its_own(stage: Stage) -> None:
    tasks = [part(n, stage.folder, together="3") for n in range(3)]
    with stage.runner(threads=3) as worker:
        ends = list(stage.parts(worker).run(tasks))
    assert made(ends) == ["0", "1", "2"]
    folders = {end.written[0].objects[0].uri.rpartition("/")[0] for end in ends if isinstance(end, PartDone)}
    assert len(folders) == 3
    for end in ends:
        assert isinstance(end, PartDone)
        row = stage.row(end.task)
        assert isinstance(row, Realized)
        folder = end.written[0].objects[0].uri
        assert "/attempt=a1." in folder
        assert f".{row.result.version}/" in folder
        assert not end.reused
        assert end.written[0].rows == 7


def test_results_and_arguments_of_any_size_go_round(stage: Stage) -> None:
    with stage.runner() as worker:
        ends = list(stage.parts(worker).run([part(0, stage.folder, objects="2000", comment="x" * 50_000)]))
        (end,) = ends
        assert isinstance(end, PartDone)
        assert len(end.written[0].objects) == 2000
        assert list(stage.objects.list("futures/"))
        assert stage.parts().forget("a1") == 1
        assert not list(stage.objects.list("futures/"))
    assert stage.rows_left() == []


@pytest.mark.rule("FUT-8")
def test_retries_are_counted_as_for_other_futures_and_a_failed_part_says_why(stage: Stage) -> None:
    stage.touch("bad")
    with stage.runner() as worker:
        bad, good = part("bad", stage.folder, retries=1, fail="bad"), part("good", stage.folder)
        ends = {end.task.part: end for end in stage.parts(worker).run([bad, good])}
    assert isinstance(ends["good"], PartDone)
    failed = ends["bad"]
    assert isinstance(failed, PartFailed)
    assert (failed.kind, failed.message) == ("exception", "ValueError: no bad")
    assert "runner_parts.py" in failed.traceback
    assert failed.outage is None
    row = stage.row(bad)
    assert isinstance(row, Failed)
    assert row.tally.exceptions == 2
    assert [line for line in stage.notes() if line.startswith("began bad")] == ["began bad 1", "began bad 3"]


def test_a_part_that_failed_because_of_an_outage_says_so(stage: Stage) -> None:
    stage.touch("full")
    with stage.runner() as worker:
        (end,) = stage.parts(worker).run([part("p", stage.folder, retries=1, full="full")])
    assert isinstance(end, PartFailed)
    assert isinstance(end.outage, DiskFull)
    assert end.outage.message == "part p: no space"


@pytest.mark.rule("LOT-18")
def test_a_retry_runs_only_what_failed_and_reuses_the_rest(stage: Stage) -> None:
    stage.touch("bad")
    tasks = [part("bad", stage.folder, fail="bad"), part("good", stage.folder)]
    with stage.runner() as worker:
        first = {end.task.part: end for end in stage.parts(worker).run(tasks)}
        (stage.folder / "bad").unlink()
        second = {end.task.part: end for end in stage.parts(worker).run(tasks)}
    assert isinstance(first["bad"], PartFailed)
    assert made(list(second.values())) == ["bad", "good"]
    assert isinstance(second["good"], PartDone)
    assert isinstance(second["bad"], PartDone)
    assert second["good"].reused
    assert not second["bad"].reused
    assert isinstance(first["good"], PartDone)
    assert second["good"].written == first["good"].written
    assert sum(line.startswith("began good") for line in stage.notes()) == 1
    row = stage.row(tasks[0])
    assert isinstance(row, Realized)
    assert row.tally.exceptions == 0  # counts began anew


@pytest.mark.rule("LOT-18")
def test_equal_work_of_another_attempt_is_not_reused(stage: Stage) -> None:
    with stage.runner() as worker:
        for attempt in ("a1", "a2"):
            (end,) = stage.parts(worker).run([part(0, stage.folder, attempt=attempt)])
            assert isinstance(end, PartDone)
            assert not end.reused
            assert f"attempt={attempt}." in end.written[0].objects[0].uri


@pytest.mark.rule("LOT-18")
def test_results_outlive_the_runner_that_asked_for_them(stage: Stage) -> None:
    tasks = [part(0, stage.folder), part(1, stage.folder, go="go")]
    with stage.presence("runner-1") as other, stage.worker(other):
        with stage.presence("runner-0", leave=False) as asking:
            waiting = InThread(
                stage.parts(), tasks
            )  # it has no worker of its own, and is gone before the end
            stage.wait_notes("began 1 1")
            wait(lambda: isinstance(stage.row(tasks[0]), Realized), "the result of part 0 is stored")
        stage.kill_entry("runner-0")
        assert asking.node.id not in stage.nodes()
        stage.touch("go")
        ends = {end.task.part: end for end in stage.parts().run(tasks)}
    assert made(list(ends.values())) == ["0", "1"]
    assert isinstance(ends["0"], PartDone)
    assert ends["0"].reused
    assert sorted(stage.notes()) == ["began 0 1", "began 1 1", "ended 0 1", "ended 1 1"]
    assert made(waiting.result()) == ["0", "1"]


def test_nobody_takes_futures_of_a_pipeline_it_does_not_have(stage: Stage) -> None:
    task = part(0, stage.folder)
    with stage.presence() as presence, stage.worker(presence, names=[resource_of("other shop+1")]):
        waiting = InThread(stage.parts(), [task])
        with stage.presence("runner-1") as second, stage.worker(second):
            assert made(waiting.result()) == ["0"]
        row = stage.row(task)
        assert isinstance(row, Realized)
        assert row.tally.epoch == 1


def test_a_name_is_quoted_so_that_lanes_carry_it() -> None:
    assert resource_of("shop") == "spark:shop"
    assert resource_of("a b+c/ü") == "spark:a%20b%2Bc%2F%C3%BC"


@pytest.mark.rule("FUT-13")
def test_a_lost_lease_interrupts_and_writes_nothing_and_the_part_is_made_once_more(stage: Stage) -> None:
    task = part(0, stage.folder, go="go", deaf="yes")
    with stage.presence() as presence, stage.worker(presence) as worker:
        waiting = InThread(stage.parts(worker), [task])
        stage.wait_notes("began 0 1")
        before = stage.row(task)
        assert isinstance(before, Claimed)
        stage.kill_entry("runner-0")
        presence.member.membership._due = 0.0  # it would notice with its next beat
        presence._wake.set()
        wait(lambda: any(isinstance(event, WorkDropped) for event in stage.events), "the work was dropped")
        wait(lambda: bool(stage.interrupted), "the turn was interrupted")
        assert stage.interrupted[0].endswith("-1")
        stage.wait_notes("began 0 3")  # claimed again, by the second thread, under a later epoch
        stage.touch("go")
        assert made(waiting.result()) == ["0"]
        wait(lambda: "ended 0 1" in stage.notes(), "the zombie has ended too")
        row = stage.row(task)
        assert isinstance(row, Realized)
        assert row.result.version == 3
        assert (row.tally.reaps, row.tally.exceptions) == (0, 0)


def test_a_lease_that_was_over_for_a_moment_is_over_for_whatever_ran_then(stage: Stage) -> None:
    class Flickering:
        """A presence that is away when a test says so: a renewal that came too late, and did come."""

        def __init__(self, inner: OwnPresence) -> None:
            self.inner = inner
            self.away = False

        @property
        def node(self) -> nodes.Node:
            return self.inner.node

        def alive(self) -> bool:
            return not self.away and self.inner.alive()

        def accepts(self) -> bool:
            return not self.away and self.inner.accepts()

        def left_s(self) -> float:
            return self.inner.left_s()

    # deaf, else the future may end by itself before the guard interrupts it
    task = part(0, stage.folder, go="go", deaf="yes")
    with stage.presence() as inner:
        presence = Flickering(inner)
        with stage.worker(presence) as worker:
            waiting = InThread(stage.parts(worker), [task])
            stage.wait_notes("began 0 1")
            presence.away = True
            wait(lambda: bool(stage.interrupted), "the turn was interrupted")
            presence.away = False
            stage.wait_notes("began 0 3")
            stage.touch("go")
            assert made(waiting.result()) == ["0"]
        with pytest.raises(LeaseLost):
            worker.check()


def test_a_key_of_any_length_names_its_part(stage: Stage) -> None:
    task = msgspec.structs.replace(part(0, stage.folder), key="ü" * 3000)
    with stage.runner() as worker:
        assert made(list(stage.parts(worker).run([task]))) == ["0"]
        (end,) = stage.parts(worker).run([task])
        assert isinstance(end, PartDone)
        assert end.reused
        assert stage.parts().forget("a1") == 1


@pytest.mark.rule("CLU-25", "FUT-17")
def test_a_drain_lets_turns_end_within_the_grace_and_gives_the_rest_back(stage: Stage) -> None:
    tasks = [part(0, stage.folder, go="go"), part(1, stage.folder, go="never"), part(2, stage.folder)]
    with stage.presence() as presence, stage.worker(presence) as worker:
        waiting = InThread(stage.parts(), tasks)
        stage.wait_notes("began 0 1", "began 1 1")
        draining = Racer(lambda: worker.drain(STUCK_S))
        draining.start()
        wait(lambda: worker._claims.drain_by is not None, "nothing new is taken")
        stage.touch("go")
        wait(lambda: isinstance(stage.row(tasks[0]), Realized), "what can end within the grace has ended")
        assert worker.drain(0.0)  # which ends the grace
        assert draining.outcome()
        for task in tasks[1:]:
            row = stage.row(task)
            assert isinstance(row, Unclaimed)
            assert (row.tally.exceptions, row.tally.reaps) == (0, 0)
    stage.touch("never")
    with stage.runner("runner-1"):
        assert made(waiting.result()) == ["0", "1", "2"]


@pytest.mark.rule("FUT-49", "FUT-13")
def test_a_new_life_of_a_killed_runner_takes_over_at_once(stage: Stage) -> None:
    task = part(0, stage.folder, go="go")
    timing = LeaseTiming(600.0, 200.0)
    with stage.presence(leave=False, timing=timing) as first, stage.worker(first) as worker:
        waiting = InThread(stage.parts(), [task])
        stage.wait_notes("began 0 1")
        worker.abandon()
    with stage.presence(timing=timing) as second:
        assert second.node.epoch == 2
        stage.touch("go")
        with stage.worker(second):
            assert made(waiting.result()) == ["0"]
    row = stage.row(task)
    assert isinstance(row, Realized)
    assert (row.tally.reaps, row.result.version) == (1, 3)


def test_a_cancelled_part_ends_and_asking_for_it_again_makes_it(stage: Stage) -> None:
    task = part(0, stage.folder, go="go")
    with stage.runner() as worker:
        waiting = InThread(stage.parts(worker), [task])
        stage.wait_notes("began 0 1")
        assert stage.parts().forget("a1") == 0  # it runs: it is asked to end, and goes later
        (end,) = waiting.result()
        assert isinstance(end, PartFailed)
        assert end.kind == "cancelled"
        stage.touch("go")
        (end,) = stage.parts(worker).run([task])
        assert isinstance(end, PartDone)
        assert stage.parts().forget("a1") == 1
    assert stage.rows_left() == []


def test_what_a_dead_runner_left_of_ended_attempts_is_deleted_and_open_ones_stay(stage: Stage) -> None:
    keys = PublishKeys(CLUSTER)
    with stage.presence() as presence, stage.worker(presence):
        node = presence.node
        holds = []
        for attempt in ("a1", "a2"):
            draft = Draft(
                id=attempt,
                author="arc:shop/clean",
                lot="l",
                generation=int(attempt[1]),
                targets=(Target(DatasetId("out"), "l", int(attempt[1])),),
            )
            holds.append(stage.store.run(lambda tx, draft=draft: attempts.begin(tx, keys, node, draft)))
            made(list(stage.parts().run([part(0, stage.folder, attempt=attempt)])))
        stage.store.run(lambda tx: attempts.abandon(tx, keys, holds[0], "test"))
        assert stage.parts().forget_ended() == 1
        assert stage.row(part(0, stage.folder)) is None
        assert isinstance(stage.row(part(0, stage.folder, attempt="a2")), Realized)
        stage.store.run(lambda tx: attempts.abandon(tx, keys, holds[1], "test"))
        assert stage.parts().forget_ended() == 1
    assert stage.rows_left() == []


@pytest.mark.parametrize("point", ["futures.round.before", "futures.round.after"])
def test_a_crash_point_in_the_loop_ends_the_worker_and_reaches_the_caller(stage: Stage, point: str) -> None:
    task = part(0, stage.folder)
    with (
        stage.presence(leave=False) as presence,
        stage.worker(presence) as worker,
        crash.armed(point),
        pytest.raises(Crashed),
    ):
        list(stage.parts(worker).run([task]))
    with stage.runner():
        assert made(list(stage.parts().run([task]))) == ["0"]
    ended = [note for note in stage.notes() if note.startswith("ended")]
    # The part may end before the crash, without being recorded. Then it runs again, under another epoch.
    assert ended in (["ended 0 1"], ["ended 0 3"], ["ended 0 1", "ended 0 3"])


def test_a_crash_point_in_a_turn_stands_for_the_death_of_the_process(stage: Stage) -> None:
    task = part(0, stage.folder)
    with stage.presence(leave=False) as presence, stage.worker(presence) as worker:
        parts = PartFutures(stage.scope(), KEY, crashing, check=worker.check)
        with crash.armed("tests.part"), pytest.raises(Crashed):
            list(parts.run([task]))
        assert isinstance(stage.row(task), Claimed)
    with stage.runner():
        assert made(list(PartFutures(stage.scope(), KEY, crashing).run([task]))) == ["0"]


def crashing(task):  # type: ignore[no-untyped-def]
    current()
    crash.point("tests.part")
    return make(task)


def test_what_is_for_runners_waits_for_one_while_only_workers_are_alive(stage: Stage) -> None:
    from tidemill.futures.protocol import lanes, unsatisfiable
    from tidemill.futures.protocol.lanes import Capacity
    from tidemill.futures.protocol.rows import Needs

    lane = lanes.lane_of("", 0, Needs(named=(resource_of("shop"),)))
    other = lanes.lane_of("", 0, Needs(named=("gpu-box",)))
    worker = nodes.Node(id="w", epoch=0, kind="worker", total=Capacity(cpu=4).to_node())
    totals = [Capacity.of_node(worker.total)]
    assert unsatisfiable.is_safe(lane, totals)
    assert not unsatisfiable.is_safe(other, totals)
