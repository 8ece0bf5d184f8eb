"""Cancelling and deadlines."""

import random

import pytest

from tests.unit.cluster_stage import Trouble
from tests.unit.futures_stage import SECOND_US, Stage
from tidemill.errors import FutureUnknown, LeaseLost
from tidemill.futures.protocol import cancel, edges, finish, inbox, requeue
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.rows import (
    Cancelled,
    Claimed,
    Failed,
    Failure,
    Realized,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock


@pytest.fixture
def stage() -> Stage:
    return Stage()


def deadline(stage: Stage, seconds: float) -> int:
    return int((stage.clock.monotonic() + seconds) * SECOND_US)


@pytest.mark.rule("FUT-56")
def test_what_nobody_works_on_is_cancelled_at_once(stage: Stage) -> None:
    free = stage.submit()
    blocked = stage.submit(stage.submit())
    aside = stage.submit()
    row = stage.row(aside)
    new = Unsatisfiable(tally=row.tally, since=1)
    stage.here(edges.move, stage.spec_of(aside), row, FutureEdge.MARK_UNSATISFIABLE, new)
    for future_id in (free, blocked, aside):
        assert isinstance(stage.here(cancel.cancel, future_id), Cancelled)
    assert free not in stage.ready_ids()


@pytest.mark.rule("FUT-56")
def test_what_runs_is_marked_its_node_is_told_and_says_when_it_has_ended(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    behind = stage.submit(future)
    claimed = stage.claim_one(worker)
    marked = stage.here(cancel.cancel, future)
    assert isinstance(marked, Claimed)
    assert marked.cancel == "cancelled"
    assert stage.here(inbox.take, "w", mode="take") == [inbox.EndTask(future, claimed.epoch, "cancelled")]
    stage.here(cancel.cancel, future)
    assert stage.here(inbox.take, "w", mode="take") == []  # once is enough
    assert isinstance(stage.there(finish.cancelled, worker, claimed), Cancelled)
    assert isinstance(stage.row(behind), Failed)


@pytest.mark.rule("FUT-56")
@pytest.mark.parametrize("end", ["fail", "relinquish", "block"])
def test_a_marked_claim_never_goes_back_to_the_pool(stage: Stage, end: str) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=5)
    claimed = stage.claim_one(worker)
    stage.here(cancel.cancel, future)
    if end == "fail":
        stage.fail(worker, claimed)
    elif end == "relinquish":
        stage.there(finish.relinquish, worker, [claimed])
    else:
        stage.there(finish.block, worker, claimed, [stage.submit()])
    assert isinstance(stage.row(future), Cancelled)


def test_what_has_ended_stays_as_it_is(stage: Stage) -> None:
    worker = stage.worker("w")
    done, failed = stage.submit(), stage.submit()
    stage.make(worker, done)
    stage.fail(worker, stage.claim_one(worker, failed))
    before = stage.all_rows()
    assert isinstance(stage.here(cancel.cancel, done), Realized)
    assert isinstance(stage.here(cancel.cancel, failed), Failed)
    assert stage.all_rows() == before
    with pytest.raises(FutureUnknown):
        stage.here(cancel.cancel, b"\x00" * 16)


def test_a_stale_command_only_gives_the_claim_back(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    claimed = stage.claim_one(worker)
    assert isinstance(stage.there(finish.cancelled, worker, claimed), Unclaimed)
    with pytest.raises(LeaseLost):
        stage.there(finish.cancelled, worker, claimed)
    assert isinstance(stage.row(future), Unclaimed)


@pytest.mark.rule("FUT-56", "STO-3")
def test_a_claim_that_overtakes_a_cancel_is_seen_by_it() -> None:
    clock = FakeClock()
    trouble = Trouble(clock)
    stage = Stage(MemoryStore(clock=clock, chance=random.Random(3), faults=trouble), clock=clock)
    worker, future = stage.worker("w"), stage.submit()
    claims: list[Claim] = []
    trouble.interlude = lambda: claims.extend(stage.claim(worker))
    row = stage.here(cancel.cancel, future)
    assert [claimed.id for claimed in claims] == [future]
    assert isinstance(row, Claimed)
    assert (row.holder, row.cancel) == ("w", "cancelled")


class TestDeadlines:
    """FUT-56."""

    @pytest.mark.rule("FUT-56")
    def test_what_has_not_begun_by_its_deadline_fails(self, stage: Stage) -> None:
        late = stage.submit(deadline_at=deadline(stage, 5))
        behind = stage.submit(late, deadline_at=deadline(stage, 5))
        later = stage.submit(deadline_at=deadline(stage, 50))
        assert stage.round("end futures by deadline") <= 5
        assert isinstance(stage.row(late), Unclaimed)
        stage.clock.advance(5.1)
        stage.round("end futures by deadline")
        row = stage.row(late)
        assert isinstance(row, Failed)
        assert row.kind == "deadline"
        assert isinstance(stage.row(behind), Failed)
        assert isinstance(stage.row(later), Unclaimed)
        lo, hi = stage.keys.deadline.all()
        left = [stage.keys.deadline.unpack(key)[1] for key in stage.all_rows() if lo <= key < hi]
        assert left == [later], "a deadline that has passed is not found again"

    @pytest.mark.rule("FUT-56")
    def test_what_runs_at_its_deadline_is_ended_and_fails(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(deadline_at=deadline(stage, 5), max_retries=5)
        claimed = stage.claim_one(worker)
        stage.clock.advance(6)
        stage.round("end futures by deadline")
        assert stage.here(inbox.take, "w", mode="take") == [inbox.EndTask(future, claimed.epoch, "deadline")]
        stage.there(finish.cancelled, worker, claimed, Failure(kind="x", traceback="where it was"))
        row = stage.row(future)
        assert isinstance(row, Failed)
        assert row.kind == "deadline"
        failure = stage.failure(future)
        assert failure is not None
        assert (failure.kind, failure.traceback) == ("deadline", "where it was")

    def test_a_result_that_was_there_in_time_stays(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(deadline_at=deadline(stage, 5))
        stage.make(worker, future)
        stage.clock.advance(6)
        stage.round("end futures by deadline")
        assert isinstance(stage.row(future), Realized)
        assert not any(key.startswith(stage.keys.deadline.prefix) for key in stage.all_rows())

    def test_many_deadlines_pass_in_pages_earliest_first(self, stage: Stage) -> None:
        stage.scan = False
        ids = [stage.submit(deadline_at=deadline(stage, 1 + number / 100)) for number in range(130)]
        stage.clock.advance(10)
        page = stage.here(cancel.deadline_page)
        assert [future_id for future_id, _ in page.moved] == ids[: cancel.PAGE]
        assert page.more
        stage.round("end futures by deadline")
        assert all(isinstance(stage.row(future_id), Failed) for future_id in ids)
        stage.check()

    def test_what_is_requeued_after_its_deadline_has_none_any_more(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(deadline_at=deadline(stage, 1))
        stage.clock.advance(2)
        stage.round("end futures by deadline")
        stage.here(requeue.requeue, future)
        stage.round("end futures by deadline")
        stage.make(worker, future)
