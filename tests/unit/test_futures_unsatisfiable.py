"""Futures that no live node can run."""

import pytest

from tests.unit.futures_stage import TTL_S, Stage
from tidemill.futures.protocol import requeue
from tidemill.futures.protocol.events import FuturesStranded
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Blocked, Failed, Needs, Unclaimed, Unsatisfiable

SMALL = Capacity(cpu=3.0, ram=2**30)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def round_(stage: Stage) -> None:
    stage.round("set aside unsatisfiable futures")


@pytest.mark.rule("FUT-27", "FUT-10")
def test_what_no_live_worker_can_run_is_set_aside_and_comes_back_when_one_joins(stage: Stage) -> None:
    stage.worker("small", SMALL)
    large = stage.submit(needs=Needs(cpu=16.0))
    fits = stage.submit(needs=Needs(cpu=2.0))
    round_(stage)
    assert isinstance(stage.row(large), Unsatisfiable)
    assert isinstance(stage.row(fits), Unclaimed)
    assert stage.ready_ids() == [fits]
    assert [event for event in stage.events if isinstance(event, FuturesStranded)] == [
        FuturesStranded(ids=[large.hex()])
    ]
    big = stage.worker("big")
    round_(stage)
    assert isinstance(stage.row(large), Unclaimed)
    stage.make(big, large)


@pytest.mark.rule("FUT-27")
@pytest.mark.parametrize(
    "needs",
    [Needs(cpu=3.5), Needs(ram=2**30 + 1), Needs(gpu=0.5), Needs(named=("spark",)), Needs(cpu=4.0, ram=1)],
)
def test_exact_needs_decide_where_the_class_does_not(stage: Stage, needs: Needs) -> None:
    stage.worker("small", SMALL)
    future = stage.submit(needs=needs)
    round_(stage)
    assert isinstance(stage.row(future), Unsatisfiable)


def test_needs_that_just_fit_stay(stage: Stage) -> None:
    stage.worker("small", SMALL)
    futures = [stage.submit(needs=Needs(cpu=3.0)), stage.submit(needs=Needs(ram=2**30)), stage.submit()]
    round_(stage)
    assert all(isinstance(stage.row(future_id), Unclaimed) for future_id in futures)


@pytest.mark.rule("FUT-27")
def test_only_live_workers_count(stage: Stage) -> None:
    big, small = stage.worker("big"), stage.worker("small", SMALL)
    stage.worker("client", kind="client")
    future = stage.submit(needs=Needs(cpu=16.0))
    round_(stage)
    assert isinstance(stage.row(future), Unclaimed)
    stage.kill(big, alive=[small])
    round_(stage)
    assert isinstance(stage.row(future), Unsatisfiable)


def test_where_there_is_no_worker_nothing_is_set_aside(stage: Stage) -> None:
    future = stage.submit(needs=Needs(cpu=16.0))
    round_(stage)
    assert isinstance(stage.row(future), Unclaimed)


@pytest.mark.rule("FUT-27")
def test_after_its_grace_it_fails_and_without_one_it_waits_for_ever(stage: Stage) -> None:
    small = stage.worker("small", SMALL)
    patient = stage.submit(needs=Needs(cpu=16.0))
    graced = stage.submit(needs=Needs(cpu=16.0), unsatisfiable_grace_s=20.0)
    behind = stage.submit(graced)
    round_(stage)
    assert isinstance(stage.row(graced), Unsatisfiable)
    stage.kill(alive=[small])
    round_(stage)
    row = stage.row(graced)
    assert isinstance(row, Failed)
    assert row.kind == "unsatisfiable"
    failure = stage.failure(graced)
    assert failure is not None
    assert "cpu 16" in failure.message
    assert isinstance(stage.row(behind), Failed)
    assert isinstance(stage.row(patient), Unsatisfiable)


def test_one_whose_input_was_lost_meanwhile_comes_back_as_blocked(stage: Stage) -> None:
    small, big = stage.worker("small", SMALL), stage.worker("big")
    data = stage.submit()
    stage.make(small, data, kind="segment")
    future = stage.submit(data, needs=Needs(cpu=16.0))
    stage.kill(big, alive=[small])
    round_(stage)
    assert isinstance(stage.row(future), Unsatisfiable)
    stage.lose(data)
    stage.worker("big2")
    round_(stage)
    assert isinstance(stage.row(future), Blocked)
    stage.make(small, data)
    assert isinstance(stage.row(future), Unclaimed)


def test_a_failed_one_can_be_requeued_when_there_is_a_node_for_it(stage: Stage) -> None:
    stage.worker("small", SMALL)
    future = stage.submit(needs=Needs(cpu=16.0), unsatisfiable_grace_s=0.0)
    round_(stage)
    assert isinstance(stage.row(future), Failed)
    big = stage.worker("big")
    stage.here(requeue.requeue, future)
    stage.make(big, future)


def test_many_are_set_aside_and_brought_back_in_pages(stage: Stage) -> None:
    stage.scan = False
    stage.worker("small", SMALL)
    futures = [stage.submit(needs=Needs(cpu=16.0)) for _ in range(250)]
    round_(stage)
    assert all(isinstance(stage.row(future_id), Unsatisfiable) for future_id in futures)
    stage.check()
    stage.worker("big")
    round_(stage)
    assert all(isinstance(stage.row(future_id), Unclaimed) for future_id in futures)
    stage.check()
    assert TTL_S > 0
