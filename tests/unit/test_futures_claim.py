"""Claiming: who may take what, in which order, and that it is one claimant at a time."""

import random

import msgspec
import pytest

from tests.unit.cluster_stage import Trouble
from tests.unit.futures_stage import BIG, TTL_S, Stage
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, UsageError
from tidemill.futures.protocol import claim, finish, limits
from tidemill.futures.protocol.claim import Claim
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Claimed, Needs, Unclaimed
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock

ONE = Needs(cpu=1.0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("FUT-2", "FUT-16", "FUT-38")
def test_a_claim_names_its_holder_and_the_holder_points_to_it(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    (claimed,) = stage.claim(worker)
    row = stage.row(future)
    assert isinstance(row, Claimed)
    assert (row.holder, row.node_epoch, row.tally.epoch) == ("w", worker.epoch, 1)
    assert claimed.raw == stage.all_rows()[stage.keys.future[future]]
    assert stage.keys.own["w", future] in stage.all_rows()
    assert stage.ready_ids() == []


@pytest.mark.rule("FUT-13")
def test_a_future_is_claimed_once(stage: Stage) -> None:
    worker, other = stage.worker("a"), stage.worker("b")
    for _ in range(10):
        stage.submit()
    first, second = stage.claim(worker, 6), stage.claim(other, 6)
    assert (len(first), len(second)) == (6, 4)
    assert not {claim.id for claim in first} & {claim.id for claim in second}
    assert stage.claim(worker) == stage.claim(other) == []


@pytest.mark.rule("FUT-25")
def test_looking_may_be_a_snapshot_the_claim_itself_may_not(stage: Stage) -> None:
    worker = stage.worker("w")
    stage.submit()
    with pytest.raises(UsageError):
        stage.run(lambda tx: tx.range(*stage.keys.ready.all()), mode="take")
    with pytest.raises(UsageError):
        stage.run(lambda tx: tx.get(stage.keys.future[b"x"]), mode="take")
    assert len(stage.claim(worker)) == 1


@pytest.mark.rule("FUT-25", "FUT-13")
@pytest.mark.parametrize("way", ["pool", "small members", "assigned", "awaited"])
def test_of_two_nodes_that_look_at_the_same_time_one_claims_each_future(way: str) -> None:
    """The rival claims between the reads and the commit of the other node, in each way to claim."""
    clock = FakeClock()
    trouble = Trouble(clock)
    stage = Stage(MemoryStore(clock=clock, chance=random.Random(3), faults=trouble), clock=clock)
    slow, rival = stage.worker("slow"), stage.worker("rival")
    needs, free = (Needs(cpu=5.0), Capacity(cpu=5.5)) if way == "small members" else (Needs(), BIG)
    near = b""
    if way == "assigned":  # a soft assignment, which the rival may claim for a waiting task
        near = stage.submit()
        stage.make(slow, near, kind="segment")
    ids = [stage.submit(*([near] if near else []), near=near, needs=needs) for _ in range(3)]
    specs = [stage.spec_of(future_id) for future_id in ids]

    def claim_now(node: Node) -> list[Claim]:
        if way == "awaited" or (way == "assigned" and node is rival):
            return stage.there(claim.claim_these, node, specs, free, mode="take")
        return stage.claim(node, free=free)

    rivals: list[Claim] = []
    trouble.interlude = lambda: rivals.extend(claim_now(rival))
    claims = claim_now(slow)
    assert trouble.interlude is None, "the rival acted in the middle of the other claim"
    expected = 1 if way == "small members" else len(ids)
    assert len({claimed.id for claimed in claims + rivals}) >= expected
    for node, claimed_here in ((slow, claims), (rival, rivals)):
        for claimed in claimed_here:
            row = stage.row(claimed.id)
            assert isinstance(row, Claimed)
            assert (row.holder, row.tally.epoch) == (node.id, claimed.epoch)
    assert not {claimed.id for claimed in claims} & {claimed.id for claimed in rivals}


@pytest.mark.rule("FUT-26")
def test_the_oldest_goes_first_within_a_priority_across_classes(stage: Stage) -> None:
    worker = stage.worker("w")
    order = []
    for number in range(12):
        stage.clock.advance(1)
        needs = [Needs(), Needs(cpu=4.0), Needs(ram=2**30)][number % 3]
        order.append(stage.submit(needs=needs))
    stage.beat(worker)
    taken = []
    while claimed := stage.claim(worker, 3):
        taken += [item.id for item in claimed]
    assert [set(taken[n : n + 3]) for n in range(0, 12, 3)] == [
        set(order[n : n + 3]) for n in range(0, 12, 3)
    ]


@pytest.mark.rule("FUT-56", "FUT-26")
def test_a_higher_priority_goes_before_an_older_future(stage: Stage) -> None:
    worker = stage.worker("w")
    low = stage.submit()
    stage.clock.advance(1)
    middle, high = stage.submit(priority=1), stage.submit(priority=5, needs=Needs(cpu=1.0))
    assert [stage.claim(worker, 1)[0].id for _ in range(3)] == [high, middle, low]


@pytest.mark.rule("FUT-26")
def test_a_worker_claims_only_what_fits_together(stage: Stage) -> None:
    worker = stage.worker("w")
    for _ in range(10):
        stage.submit(needs=ONE)
    assert len(stage.claim(worker, 100, Capacity(cpu=3.0))) == 3
    assert stage.claim(worker, 100, Capacity(cpu=0.5)) == []
    assert len(stage.claim(worker, 2, Capacity(cpu=3.0))) == 2


@pytest.mark.rule("FUT-26", "FUT-23")
@pytest.mark.parametrize(
    ("needs", "free"),
    [
        (Needs(cpu=2.0), Capacity(cpu=1.0, ram=2**40, gpu=8)),
        (Needs(ram=2**30), Capacity(cpu=64.0, ram=2**29, gpu=8)),
        (Needs(gpu=1.0), Capacity(cpu=64.0, ram=2**40)),
        (Needs(named=("spark",)), Capacity(cpu=64.0, ram=2**40, gpu=8)),
    ],
)
def test_each_resource_alone_can_rule_a_future_out(stage: Stage, needs: Needs, free: Capacity) -> None:
    worker = stage.worker("w")
    future = stage.submit(needs=needs)
    assert stage.claim(worker, 10, free) == []
    assert [claimed.id for claimed in stage.claim(worker, 10, BIG)] == [future]


def test_of_a_class_that_is_too_large_its_small_members_are_taken(stage: Stage) -> None:
    worker = stage.worker("w")
    small, large = stage.submit(needs=Needs(cpu=2.1)), stage.submit(needs=Needs(cpu=4.0))
    assert [claimed.id for claimed in stage.claim(worker, 10, Capacity(cpu=3.0))] == [small]
    assert isinstance(stage.row(large), Unclaimed)


@pytest.mark.rule("FUT-43")
def test_assignments_come_before_the_pool(stage: Stage) -> None:
    worker = stage.worker("w")
    data = stage.submit()
    stage.make(worker, data, kind="segment")
    stage.submit()
    near = stage.submit(data, near=data)
    assert stage.claim(worker, 1)[0].id == near


def test_assignments_too_are_taken_only_as_far_as_they_fit(stage: Stage) -> None:
    worker = stage.worker("w")
    data = stage.submit()
    stage.make(worker, data, kind="segment")
    for _ in range(5):
        stage.submit(data, near=data, needs=ONE)
    assert len(stage.claim(worker, 10, Capacity(cpu=2.0))) == 2


@pytest.mark.rule("FUT-24", "FUT-3")
def test_a_claim_that_is_given_back_stands_in_the_index_again(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit()
    before = stage.ready_ids()
    claimed = stage.claim_one(worker)
    assert stage.ready_ids() == []
    (row,) = stage.there(finish.relinquish, worker, [claimed])
    assert isinstance(row, Unclaimed)
    assert row.tally.epoch == 2
    assert stage.ready_ids() == before == [future]


def test_what_is_given_back_keeps_its_place_in_the_line(stage: Stage) -> None:
    worker = stage.worker("w")
    first = stage.submit()
    stage.clock.advance(1)
    stage.submit()
    stage.there(finish.relinquish, worker, [stage.claim_one(worker, first)])
    assert stage.claim(worker, 1)[0].id == first


def test_one_beat_of_the_node_renews_all_its_claims(stage: Stage) -> None:
    worker = stage.worker("w")
    for _ in range(20):
        stage.submit()
    claims = stage.claim(worker)
    before = stage.all_rows()
    for _ in range(5):
        stage.clock.advance(TTL_S / 2)
        worker = stage.beat(worker)
    changed = {key for key, value in stage.all_rows().items() if before.get(key) != value}
    assert changed <= {
        row
        for row in stage.all_rows()
        if row.startswith((stage.cluster.node.prefix, stage.cluster.node_expiry.prefix))
    }
    assert all(stage.realize_fast(worker, *claims))


def test_a_node_at_the_end_of_its_lease_claims_nothing(stage: Stage) -> None:
    worker = stage.worker("w")
    stage.submit()
    stage.clock.advance(TTL_S - 1)
    with pytest.raises(LeaseLost):
        stage.claim(worker)
    stage.beat(worker)
    assert len(stage.claim(worker)) == 1


def test_a_node_that_is_not_listed_claims_nothing(stage: Stage) -> None:
    worker = stage.worker("w")
    stage.submit()
    stage.store.run(lambda tx: nodes.leave(tx, stage.cluster, worker))
    with pytest.raises(LeaseLost):
        stage.claim(worker)


def test_what_is_not_ripe_is_left_alone(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=1)
    stage.fail(worker, stage.claim_one(worker))
    assert stage.claim(worker) == []
    stage.clock.advance(1)
    assert [claimed.id for claimed in stage.claim(worker)] == [future]


def test_particular_futures_can_be_claimed_if_they_are_free_and_fit(stage: Stage) -> None:
    worker, other = stage.worker("w"), stage.worker("other")
    ids = [stage.submit(needs=ONE) for _ in range(4)]
    stage.claim_one(other, ids[0])
    specs = [stage.spec_of(future_id) for future_id in ids]
    claimed = stage.there(claim.claim_these, worker, specs, Capacity(cpu=2.0), mode="take")
    assert [item.id for item in claimed] == ids[1:3]


@pytest.mark.rule("FUT-42")
def test_a_future_that_is_bound_to_a_node_is_claimed_by_no_other_for_its_waiting_task(stage: Stage) -> None:
    home, other = stage.worker("home"), stage.worker("other")
    data = stage.submit()
    stage.make(home, data, kind="segment")
    specs = [stage.spec_of(stage.submit(data, near=data, hard=True))]
    assert stage.there(claim.claim_these, other, specs, BIG, mode="take") == []
    assert len(stage.there(claim.claim_these, home, specs, BIG, mode="take")) == 1


class TestLimits:
    """FUT-57: never by dropping work."""

    @pytest.mark.rule("FUT-57")
    def test_no_more_run_at_once_than_the_queue_allows(self, stage: Stage) -> None:
        first, second = stage.worker("a"), stage.worker("b")
        stage.here(limits.set_limit, "api", running=3)
        for _ in range(10):
            stage.submit(queue="api")
        claims = stage.claim(first, 2)
        assert len(stage.claim(second)) == 1
        assert stage.claim(second) == []
        assert all(stage.realize_fast(first, *claims))
        assert len(stage.claim(second)) == 2
        assert len(stage.ready_ids()) == 5

    @pytest.mark.rule("FUT-57")
    def test_no_more_start_in_a_second_than_the_queue_allows(self, stage: Stage) -> None:
        worker = stage.worker("w")
        stage.here(limits.set_limit, "api", per_s=2.0)
        for _ in range(10):
            stage.submit(queue="api")
        assert len(stage.claim(worker)) == 2
        assert stage.claim(worker) == []
        stage.clock.advance(1)
        assert len(stage.claim(worker)) == 2
        stage.clock.advance(10)
        assert len(stage.claim(worker)) == 2  # a pause is not saved up beyond one second's worth

    @pytest.mark.rule("FUT-57")
    @pytest.mark.parametrize("end", ["realize", "fail", "relinquish", "cancel", "block"])
    def test_every_end_of_a_claim_gives_its_place_back(self, stage: Stage, end: str) -> None:
        worker = stage.worker("w")
        stage.here(limits.set_limit, "api", running=1)
        other = stage.submit()
        stage.submit(queue="api")
        got = next(claimed for claimed in stage.claim(worker) if claimed.id != other)
        match end:
            case "realize":
                stage.realize(worker, got)
            case "fail":
                stage.fail(worker, got)
            case "relinquish":
                stage.there(finish.relinquish, worker, [got])
            case "cancel":
                from tidemill.futures.protocol import cancel

                stage.here(cancel.cancel, got.id)
                stage.there(finish.cancelled, worker, got)
            case "block":
                stage.there(finish.block, worker, got, [other])
        assert stage.store.run(lambda tx: tx.counter(stage.keys.running["api"])) == 0

    @pytest.mark.rule("FUT-57")
    def test_assignments_count_too(self, stage: Stage) -> None:
        worker = stage.worker("w")
        stage.here(limits.set_limit, "api", running=2)
        data = stage.submit()
        stage.make(worker, data, kind="segment")
        for _ in range(5):
            stage.submit(data, near=data, queue="api")
        assert len(stage.claim(worker)) == 2

    def test_a_limit_that_is_taken_away_lets_the_queue_run_free(self, stage: Stage) -> None:
        worker = stage.worker("w")
        stage.here(limits.set_limit, "api", running=1)
        for _ in range(5):
            stage.submit(queue="api")
        assert len(stage.claim(worker)) == 1
        stage.here(limits.clear_limit, "api")
        assert len(stage.claim(worker)) == 4

    def test_other_queues_are_not_held_up(self, stage: Stage) -> None:
        worker = stage.worker("w")
        stage.here(limits.set_limit, "api", running=1)
        for _ in range(3):
            stage.submit(queue="api")
        free = stage.submit()
        assert free in {claimed.id for claimed in stage.claim(worker)}


def test_a_claim_remembers_the_very_bytes_it_wrote(stage: Stage) -> None:
    worker = stage.worker("w")
    stage.submit()
    claimed = stage.claim_one(worker)
    assert msgspec.msgpack.decode(claimed.raw)[0] == 2
    assert claimed.epoch == 1
