"""From a position to objects: of each lot the newest generation at or below it, read in pages and once."""

import random

import pytest

from tests.unit.lots_stage import Stage
from tidemill.errors import ManifestUnreadable, ObjectMissing
from tidemill.lots import lots, manifest
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, ManifestState, StoredObject
from tidemill.lots.states import LotState
from tidemill.objects.memory import MemoryObjects
from tidemill.views.steps import inputs
from tidemill.views.steps.failed_views import PassedLot
from tidemill.views.steps.inputs import InputReader, ManifestReader


class Counted(MemoryObjects):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.reads: list[str] = []

    def get(self, key: str):
        self.reads.append(key)
        return super().get(key)


class InputStage(Stage):
    def __init__(self) -> None:
        super().__init__(scan=False)
        self.objects = Counted(self.clock)
        self.inputs = InputReader(self.store, self.lots, ManifestReader(self.objects))
        self.chance = random.Random(3)

    def lot(self, dataset: DatasetId, number: int, generation: int = 0, state: str = "complete") -> int:
        lot = f"A{number:017}"
        key = f"m/{lot}/{generation}"
        body = Manifest(
            state=ManifestState(state),
            dataset=dataset.name,
            version="1",
            lot=lot,
            attempt="t",
            objects=[StoredObject(uri=f"o/{number}/{generation}")] if state == "complete" else [],
        )
        self.objects.put(key, manifest.encode(body))
        row = LotRow(
            dataset=dataset,
            lot=lot,
            generation=generation,
            state=LotState(state),
            manifest=key,
            attempt="t",
        )
        return self.run(lots.add, self.lots, row)


def named(slices) -> set[str]:
    return {item.uri.removeprefix("o/") for each in slices for item in each.objects}


@pytest.fixture
def stage() -> InputStage:
    return InputStage()


def test_a_position_contains_the_lots_that_were_current_there(
    stage: InputStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a plain model, on a history of new, replaced, emptied and removed lots; pages of three."""
    monkeypatch.setattr(inputs, "PAGE", 3)
    monkeypatch.setattr(inputs, "LOTS", 2)
    orders = stage.dataset()
    current: dict[int, tuple[int, str]] = {}
    history: list[dict[int, tuple[int, str]]] = [{}]
    for _ in range(60):
        number = stage.chance.randrange(1, 16)
        generation = current[number][0] + 1 if number in current else 0
        states = ["complete", "complete", "empty", *(["removed"] if generation else [])]
        state = stage.chance.choice(states)
        position = stage.lot(orders, number, generation, state)
        current[number] = (generation, state)
        history.append(dict(current))
        assert position == len(history) - 1

    def complete(lots_then: dict[int, tuple[int, str]], numbers=range(100)) -> set[str]:
        return {f"{n}/{lots_then[n][0]}" for n in numbers if lots_then.get(n, (0, ""))[1] == "complete"}

    for position, lots_then in enumerate(history):
        slices = stage.inputs.at(orders, position)
        assert named(slices) == complete(lots_then)
        assert all(each.position <= position for each in slices)
    for after in range(0, 61, 7):
        for to in range(after, 61, 5):
            touched = [n for n in range(100) if history[after].get(n) != history[to].get(n)]
            exchange = stage.inputs.between(orders, after, to)
            assert named(exchange.plus) == complete(history[to], touched)
            assert named(exchange.minus) == complete(history[after], touched)


def test_manifests_are_read_once_and_in_parallel(stage: InputStage) -> None:
    orders = stage.dataset()
    for number in range(1, 41):
        stage.lot(orders, number)
    assert len(stage.inputs.at(orders, 40)) == 40
    assert sorted(stage.objects.reads) == sorted({f"m/A{n:017}/0" for n in range(1, 41)})
    stage.inputs.at(orders, 40)
    stage.inputs.between(orders, 0, 40)
    assert len(stage.objects.reads) == 40


def test_a_reader_caches_a_limited_number_of_manifests_and_follows_roots(stage: InputStage) -> None:
    orders = stage.dataset()
    for number in range(1, 5):
        stage.lot(orders, number)
    keys = [f"m/A{n:017}/0" for n in range(1, 5)]
    root = Manifest(
        state=ManifestState.COMPLETE, dataset="orders", version="1", lot="x", attempt="t", parts=keys
    )
    stage.objects.put("root", manifest.encode(root))
    reader = ManifestReader(stage.objects, limit=2)
    assert [item.uri for item in reader.objects("root")] == ["o/1/0", "o/2/0", "o/3/0", "o/4/0"]
    stage.objects.reads.clear()
    reader.load(keys[3])
    reader.load(keys[0])
    reader.load(keys[3])
    assert stage.objects.reads == [keys[0]]


def test_a_missing_or_invalid_manifest_is_an_error(stage: InputStage) -> None:
    orders = stage.dataset()
    stage.lot(orders, 1)
    stage.objects.put("m/A00000000000000001/0", b"{")
    with pytest.raises(ManifestUnreadable):
        stage.inputs.at(orders, 1)
    stage.objects.delete("m/A00000000000000001/0")
    with pytest.raises(ObjectMissing):
        stage.inputs.at(orders, 1)


@pytest.mark.rule("DBSP-40")
def test_a_view_reads_other_generations_of_the_lots_that_it_passes_over(stage: InputStage) -> None:
    orders = stage.dataset()
    for number, generation in ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1)):
        stage.lot(orders, number, generation)
    slices = stage.inputs.at(orders, 5)
    passed = [
        PassedLot(orders, f"A{1:017}", 0),
        PassedLot(orders, f"A{2:017}", 1, 0),
        PassedLot(orders, f"A{3:017}", 0),  # the lot has a newer generation
        PassedLot(DatasetId("others", "1"), f"A{3:017}", 1),
    ]
    read = stage.inputs.passing_over(orders, slices, passed)
    assert named(read) == {"2/0", "3/1"}
    assert [each.position for each in read] == [each.position for each in slices[1:]]
