"""What dead nodes leave behind goes on elsewhere."""

import pytest

from tests.unit.futures_stage import TTL_S, Stage
from tidemill.cluster import leases, nodes
from tidemill.futures.protocol import cancel, claim, finish, reap, results, submit
from tidemill.futures.protocol.events import AssignmentsRerouted, FuturesReaped
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.retries import MOST_REAPS
from tidemill.futures.protocol.rows import (
    Blocked,
    Cancelled,
    Claimed,
    Failed,
    Needs,
    Quarantined,
    Realized,
    Unclaimed,
)
from tidemill.store import LIMITS


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("FUT-49", "FUT-17")
def test_the_leader_reaps_what_a_dead_node_had_claimed_though_nobody_awaits_it(stage: Stage) -> None:
    dead, alive = stage.worker("dead"), stage.worker("alive")
    lost = [stage.submit() for _ in range(3)]
    stage.claim(dead)
    kept = stage.submit()
    stage.claim(alive)
    stage.round("reap futures")
    assert isinstance(stage.row(lost[0]), Claimed)
    stage.kill(dead, alive=[alive])
    stage.round("reap futures")
    assert all(isinstance(stage.row(future_id), Unclaimed) for future_id in lost)
    assert {stage.row(future_id).tally.reaps for future_id in lost} == {1}
    assert isinstance(stage.row(kept), Claimed)
    reaped = [event for event in stage.events if isinstance(event, FuturesReaped)]
    assert [(event.node, sorted(event.ids)) for event in reaped] == [
        ("dead", sorted(future_id.hex() for future_id in lost))
    ]


@pytest.mark.rule("FUT-49")
def test_a_node_that_was_dropped_from_the_list_is_found_too(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    stage.claim(worker)
    stage.store.run(lambda tx: nodes.leave(tx, stage.cluster, worker))
    stage.round("reap futures")
    assert isinstance(stage.row(future), Unclaimed)


@pytest.mark.rule("FUT-49")
def test_a_node_that_came_back_under_a_later_epoch_keeps_only_its_new_claims(stage: Stage) -> None:
    worker = stage.worker("w")
    old = stage.submit()
    stage.claim(worker)
    stage.kill(worker)
    again = stage.worker("w")
    new = stage.submit()
    stage.claim_one(again, new)
    stage.round("reap futures")
    assert isinstance(stage.row(old), Unclaimed)
    assert isinstance(stage.row(new), Claimed)


def test_a_large_estate_is_reaped_in_pages(stage: Stage) -> None:
    stage.scan = False
    worker = stage.worker("w")
    ids = [stage.submit() for _ in range(3 * reap.PAGE + 7)]
    while stage.claim(worker):
        pass
    stage.kill(worker)
    stage.writes.clear()
    stage.round("reap futures")
    assert all(isinstance(stage.row(future_id), Unclaimed) for future_id in ids)
    stage.check()


@pytest.mark.rule("FUT-53")
def test_a_future_that_outlives_ten_holders_is_quarantined(stage: Stage) -> None:
    future = stage.submit()
    for number in range(1, MOST_REAPS + 1):
        worker = stage.worker(f"w{number}")
        stage.claim_one(worker)
        stage.kill(worker)
        stage.round("reap futures")
        row = stage.row(future)
        assert isinstance(row, Quarantined) == (number == MOST_REAPS)
    failure = stage.failure(future)
    assert failure is not None
    assert failure.kind == "reaped"


@pytest.mark.rule("FUT-53", "FUT-48")
def test_a_task_that_kills_each_worker_that_restarts_at_its_address_is_quarantined(stage: Stage) -> None:
    future = stage.submit()
    for number in range(1, MOST_REAPS + 1):
        worker = stage.worker(f"boot-{number}", address="here:1")
        stage.there(reap.reclaim, worker)
        stage.claim_one(worker, future)
    last = stage.worker("last", address="here:1")
    stage.there(reap.reclaim, last)
    assert isinstance(stage.row(future), Quarantined)
    failure = stage.failure(future)
    assert failure is not None
    assert (failure.kind, failure.node) == ("reaped", f"boot-{MOST_REAPS}")
    assert stage.claim(last) == []


@pytest.mark.rule("FUT-39", "FUT-48")
def test_a_restarted_worker_gives_back_what_its_address_still_holds_before_any_lease_runs_out(
    stage: Stage,
) -> None:
    old, other = stage.worker("boot-1", address="here:1"), stage.worker("other", address="there:1")
    ids = [stage.submit() for _ in range(120)]
    stage.scan = False
    stage.claim(old, 110)
    kept = stage.claim(other)
    new = stage.worker("boot-2", address="here:1")
    pages = 1
    while stage.there(reap.reclaim, new).more:
        pages += 1
    assert pages == 3
    stage.check()
    tallies = [stage.row(future_id).tally for future_id in ids]
    assert sorted(tally.reaps for tally in tallies) == [0] * 10 + [1] * 110, "each death is counted"
    assert sum(isinstance(stage.row(future_id), Unclaimed) for future_id in ids) == 110
    assert all(isinstance(stage.row(claimed.id), Claimed) for claimed in kept)
    listed = stage.store.run(lambda tx: nodes.read_all(tx, stage.cluster))
    assert {node.id for node in listed} == {"boot-2", "other"}


@pytest.mark.rule("FUT-39", "FUT-64")
def test_a_restarted_worker_leaves_a_client_of_its_address_alone(stage: Stage) -> None:
    client = stage.worker("client", address="here:1", kind="client")
    stage.worker("boot-1", address="here:1")
    new = stage.worker("boot-2", address="here:1")
    stage.there(reap.reclaim, new)
    listed = stage.store.run(lambda tx: nodes.read_all(tx, stage.cluster))
    assert {node.id for node in listed} == {"boot-2", client.id}


class TestAssignments:
    """FUT-60."""

    @staticmethod
    def near(stage: Stage, holder: str = "w", **fields: object) -> bytes:
        worker = stage.worker(holder)
        data = stage.submit()
        stage.make(worker, data, kind="segment")
        return stage.submit(data, near=data, **fields)

    @pytest.mark.rule("FUT-60")
    def test_soft_assignments_of_a_dead_node_go_to_the_pool(self, stage: Stage) -> None:
        future = self.near(stage)
        other = stage.worker("other")
        stage.kill(alive=[other])
        stage.round("reap futures")
        assert future in stage.ready_ids()
        assert [claimed.id for claimed in stage.claim(other)] == [future]

    @pytest.mark.rule("FUT-60")
    def test_hard_assignments_of_a_dead_node_fail_with_a_typed_error(self, stage: Stage) -> None:
        future = self.near(stage, hard=True)
        behind = stage.submit(future)
        stage.kill()
        stage.round("reap futures")
        row = stage.row(future)
        assert isinstance(row, Failed)
        assert row.kind == "actor"
        assert isinstance(stage.row(behind), Failed)

    @pytest.mark.rule("FUT-60")
    def test_hard_work_that_a_dead_node_had_begun_fails_too(self, stage: Stage) -> None:
        worker = stage.worker("w")
        data = stage.submit()
        stage.make(worker, data, kind="segment")
        future = stage.submit(data, near=data, hard=True)
        stage.claim_one(worker, future)
        stage.kill(worker)
        stage.round("reap futures")
        assert isinstance(stage.row(future), Failed)

    @pytest.mark.rule("FUT-60")
    def test_after_a_delay_a_soft_assignment_of_a_busy_node_is_anybodys(self, stage: Stage) -> None:
        future = self.near(stage)
        worker, other = stage.worker("w"), stage.worker("other")
        stage.round("reap futures", busy_s=5.0)
        assert stage.ready_ids() == []
        stage.clock.advance(6)
        stage.round("reap futures", busy_s=5.0)
        assert stage.ready_ids() == [future]
        assert [claimed.id for claimed in stage.claim(other)] == [future]
        assert worker.id == "w"
        assert [event.why for event in stage.events if isinstance(event, AssignmentsRerouted)] == ["busy"]

    @pytest.mark.rule("FUT-60")
    def test_a_hard_assignment_waits_for_its_busy_node(self, stage: Stage) -> None:
        future = self.near(stage, hard=True)
        worker = stage.worker("w")
        for _ in range(5):
            stage.clock.advance(10)
            worker = stage.beat(worker)
            stage.round("reap futures", busy_s=5.0)
        assert [claimed.id for claimed in stage.claim(worker)] == [future]

    def test_a_leaving_node_keeps_no_soft_assignments(self, stage: Stage) -> None:
        future = self.near(stage)
        stage.clock.advance(0.01)
        stage.beat(stage.worker("w"), draining=True)
        stage.round("reap futures")
        assert stage.ready_ids() == [future]

    def test_what_is_larger_than_its_whole_node_does_not_wait_there_for_ever(self, stage: Stage) -> None:
        worker = stage.worker("w", Capacity(cpu=2.0, ram=2**30))
        data = stage.submit()
        stage.make(worker, data, kind="segment")
        soft = stage.submit(data, near=data, needs=Needs(cpu=8.0))
        hard = stage.submit(data, near=data, hard=True, needs=Needs(cpu=8.0))
        fits = stage.submit(data, near=data, needs=Needs(cpu=1.0))
        stage.round("reap futures")
        assert stage.ready_ids() == [soft]
        row = stage.row(hard)
        assert isinstance(row, Failed)
        assert row.kind == "unsatisfiable"
        assert isinstance(stage.row(fits), Unclaimed)

    def test_a_retry_still_waits_out_its_pause_in_the_pool(self, stage: Stage) -> None:
        future = self.near(stage, max_retries=20)
        worker = stage.worker("w")
        for _ in range(8):
            for _ in range(10):
                stage.clock.advance(6)
                worker = stage.beat(worker)
            stage.fail(worker, stage.claim_one(worker, future))
        paused = stage.row(future)
        assert isinstance(paused, Unclaimed)
        stage.kill(worker)
        stage.round("reap futures")
        again = stage.row(future)
        assert isinstance(again, Unclaimed)
        assert (again.assigned, again.ready_at) == ("", paused.ready_at)
        assert stage.claim(stage.worker("other")) == []


class TestWithoutALeader:
    """FUT-49: an awaiting client may reap the one it waits for."""

    @pytest.mark.rule("FUT-49")
    def test_a_client_reaps_only_when_there_was_no_leader_for_two_ttls(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        stage.claim(worker)
        stage.store.run(lambda tx: leases.acquire(tx, stage.cluster.leader, "x", int(TTL_S * 1_000_000)))
        stage.kill(worker)
        assert isinstance(stage.reap_one(future), Claimed)
        stage.clock.advance(2 * TTL_S)
        assert isinstance(stage.reap_one(future), Unclaimed)
        stage.check()

    @pytest.mark.rule("FUT-49")
    def test_a_client_never_touches_the_claim_of_a_live_node(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        claimed = stage.claim_one(worker)
        assert isinstance(stage.reap_one(future), Claimed)
        stage.realize(worker, claimed)

    def test_a_client_reaches_what_its_future_waits_for(self, stage: Stage) -> None:
        worker, other = stage.worker("w"), stage.worker("other")
        first = stage.submit()
        second = stage.submit(first)
        third = stage.submit(second)
        stage.claim(worker)
        stage.kill(worker, alive=[other])
        stage.reap_one(third)
        assert isinstance(stage.row(first), Unclaimed)
        assert stage.realize_fast(other, stage.claim_one(other)) == [True]  # and it leaves a cursor
        stage.reap_one(third)
        assert isinstance(stage.row(second), Unclaimed)
        stage.check()

    def test_a_client_moves_what_is_assigned_to_a_dead_node(self, stage: Stage) -> None:
        worker = stage.worker("w")
        data = stage.submit()
        stage.make(worker, data, kind="segment")
        near = stage.submit(data, near=data)
        stage.kill(worker)
        row = stage.reap_one(near)
        assert isinstance(row, Unclaimed)
        assert row.assigned == ""
        assert stage.reap_one(b"\x02" * 16) is None
        stage.check()


def test_a_cancelled_claim_of_a_dead_node_ends_instead_of_going_back(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    stage.claim(worker)
    stage.here(cancel.cancel, future)
    stage.kill(worker)
    stage.round("reap futures")
    assert isinstance(stage.row(future), Cancelled)


def test_nothing_is_left_of_a_dead_node(stage: Stage) -> None:
    worker = stage.worker("w")
    data, other = stage.submit(), stage.submit()
    stage.make(worker, data, kind="segment")
    stage.submit(data, near=data)
    stage.claim_one(worker, other)
    stage.here(cancel.cancel, other)
    stage.here(results.delete_results, [data])
    stage.kill(worker)
    stage.round("reap futures")
    named = [
        key
        for key in stage.all_rows()
        if b"w\x00" in key
        and not key.startswith((stage.cluster.node.prefix, stage.cluster.node_expiry.prefix))
    ]
    assert named == []
    assert isinstance(stage.row(data), Realized)


def test_a_claim_that_arrives_after_the_reaper_is_found_by_the_next_round(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    stage.round("reap futures")
    stage.there(claim.claim, worker, stage.lanes(), Capacity(), 1, mode="take")
    stage.kill(worker)
    stage.round("reap futures")
    stage.round("reap futures")
    assert isinstance(stage.row(future), Unclaimed)
    assert stage.row(future).tally.reaps == 1
    assert stage.there(finish.relinquish, stage.worker("w"), []) == []


def test_claims_that_must_hang_on_hundreds_of_inputs_again_are_reaped_in_transactions_that_fit(
    stage: Stage,
) -> None:
    stage.scan = False
    worker, other = stage.worker("w"), stage.worker("other")
    data = [stage.submit() for _ in range(submit.MOST_INPUTS)]
    while claimed := stage.claim(other):
        stage.realize_fast(other, *claimed, kind="segment")
    wide = [stage.submit(*data) for _ in range(6)]
    stage.claim(worker)
    for future_id in data:
        stage.lose(future_id)
    stage.kill(worker, alive=[other])
    stage.writes.clear()
    stage.round("reap futures")
    assert all(isinstance(stage.row(future_id), Blocked) for future_id in wide)
    assert max(stage.writes) < LIMITS.transaction_writes
    stage.check()
