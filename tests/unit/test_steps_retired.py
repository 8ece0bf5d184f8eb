"""Retired views and removed groups: they are no longer computed, and their last tables stay readable."""

from tests.unit.steps_stage import P, StepStage, spec
from tests.unit.test_triggers_heap import DAY_US
from tidemill.lots import lots
from tidemill.triggers import subscriptions
from tidemill.views.steps import groups, retired
from tidemill.views.steps.groups import GroupSpec, ViewSpec
from tidemill.views.steps.keys import group_id


def names(stage: StepStage) -> list[tuple[str, str, int]]:
    tables = stage.store.run(lambda tx: retired.listed(tx, stage.keys, P))
    return [(table.view, table.group, table.step) for table in tables]


def test_a_view_removed_from_its_group_is_retired_until_it_is_declared_again() -> None:
    stage = StepStage()
    orders = stage.dataset()
    both = GroupSpec(name="g", views=tuple(ViewSpec(name=name, code="c", reads=(orders,)) for name in "ab"))
    stage.declare(both)
    node = stage.node("n", DAY_US)
    stage.publish(orders)
    stage.settle(node, "g")
    table = stage.group("g").tables["b"]
    without_b = GroupSpec(name="g", views=both.views[:1])
    stage.declare(without_b, circuit="2")
    assert names(stage) == [("b", "g", stage.group("g").step)]
    last = stage.store.run(lambda tx: retired.find(tx, stage.keys, P, "b"))
    assert last is not None
    assert last.table == table
    stage.publish(orders)
    stage.settle(node, "g")
    assert set(stage.group("g").tables) == {"a"}
    stage.declare(both, circuit="3")
    assert names(stage) == []
    stage.settle(node, "g")
    assert set(stage.group("g").tables) == {"a", "b"}
    stage.check()


def test_a_removed_group_is_not_woken_and_its_tables_stay() -> None:
    stage = StepStage()
    orders = stage.dataset()
    stage.declare(spec("g", orders), spec("h", orders))
    node = stage.node("n", DAY_US)
    stage.publish(orders)
    stage.settle(node, "g", "h")
    step, table = stage.group("g").step, stage.group("g").tables["g"]
    assert stage.run(groups.remove, stage.keys, P, "g")
    assert stage.store.run(lambda tx: subscriptions.read(tx, stage.triggers, group_id(P, "g"))) is None
    last = stage.store.run(lambda tx: retired.find(tx, stage.keys, P, "g"))
    assert last is not None
    assert (last.step, last.table) == (step, table)
    stage.publish(orders)
    assert stage.begin(node, "g") is None
    stage.settle(node, "h")
    assert names(stage) == [("g", "g", step)]
    assert not stage.run(groups.remove, stage.keys, P, "g"), "once"


def test_retired_views_are_not_confused_with_replaced_lots() -> None:
    """Both have rows under the name `retired`: the cleaner must read only those of lots."""
    stage = StepStage()
    orders = stage.dataset()
    stage.declare(spec("g", orders))
    node = stage.node("n", DAY_US)
    stage.publish(orders)
    stage.settle(node, "g")
    assert stage.run(groups.remove, stage.keys, P, "g")
    assert names(stage)
    assert stage.store.run(lambda tx: lots.retired(tx, stage.keys.lots, tx.now())) == []
