"""What the simulation found in the cluster room, each as small as it gets."""

import pytest

from tests.unit.cluster_stage import GROUP, RecordingHost, Stage, is_lost
from tidemill.cluster import nodes, partitions
from tidemill.cluster.events import PartitionLost
from tidemill.cluster.partitions import Map, Partition
from tidemill.cluster.states import MemberState
from tidemill.errors import LeaseLost
from tidemill.store import Tx


@pytest.fixture
def stage() -> Stage:
    return Stage()


def take(stage: Stage, name: str, holder: str) -> Partition:
    part = stage.store.run(lambda tx: partitions.take(tx, stage.keys, GROUP, name, holder, stage.ttl_us))
    assert part is not None
    return part


@pytest.mark.rule("CLU-7")
def test_a_holder_of_a_partitions_former_life_is_refused_in_its_next_one(stage: Stage) -> None:
    """Made again at epoch 0, it would reach the paused holder's epoch again, and let it write."""
    stage.make_partitions(1)
    paused = take(stage, "p000", "n1")
    stage.clock.advance(2 * stage.ttl_s)
    second = take(stage, "p000", "n2")
    stage.store.run(lambda tx: partitions.complete(tx, stage.keys, second))

    def remove_and_make_again(tx: Tx) -> None:
        assert partitions.remove_done(tx, stage.keys, GROUP, 10) == ["p000"]
        partitions.create(tx, stage.keys, GROUP, {"p000": b""}, Map(1, 1, 1))

    stage.store.run(remove_and_make_again)
    seen = [stage.parts()[0].epoch]
    for _ in range(4):
        current = take(stage, "p000", "n3")
        seen.append(current.epoch)
        assert is_lost(stage.store, lambda tx: partitions.check(tx, stage.keys, paused))
        stage.store.run(lambda tx, held=current: partitions.hand_back(tx, stage.keys, held))
    assert seen == sorted(set(seen))
    assert seen[0] > second.epoch


@pytest.mark.rule("CLU-4")
def test_taking_again_what_ran_out_in_a_pause_ends_the_former_task_first(stage: Stage) -> None:
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
    assert stage.store.run(lambda tx: partitions.ask(tx, stage.keys, GROUP, "p000", "n2"))
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
    member = stage.member("n1", host=RecordingHost(hands_back=False))
    stage.play(lambda: stage.counts() == {"n1": 1})
    (held,) = stage.holdings_of("n1").held.values()
    stage.store.run(lambda tx: partitions.ask(tx, stage.keys, GROUP, "p000", "n2"))
    wanted_at_us = stage.parts()[0].wanted_at
    stage.play(lambda: stage.trouble.now_us() > wanted_at_us + stage.ttl_us - 3_000_000)
    unheard = stage.store.run(lambda tx: partitions.renew(tx, stage.keys, held.part, stage.ttl_us))
    assert unheard.expires_at > held.part.expires_at
    stage.play(lambda: not stage.holdings_of("n1").held)
    assert held.lost
    assert stage.trouble.now_us() < unheard.expires_at
    assert member.holdings is not None
