"""Draining: a node takes nothing new, hands back what has not begun, and finishes the rest in its grace."""

import threading

import pytest

from tests.unit.cluster_stage import RecordingHost, Stage
from tidemill.clock import SYSTEM
from tidemill.cluster import leases, nodes
from tidemill.cluster.events import LeaderElected, NodeJoined, NodeLeft, PartitionHandedBack, PartitionTaken
from tidemill.cluster.states import MemberState, PartitionState
from tidemill.errors import LeaseLost
from tidemill.testing.holdings import HeldPartition
from tidemill.testing.threads import STUCK_S, Racer


@pytest.fixture
def stage() -> Stage:
    return Stage()


def gone(stage: Stage, name: str) -> bool:
    return stage.members[name].state is MemberState.GONE


@pytest.mark.rule("CLU-25")
def test_a_node_that_drains_takes_nothing_new_and_reports_it(stage: Stage) -> None:
    stage.make_partitions(2)
    busy = RecordingHost(hands_back=False)
    member = stage.member("n1", slots=8, host=busy)
    stage.play(lambda: stage.counts() == {"n1": 2})
    stage.make_partitions(6)
    member.drain(30.0)
    takes_before = len(stage.told(PartitionTaken))
    stage.pass_time(20.0)
    assert len(stage.told(PartitionTaken)) == takes_before
    assert member.state is MemberState.DRAINING
    (entry,) = stage.nodes()
    assert entry.draining, "others count it out of their shares"
    assert stage.counts() == {"n1": 2}, "and what it works on is renewed meanwhile"


@pytest.mark.rule("CLU-25")
def test_work_that_has_not_begun_is_handed_back_at_once(stage: Stage) -> None:
    stage.make_partitions(6)
    stage.member("n1", slots=6)
    stage.member("n2", slots=6)
    stage.play(lambda: stage.counts() == {"n1": 3, "n2": 3})
    stage.members["n1"].drain(60.0)
    stage.play(lambda: gone(stage, "n1"), within_s=4.0)
    assert len(stage.hosts["n1"].stopped) == 3
    assert len(stage.told(PartitionHandedBack)) == 3
    assert [node.id for node in stage.nodes()] == ["n2"]
    stage.play(lambda: stage.counts() == {"n1": 0, "n2": 6}, within_s=8.0)
    assert stage.clock.monotonic() < 1000.0 + stage.ttl_s, "nobody had to wait for a lease to be over"


@pytest.mark.rule("CLU-25")
def test_running_work_finishes_within_the_grace(stage: Stage) -> None:
    stage.make_partitions(2)
    working = RecordingHost(hands_back=False)
    member = stage.member("n1", slots=2, host=working)
    stage.play(lambda: stage.counts() == {"n1": 2})
    member.drain(60.0)
    stage.pass_time(20.0)
    assert member.state is MemberState.DRAINING
    for held in working.started:
        member.holdings.complete(held)
    stage.play(lambda: gone(stage, "n1"), within_s=4.0)
    assert {part.state for part in stage.parts()} == {PartitionState.DONE}
    assert working.aborted == []


@pytest.mark.rule("CLU-25")
def test_unfinished_work_is_handed_back_at_the_end_of_the_grace(stage: Stage) -> None:
    stage.make_partitions(2)
    stuck = RecordingHost(hands_back=False)
    member = stage.member("n1", slots=2, host=stuck)
    stage.play(lambda: stage.counts() == {"n1": 2})
    begun_at = stage.clock.monotonic()
    member.drain(30.0)
    stage.play(lambda: gone(stage, "n1"), within_s=35.0)
    assert 29.9 <= stage.clock.monotonic() - begun_at <= 31.0
    assert stuck.aborted == stuck.started
    assert {(part.state, part.holder) for part in stage.parts()} == {(PartitionState.OUTSTANDING, "")}
    for held in stuck.started:
        with pytest.raises(LeaseLost):
            held.check()


@pytest.mark.rule("CLU-25")
def test_a_leader_that_drains_gives_its_office_back(stage: Stage) -> None:
    stage.make_partitions(1)
    stage.member("n1", slots=1, host=RecordingHost(hands_back=False))
    stage.play(lambda: stage.leaders() == ["n1"] and stage.counts() == {"n1": 1})
    stage.members["n1"].drain(100.0)
    stage.members["n1"].tick()
    row = stage.store.run(lambda tx: leases.read(tx, stage.keys.leader))
    assert row is not None
    assert row.expires_at == 0
    stage.member("n2")
    stage.play(lambda: stage.leaders() == ["n2"], within_s=1.0)
    stage.pass_time(50.0)
    assert [event.node for event in stage.told(LeaderElected)] == ["n1", "n2"], "and does not stand again"
    assert not gone(stage, "n1")


@pytest.mark.rule("CLU-25", "CLU-5")
def test_an_office_that_was_given_back_is_taken_up_without_waiting_for_its_expiry(stage: Stage) -> None:
    for name in ("n1", "n2", "n3"):
        stage.member(name)
    stage.play(lambda: bool(stage.leaders()))
    (first,) = stage.leaders()
    for _ in range(2):
        stage.pass_time(10.0)
        (leader,) = stage.leaders()
        stage.members[leader].drain(10.0)
        stage.play(lambda leader=leader: bool(stage.leaders()) and stage.leaders() != [leader], within_s=4.0)  # type: ignore[misc]
    assert first not in stage.leaders()
    assert [event.epoch for event in stage.told(LeaderElected)] == [1, 2, 3]


@pytest.mark.rule("CLU-25")
def test_a_renewal_that_was_sent_does_not_undo_a_drain(stage: Stage) -> None:
    stage.make_partitions(4)
    member = stage.member("n1", slots=4)
    stage.trouble.interlude = lambda: member.drain(60.0)  # from another thread, during the join
    stage.pass_time(5.0)
    assert stage.told(PartitionTaken) == []
    assert gone(stage, "n1")


@pytest.mark.rule("CLU-25")
def test_a_node_that_is_out_when_it_drains_does_not_join_again(stage: Stage) -> None:
    """It slept past its ttl, and the request is the first thing it finds."""
    stage.make_partitions(4)
    member = stage.member("n1", slots=4)
    stage.play(lambda: stage.counts() == {"n1": 4})
    stage.clock.advance(60.0)
    member.drain(60.0)
    takes_before = len(stage.told(PartitionTaken))
    stage.play(lambda: gone(stage, "n1"), within_s=4.0)
    assert len(stage.told(PartitionTaken)) == takes_before
    assert len(stage.told(NodeJoined)) == 1
    assert len(stage.hosts["n1"].aborted) == 4


@pytest.mark.rule("CLU-25")
def test_a_node_that_never_joined_can_drain(stage: Stage) -> None:
    stage.trouble.down = True
    member = stage.member("n1")
    stage.pass_time(5.0)
    member.drain(10.0)
    stage.play(lambda: gone(stage, "n1"), within_s=5.0)
    assert stage.told(NodeJoined) == []
    assert len(stage.told(NodeLeft)) == 1


@pytest.mark.rule("CLU-25")
def test_a_draining_node_that_loses_its_entry_gives_up_everything_and_is_gone(stage: Stage) -> None:
    stage.make_partitions(2)
    stuck = RecordingHost(hands_back=False)
    member = stage.member("n1", slots=2, host=stuck)
    stage.play(lambda: stage.counts() == {"n1": 2})
    member.drain(600.0)
    stage.pass_time(5.0)
    stage.store.run(lambda tx: nodes.leave(tx, stage.keys, member.node))
    stage.play(lambda: gone(stage, "n1"), within_s=4.0)
    assert stuck.aborted == stuck.started
    assert {part.state for part in stage.parts()} == {PartitionState.OUTSTANDING}


def test_a_draining_node_whose_store_is_away_is_gone_after_its_grace(stage: Stage) -> None:
    stage.make_partitions(2)
    member = stage.member("n1", slots=2)
    stage.play(lambda: stage.counts() == {"n1": 2})
    stage.trouble.down = True
    member.drain(5.0)
    stage.play(lambda: gone(stage, "n1"), within_s=10.0)
    stage.trouble.down = False
    assert len(stage.nodes()) == 1, "its entry and its leases run out by themselves"
    stage.kill("n1")
    stage.member("n2", slots=2)
    stage.play(lambda: stage.counts() == {"n2": 2}, within_s=stage.ttl_s + 4.0)


@pytest.mark.rule("CLU-25")
def test_a_partition_is_handed_back_once_the_store_answers(stage: Stage) -> None:
    stage.make_partitions(2)
    member = stage.member("n1", slots=2)
    stage.play(lambda: stage.counts() == {"n1": 2})
    stage.trouble.down = True
    member.drain(60.0)
    stage.pass_time(4.0)
    assert stage.counts() == {"n1": 2}
    stage.trouble.down = False
    stage.play(lambda: gone(stage, "n1"), within_s=4.0)
    assert len(stage.told(PartitionHandedBack)) == 2
    assert stage.hosts["n1"].aborted == []


@pytest.mark.rule("CLU-25")
def test_a_member_that_runs_in_a_thread_ends_when_it_is_drained_from_another() -> None:
    stage = Stage()
    stage.store.faults, stage.store.clock = None, SYSTEM
    stage.make_partitions(3)
    all_begun = threading.Event()

    class Host(RecordingHost):
        def start(self, held: HeldPartition) -> None:
            super().start(held)
            if len(self.started) == 3:
                all_begun.set()

    host = Host()
    member = stage.member("n1", slots=3, host=host, clock=SYSTEM)
    racer = Racer(member.run)
    racer.start()
    assert all_begun.wait(STUCK_S)
    member.drain(10.0)
    racer.outcome()
    assert member.state is MemberState.GONE
    assert stage.nodes() == []
    assert {part.state for part in stage.parts()} == {PartitionState.OUTSTANDING}
    member.drain(10.0)
    assert member.tick() > 0, "and nothing happens any more"
