"""INV1 to INV6 are checked in the code under their numbers, and a violation raises an error."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tidemill
from tests.rules import known_rules
from tests.unit.test_triggers_heap import CLEAN, HeapStage
from tidemill import triggers
from tidemill.errors import InvariantBroken, TemplateChild
from tidemill.triggers import attach, heap_sync, subscriptions, templates
from tidemill.triggers.heap import Item
from tidemill.triggers.heap_sync import StaleItems
from tidemill.triggers.subscriptions import AnyRow, Creation, Scheduled, Terms, Waiting


@pytest.mark.rule("HEAP-11")
@pytest.mark.parametrize("number", range(1, 7))
def test_each_invariant_raises_an_error_under_its_number(number: int) -> None:
    checks = [
        path.name
        for path in Path(inspect.getfile(triggers)).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and node.exc is not None and f"INV{number}" in ast.unparse(node.exc)
    ]
    assert checks, f"nothing checks INV{number}"


@pytest.mark.rule("HEAP-11")
def test_no_rule_is_checked_by_an_assert_alone() -> None:
    """Python removes asserts under -O, so a rule needs an error."""
    rule = re.compile(rf"\b(INV[1-6]|({'|'.join({name.partition('-')[0] for name in known_rules()})})-\d+)\b")
    asserts = [
        f"{path.name}:{node.lineno}"
        for path in Path(inspect.getfile(tidemill)).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) and node.msg is not None and rule.search(ast.unparse(node.msg))
    ]
    assert asserts == []


@pytest.mark.rule("HEAP-11")
@pytest.mark.parametrize(
    ("change", "number"),
    [({"epoch": 0}, "INV1"), ({"born": 7}, "INV1"), ({"fence": -1}, "INV1"), ({"progress": (-1,)}, "HEAP-8")],
)
def test_inv1_an_epoch_or_an_id_does_not_come_again(change: dict[str, Any], number: str) -> None:
    stage = HeapStage()
    row = stage.attach("s", stage.dataset())
    raw = stage.store.run(lambda tx: tx.get(stage.triggers.subscription["s"]))
    back = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, **change))
    with pytest.raises(InvariantBroken, match=number):
        stage.run(subscriptions.write, stage.triggers, "s", row, back)
    assert stage.store.run(lambda tx: tx.get(stage.triggers.subscription["s"])) == raw, "nothing is written"


@pytest.mark.rule("HEAP-9", "HEAP-11")
def test_an_epoch_has_one_time() -> None:
    stage = HeapStage()
    row = stage.attach("s", stage.dataset())
    assert isinstance(row, Scheduled)
    later = msgspec.structs.replace(row, next_run=row.next_run + 1)
    with pytest.raises(InvariantBroken, match="HEAP-9"):
        stage.run(subscriptions.write, stage.triggers, "s", row, later)
    debt = msgspec.msgpack.encode((row.tally.epoch, row.next_run + 1))
    stage.observer._inner.run(lambda tx: tx.set(stage.triggers.owed["s"], debt))
    with pytest.raises(InvariantBroken, match="HEAP-9"):
        stage.observer._inner.run(lambda tx: heap_sync.owed(tx, stage.triggers))


@pytest.mark.rule("HEAP-11")
def test_inv2_nothing_is_pushed_for_a_row_that_is_not_there_or_waits() -> None:
    stage = HeapStage()
    row = stage.attach("s", stage.dataset())
    owed = msgspec.msgpack.encode((row.tally.epoch, row.next_run))
    stage.run(lambda tx: tx.set(stage.triggers.owed["never was"], owed))
    assert stage.run(heap_sync.owed, stage.triggers) == []
    stage.work()
    assert isinstance(stage.row("s"), Waiting)
    stage.run(lambda tx: tx.set(stage.triggers.owed["s"], owed))
    assert stage.run(heap_sync.owed, stage.triggers) == []
    later = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, born=9, epoch=9))
    stage.scan = False
    stage.observer._inner.run(
        lambda tx: tx.set(stage.triggers.subscription["s"], msgspec.msgpack.encode(later))
    )
    stale = msgspec.structs.replace(later, tally=msgspec.structs.replace(later.tally, epoch=3))
    raw = msgspec.msgpack.encode(stale)
    stage.observer._inner.run(lambda tx: tx.set(stage.triggers.subscription["s"], raw))
    stage.observer._inner.run(
        lambda tx: tx.set(stage.triggers.owed["s"], msgspec.msgpack.encode((3, row.next_run)))
    )
    with pytest.raises(InvariantBroken, match="INV2"):
        stage.observer._inner.run(lambda tx: heap_sync.owed(tx, stage.triggers))


@pytest.mark.rule("HEAP-11")
def test_inv3_and_inv6_children_begin_as_scheduled_and_stay_while_their_template_lives() -> None:
    stage = HeapStage()
    raw = stage.dataset("raw_a")
    stage.declare(CLEAN)
    name = stage.run(templates.instantiate, stage.triggers, stage.lots, CLEAN, raw)
    assert isinstance(stage.row(name), Scheduled)
    with pytest.raises(TemplateChild, match="INV6"):
        stage.run(subscriptions.remove, stage.triggers, name)


@pytest.mark.rule("HEAP-11")
def test_inv3_a_subscription_that_is_created_waiting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler pushes items of scheduled rows only: a waiting row that is not woken never runs."""
    stage = HeapStage()
    raw = stage.dataset("raw_a")
    stage.declare(CLEAN)
    subscribe = subscriptions.subscribe

    def create_waiting(*args: Any, creation: Creation, **options: Any) -> AnyRow:
        row = subscribe(*args, creation=creation, **options)
        return Waiting(row.tally)

    monkeypatch.setattr(subscriptions, "subscribe", create_waiting)
    with pytest.raises(InvariantBroken, match="INV3"):
        stage.store.run(lambda tx: templates.instantiate(tx, stage.triggers, stage.lots, CLEAN, raw))
    with pytest.raises(InvariantBroken, match="INV3"):
        attach.attach(stage.store, stage.triggers, stage.lots, stage.heap, "s", Terms(sources=(raw,)))


@pytest.mark.rule("HEAP-11", "HEAP-10")
def test_inv4_and_inv5_the_pruner_takes_no_signal_and_nothing_that_is_not_known_to_be_dead() -> None:
    signal, old = Item(5, "s", 3), Item(1, "s", 2)
    assert heap_sync.removable(StaleItems([], [(old, signal)], []), lambda _: True) == [old]
    assert heap_sync.removable(StaleItems([], [(old, signal)], []), lambda _: False) == []
    with pytest.raises(InvariantBroken, match="INV4"):
        heap_sync.removable(StaleItems([], [(signal, signal)], []), lambda _: True)
    with pytest.raises(InvariantBroken, match="INV5"):
        heap_sync.removable(StaleItems([old], [], [old]), lambda _: True)
