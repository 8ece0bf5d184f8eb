"""Dependents: told of every end and every loss, in pages, whatever their number."""

from pathlib import Path

import pytest

from tests.unit.futures_stage import Stage
from tidemill.futures.protocol import cancel, depend, edges, finish, requeue, submit
from tidemill.futures.protocol.rows import (
    Blocked,
    Claimed,
    Failed,
    Failure,
    Realized,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store import LIMITS
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.fake_clock import FakeClock


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("FUT-15")
def test_the_last_missing_input_unblocks(stage: Stage) -> None:
    worker = stage.worker("w")
    first, second = stage.submit(), stage.submit()
    behind = stage.submit(first, second)
    stage.make(worker, first)
    assert isinstance(stage.row(behind), Blocked)
    assert behind not in stage.ready_ids()
    stage.make(worker, second)
    assert isinstance(stage.row(behind), Unclaimed)
    assert behind in stage.ready_ids()


@pytest.mark.rule("FUT-15")
def test_a_future_whose_input_is_lost_goes_back_to_blocked(stage: Stage) -> None:
    worker = stage.worker("w")
    first, second = stage.submit(), stage.submit()
    waiting, ready = stage.submit(first, second), stage.submit(first)
    stage.make(worker, first, kind="segment")
    assert isinstance(stage.row(ready), Unclaimed)
    stage.lose(first)
    assert stage.row(waiting) == Blocked(waits_on=2)
    assert stage.row(ready) == Blocked(waits_on=1)
    stage.make(worker, first)
    stage.make(worker, second)
    assert isinstance(stage.row(waiting), Unclaimed)
    assert isinstance(stage.row(ready), Unclaimed)


def test_one_that_runs_keeps_its_claim_when_its_input_is_lost(stage: Stage) -> None:
    worker = stage.worker("w")
    data = stage.submit()
    stage.make(worker, data, kind="segment")
    use = stage.submit(data)
    claimed = stage.claim_one(worker, use)
    stage.lose(data)
    assert isinstance(stage.row(use), Claimed)
    stage.realize(worker, claimed)


@pytest.mark.rule("FUT-46")
def test_a_failure_goes_through_to_the_last_future_with_the_chain_of_causes(stage: Stage) -> None:
    worker = stage.worker("w")
    first = stage.submit(name="load")
    second = stage.submit(first, name="clean")
    other = stage.submit(name="other")
    third = stage.submit(second, other, name="join")
    last = stage.submit(third, name="report")
    stage.fail(worker, stage.claim_one(worker, first), message="disk full")
    stage.drain()
    assert isinstance(stage.row(last), Failed)
    failure = stage.failure(last)
    assert failure is not None
    assert [name.split(" (")[0] for name in failure.upstream] == ["join", "clean", "load"]
    assert failure.message == "disk full"
    assert isinstance(stage.row(other), Unclaimed)


def test_a_requeued_future_brings_back_what_failed_because_of_it(stage: Stage) -> None:
    worker = stage.worker("w")
    first, broken = stage.submit(), stage.submit()
    second, both = stage.submit(first), stage.submit(first, broken)
    third = stage.submit(second)
    stage.fail(worker, stage.claim_one(worker, first))
    stage.fail(worker, stage.claim_one(worker, broken))
    stage.drain()
    assert isinstance(stage.row(third), Failed)
    stage.here(requeue.requeue, first)
    stage.drain()
    assert isinstance(stage.row(third), Blocked)
    assert isinstance(stage.row(both), Failed)  # its other input is still broken
    for future_id in (first, second, third):
        stage.make(worker, future_id)


@pytest.mark.rule("FUT-65")
def test_dependents_with_hundreds_of_inputs_are_requeued_in_transactions_that_fit(stage: Stage) -> None:
    """Such a dependent needs hundreds of writes, so a page of them does not fit into one transaction."""
    stage.scan = False
    worker = stage.worker("w")
    others = [stage.submit() for _ in range(200)]
    for claimed in stage.claim(worker, 200):
        stage.realize(worker, claimed)
    first = stage.submit()
    behind = [stage.submit(first, *others) for _ in range(6)]
    stage.fail(worker, stage.claim_one(worker, first))
    stage.drain()
    assert all(isinstance(stage.row(future_id), Failed) for future_id in behind)
    stage.here(requeue.requeue, first)
    stage.drain()
    assert all(isinstance(stage.row(future_id), Blocked) for future_id in behind)


def test_the_row_changes_its_mind_while_its_dependents_are_being_told(stage: Stage) -> None:
    """A cursor says "bring these in step with the upstream", not "tell these that it was realised"."""
    stage.scan = False
    worker = stage.worker("w")
    data = stage.submit()
    behind = [stage.spec(inputs=(data,)) for _ in range(180)]
    for page in submit.pages(behind):
        stage.here(submit.submit, page)
    stage.scan = True
    stage.realize_fast(worker, stage.claim_one(worker), kind="segment")
    stage.here(depend.notify_page, data)
    stage.here(depend.notify_page, data)
    states = {type(stage.row(spec.id)) for spec in behind}
    assert states == {Unclaimed, Blocked}
    stage.lose(data)
    stage.drain()
    assert {type(stage.row(spec.id)) for spec in behind} == {Blocked}
    claimed = stage.claim_one(worker, data)
    stage.realize_fast(worker, claimed, kind="segment")
    stage.here(depend.notify_page, data)
    stage.here(cancel.cancel, behind[-1].id)
    stage.drain()
    assert {type(stage.row(spec.id)) for spec in behind[:-1]} == {Unclaimed}


@pytest.mark.slow
@pytest.mark.rule("FUT-65")
@pytest.mark.parametrize(
    ("count", "end"),
    [
        (5_000, "realize"),
        (2_000, "fail"),
        (1_000, "lose"),
        pytest.param(100_000, "realize", marks=pytest.mark.crash),
        pytest.param(100_000, "fail", marks=pytest.mark.crash),
    ],
)
def test_a_fan_out_of_any_size_is_told_in_bounded_transactions(count: int, end: str, tmp_path: Path) -> None:
    clock = FakeClock()
    on_disk = count > 2_000  # the memory store walks through whole ranges
    stage = Stage(SqliteStore(tmp_path / "db", clock=clock) if on_disk else None, clock=clock, scan=False)
    worker = stage.worker("w")
    data = stage.submit()
    for page in submit.pages([stage.spec(inputs=(data,)) for _ in range(count)]):
        stage.here(submit.submit, page)
    claimed = stage.claim_one(worker, data)
    stage.writes.clear()
    stage.bytes_written.clear()
    if end == "fail":
        failure = Failure(kind="exception", message="x" * 4_000, traceback="t" * 30_000)
        stage.there(finish.fail, worker, claimed, failure)
    else:
        stage.realize(worker, claimed, kind="segment")
    if end == "lose":
        stage.drain()
        stage.lose(data)

    pages = stage.drain()
    assert max(stage.writes) <= depend.ROOM_WRITES + 50 < LIMITS.transaction_writes
    assert max(stage.bytes_written) < LIMITS.transaction_bytes
    assert pages >= count / depend.PAGE / 2
    expected = {"realize": Unclaimed, "fail": Failed, "lose": Blocked}[end]
    stage.check()
    states = [type(row) for future_id, row in stage.mirror.futures.items() if future_id != data]
    assert len(states) == count
    assert set(states) == {expected}
    stage.store.close()


def test_an_end_within_a_full_transaction_tells_nobody_and_leaves_a_cursor(stage: Stage) -> None:
    first = stage.submit()
    second = stage.submit(first)

    def full(tx: object) -> None:
        for number in range(depend.ROOM_WRITES):
            tx.set(stage.keys.limit[f"q{number}"], b"")  # type: ignore[attr-defined]
        cancel.cancel(tx, stage.keys, first)  # type: ignore[arg-type]

    stage.run(full)
    assert isinstance(stage.row(second), Blocked)
    stage.drain()
    assert isinstance(stage.row(second), Failed)


def test_a_submit_that_saw_the_old_state_is_not_forgotten(stage: Stage) -> None:
    """A dependent is attached between the reading and the commit of the end: one of them is repeated."""
    worker = stage.worker("w")
    data = stage.submit()
    stage.submit(data)
    claimed = stage.claim_one(worker)
    done = stage.done(claimed, worker)
    late = stage.spec(inputs=(data,))
    tries = []

    def realize(tx: object) -> None:
        finish.realize(tx, stage.keys, stage.cluster, worker, done)  # type: ignore[arg-type]
        if not tries:
            tries.append(1)
            import threading

            other = threading.Thread(
                target=lambda: stage.store.run(lambda t: submit.submit(t, stage.keys, [late]))
            )
            other.start()
            other.join()

    stage.run(realize)
    assert isinstance(stage.row(late.id), Unclaimed)


def test_a_stranded_dependent_of_a_failed_input_fails(stage: Stage) -> None:
    worker = stage.worker("w")
    data = stage.submit(reconstruct=False)
    stage.make(worker, data, kind="segment")
    use = stage.submit(data)
    row = stage.row(use)
    aside = Unsatisfiable(tally=row.tally, since=1)
    stage.here(edges.move, stage.spec_of(use), row, FutureEdge.MARK_UNSATISFIABLE, aside)
    stage.lose(data)
    assert isinstance(stage.row(use), Failed)


def test_dependents_of_what_was_realised_long_ago_start_at_once(stage: Stage) -> None:
    worker = stage.worker("w")
    data = stage.submit()
    stage.make(worker, data)
    assert isinstance(stage.row(data), Realized)
    for _ in range(3):
        assert isinstance(stage.row(stage.submit(data)), Unclaimed)


@pytest.mark.rule("FUT-15")
@pytest.mark.parametrize("how", ["relinquish", "retry", "reap"])
def test_a_claim_that_is_given_back_after_its_input_was_lost_waits_for_it(stage: Stage, how: str) -> None:
    """Found by the machine: it went back to the pool as if the input were still there."""
    worker, other = stage.worker("w"), stage.worker("other")
    data = stage.submit()
    stage.make(other, data, kind="segment")
    use = stage.submit(data, max_retries=3)
    claimed = stage.claim_one(worker, use)
    stage.lose(data)
    if how == "relinquish":
        stage.there(finish.relinquish, worker, [claimed])
    elif how == "retry":
        stage.fail(worker, claimed)
    else:
        stage.kill(worker, alive=[other])
        stage.round("reap futures")
    assert isinstance(stage.row(use), Blocked)
    stage.make(other, data)
    assert isinstance(stage.row(use), Unclaimed)


@pytest.mark.rule("FUT-46")
@pytest.mark.parametrize("how", ["relinquish", "retry", "reap"])
def test_a_claim_that_is_given_back_after_its_input_failed_for_good_fails(stage: Stage, how: str) -> None:
    worker, other = stage.worker("w"), stage.worker("other")
    data = stage.submit(reconstruct=False)
    stage.make(other, data, kind="segment")
    use = stage.submit(data, max_retries=3)
    claimed = stage.claim_one(worker, use)
    stage.lose(data)
    assert isinstance(stage.row(use), Claimed)
    if how == "relinquish":
        stage.there(finish.relinquish, worker, [claimed])
    elif how == "retry":
        stage.fail(worker, claimed)
    else:
        stage.kill(worker, alive=[other])
        stage.round("reap futures")
    row = stage.row(use)
    assert isinstance(row, Failed)
    assert row.kind == "upstream"
