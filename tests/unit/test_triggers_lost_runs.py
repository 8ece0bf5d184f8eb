"""A node that starts again ends the runs of its earlier starts."""

import pytest

from tests.unit.lots_stage import TTL_US, Stage
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.triggers import runs
from tidemill.triggers.subscriptions import Scheduled


def again(stage: Stage, node: Node) -> Node:
    return stage.store.run(lambda tx: nodes.join(tx, stage.cluster, node, TTL_US))


def lapse(stage: Stage, node: Node, **options: int) -> list[str]:
    ended, after = stage.run(runs.end_earlier_runs, stage.triggers, stage.cluster, node, **options)
    while after:
        more, after = stage.run(
            runs.end_earlier_runs, stage.triggers, stage.cluster, node, after=after, **options
        )
        ended += more
    return ended


@pytest.mark.rule("HEAP-7")
def test_runs_of_an_earlier_start_end_at_once_and_others_continue() -> None:
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    for name in ("mine", "others", "resting"):
        stage.subscribe(name, orders)
    me, other = stage.node("runner-0"), stage.node("runner-1")
    own_ticket, other_ticket = stage.start(me, "mine"), stage.start(other, "others")
    assert own_ticket is not None
    assert other_ticket is not None
    new = again(stage, me)
    assert lapse(stage, new) == ["mine"]
    assert lapse(stage, new) == []
    row = stage.row("mine")
    assert isinstance(row, Scheduled)
    assert row.run is None
    with pytest.raises(LeaseLost):
        stage.finish(own_ticket)
    second = stage.start(new, "mine")
    assert second is not None
    assert second.fence == own_ticket.fence + 1
    assert lapse(stage, new) == []  # of this life
    stage.finish(other_ticket)
    stage.finish(second)


def test_many_runs_lapse_page_by_page() -> None:
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    me = stage.node("runner-0")
    names = [f"s{n}" for n in range(7)]
    for name in names:
        stage.subscribe(name, orders)
        assert stage.start(me, name) is not None
    assert sorted(lapse(stage, again(stage, me), limit=2)) == names


def test_a_node_that_lost_its_lease_ends_no_runs() -> None:
    stage = Stage()
    old = stage.node("runner-0")
    again(stage, old)
    with pytest.raises(LeaseLost):
        lapse(stage, old)
