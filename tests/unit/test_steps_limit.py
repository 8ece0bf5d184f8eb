"""A large backlog becomes several steps: records are cut between lots, and nothing is lost or delayed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidemill as tm
from tests.unit.lots_stage import new_lot
from tests.unit.steps_stage import P, StepStage, spec
from tidemill.errors import UsageError
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.store import Tx
from tidemill.triggers import wakes
from tidemill.views.steps import step_limit
from tidemill.views.steps.step_limit import StepLimit

LONG_US = 10_000_000_000


def publish(stage: StepStage, dataset: DatasetId, rows: int, size: int = 0) -> None:
    def both(tx: Tx) -> None:
        name = str(lots.next_append(tx, stage.lots, dataset))
        lots.add(tx, stage.lots, new_lot(dataset, name, rows=rows, size=size))
        wakes.wake(tx, stage.triggers, dataset)

    stage.run(both)


def limited(limit: StepLimit | None, backlog: dict[str, list[int]], *, scan: bool = True) -> StepStage:
    """Groups over datasets with a backlog of lots; then all steps."""
    stage = StepStage(scan=scan)
    bases = {name: stage.dataset(name) for name in backlog}
    stage.declare(*(spec(f"of_{name}", base) for name, base in bases.items()))
    runner = stage.node("runner", LONG_US)
    groups = [f"of_{name}" for name in backlog]
    stage.settle(runner, *groups)
    stage.run(step_limit.write, stage.keys, P, limit)
    for name, rows_of_lots in backlog.items():
        for rows in rows_of_lots:
            publish(stage, bases[name], rows, 10 * rows)
    for _ in range(3):
        stage.clock.advance(1)
        stage.settle(runner, *groups)
    assert all(stage.group(name).step == len(stage.records()) for name in groups)
    return stage


def taken(stage: StepStage, name: str) -> list[int]:
    """How many lots of a dataset each record has."""
    ranges = [{each.dataset.name: each for each in record.ranges} for record in stage.records()]
    return [each[name].to - each[name].after if name in each else 0 for each in ranges if each]


def test_a_backlog_is_cut_between_lots() -> None:
    lots_of_x = [40, 40, 40, 500, 10, 10, 10]
    assert taken(limited(None, {"x": lots_of_x}), "x") == [7]
    stage = limited(StepLimit(rows=100), {"x": lots_of_x})
    assert taken(stage, "x") == [2, 1, 1, 3], "a lot that is too large is a step of its own"
    assert [row.step for row in stage.rows_of_group("of_x")] == [1, 2, 3, 4, 5], "each is committed"
    assert taken(limited(StepLimit(size=1000), {"x": lots_of_x}), "x") == [2, 1, 1, 3]
    assert taken(limited(StepLimit(rows=100, size=400), {"x": lots_of_x}), "x") == [1, 1, 1, 1, 3]


def test_a_dataset_with_a_large_backlog_does_not_delay_the_others() -> None:
    stage = limited(StepLimit(rows=100), {"a": [90] * 5, "b": [5, 5], "c": [60, 60]})
    assert taken(stage, "b")[:3].count(2) == 1
    firsts = {name: next(n for n, count in enumerate(taken(stage, name)) if count) for name in "abc"}
    assert max(firsts.values()) <= 2, "each dataset is in one of the first records"


def test_a_record_reads_a_limited_number_of_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_limit, "MOST_EVENTS", 3)
    assert taken(limited(StepLimit(rows=10**9), {"x": [1] * 7}), "x") == [3, 3, 1]


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=6), min_size=1),
    st.integers(1, 12),
)
def test_every_lot_is_in_one_step_and_no_step_exceeds_the_limit(
    backlog: dict[str, list[int]], most: int
) -> None:
    stage = limited(StepLimit(rows=most), backlog, scan=False)
    stage.check()  # ranges follow each other, up to the heads
    for name, rows in backlog.items():
        assert sum(taken(stage, name)) == len(rows)
    for record in stage.records():
        counts = [row for each in record.ranges for row in backlog[each.dataset.name][each.after : each.to]]
        assert sum(counts) <= most or len(counts) == 1


def test_the_limit_is_stored_and_removed() -> None:
    stage = StepStage()
    for limit in (StepLimit(rows=5), StepLimit(size=7), None, None):
        stage.run(step_limit.write, stage.keys, P, limit)
        assert stage.store.run(lambda tx: step_limit.read(tx, stage.keys, P)) == limit


@pytest.mark.parametrize("name", ["max_step_rows", "max_step_bytes"])
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}=0 is not positive"):
        tm.Pipeline("shop", **{name: 0})  # type: ignore[arg-type]
    assert tm.Pipeline("shop", **{name: 3}).step_limit is not None  # type: ignore[arg-type]
