"""Garbage collection: what goes, and what must not."""

import random

import pytest

from tests.unit.cluster_stage import Trouble
from tests.unit.futures_stage import Stage
from tidemill.futures.protocol import cancel, results, submit, sweep
from tidemill.futures.protocol.events import FuturesSwept
from tidemill.futures.protocol.keys import args_object
from tidemill.futures.protocol.rows import Blob, Realized
from tidemill.store import LIMITS
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock

DAY_S = 24 * 3600.0


@pytest.fixture
def stage() -> Stage:
    return Stage()


def days_later(stage: Stage, days: float = 1.1) -> None:
    stage.clock.advance(days * DAY_S)
    for _ in range(3):
        stage.round("sweep futures")


def exists(stage: Stage, future: bytes) -> bool:
    return stage.keys.future[future] in stage.all_rows()


@pytest.mark.rule("FUT-34")
def test_ended_futures_go_after_a_day_with_everything_that_hangs_on_them(stage: Stage) -> None:
    worker = stage.worker("w")
    empty = set(stage.all_rows())
    data = stage.submit(key="k", deadline_at=10**15, owner="gone")
    other = stage.submit()
    stage.submit(data, other)
    stage.make(worker, data, kind="object")
    stage.here(results.pin, other, "me")
    stage.here(results.unpin, other, "me")
    stage.run(lambda tx: tx.set(stage.keys.status[data], b"half done"))
    stage.fail(worker, stage.claim_one(worker, other))
    stage.drain()
    days_later(stage, 0.5)
    assert exists(stage, data)
    days_later(stage, 1)
    left = {stage.cluster.leader, stage.keys.swept}
    assert {key for key in stage.all_rows() if key not in empty} - left == {
        stage.keys.garbage[f"obj-{data.hex()}-1"]
    } | {key for key in stage.all_rows() if key.startswith(stage.keys.inbox.prefix)}
    assert sum(len(event.ids) for event in stage.events if isinstance(event, FuturesSwept)) == 3


@pytest.mark.rule("FUT-34")
def test_large_arguments_are_deleted_with_their_future_and_not_before(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(args=Blob(None, b"digest", 10**6))
    name = stage.keys.garbage[args_object(future, b"digest")]
    stage.make(worker, future)
    days_later(stage, 0.9)
    assert name not in stage.all_rows()
    days_later(stage, 0.9)
    assert not exists(stage, future)
    assert name in stage.all_rows()


@pytest.mark.rule("FUT-34")
def test_what_has_not_ended_stays_however_old_it_is(stage: Stage) -> None:
    worker = stage.worker("w")
    free = stage.submit()
    blocked = stage.submit(free)
    days_later(stage, 30)
    assert exists(stage, free)
    assert exists(stage, blocked)
    assert worker.id == "w"


@pytest.mark.rule("FUT-34")
def test_the_idempotency_key_goes_with_its_future_and_not_before(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(key="k")
    stage.make(worker, future)
    days_later(stage, 0.9)
    assert stage.submit(key="k") == future
    days_later(stage, 0.9)
    assert stage.submit(key="k") != future


@pytest.mark.rule("FUT-34", "FUT-64")
def test_a_live_clients_handle_keeps_its_futures_and_no_longer(stage: Stage) -> None:
    worker = stage.worker("w")
    client = stage.worker("client", kind="client", ttl_s=10 * DAY_S)
    future, released = stage.submit(owner="client"), stage.submit(owner="client")
    for future_id in (future, released):
        stage.make(worker, future_id)
    stage.here(results.release, "client", [released])
    days_later(stage, 3)
    assert exists(stage, future)
    assert not exists(stage, released)
    assert client.kind == "client"
    days_later(stage, 10)
    assert not exists(stage, future)


@pytest.mark.rule("FUT-34")
def test_a_pin_keeps_a_future(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    stage.make(worker, future)
    stage.here(results.pin, future, "me")
    days_later(stage, 3)
    assert exists(stage, future)
    stage.here(results.unpin, future, "me")
    days_later(stage)
    assert not exists(stage, future)


class TestLineage:
    """FUT-61: a row outlives every live descendant whose result is not durable."""

    @pytest.mark.rule("FUT-61")
    @pytest.mark.parametrize(("kind", "kept"), [("segment", True), ("inline", False), ("object", False)])
    def test_inputs_stay_while_a_result_made_of_them_could_be_lost(
        self, stage: Stage, kind: str, kept: bool
    ) -> None:
        worker = stage.worker("w")
        client = stage.worker("client", kind="client", ttl_s=100 * DAY_S)
        first = stage.submit()
        second = stage.submit(first)
        third = stage.submit(second, owner="client")
        for future_id, how in ((first, "inline"), (second, kind), (third, "segment")):
            stage.make(worker, future_id, kind=how)
        days_later(stage, 3)
        assert exists(stage, third)
        assert exists(stage, second)
        assert exists(stage, first) == kept
        assert client.id == "client"

    @pytest.mark.rule("FUT-61")
    def test_inputs_stay_while_a_dependent_has_not_ended(self, stage: Stage) -> None:
        worker = stage.worker("w")
        first, other = stage.submit(), stage.submit()
        stage.submit(first, other)
        stage.make(worker, first)
        days_later(stage, 3)
        assert exists(stage, first)

    @pytest.mark.rule("FUT-61")
    def test_a_lost_result_can_still_be_computed_days_later(self, stage: Stage) -> None:
        worker = stage.worker("w")
        stage.worker("client", kind="client", ttl_s=100 * DAY_S)
        first = stage.submit()
        second = stage.submit(first, owner="client")
        for future_id in (first, second):
            stage.make(worker, future_id, kind="segment")
        days_later(stage, 3)
        worker = stage.worker("w2")
        stage.lose(first)
        stage.lose(second)
        stage.make(worker, first)
        stage.make(worker, second)
        assert isinstance(stage.row(second), Realized)


def test_a_future_with_very_many_dependents_is_swept_in_short_transactions(stage: Stage) -> None:
    stage.scan = False
    worker = stage.worker("w")
    data = stage.submit()
    specs = [stage.spec(inputs=(data,)) for _ in range(600)]
    for page in submit.pages(specs):
        stage.here(submit.submit, page)
    stage.make(worker, data)
    stage.drain()
    while claimed := stage.claim(worker):
        stage.realize_fast(worker, *claimed)
    stage.clock.advance(2 * DAY_S)
    for _ in range(12):
        stage.round("sweep futures")
    assert not exists(stage, data)
    assert not any(exists(stage, spec.id) for spec in specs)
    assert not any(key.startswith(stage.keys.dep.prefix) for key in stage.all_rows())
    assert max(stage.writes) < LIMITS.transaction_writes


def test_those_that_wait_for_a_person_are_kept_for_a_week(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    for _ in range(3):
        stage.clock.advance(3)
        worker = stage.beat(worker)
        stage.fail(worker, stage.claim_one(worker), "crash")
    days_later(stage, 5)
    assert exists(stage, future)
    days_later(stage, 3)
    assert not exists(stage, future)


def test_empty_lanes_leave_the_directory_and_come_back_with_the_next_future(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(queue="rare")
    stage.make(worker, future)
    assert stage.lanes()
    stage.round("sweep futures")
    assert stage.lanes() == []
    stage.submit(queue="rare")
    assert len(stage.lanes()) == 1


@pytest.mark.rule("FUT-15")
def test_a_lane_stays_listed_if_a_future_enters_it_while_it_is_closed() -> None:
    clock = FakeClock()
    trouble = Trouble(clock)
    stage = Stage(MemoryStore(clock=clock, chance=random.Random(3), faults=trouble), clock=clock)
    worker = stage.worker("w")
    stage.make(worker, stage.submit())
    entered: list[bytes] = []
    trouble.interlude = lambda: entered.append(stage.submit())
    stage.here(sweep.close_lanes)
    assert [claimed.id for claimed in stage.claim(worker)] == entered


def test_a_cursor_keeps_a_future_until_all_are_told(stage: Stage) -> None:
    stage.scan = False
    first = stage.submit()
    specs = [stage.spec(inputs=(first,)) for _ in range(200)]
    for page in submit.pages(specs):
        stage.here(submit.submit, page)
    stage.here(cancel.cancel, first)
    days_later(stage, 3)
    assert exists(stage, first)
    stage.drain()
    for _ in range(10):
        days_later(stage)
    assert not exists(stage, first)
    assert not any(exists(stage, spec.id) for spec in specs)
