from dataclasses import replace

from tests.unit.push_stage import SOURCE, PushStage
from tidemill.cluster import nodes
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.sources.topic_partitions import TopicPartitions

TTL_S = 30.0


def reader(stage: PushStage, node: Node) -> TopicPartitions:
    scope = replace(stage.scope(node, stage.stage.clock), timing=LeaseTiming(TTL_S))
    return TopicPartitions(SOURCE, scope)


def reports(stage: PushStage) -> list[str]:
    members = stage.keys.member
    rows = stage.store.run(lambda tx: tx.range(*members.all()))
    return [str(members.unpack(row.key)[1]) for row in rows]


def test_the_report_of_a_killed_reader_is_removed_when_its_node_has_left_the_list() -> None:
    stage = PushStage()
    killed, alive = stage.node("killed"), stage.node("living")
    reader(stage, killed).maintain(["000000", "000001"])
    other = reader(stage, alive)
    other.maintain(["000000", "000001"])
    assert reports(stage) == ["killed", "living"]
    stage.stage.clock.advance(3 * TTL_S)
    other.maintain(["000000", "000001"])
    assert reports(stage) == ["killed", "living"], "its node is listed: it may only be slow"
    assert stage.store.run(lambda tx: nodes.leave(tx, stage.keys.publish.cluster, killed))
    stage.stage.clock.advance(TTL_S)
    other.maintain(["000000", "000001"])
    assert reports(stage) == ["living"]
    assert len(other.held) == 2
