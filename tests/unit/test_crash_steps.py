"""Deaths at steps that few processes come by: how nodes share the partitions of a topic, a step of views that
fails or has nothing to do, and the parts of a layout that was replaced.
"""

import random
from collections import Counter

import pytest

from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.lots_stage import Stage
from tests.unit.steps_stage import P, StepStage, spec
from tests.unit.test_compaction import LOT, ORDERS, Layouts, written_of
from tidemill import crash
from tidemill.cluster.leases import LeaseTiming
from tidemill.errors import LeaseLost
from tidemill.lots import layout, lots
from tidemill.objects.memory import MemoryObjects
from tidemill.publish.attempts import Draft, Target
from tidemill.scope import Scope
from tidemill.sources.keys import SourceKeys
from tidemill.sources.topic_partitions import TopicPartitions
from tidemill.store import Tx
from tidemill.views.steps.keys import group_id

LONG_US = 10**15
NAMES = ("p0", "p1", "p2", "p3")
TTL_S = 10.0


# --- partitions of a topic


class Topic:
    """Nodes that share the partitions of a topic, without one."""

    def __init__(self) -> None:
        self.stage = Stage(scan=False)
        self.keys = SourceKeys("c")

    def holdings(self, name: str) -> TopicPartitions:
        """Of a node's next life."""
        scope = Scope(
            store=self.stage.store,
            cluster="c",
            objects=MemoryObjects(self.stage.clock),
            node=self.stage.node(name, LONG_US),
            clock=self.stage.clock,
            chance=random.Random(7),
            timing=LeaseTiming(TTL_S),
        )
        return TopicPartitions("source:shop/orders", scope)

    def held(self, *nodes: TopicPartitions) -> dict[str, list[str]]:
        """Who has what; each partition that a node thinks it has is shown to the store."""

        def shown(tx: Tx, partitions: TopicPartitions) -> list[str]:
            names = []
            for name in partitions.held:
                try:
                    partitions.fence([name], tx)
                    names.append(name)
                except LeaseLost:
                    continue
            return sorted(names)

        return {
            partitions.holder: self.stage.store.run(lambda tx, partitions=partitions: shown(tx, partitions))
            for partitions in nodes
        }


def test_the_report_of_a_killed_node_is_removed() -> None:
    topic = Topic()
    living, killed = topic.holdings("one"), topic.holdings("two")
    for node in (living, killed):
        node.maintain(NAMES)
    reports = topic.keys.member.under("source:shop/orders")
    assert len(topic.stage.store.run(lambda tx: tx.range(*reports))) == 2
    topic.stage.kill(killed._scope.node)  # as the leader removes a node that was killed
    for _ in range(4):
        topic.stage.clock.advance(TTL_S)
        living.renew_now()
        living.maintain(NAMES)
    (row,) = topic.stage.store.run(lambda tx: tx.range(*reports))
    assert topic.keys.member.unpack(row.key)[1] == "one"


def _share(topic: Topic, point: str, visit: int) -> tuple[dict[str, list[str]], bool]:
    """One has all, another joins and gets its share; whoever comes to the point dies, and begins again."""
    died = False
    lives = {name: topic.holdings(name) for name in ("one", "two")}
    alive = ["one"]

    def tend(name: str) -> None:
        nonlocal died
        try:
            lives[name].maintain(NAMES)
        except crash.Crashed:
            died = True
            lives[name] = topic.holdings(name)

    with crash.armed(point, visit=visit):
        for turn in range(12):
            if turn == 3:
                alive.append("two")
            for name in alive:
                tend(name)
                held = [name for part in topic.held(*lives.values()).values() for name in part]
                assert max(Counter(held).values(), default=0) <= 1, "nobody has what another has"
            topic.stage.clock.advance(TTL_S / 4)
        if not died:
            try:
                lives["two"].close()
            except crash.Crashed:
                died = True
            lives["two"] = topic.holdings("two")
            for _ in range(12):
                tend("two")
                tend("one")
                topic.stage.clock.advance(TTL_S / 4)
    return topic.held(*lives.values()), died


@pytest.mark.rule("CLU-20")
@pytest.mark.rule("CLU-22")
@pytest.mark.parametrize("step", ["ask", "leave", "renew", "share", "take-partition"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_wherever_a_node_dies_while_partitions_are_shared_each_is_held_once_in_the_end(
    step: str, side: str
) -> None:
    for visit in (1, 2, 3, 5, 8):
        held, died = _share(Topic(), f"sources.{step}.{side}", visit)
        assert visit > 1 or died
        assert sorted(name for some in held.values() for name in some) == list(NAMES)
        assert [len(some) for some in held.values()] == [2, 2], (held, visit)
        if not died:
            return


# --- steps of views


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_run_that_dies_where_it_gives_up_a_failed_step_leaves_it_to_the_next(side: str) -> None:
    stage = StepStage()
    a = stage.dataset("a")
    stage.publish(a)
    stage.declare(spec("g", a))
    node = stage.node("n1")

    def fails(*_: object) -> tuple[()]:
        raise OSError("no space left")

    with crash.armed(f"views.abandon.{side}"), pytest.raises(crash.Crashed):
        stage.step(node, "g", compute=fails)
    stage.check()
    assert stage.group("g").step == 0
    stage.kill(node)
    stage.look(group_id(P, "g"))
    stage.settle(stage.node("n2"), "g")
    stage.check()
    assert [(row.after, row.step) for row in stage.rows_of_group("g")] == [(0, 1)]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_run_that_dies_where_it_ends_without_a_step_is_begun_again_and_no_step_is_lost(side: str) -> None:
    stage = StepStage()
    a = stage.dataset("a")
    stage.publish(a)
    stage.declare(spec("g", a))
    node = stage.node("n1")
    ticket = stage.begin(node, "g")
    assert ticket is not None
    with crash.armed(f"views.rest.{side}"), pytest.raises(crash.Crashed):
        stage.stepper().run(ticket, stop=lambda: True)
    stage.check()
    assert stage.rows_of_group("g") == []
    stage.kill(node)
    stage.look(group_id(P, "g"))
    stage.settle(stage.node("n2"), "g")
    stage.check()
    assert [(row.after, row.step) for row in stage.rows_of_group("g")] == [(0, 1)]
    assert len(stage.records()) == 1, "what was cut is not cut again"


# --- a layout that had parts


@pytest.mark.rule("LOT-37")
@pytest.mark.parametrize("step", ["retire-data", "retire-parts", "retire-manifest", "retired"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_whoever_dies_while_a_layout_with_parts_is_removed_leaves_the_rest_to_the_next(
    step: str, side: str
) -> None:
    stage = Layouts()
    in_parts(stage, 20)
    rows = stage.rows(stage.listed())
    assert len(stage.manifests.load(stage.row.manifest).parts) == 2
    assert stage.compactor().compact(ORDERS.id, LOT) is not None
    with crash.armed(f"publish.{step}.{side}"), pytest.raises(crash.Crashed):
        stage.clean(readers_s=0.0)
    assert stage.rows(stage.listed()) == rows
    stage.stage.kill(stage.node)
    stage.clean(stage.join("n2"), readers_s=0.0)
    assert stage.rows(stage.listed()) == rows
    assert stage.data() == {item.uri for item in stage.listed()}
    assert not stage.store.run(lambda tx: lots.retired(tx, stage.keys.lots, LONG_US))
    listed = {info.key for info in stage.objects.list("datasets/") if "/attempt=" in info.key}
    assert listed == {stage.row.manifest}, "nothing is left of the parts"


def in_parts(stage: Layouts, files: int) -> None:
    """Publish a lot whose files are listed by two parts."""
    publisher = AttemptPublisher(stage.scope(stage.node))
    draft = Draft(
        id=stage.attempt(), author="arc", lot=LOT, generation=0, targets=(Target(ORDERS.id, LOT, 0),)
    )
    hold = publisher.open(draft)
    stage.manifests.write_intents(hold)
    parts = []
    for number in range(2):
        prefix = layout.data_prefix("orders", "1", LOT, draft.id)
        items = [
            stage.put(f"{prefix}{number}-{n}.parquet", [number * 1000 + n], {}) for n in range(files // 2)
        ]
        written = [written_of(items, {})]
        parts.append(stage.manifests.write_part(hold, str(number), written, alone=False, fingerprints={}))
    [row] = stage.manifests.finish(hold, parts, {})
    publisher.publish(hold, [row])
