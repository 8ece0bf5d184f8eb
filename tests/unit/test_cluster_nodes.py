"""The node list: joining, renewing, leaving and cleaning."""

from itertools import pairwise

import msgspec
import pytest

from tests.unit.cluster_stage import Stage, is_lost
from tidemill.cluster import nodes, partitions
from tidemill.cluster.events import NodeJoined, NodeLost, NodesCleaned
from tidemill.cluster.member import Member
from tidemill.cluster.nodes import PROTOCOL, Node
from tidemill.cluster.partitions import PartitionMap
from tidemill.cluster.states import MemberState
from tidemill.errors import ProtocolMismatch
from tidemill.testing.fake_clock import ShiftedClock


@pytest.fixture
def stage() -> Stage:
    return Stage()


def version(stage: Stage) -> int:
    return stage.store.run(lambda tx: nodes.version(tx, stage.keys))


def joined(stage: Stage, name: str) -> Node:
    node = Node(id=name, epoch=0)
    return stage.store.run(lambda tx: nodes.join(tx, stage.keys, node, stage.ttl_us))


@pytest.mark.rule("CLU-10")
def test_an_entry_has_the_fields_of_the_rule(stage: Stage) -> None:
    node = Node(
        id="n1",
        epoch=0,
        address="host-7:4100",
        slots=3,
        total={"cpu": 4.0, "ram": 8e9},
        free={"cpu": 4.0, "ram": 8e9},
        release="0.1.0",
    )
    member = Member(stage.context(), node)
    member.tick()
    stage.clock.advance(3.0)
    member.membership.report({"cpu": 1.5, "ram": 2e9})
    member.tick()
    (entry,) = stage.nodes()
    now_us = stage.trouble.now_us()
    assert (entry.id, entry.address, entry.slots) == ("n1", "host-7:4100", 3)
    assert entry.total == {"cpu": 4.0, "ram": 8e9}
    assert entry.free == {"cpu": 1.5, "ram": 2e9}
    assert (entry.started_at, entry.seen_at) == (now_us - 3_000_000, now_us)
    assert entry.expires_at == now_us + 15_000_000
    assert (entry.protocol, entry.release) == (PROTOCOL, "0.1.0")


@pytest.mark.rule("CLU-10", "FUT-36")
def test_every_renewal_tells_when_the_node_was_seen_and_what_is_free(stage: Stage) -> None:
    total = {"cpu": 4.0, "ram": 8e9}
    member = Member(stage.context(), Node(id="n1", epoch=0, total=total, free=total))
    member.tick()
    started_at = stage.trouble.now_us()
    for number in range(1, 6):
        free = {"cpu": 4.0 - number / 2, "ram": 8e9 - number}
        member.membership.report(free)
        stage.clock.advance(3.0)
        member.tick()
        (entry,) = stage.nodes()
        assert entry.seen_at == stage.trouble.now_us() == started_at + number * 3_000_000
        assert entry.expires_at == entry.seen_at + stage.ttl_us
        assert (entry.started_at, entry.total, entry.free) == (started_at, total, free)
    stage.clock.advance(60.0)  # it was paused, and joins again
    while member.state is not MemberState.ACTIVE or not member.membership.alive():
        member.tick()
    (entry,) = stage.nodes()
    assert (entry.epoch, entry.started_at, entry.free) == (2, started_at, free)
    assert entry.seen_at == stage.trouble.now_us()


@pytest.mark.rule("CLU-10")
def test_an_id_is_new_at_every_boot(stage: Stage) -> None:
    boots = {Member(stage.context()).id for _ in range(20)}
    assert len(boots) == 20


@pytest.mark.rule("CLU-10")
def test_a_node_keeps_its_own_entry_present(stage: Stage) -> None:
    stage.member("n1")
    for _ in range(40):
        stage.pass_time(3.0)
        assert [node.id for node in stage.nodes()] == ["n1"]
        assert stage.nodes()[0].expires_at > stage.trouble.now_us()
    assert len(stage.told(NodeJoined)) == 1
    assert stage.nodes()[0].epoch == 1


@pytest.mark.rule("CLU-10", "CLU-11")
def test_a_node_that_was_dropped_from_the_list_enters_it_again(stage: Stage) -> None:
    """Somebody cleaned too eagerly: that costs the node a beat, and nothing else."""
    member = stage.member("n1")
    stage.play(lambda: member.state is MemberState.ACTIVE)
    stage.store.run(lambda tx: nodes.leave(tx, stage.keys, member.node))
    assert stage.nodes() == []
    stage.play(lambda: bool(stage.nodes()), within_s=4.0)
    assert stage.nodes()[0].epoch == 2
    assert [event.epoch for event in stage.told(NodeLost)] == [1]


@pytest.mark.rule("CLU-11")
def test_a_node_whose_entry_is_removed_again_and_again_joins_less_and_less_often(stage: Stage) -> None:
    member = stage.member("n1")
    joins = []
    for _ in range(9):
        stage.play(lambda: member.state is MemberState.ACTIVE, within_s=60.0)
        joins.append(stage.clock.monotonic())
        stage.store.run(lambda tx: nodes.leave(tx, stage.keys, member.node))
        stage.play(lambda: member.state is MemberState.OUT, within_s=60.0)
    pauses = [later - earlier for earlier, later in pairwise(joins)]
    assert max(pauses[:2]) < 5.0
    assert min(pauses[-3:]) > 10.0
    stage.play(lambda: member.state is MemberState.ACTIVE, within_s=60.0)
    stage.pass_time(10.0)  # a renewal succeeds, so the next pause is short
    stage.store.run(lambda tx: nodes.leave(tx, stage.keys, member.node))
    stage.play(lambda: bool(stage.nodes()), within_s=5.0)


@pytest.mark.rule("CLU-10")
def test_a_node_that_slept_past_its_ttl_joins_again_under_a_higher_epoch(stage: Stage) -> None:
    member = stage.member("n1")
    stage.play(lambda: member.state is MemberState.ACTIVE)
    asleep = member.node
    stage.clock.advance(60.0)
    assert not member.membership.alive()
    assert is_lost(stage.store, lambda tx: nodes.check(tx, stage.keys, asleep))
    stage.play(member.membership.alive, within_s=1.0)
    assert member.node.epoch == asleep.epoch + 1
    assert is_lost(stage.store, lambda tx: nodes.beat(tx, stage.keys, asleep, stage.ttl_us))


@pytest.mark.rule("CLU-8")
def test_a_beat_that_fails_is_tried_again_and_loses_nothing(stage: Stage) -> None:
    member = stage.member("n1")
    stage.play(lambda: member.state is MemberState.ACTIVE)
    stage.trouble.down = True
    stage.pass_time(9.0)
    assert member.membership.alive()
    stage.trouble.down = False
    stage.pass_time(9.0)
    assert member.membership.alive()
    assert stage.told(NodeLost) == []


@pytest.mark.rule("CLU-4")
def test_a_node_that_cannot_reach_the_store_stops_being_one_before_others_think_so(stage: Stage) -> None:
    member = stage.member("n1")
    stage.play(lambda: member.state is MemberState.ACTIVE)
    expires_at = stage.nodes()[0].expires_at
    stage.trouble.down = True
    stage.play(lambda: not member.membership.alive(), within_s=15.0)
    assert stage.trouble.now_us() < expires_at


@pytest.mark.rule("CLU-6")
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_node_with_a_wrong_wall_clock_is_listed_like_any_other(stage: Stage, hours: int) -> None:
    stage.member("n1", clock=ShiftedClock(stage.clock, wall_s=hours * 3600.0))
    stage.member("n2")
    stage.pass_time(60.0)
    wrong, right = stage.nodes()
    assert abs(wrong.expires_at - right.expires_at) <= 3_100_000
    assert stage.told(NodeLost) == []


@pytest.mark.rule("CLU-11")
def test_the_leader_drops_the_dead_two_ttls_after_their_end_and_not_before(stage: Stage) -> None:
    stage.member("a-leads")
    stage.play(lambda: stage.leaders() == ["a-leads"])
    stage.member("b-dies")
    stage.play(lambda: len(stage.nodes()) == 2)
    dies_at = stage.nodes()[1].expires_at
    stage.kill("b-dies")
    stage.play(lambda: len(stage.nodes()) == 1)
    assert stage.trouble.now_us() >= dies_at + 2 * stage.ttl_us
    assert [event.nodes for event in stage.told(NodesCleaned)] == [["b-dies"]]
    assert stage.store.run(lambda tx: tx.range(*stage.keys.node_expiry.all(), limit=10))[1:] == []


@pytest.mark.rule("CLU-11")
def test_cleaning_keeps_a_node_that_renews_at_the_same_time() -> None:
    """The expired entry is read, then its node comes back, then the cleaning wants to commit."""
    stage = Stage(patience_s=60.0)
    node = joined(stage, "n1")
    stage.clock.advance(60.0)
    stage.trouble.interlude = lambda: joined(stage, "n1")
    gone = stage.store.run(lambda tx: nodes.clean(tx, stage.keys, 2 * stage.ttl_us, 50))
    assert gone == []
    assert [listed.epoch for listed in stage.nodes()] == [node.epoch + 1]


@pytest.mark.rule("CLU-11")
def test_many_dead_nodes_are_cleaned_in_pages(stage: Stage) -> None:
    for number in range(120):
        joined(stage, f"dead{number:03d}")
    stage.clock.advance(50.0)
    stage.member("n1")
    stage.play(lambda: len(stage.nodes()) == 1)
    assert [len(event.nodes) for event in stage.told(NodesCleaned)] == [50, 50, 20]


@pytest.mark.rule("CLU-11")
def test_work_continues_with_a_node_list_that_is_never_cleaned(stage: Stage) -> None:
    """A hundred dead entries, no leader that cleans: the living still share everything."""
    for number in range(100):
        joined(stage, f"dead{number:03d}")
    stage.clock.advance(20.0)
    stage.make_partitions(8)
    for name in ("n1", "n2"):
        member = stage.member(name)
        member.election.duties = {}
    stage.play(lambda: stage.counts() == {"n1": 4, "n2": 4})
    assert len(stage.nodes()) == 102


@pytest.mark.rule("CLU-10", "CLU-7")
def test_a_node_that_leaves_under_an_old_epoch_does_not_remove_its_newer_entry(stage: Stage) -> None:
    old = joined(stage, "n1")
    new = stage.store.run(lambda tx: nodes.join(tx, stage.keys, old, stage.ttl_us))
    assert not stage.store.run(lambda tx: nodes.leave(tx, stage.keys, old))
    assert stage.store.run(lambda tx: nodes.check(tx, stage.keys, new)) == new


@pytest.mark.rule("CLU-16")
def test_every_join_and_leave_changes_the_version_and_renewals_do_not(stage: Stage) -> None:
    assert version(stage) == 0
    node = joined(stage, "n1")
    two = joined(stage, "n2")
    assert version(stage) == 2
    stage.clock.advance(3.0)
    for _ in range(5):
        stage.store.run(lambda tx: nodes.beat(tx, stage.keys, node, stage.ttl_us))
    assert version(stage) == 2
    assert stage.store.run(lambda tx: nodes.leave(tx, stage.keys, two))
    assert version(stage) == 3
    assert not stage.store.run(lambda tx: nodes.leave(tx, stage.keys, two))
    assert version(stage) == 3
    stage.clock.advance(60.0)
    assert version(stage) == 3
    stage.store.run(lambda tx: nodes.clean(tx, stage.keys, 0, 10))
    assert version(stage) == 4


@pytest.mark.rule("CLU-16")
def test_a_partition_map_names_its_node_list(stage: Stage) -> None:
    joined(stage, "n1")

    def make(ids: list[str]) -> None:
        def step(tx: object) -> None:
            made_from = PartitionMap(nodes.version(tx, stage.keys), leader_epoch=7, count=len(ids))  # type: ignore[arg-type]
            partitions.create(tx, stage.keys, "g", dict.fromkeys(ids, b""), made_from)  # type: ignore[arg-type]

        stage.store.run(step)

    def made_from() -> PartitionMap | None:
        return stage.store.run(lambda tx: partitions.map_of(tx, stage.keys, "g"))

    assert made_from() is None
    make(["p1"])
    assert made_from() == PartitionMap(node_version=1, leader_epoch=7, count=1)
    joined(stage, "n2")
    assert made_from() == PartitionMap(node_version=1, leader_epoch=7, count=1), (
        "and so it can be seen to be old"
    )
    assert version(stage) == 2
    make(["p1", "p2"])
    assert made_from() == PartitionMap(node_version=2, leader_epoch=7, count=2)
    assert [part.id for part in stage.parts()] == ["p1", "p2"]


@pytest.mark.rule("CLU-10")
def test_a_node_of_another_protocol_is_refused_and_leaves_no_trace(stage: Stage) -> None:
    joined(stage, "n1")
    later = msgspec.msgpack.encode(PROTOCOL + 1)
    stage.store.run(lambda tx: tx.set(stage.keys.config["protocol"], later))
    before = stage.rows()
    with pytest.raises(ProtocolMismatch, match=f"protocol {PROTOCOL + 1}, but this release uses {PROTOCOL}"):
        stage.member("n2").tick()
    assert stage.rows() == before
