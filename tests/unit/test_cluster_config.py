"""Configuration in the store, from which a cluster can start again."""

import pytest

from tests.unit.cluster_stage import GROUP, Stage
from tidemill.cluster import config, nodes, partitions
from tidemill.cluster.config import Value
from tidemill.cluster.leader import Tenure
from tidemill.cluster.partitions import PartitionMap
from tidemill.cluster.states import PartitionState
from tidemill.store import Tx
from tidemill.testing.holdings import PartitionMember

VALUES: dict[str, Value] = {
    "flag": True,
    "count": 12,
    "ratio": 0.25,
    "name": "shop",
    "key": b"\x00\xff",
    "list": ["a", "b"],
    "map": {"a": "b"},
    "nothing": None,
}


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("CLU-17")
def test_configuration_is_read_as_it_was_written(stage: Stage) -> None:
    def write(tx: Tx) -> None:
        for name, value in VALUES.items():
            config.put(tx, stage.keys, name, value)

    stage.store.run(write)
    assert stage.store.run(lambda tx: config.read_all(tx, stage.keys)) == VALUES
    for name, value in VALUES.items():
        assert stage.store.run(lambda tx, name=name: config.get(tx, stage.keys, name)) == value
    assert stage.store.run(lambda tx: config.get(tx, stage.keys, "absent")) is None


def test_the_rooms_own_configuration_is_not_the_users(stage: Stage) -> None:
    stage.member("n1").tick()
    assert stage.store.run(lambda tx: config.read_all(tx, stage.keys)) == {}


def plan_from_config(stage: Stage) -> dict[str, object]:
    """A leader's duty that knows the store alone: it makes the partitions that are configured."""

    def make(tenure: Tenure) -> float:
        def step(tx: Tx) -> None:
            count = config.get(tx, stage.keys, "count")
            assert isinstance(count, int)
            made_from = PartitionMap(nodes.version(tx, stage.keys), tenure.epoch, count)
            payloads = {f"p{n:03d}": b"work" for n in range(count)}
            partitions.create(tx, stage.keys, GROUP, payloads, made_from)

        tenure.run(step)
        return 60.0

    return {"make partitions": make}


def newcomer(stage: Stage, name: str) -> PartitionMember:
    return stage.member(name, slots=6, duties=plan_from_config(stage))


@pytest.mark.rule("CLU-17", "CLU-26")
def test_after_all_nodes_were_killed_a_new_one_finishes_everything_from_the_store_alone(stage: Stage) -> None:
    stage.store.run(lambda tx: config.put(tx, stage.keys, "count", 6))
    for name in ("n1", "n2", "n3"):
        newcomer(stage, name)
    stage.play(lambda: sum(stage.counts().values()) == 6)
    some = next(iter(stage.holdings_of("n2").held.values()))
    stage.holdings_of("n2").complete(some)
    leader_epoch = stage.members[stage.leaders()[0]].election.tenure
    assert leader_epoch is not None
    for name in ("n1", "n2", "n3"):
        stage.kill(name)
    stage.clock.advance(3600.0)

    newcomer(stage, "n4")
    stage.play(lambda: stage.counts() == {"n4": 5}, within_s=5.0)
    assert stage.leaders() == ["n4"]
    assert stage.members["n4"].tenure is not None
    assert stage.members["n4"].tenure.epoch == leader_epoch.epoch + 1
    for held in list(stage.holdings_of("n4").held.values()):
        stage.holdings_of("n4").complete(held)
    assert {part.state for part in stage.parts()} == {PartitionState.DONE}
    assert {part.payload for part in stage.parts()} == {b"work"}
    stage.pass_time(60.0)
    assert [node.id for node in stage.nodes()] == ["n4"]
