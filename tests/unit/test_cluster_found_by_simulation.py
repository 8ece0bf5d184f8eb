"""Bugs that the simulation found in the cluster, each as a minimal test."""

import pytest

from tests.unit.cluster_stage import GROUP, RecordingHost, Stage, is_lost
from tidemill.cluster import nodes, partitions
from tidemill.cluster.events import PartitionLost
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.partitions import Partition, PartitionMap
from tidemill.cluster.states import MemberState
from tidemill.errors import CommitUnknown, LeaseLost, StoreUnavailable
from tidemill.store import Tx


@pytest.fixture
def stage() -> Stage:
    return Stage()


def take(stage: Stage, name: str, holder: str) -> Partition:
    part = stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, name, holder, stage.ttl_us))
    assert part is not None
    return part


@pytest.mark.rule("CLU-7")
def test_a_holder_of_a_removed_partition_is_refused_after_it_is_created_again(stage: Stage) -> None:
    """Made again at epoch 0, it would reach the paused holder's epoch again, and let it write."""
    stage.make_partitions(1)
    paused = take(stage, "p000", "n1")
    stage.clock.advance(2 * stage.ttl_s)
    second = take(stage, "p000", "n2")
    stage.store.run(lambda tx: partitions.complete(tx, stage.keys, second))

    def remove_and_make_again(tx: Tx) -> None:
        assert partitions.remove_done(tx, stage.keys, GROUP, 10) == ["p000"]
        partitions.create(tx, stage.keys, GROUP, {"p000": b""}, PartitionMap(1, 1, 1))

    stage.store.run(remove_and_make_again)
    epochs = [stage.parts()[0].epoch]
    for _ in range(4):
        current = take(stage, "p000", "n3")
        epochs.append(current.epoch)
        assert is_lost(stage.store, lambda tx: partitions.check(tx, stage.keys, paused))
        stage.store.run(lambda tx, held=current: partitions.hand_back(tx, stage.keys, held))
    assert epochs == sorted(set(epochs))
    assert epochs[0] > second.epoch


@pytest.mark.rule("CLU-4")
def test_taking_a_partition_again_after_a_pause_ends_the_former_task_first(stage: Stage) -> None:
    """Paused in the middle of a tick, a node finds its own partition expired and takes it again."""
    stage.make_partitions(2)
    host = RecordingHost()
    stage.member("n1", slots=3, host=host, groups=("empty", GROUP), pause_s=0.0)
    stage.play(lambda: len(host.started) == 1)
    stage.trouble.interlude = lambda: stage.clock.advance(2 * stage.ttl_s)  # as it looks into "empty"
    stage.play(lambda: len(host.started) >= 2)
    first, again = host.started[0], next(held for held in host.started[1:] if held.part.id == "p000")
    assert host.aborted == [first]
    assert [event.epoch for event in stage.told(PartitionLost)] == [first.part.epoch]
    assert again.part.epoch == first.part.epoch + 1
    again.check()
    with pytest.raises(LeaseLost):
        first.check()


@pytest.mark.rule("CLU-7")
def test_a_node_never_joins_twice_under_one_epoch_although_it_did_not_hear_of_the_first(stage: Stage) -> None:
    member = stage.member("n1")
    stage.trouble.hide_commits = 1
    stage.trouble.postlude = lambda: setattr(stage.trouble, "down", True)
    member.tick()
    stage.trouble.down = False
    (unheard,) = stage.nodes()
    assert member.state is MemberState.OUT
    stage.clock.advance(3 * stage.ttl_s)
    stage.store.run(lambda tx: nodes.clean(tx, stage.keys, 0, 10))
    assert stage.nodes() == []
    stage.play(lambda: bool(stage.nodes()))
    assert stage.nodes()[0].epoch > unheard.epoch


@pytest.mark.rule("CLU-3", "CLU-4")
def test_a_partition_is_never_taken_from_a_holder_whose_time_runs(stage: Stage) -> None:
    """Asked for long ago, it is not extended any more: it runs out, and only then somebody has it."""
    stage.make_partitions(1)
    held = take(stage, "p000", "n1")
    assert stage.store.run(lambda tx: partitions.request(tx, stage.keys, GROUP, "p000", "n2"))
    for _ in range(4):
        stage.clock.advance(stage.ttl_s / 4 - 0.001)
        held = stage.store.run(lambda tx, part=held: partitions.renew(tx, stage.keys, part, stage.ttl_us))
    last_us = held.expires_at
    stage.clock.advance(stage.ttl_s / 4)
    held = stage.store.run(lambda tx: partitions.renew(tx, stage.keys, held, stage.ttl_us))
    assert held.expires_at == last_us
    assert (
        stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, "p000", "n2", stage.ttl_us)) is None
    )
    stage.clock.advance(stage.ttl_s)
    assert take(stage, "p000", "n2").epoch == held.epoch + 1


@pytest.mark.rule("CLU-4", "CLU-8")
def test_a_renewal_that_gave_no_time_does_not_move_the_deadline(stage: Stage) -> None:
    """Not even when an earlier renewal, whose answer was lost, has moved the expiry unseen."""
    stage.make_partitions(1)
    stage.member("n1", host=RecordingHost(hands_back=False))
    stage.play(lambda: stage.counts() == {"n1": 1})
    (held,) = stage.holdings_of("n1").held.values()
    stage.store.run(lambda tx: partitions.request(tx, stage.keys, GROUP, "p000", "n2"))
    wanted_at_us = stage.parts()[0].wanted_at
    stage.play(lambda: stage.trouble.now_us() > wanted_at_us + stage.ttl_us - 3_000_000)
    unheard = stage.store.run(lambda tx: partitions.renew(tx, stage.keys, held.part, stage.ttl_us))
    assert unheard.expires_at > held.part.expires_at
    stage.play(lambda: not stage.holdings_of("n1").held)
    assert held.lost
    assert stage.trouble.now_us() < unheard.expires_at


@pytest.mark.rule("CLU-4", "CLU-8")
def test_after_a_completion_in_doubt_nothing_more_is_done_under_the_lease(stage: Stage) -> None:
    """It is committed and nobody knows: the partition may be another's before our deadline comes."""
    stage.make_partitions(1)
    host = RecordingHost()
    stage.member("n1", host=host)
    stage.play(lambda: stage.counts() == {"n1": 1})
    (held,) = host.started
    stage.trouble.hide_commits = 1
    stage.trouble.postlude = lambda: setattr(stage.trouble, "down", True)
    with pytest.raises(CommitUnknown):
        stage.holdings_of("n1").hand_back(held)
    assert held.alive(), "its time is not over"
    with pytest.raises(LeaseLost):
        held.check()
    with pytest.raises(StoreUnavailable):  # that this call failed says nothing of the first
        stage.holdings_of("n1").hand_back(held)
    with pytest.raises(LeaseLost):
        held.check()
    stage.trouble.down = False
    with pytest.raises(LeaseLost):  # asking again tells
        stage.holdings_of("n1").hand_back(held)
    assert held.lost
    stage.play(lambda: host.aborted == [held])


def test_a_completion_that_failed_for_sure_leaves_the_lease_as_it_was(stage: Stage) -> None:
    stage.make_partitions(1)
    host = RecordingHost()
    stage.member("n1", host=host)
    stage.play(lambda: stage.counts() == {"n1": 1})
    (held,) = host.started
    stage.trouble.down = True
    with pytest.raises(StoreUnavailable):
        stage.holdings_of("n1").complete(held)
    held.check()
    stage.trouble.down = False
    stage.holdings_of("n1").complete(held)
    assert stage.counts() == {"n1": 0}


def test_the_end_of_a_former_holding_does_not_end_the_next_one(stage: Stage) -> None:
    """Its completion is heard of late: by then it was removed, made and taken again by the same node."""
    stage.make_partitions(1)
    host = RecordingHost()
    member = stage.member("n1", host=host)
    stage.play(lambda: stage.counts() == {"n1": 1})
    (first,) = host.started

    def make_and_take_it_again() -> None:
        stage.store.run(lambda tx: partitions.remove_done(tx, stage.keys, GROUP, 10))
        stage.make_partitions(1)
        stage.clock.advance(member.holdings.timing.every_s if member.holdings else 0.0)
        member.tick()
        assert len(host.started) == 2

    stage.trouble.postlude = make_and_take_it_again
    stage.holdings_of("n1").complete(first)
    assert list(stage.holdings_of("n1").held.values()) == [host.started[1]]
    assert host.aborted == []
    assert stage.told(PartitionLost) == []


@pytest.mark.rule("CLU-4")
def test_a_partition_whose_time_was_seen_to_be_over_is_not_revived_by_a_renewal_on_its_way(
    stage: Stage,
) -> None:
    """Its task was told and has ended: renewed on, it would be held for ever and worked on by nobody."""
    stage.make_partitions(1)
    host = RecordingHost()
    stage.member("n1", host=host)
    stage.play(lambda: stage.counts() == {"n1": 1})
    (held,) = host.started

    def slow_answer() -> None:
        stage.clock.advance(stage.ttl_s * 0.79)
        with pytest.raises(LeaseLost):
            stage.holdings_of("n1").complete(held)

    stage.clock.advance(stage.ttl_s / 5)  # a renewal is due
    stage.trouble.postlude = slow_answer
    stage.holdings_of("n1").tick()
    assert host.aborted == [held]
    stage.play(lambda: len(host.started) == 2, within_s=2 * stage.ttl_s)


@pytest.mark.rule("CLU-4")
def test_a_lock_whose_time_was_seen_to_be_over_is_not_revived_by_a_renewal_on_its_way(stage: Stage) -> None:
    keeper = Keeper(stage.store, "n1", clock=stage.clock, chance=stage.chance, timing=LeaseTiming(15.0))
    held = keeper.acquire(stage.keys.lease["x"])
    assert isinstance(held, HeldLease)
    stage.clock.advance(3.0)

    def slow_answer() -> None:
        stage.clock.advance(11.0)
        with pytest.raises(LeaseLost):
            held.check()

    stage.trouble.postlude = slow_answer
    keeper.tick()
    with pytest.raises(LeaseLost):
        held.check()
