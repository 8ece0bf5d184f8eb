"""Partition tasks: created while workers are idle, with the state of their futures."""

import pytest

from tests.unit.futures_stage import Stage
from tidemill.cluster import leases, nodes, partitions
from tidemill.cluster.keeper import HeldLease
from tidemill.cluster.leader import Tenure
from tidemill.errors import NotLeader
from tidemill.futures.protocol import cancel, finish
from tidemill.futures.protocol.partition_tasks import (
    PAGE,
    STATE_OF,
    PartitionTaskState,
    WorkFinder,
    create,
    failure_of,
    list_tasks,
    remove_done,
)
from tidemill.futures.protocol.rows import Failure
from tidemill.futures.protocol.states import FutureState

GROUP = "bucket"


@pytest.fixture
def stage() -> Stage:
    return Stage(scan=False)


def lead(stage: Stage, name: str = "leader") -> Tenure:
    lease = stage.store.run(lambda tx: leases.acquire(tx, stage.cluster.leader, name, 15_000_000))
    assert isinstance(lease, leases.Lease)
    return Tenure(
        stage.store, HeldLease(stage.cluster.leader, lease, stage.clock.monotonic() + 12, stage.clock)
    )


def tasks(stage: Stage):
    return {task.id: task for task in stage.here(list_tasks, GROUP)}


class Files:
    """Outstanding work: each file once, however often it is found."""

    def __init__(self, stage: Stage, count: int) -> None:
        self.left = {f"file-{number:03}": stage.spec(f"take {number}") for number in range(count)}
        self.asked: list[int] = []
        self.settled: list[str] = []

    def find(self, most: int):
        self.asked.append(most)
        return dict(list(self.left.items())[:most])

    def keep(self, tx, done) -> None:
        for task in done:
            self.settled.append(task.id)
            self.left.pop(task.id, None)


@pytest.mark.rule("CLU-15")
def test_every_state_of_a_future_is_a_state_of_its_partition():
    assert STATE_OF.keys() == set(FutureState)
    assert set(STATE_OF.values()) == set(PartitionTaskState)


@pytest.mark.rule("CLU-15")
def test_a_partition_is_outstanding_in_progress_failed_quarantined_or_done_and_counts_its_attempts(stage):
    worker = stage.worker("w")
    specs = {name: stage.spec(name, max_retries=1) for name in ("good", "bad", "poison")}
    stage.there(create, GROUP, specs, 1)
    assert {task.state for task in tasks(stage).values()} == {PartitionTaskState.OUTSTANDING}
    for round_ in range(3):
        stage.clock.advance(5)
        worker = stage.beat(worker)
        for claim in stage.claim(worker):
            name = stage.spec_of(claim.id).name
            assert tasks(stage)[name].state is PartitionTaskState.IN_PROGRESS
            assert tasks(stage)[name].holder == worker.id
            if name == "good":
                stage.realize(worker, claim)
            else:
                kind = "exception" if name == "bad" else "crash"
                failure = Failure(kind=kind, message=f"no {round_}")
                stage.there(finish.fail, worker, claim, failure, jitter=0.0)
    ended = tasks(stage)
    assert ended["good"].state is PartitionTaskState.DONE
    assert (ended["bad"].state, ended["bad"].attempts) == (PartitionTaskState.FAILED, 2)
    assert (ended["poison"].state, ended["poison"].attempts) == (PartitionTaskState.QUARANTINED, 3)
    failure = stage.here(failure_of, ended["bad"])
    assert failure is not None
    assert (failure.node, failure.message) == (worker.id, "no 1")


@pytest.mark.rule("CLU-12")
def test_partitions_are_created_for_idle_slots_only_and_removed_when_completed(stage):
    worker = stage.worker("w")
    worker = stage.beat(worker, slots=3)
    files = Files(stage, 8)
    duty = WorkFinder(stage.keys, stage.cluster, GROUP, files.find, on_done=files.keep)
    tenure = lead(stage)
    names = []
    for _ in range(6):
        duty(tenure)
        assert (
            sum(
                task.state in (PartitionTaskState.OUTSTANDING, PartitionTaskState.IN_PROGRESS)
                for task in tasks(stage).values()
            )
            <= 3
        )
        for claim in stage.claim(worker):
            names.append(stage.spec_of(claim.id).name)
            stage.realize(worker, claim)
    duty(tenure)
    assert sorted(names) == sorted(f"take {number}" for number in range(8))
    assert sorted(files.settled) == [f"file-{number:03}" for number in range(8)]
    assert tasks(stage) == {}
    assert max(files.asked) == 3


@pytest.mark.rule("CLU-12")
def test_no_work_is_searched_without_idle_workers(stage):
    files = Files(stage, 4)
    duty = WorkFinder(stage.keys, stage.cluster, GROUP, files.find)
    tenure = lead(stage)
    duty(tenure)
    assert files.asked == []
    stage.beat(stage.worker("w"), slots=2)
    duty(tenure)
    duty(tenure)
    assert files.asked == [2]
    assert len(tasks(stage)) == 2


@pytest.mark.rule("CLU-12")
def test_a_former_leader_creates_and_removes_nothing(stage):
    stage.beat(stage.worker("w"), slots=2)
    files = Files(stage, 4)
    old = lead(stage)
    stage.store.run(lambda tx: leases.release(tx, stage.cluster.leader, old.held.lease))
    lead(stage, "another")
    with pytest.raises(NotLeader):
        WorkFinder(stage.keys, stage.cluster, GROUP, files.find)(old)
    assert tasks(stage) == {}


@pytest.mark.rule("CLU-16")
def test_the_map_records_the_version_of_the_node_list(stage):
    stage.worker("w")
    stage.there(create, GROUP, {"a": stage.spec()}, 7)
    partition_map = stage.store.run(lambda tx: partitions.map_of(tx, stage.cluster, GROUP))
    assert partition_map is not None
    assert (partition_map.node_version, partition_map.leader_epoch) == (
        stage.store.run(lambda tx: nodes.version(tx, stage.cluster)),
        7,
    )


def test_an_id_has_one_partition_and_one_future_however_often_it_is_found(stage):
    assert stage.there(create, GROUP, {"a": stage.spec("first")}, 1) == ["a"]
    assert stage.there(create, GROUP, {"a": stage.spec("second")}, 1) == []
    assert stage.spec_of(tasks(stage)["a"].future).name == "first"


def test_an_open_partition_is_not_removed_and_its_future_stays_pinned(stage):
    worker = stage.worker("w")
    stage.there(create, GROUP, {"a": stage.spec()}, 1)
    (claim,) = stage.claim(worker)
    stage.realize(worker, claim)
    completed = list(tasks(stage).values())
    assert stage.here(remove_done, completed) == ["a"]
    stage.there(create, GROUP, {"b": stage.spec()}, 1)
    open_task = tasks(stage)["b"]
    assert stage.here(remove_done, [open_task]) == []
    assert stage.store.run(lambda tx: tx.get(stage.keys.pin[open_task.future, "partition"])) == b""


@pytest.mark.rule("CLU-15")
def test_a_cancelled_or_deleted_task_is_a_failed_partition(stage):
    stage.there(create, GROUP, {"a": stage.spec()}, 1)
    stage.here(cancel.cancel, tasks(stage)["a"].future)
    assert tasks(stage)["a"].state is PartitionTaskState.FAILED


def test_more_than_a_page_is_created_in_several_transactions(stage):
    stage.beat(stage.worker("w"), slots=3 * PAGE)
    files = Files(stage, 2 * PAGE + 1)
    WorkFinder(stage.keys, stage.cluster, GROUP, files.find)(lead(stage))
    created = stage.here(list_tasks, GROUP, limit=1_000)
    assert len(created) == 2 * PAGE + 1
    assert [task.id for task in stage.here(list_tasks, GROUP, after=created[-2].id)] == [created[-1].id]
