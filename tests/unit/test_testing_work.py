"""The check of the acceptance tests and the demo must find planted errors."""

import msgspec
import pytest

from tests.unit.cluster_stage import Stage
from tidemill.cluster import partitions
from tidemill.cluster.partitions import Partition
from tidemill.errors import LeaseLost
from tidemill.testing.work import PartitionWork, WorkEntry, WorkPlan, violations

PLAN = WorkPlan(partitions=1, units=3, unit_s=0.0)


def entry(unit: int = 0, *, epoch: int = 1, node: str = "a", kind: str = "unit") -> WorkEntry:
    return WorkEntry(
        partition="00000",
        epoch=epoch,
        node=node,
        row_epoch=epoch + (kind == "end"),
        row_holder=node,
        at=0,
        kind=kind,  # type: ignore[arg-type]
        unit=unit,
    )


GOOD = [entry(0), entry(1), entry(2, epoch=3, node="b"), entry(kind="end", epoch=3, node="b")]
WRONG: dict[str, tuple[list[WorkEntry], str]] = {
    "an old epoch after a new one": ([entry(0, epoch=2, node="b"), entry(1)], "after epoch 2"),
    "a row that had moved on": (
        [msgspec.structs.replace(entry(0), row_epoch=2, row_holder="b")],
        "under epoch 1, but the row had epoch 2",
    ),
    "two nodes under one epoch": ([entry(0), entry(1, node="b")], "belonged to a, but b wrote"),
    "a unit twice": ([entry(0), entry(0)], "in the order [0, 0]"),
    "a unit left out": ([entry(0), entry(2)], "in the order [0, 2]"),
    "a write behind the end": ([*GOOD, entry(3, epoch=3, node="b")], "ended 1 times"),
    "two ends": ([*GOOD, entry(kind="end", epoch=3, node="b")], "ended 2 times"),
    "nothing at all": ([], "0 of 3 units"),
    "no end": (GOOD[:-1], "ended 0 times"),
}


def test_a_good_history_is_not_complained_about() -> None:
    assert violations(GOOD, PLAN) == []
    assert violations(GOOD[:2]) == [], "without a plan it may be unfinished"


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_history_is_found_out(case: str) -> None:
    entries, complaint = WRONG[case]
    assert any(complaint in problem for problem in violations(entries, PLAN)), violations(entries, PLAN)


def taken(stage: Stage, work: PartitionWork, node: str) -> Partition:
    part = stage.store.run(lambda tx: partitions.take(tx, work.keys, work.group, "00000", node, stage.ttl_us))
    assert part is not None
    return part


def test_work_continues_where_the_last_holder_stopped_and_an_old_holder_writes_nothing() -> None:
    stage = Stage()
    work = PartitionWork("c")
    stage.store.run(lambda tx: work.put_plan(tx, PLAN))
    assert stage.store.run(lambda tx: work.create(tx, 1))
    first = taken(stage, work, "a")
    assert stage.store.run(lambda tx: work.write_unit(tx, first, "a")) == 1
    stage.clock.advance(stage.ttl_s)
    second = taken(stage, work, "b")
    with pytest.raises(LeaseLost):
        stage.store.run(lambda tx: work.write_unit(tx, first, "a"))
    assert stage.store.run(lambda tx: work.write_unit(tx, second, "b")) == 2
    assert not stage.store.run(work.finish)
    assert stage.store.run(lambda tx: work.write_unit(tx, second, "b")) == 3
    assert stage.store.run(lambda tx: work.write_unit(tx, second, "b")) == 3, "no more than the plan says"

    def complete(tx: object) -> None:
        partitions.complete(tx, work.keys, second)  # type: ignore[arg-type]
        work.write_end(tx, second, "b")  # type: ignore[arg-type]

    stage.store.run(complete)
    assert stage.store.run(work.finish)
    assert stage.store.run(work.is_finished)
    history = work.history(stage.store)
    assert [(entry.node, entry.unit, entry.kind) for entry in history] == [
        ("a", 0, "unit"),
        ("b", 1, "unit"),
        ("b", 2, "unit"),
        ("b", 0, "end"),
    ]
    assert violations(history, PLAN) == []


def test_without_the_fence_the_judge_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    work = PartitionWork("c")
    stage.store.run(lambda tx: work.put_plan(tx, PLAN))
    stage.store.run(lambda tx: work.create(tx, 1))
    first = taken(stage, work, "a")
    stage.clock.advance(stage.ttl_s)
    taken(stage, work, "b")
    monkeypatch.setattr(partitions, "check", lambda tx, keys, part: part)
    stage.store.run(lambda tx: work.write_unit(tx, first, "a"))
    assert "the row had epoch 2" in violations(work.history(stage.store))[0]


def test_many_partitions_are_created_in_pages() -> None:
    stage = Stage()
    work = PartitionWork("c")
    assert not stage.store.run(lambda tx: work.create(tx, 1)), "there is no plan"
    stage.store.run(lambda tx: work.put_plan(tx, WorkPlan(partitions=250, units=1, unit_s=0.0)))
    assert [stage.store.run(lambda tx: work.create(tx, 1)) for _ in range(4)] == [False, False, True, True]
    assert len(stage.parts("work")) == 250
    assert not stage.store.run(work.finish)
