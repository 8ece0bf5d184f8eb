"""Lots and their events: one transaction, positions without gaps, generations that keep their rows."""

import random

import msgspec
import pytest

from tests.unit.lots_stage import FIVE_MINUTES, Stage, new_lot
from tidemill.errors import BadLotId, DatasetUnknown, LotConflict, LotUnknown
from tidemill.lots import lots
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.store import open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import together

L0, L1 = "20230101PT5M000", "20230101PT5M001"


@pytest.mark.rule("LOT-5")
def test_events_are_read_by_position_and_an_empty_lot_is_one_too():
    stage = Stage()
    orders, other = stage.dataset(unit=FIVE_MINUTES), stage.dataset("other", unit=FIVE_MINUTES)
    assert stage.add(orders, L1) == 1  # positions follow publication, not the lots' times
    assert stage.add(orders, L0, state=LotState.EMPTY) == 2
    assert stage.add(other, L0) == 1
    events_read = stage.events(orders)
    assert [(event.position, event.lot, event.state) for event in events_read] == [
        (1, L1, LotState.COMPLETE),
        (2, L0, LotState.EMPTY),
    ]
    assert stage.events(orders, after=1) == events_read[1:]
    assert stage.events(orders, after=2) == []
    assert stage.events(orders, limit=1) == events_read[:1]


def test_publishing_a_lot_is_three_rows_and_four_when_it_replaces_one():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    stage.add(orders, L0)
    assert stage.writes == 3
    stage.add(orders, L0, 1)
    assert stage.writes == 4


def test_replaced_generations_keep_their_row():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    for generation in range(3):
        stage.add(orders, L0, generation)
    assert [row.generation for row in stage.rows_of(orders)] == [2]
    for generation in range(3):
        row = stage.run(lots.resolve, stage.lots, orders, L0, generation)
        assert (row.generation, row.manifest, row.position) == (
            generation,
            f"m/{L0}/{generation}",
            generation + 1,
        )
    with pytest.raises(LotUnknown):
        stage.run(lots.resolve, stage.lots, orders, L0, 3)


@pytest.mark.parametrize("generation", [0, 2])
def test_only_the_next_generation_is_taken(generation):
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    stage.add(orders, L0)
    with pytest.raises(LotConflict):
        stage.add(orders, L0, generation)
    assert len(stage.events(orders)) == 1


def test_a_lot_that_is_not_there_cannot_be_removed():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    with pytest.raises(LotConflict):
        stage.add(orders, L0, state=LotState.REMOVED)
    stage.add(orders, L0)
    assert stage.add(orders, L0, 1, state=LotState.REMOVED) == 2


def test_a_keyed_lot_has_one_generation():
    stage = Stage()
    customers = stage.dataset("customers", kind=Kind.KEYED, key=("id",), deletes=True)
    lot = str(stage.run(lots.next_append, stage.lots, customers))
    stage.add(customers, lot)
    with pytest.raises(LotConflict, match="another upsert"):
        stage.add(customers, lot, 1)


def test_lots_of_another_unit_or_of_no_dataset_are_refused():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    with pytest.raises(BadLotId):
        stage.add(orders, "20230101")
    with pytest.raises(DatasetUnknown):
        stage.add(DatasetId("nothing"), L0)


@pytest.mark.rule("LOT-4")
def test_every_append_is_a_lot_of_its_own():
    stage = Stage()
    orders = stage.dataset()
    numbers = [str(stage.run(lots.next_append, stage.lots, orders)) for _ in range(3)]
    assert numbers == ["A00000000000000001", "A00000000000000002", "A00000000000000003"]
    assert [stage.add(orders, lot) for lot in (numbers[2], numbers[0])] == [1, 2]  # the second was given up


def test_a_new_layout_of_the_same_content_is_no_event():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    stage.add(orders, L0, digest="d")
    current = stage.run(lots.current, stage.lots, orders, L0)
    new = msgspec.structs.replace(current, manifest="compacted", size=5, files=1)
    row = stage.run(lots.revise, stage.lots, current, new)
    assert (row.manifest, row.revision, row.size, row.files) == ("compacted", 1, 5, 1)
    assert stage.run(lots.current, stage.lots, orders, L0) == row
    assert len(stage.events(orders)) == 1
    for stale, digest in ((current, "d"), (row, "other"), (msgspec.structs.replace(row, digest=""), "")):
        again = msgspec.structs.replace(stale, manifest="again", digest=digest)
        with pytest.raises(LotConflict):
            stage.run(lots.revise, stage.lots, stale, again)
    with pytest.raises(LotConflict):  # the same digest, but another number of rows
        stage.run(
            lots.revise, stage.lots, row, msgspec.structs.replace(row, manifest="again", rows=row.rows + 1)
        )
    [old] = stage.run(lots.retired, stage.lots, 10**15)
    assert (old.manifest, old.revision) == (current.manifest, 0)


@pytest.mark.rule("LOT-5")
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_positions_have_no_gaps_under_concurrent_publishers_and_readers_skip_nothing(backend, tmp_path):
    with MemoryStore() if backend == "memory" else open_store(f"sqlite:///{tmp_path}/s.db") as store:
        stage = Stage(store, scan=False)
        sinks = [stage.dataset(f"d{n}") for n in range(3)]
        each = 20

        def publisher(number: int) -> list[int]:
            chance = random.Random(number)
            positions = []
            for turn in range(each):
                targets = chance.sample(sinks, 2)
                lot = f"A{number * 1000 + turn + 1:017}"

                def both(tx, targets=targets, lot=lot):
                    return [lots.add(tx, stage.lots, new_lot(target, lot)) for target in sorted(targets)]

                positions += store.run(both)
            return positions

        def reader() -> list[int]:
            positions: list[int] = []
            for _ in range(200):
                positions += [
                    event.position for event in stage.events(sinks[0], after=len(positions), limit=3)
                ]
                assert positions == list(range(1, len(positions) + 1))
            return positions

        together(*(lambda n=n: publisher(n) for n in range(4)), reader)
        stage.check()
        assert sum(len(stage.events(sink)) for sink in sinks) == 4 * each * 2
