"""INV1 to INV6 are asserted in the code under their numbers, and a violation raises an error."""

import ast
import inspect
from pathlib import Path

import msgspec
import pytest

from tests.unit.test_triggers_heap import CLEAN, HeapStage
from tidemill import triggers
from tidemill.errors import TemplateChild
from tidemill.triggers import heap_sync, subscriptions, templates
from tidemill.triggers.heap import Item
from tidemill.triggers.heap_sync import StaleItems
from tidemill.triggers.subscriptions import Scheduled, Waiting


@pytest.mark.rule("HEAP-11")
@pytest.mark.parametrize("number", range(1, 7))
def test_each_invariant_is_asserted_or_refused_under_its_number(number: int) -> None:
    numbers = []
    for path in Path(inspect.getfile(triggers)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            checks = (
                node.msg
                if isinstance(node, ast.Assert)
                else node.exc
                if isinstance(node, ast.Raise)
                else None
            )
            if checks is not None and f"INV{number}" in ast.unparse(checks):
                numbers.append(path.name)
    assert numbers, f"nothing asserts INV{number}"


@pytest.mark.rule("HEAP-11")
def test_inv1_an_epoch_or_an_id_does_not_come_again() -> None:
    stage = HeapStage()
    row = stage.attach("s", stage.dataset())
    for change in ({"epoch": 0}, {"born": 7}, {"fence": -1}):
        old = msgspec.structs.replace(row, tally=msgspec.structs.replace(row.tally, **change))
        with pytest.raises(AssertionError, match="INV1"):
            stage.run(subscriptions.write, stage.triggers, "s", row, old)


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
    with pytest.raises(AssertionError, match="INV2"):
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


@pytest.mark.rule("HEAP-11", "HEAP-10")
def test_inv4_and_inv5_the_pruner_takes_no_signal_and_nothing_that_is_not_known_to_be_dead() -> None:
    signal, old = Item(5, "s", 3), Item(1, "s", 2)
    assert heap_sync.removable(StaleItems([], [(old, signal)], []), lambda _: True) == [old]
    assert heap_sync.removable(StaleItems([], [(old, signal)], []), lambda _: False) == []
    with pytest.raises(AssertionError, match="INV4"):
        heap_sync.removable(StaleItems([], [(signal, signal)], []), lambda _: True)
    with pytest.raises(AssertionError, match="INV5"):
        heap_sync.removable(StaleItems([old], [], [old]), lambda _: True)
