"""How claims end, and that a claimant who lost its claim writes nothing."""

import msgspec
import pytest

from tests.unit.cluster_stage import Trouble
from tests.unit.futures_stage import Stage
from tidemill.cluster import nodes
from tidemill.errors import LeaseLost
from tidemill.futures.protocol import cancel, depend, finish, reap, submit
from tidemill.futures.protocol.rows import Blocked, Cancelled, Claimed, Failed, Realized, Unclaimed
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("FUT-6", "FUT-18")
def test_a_realised_future_names_its_latest_result(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    claimed = stage.claim_one(worker)
    stage.realize(worker, claimed)
    row = stage.row(future)
    assert isinstance(row, Realized)
    assert row.result.version == claimed.epoch
    assert row.result.head == b"value"
    assert row.result.at == row.at > 0


@pytest.mark.rule("FUT-6", "FUT-28")
@pytest.mark.parametrize("kind", ["inline", "segment", "object"])
def test_many_are_realised_in_one_transaction(stage: Stage, kind: str) -> None:
    worker = stage.worker("w")
    ids = [stage.submit(owner="client") for _ in range(100)]
    claims = stage.claim(worker)
    assert stage.realize_fast(worker, *claims, kind=kind) == [True] * 100
    assert all(isinstance(stage.row(future_id), Realized) for future_id in ids)
    held = [key for key in stage.all_rows() if key.startswith(stage.keys.hold.prefix)]
    assert len(held) == (0 if kind == "inline" else 100)


@pytest.mark.rule("FUT-13")
def test_the_fast_way_leaves_to_the_slow_one_what_was_rewritten_since_the_claim(stage: Stage) -> None:
    worker = stage.worker("w")
    depended, cancelled, plain = stage.submit(), stage.submit(), stage.submit()
    claims = stage.claim(worker)
    behind = stage.submit(depended)
    stage.here(cancel.cancel, cancelled)
    answers = dict(zip([claimed.id for claimed in claims], stage.realize_fast(worker, *claims), strict=True))
    assert answers == {depended: False, cancelled: False, plain: True}
    for claimed in claims:
        if not answers[claimed.id]:
            stage.realize(worker, claimed)
    assert isinstance(stage.row(behind), Unclaimed)
    assert isinstance(stage.row(cancelled), Realized)  # it was done before it could be stopped


@pytest.mark.rule("FUT-65")
def test_the_fast_way_leaves_a_cursor_for_those_that_had_dependents_before(stage: Stage) -> None:
    worker = stage.worker("w")
    first = stage.submit()
    behind = stage.submit(first)
    assert stage.realize_fast(worker, stage.claim_one(worker)) == [True]
    assert isinstance(stage.row(behind), Blocked)
    assert not stage.here(depend.notify, [first])
    assert isinstance(stage.row(behind), Unclaimed)


class TestFence:
    """FUT-13, FUT-55: whoever lost the claim is refused, whatever it believes."""

    @staticmethod
    def write(stage: Stage, how: str, worker: nodes.Node, claimed: finish.Claim) -> object:
        match how:
            case "realize_many":
                return stage.realize_fast(worker, claimed)
            case "realize":
                return stage.realize(worker, claimed)
            case "fail":
                return stage.fail(worker, claimed)
            case "block":
                return stage.there(finish.block, worker, claimed, [])
            case "cancelled":
                return stage.there(finish.cancelled, worker, claimed)
        return stage.there(finish.relinquish, worker, [claimed])

    @pytest.mark.rule("FUT-13", "FUT-55")
    @pytest.mark.parametrize("how", ["realize_many", "realize", "fail", "block", "cancelled", "relinquish"])
    def test_after_its_lease_expired_a_node_writes_nothing(self, stage: Stage, how: str) -> None:
        worker = stage.worker("w")
        stage.submit()
        claimed = stage.claim_one(worker)
        stage.kill(worker)
        before = stage.all_rows()
        with pytest.raises(LeaseLost):
            self.write(stage, how, worker, claimed)
        assert stage.all_rows() == before

    @pytest.mark.rule("FUT-13", "FUT-55")
    @pytest.mark.parametrize("how", ["realize_many", "realize", "fail", "block", "cancelled", "relinquish"])
    def test_after_the_claim_was_reaped_a_node_that_came_back_writes_nothing(
        self, stage: Stage, how: str
    ) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        claimed = stage.claim_one(worker)
        stage.kill(worker)
        stage.there(reap.reap_page, "w")
        again = stage.worker("w")
        assert again.epoch == worker.epoch + 1
        before = stage.all_rows()
        if how in ("realize_many", "relinquish"):
            assert self.write(stage, how, again, claimed) in ([False], [None])
        else:
            with pytest.raises(LeaseLost):
                self.write(stage, how, again, claimed)
        assert stage.all_rows() == before
        assert isinstance(stage.row(future), Unclaimed)

    @pytest.mark.rule("FUT-13")
    def test_a_second_claim_by_the_same_node_in_the_same_moment_is_another_claim(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        first = stage.claim_one(worker)
        stage.there(finish.relinquish, worker, [first])
        second = stage.claim_one(worker)
        assert (first.id, first.row.claimed_at) == (second.id, second.row.claimed_at)
        assert stage.realize_fast(worker, first) == [False]
        with pytest.raises(LeaseLost):
            stage.realize(worker, first)
        stage.realize(worker, second)
        assert isinstance(stage.row(future), Realized)

    @pytest.mark.rule("FUT-13")
    def test_each_claim_return_reap_and_resubmission_raises_the_epoch(self, stage: Stage) -> None:
        worker, other = stage.worker("w"), stage.worker("other")
        future = stage.submit(max_retries=3)
        seen = [0]

        def grown() -> None:
            seen.append(stage.row(future).tally.epoch)

        claimed = stage.claim_one(worker)
        grown()
        stage.there(finish.relinquish, worker, [claimed])
        grown()
        stage.fail(worker, stage.claim_one(worker))
        grown()
        stage.clock.advance(1)
        worker, other = stage.beat(worker), stage.beat(other)
        stage.claim_one(worker)
        grown()
        stage.kill(worker, alive=[other])
        stage.there(reap.reap_page, "w")
        grown()
        stage.make(other, future, kind="segment")
        grown()
        stage.lose(future)
        grown()
        assert seen == sorted(set(seen))


@pytest.mark.rule("FUT-54")
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_made_twice() -> None:
    clock = FakeClock()
    trouble = Trouble(clock)
    stage = Stage(MemoryStore(clock=clock, faults=trouble), clock=clock)
    worker = stage.worker("w")
    ids = [stage.submit() for _ in range(3)]
    trouble.hide_commits = 1
    claims = stage.claim(worker)
    assert [claimed.epoch for claimed in claims] == [1, 1, 1]
    trouble.hide_commits = 1
    assert stage.realize_fast(worker, *claims[:2]) == [True, True]
    trouble.hide_commits = 1
    row = stage.fail(worker, claims[2])
    assert isinstance(row, Failed)
    assert stage.row(claims[2].id).tally.exceptions == 1
    trouble.hide_commits = 1
    again = stage.submit(key="once")
    assert stage.submit(key="once") == again
    assert len({*ids, again}) == 4


class TestBlock:
    """FUT-45: a claimed task whose inputs are gone waits as a row, not as a worker."""

    @pytest.mark.rule("FUT-45")
    def test_a_task_whose_input_is_lost_waits_for_the_producer_and_its_worker_goes_on(
        self, stage: Stage
    ) -> None:
        worker, holder = stage.worker("w"), stage.worker("holder")
        data = stage.submit()
        stage.make(holder, data, kind="segment")
        use = stage.submit(data)
        got = stage.claim_one(worker)
        stage.kill(holder, alive=[worker])
        stage.lose(data)
        assert isinstance(stage.there(finish.block, worker, got, [data]), Blocked)
        assert {claimed.id for claimed in stage.claim(worker)} == {data}
        assert stage.row(use).tally.exceptions == 0

    def test_when_all_is_there_by_now_it_goes_straight_back(self, stage: Stage) -> None:
        worker = stage.worker("w")
        data = stage.submit()
        stage.make(worker, data)
        use = stage.submit(data)
        row = stage.there(finish.block, worker, stage.claim_one(worker, use), [data])
        assert isinstance(row, Unclaimed)

    def test_when_an_input_failed_for_good_it_fails(self, stage: Stage) -> None:
        worker = stage.worker("w")
        spec = stage.spec(reconstruct=False)
        data = stage.here(submit.submit, [spec])[0]
        stage.make(worker, data, kind="segment")
        use = stage.submit(data)
        claimed = stage.claim_one(worker, use)
        stage.lose(data)
        row = stage.there(finish.block, worker, claimed, [data])
        assert isinstance(row, Failed)
        assert row.kind == "upstream"

    def test_a_parked_task_runs_again_when_what_it_awaits_has_ended_well_or_badly(self, stage: Stage) -> None:
        worker = stage.worker("w")
        parent = stage.submit()
        claimed = stage.claim_one(worker)
        good, bad = stage.submit(parent=parent), stage.submit(parent=parent)
        parked = stage.there(finish.block, worker, claimed, [good, bad])
        assert parked == Blocked(
            tally=msgspec.structs.replace(claimed.row.tally, epoch=2), waits_on=2, extra=(good, bad)
        )
        stage.make(worker, good)
        assert isinstance(stage.row(parent), Blocked)
        stage.fail(worker, stage.claim_one(worker, bad))
        assert isinstance(stage.row(parent), Unclaimed)

    def test_what_a_task_awaited_once_does_not_hold_it_up_later(self, stage: Stage) -> None:
        worker = stage.worker("w")
        awaited, data = stage.submit(), stage.submit()
        parent = stage.submit(data, max_retries=0)
        stage.make(worker, data, kind="segment")
        stage.there(finish.block, worker, stage.claim_one(worker, parent), [awaited])
        stage.here(cancel.cancel, parent)
        assert isinstance(stage.row(parent), Cancelled)
        stage.make(worker, awaited)
        stage.drain()
        assert isinstance(stage.row(parent), Cancelled)

    def test_parking_gives_the_claim_up(self, stage: Stage) -> None:
        worker = stage.worker("w")
        parent = stage.submit()
        claimed = stage.claim_one(worker)
        child = stage.submit()
        stage.there(finish.block, worker, claimed, [child])
        with pytest.raises(LeaseLost):
            stage.realize(worker, claimed)
        assert not isinstance(stage.row(parent), Claimed)


def test_giving_back_counts_as_no_attempt(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    for _ in range(20):
        stage.there(finish.relinquish, worker, [stage.claim_one(worker)])
    tally = stage.row(future).tally
    assert (tally.exceptions, tally.crashes, tally.reaps, tally.epoch) == (0, 0, 0, 40)


@pytest.mark.rule("FUT-17")
def test_a_claim_ends_without_a_result_in_the_ways_that_are_written_down_and_no_other(stage: Stage) -> None:
    worker = stage.worker("w", address="here:1")
    futures = [stage.submit() for _ in range(3)]
    drained, restarted, reaped = (stage.claim_one(worker, future_id) for future_id in futures)
    stage.there(finish.relinquish, worker, [drained])
    successor = stage.worker("w2", address="here:1")
    released = stage.there(reap.reclaim, successor).moved
    assert {future_id for future_id, _ in released} == {restarted.id, reaped.id}
    again = stage.claim_one(successor, reaped.id)
    stage.kill(successor)
    page, _ = stage.there(reap.reap_page, "w2")
    assert [future_id for future_id, _ in page.moved] == [again.id]
    assert all(isinstance(stage.row(future_id), Unclaimed) for future_id in futures)
