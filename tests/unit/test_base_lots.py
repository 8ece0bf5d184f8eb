"""Expired lots stay in the base lot: readers find all rows before, during and after a merge (LOT-39)."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.steps_stage import spec
from tests.unit.test_retention import DAY_S, Aging, AgingViews
from tidemill import crash
from tidemill.errors import HistoryExpired, LeaseLost, LotConflict, WriteMismatch
from tidemill.lots import base_lot, expiry, lots, owners
from tidemill.lots.base_lot import BaseLot
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.expiry import KeepPolicy
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.publish.cleaner import READERS_S
from tidemill.publish.parts import SinkWritten
from tidemill.publish.projections import Projections
from tidemill.publish.publisher import Publisher
from tidemill.runner import base_merges
from tidemill.runner.base_merges import BaseMerger, MergedBase
from tidemill.spark.lot_writer import Written
from tidemill.store import Tx
from tidemill.views.steps.inputs import InputReader, LotSlice, ManifestReader

STEPS = (
    "publish.merge-open",
    "publish.intent",
    "publish.part-manifest",
    "publish.merge-commit",
    "publish.merge-forget",
)
POINTS = [f"{step}.{when}" for step in STEPS for when in ("before", "after")]


class Based(Aging):
    """A stage whose table `orders` keeps the rows of expired lots."""

    def __init__(self) -> None:
        super().__init__()
        self.keep(self.orders, rows=True)
        self.reader = InputReader(self.store, self.lots, ManifestReader(self.objects))

    def merge(self, dataset: DatasetId | None = None) -> MergedBase | None:
        return BaseMerger(self.scope(self.me, emit=self.told.append), self._merge).merge(
            dataset or self.orders
        )

    def _merge(self, _: DatasetRow, slices: Sequence[LotSlice], prefix: str) -> Written:
        numbers = self.read(slices)
        if not numbers:
            return Written()
        info = self.objects.put(f"{prefix}merged.json", json.dumps(numbers).encode())
        stored = StoredObject(uri=info.key, size=info.size, rows=len(numbers), format="json")
        return Written((stored,), len(numbers))

    def replace(self, lot: str, rows: Sequence[int]) -> None:
        """Publish the next generation of a lot."""
        publisher = Publisher(self.scope(self.living("producer")))
        hold = publisher.begin_correction(self.orders, lot, self.scope().new_attempt())

        def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
            info = self.objects.put(f"{folders[self.orders]}0.json", json.dumps(rows).encode())
            stored = StoredObject(uri=info.key, size=info.size, rows=len(rows), format="json")
            return [SinkWritten(dataset=self.orders, objects=(stored,), rows=len(rows))]

        publisher.publish(hold, self.manifests.write_lot(hold, write, {}))

    def read(self, slices: Sequence[LotSlice]) -> list[int]:
        return sorted(
            number
            for part in slices
            for item in part.objects
            for number in json.loads(self.objects.get(item.uri)[0])
        )

    @property
    def head(self) -> int:
        return self.events(self.orders)[-1].position if self.events(self.orders) else self.expired.position

    @property
    def expired(self) -> expiry.Expired:
        return self.run(expiry.read, self.lots, self.orders)

    def all_numbers(self) -> list[int]:
        return self.read(self.reader.at(self.orders, self.head))

    def after_a_day(self) -> None:
        self.clock.advance(READERS_S + 1)
        self.me = self.living("n")
        self.clean_all()


@pytest.fixture
def stage() -> Based:
    return Based()


@pytest.mark.rule("LOT-39")
def test_a_table_that_keeps_rows_is_complete_before_and_after_a_merge(stage: Based) -> None:
    appended = stage.days(8)
    before = stage.all_numbers()
    projections = Projections(stage.scope(stage.me))
    for lot in appended:
        projections.lot(stage.orders, lot)
    assert stage.expire()["orders"].lots == 6
    assert stage.lots_of(stage.orders) == appended[6:]
    assert stage.all_numbers() == before
    merged = stage.merge()
    assert merged is not None
    assert (merged.lots, merged.position, merged.rows) == (6, 6, 12)
    assert stage.all_numbers() == before
    assert [part.lot for part in stage.reader.at(stage.orders, 8)] == ["base", *appended[6:]]
    stage.after_a_day()
    assert stage.all_numbers() == before
    assert not [key for key in stage.keys_under("") if any(f"lot={lot}/" in key for lot in appended[:6])]
    assert stage.run(base_lot.parts, stage.lots, stage.orders, 0) == []
    change = stage.reader.between(stage.orders, 0, 8)
    assert stage.read(change.plus) == before
    with pytest.raises(HistoryExpired):
        stage.reader.between(stage.orders, 5, 8)
    with pytest.raises(HistoryExpired, match="at position 5"):
        stage.reader.at(stage.orders, 5)


def test_few_expired_lots_do_not_rewrite_a_large_base(stage: Based, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.append(range(500))
    stage.days(5)
    stage.expire()
    assert stage.merge() is not None
    stage.days(9)
    stage.expire()
    assert stage.merge() is None
    monkeypatch.setattr(base_merges, "MANY_PARTS", 9)
    assert stage.merge() is None, "they have less than a quarter of the size of the base"
    monkeypatch.setattr(base_merges, "MOST_PARTS", 9)
    assert stage.merge() is not None
    assert stage.all_numbers() == sorted(
        [*range(500), *(n + m for k in (5, 9) for n in range(k) for m in (0, 1))]
    )


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize("point", POINTS)
def test_a_death_during_a_merge_loses_nothing_and_leaves_nothing(stage: Based, point: str) -> None:
    stage.days(8)
    before = stage.all_numbers()
    stage.expire()
    with crash.armed(point), pytest.raises(crash.Crashed):
        stage.merge()
    assert stage.all_numbers() == before
    stage.after_a_day()
    stage.merge()
    assert stage.all_numbers() == before
    for _ in range(2):
        stage.after_a_day()
    base = stage.run(base_lot.read, stage.lots, stage.orders)
    roots = [base.manifest, *(row.manifest for row in stage.rows_of(stage.orders))]
    listed = {item.uri for key in roots for item in stage.manifests.lot_objects(key)}
    assert base.position == 6
    assert set(stage.keys_under("data/")) == listed
    assert stage.all_numbers() == before


@pytest.mark.rule("LOT-39")
def test_a_merge_of_a_stale_node_changes_nothing(stage: Based) -> None:
    stage.days(8)
    before = stage.all_numbers()
    stage.expire()

    def dies(*args: Any) -> Written:
        stage.kill(stage.me)
        return stage._merge(*args)

    with pytest.raises(LeaseLost):
        BaseMerger(stage.scope(stage.me), dies).merge(stage.orders)
    assert stage.run(base_lot.read, stage.lots, stage.orders).generation == 0
    assert stage.all_numbers() == before


@pytest.mark.rule("LOT-39")
def test_a_merge_that_was_overtaken_is_refused(stage: Based) -> None:
    stage.days(8)
    stage.expire()
    publisher = Publisher(stage.scope(stage.me))
    hold = publisher.begin_merge(stage.orders, BaseLot(), stage.scope().new_attempt())
    assert hold is not None
    stale = BaseLot(position=3, generation=1, manifest="none")

    def overtake(tx: Tx) -> None:
        base_lot.replace(tx, stage.lots, stage.orders, BaseLot(), BaseLot(position=6, generation=1))

    stage.store.run(overtake)
    with pytest.raises(LotConflict):
        publisher.commit_merge(hold, stage.orders, BaseLot(), stale)
    assert publisher.begin_merge(stage.orders, BaseLot(), stage.scope().new_attempt()) is None


def test_the_files_of_a_replaced_base_are_deleted(stage: Based, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_merges, "MANY_PARTS", 2)
    for _ in range(3):
        stage.days(9)
        stage.expire()
        assert stage.merge() is not None
    stage.after_a_day()
    base = stage.run(base_lot.read, stage.lots, stage.orders)
    assert base.generation == 3
    kept = [item.uri for item in stage.manifests.lot_objects(base.manifest)]
    assert [key for key in stage.keys_under("data/") if "lot=base/" in key] == kept
    assert [key for key in stage.keys_under("datasets/") if "lot=base/" in key] == [base.manifest]


@pytest.mark.rule("LOT-39")
def test_a_base_that_lacks_rows_does_not_let_lots_expire(stage: Based) -> None:
    """Rows expired before the table kept them, so a view that reads the whole table holds its lots."""
    views = AgingViews()
    views.declare(spec("g", views.orders))
    views.keep(views.orders)
    views.go(4)
    views.clock.advance(4 * DAY_S)
    assert views.retention().expire()[0].lots == 4
    views.me = views.node("me", 10**15)
    views.whole = frozenset({views.orders})
    views.keep(views.orders, rows=True)
    views.go(3)
    views.clock.advance(4 * DAY_S)
    (held,) = views.retention().expire()
    assert held.lots == 0
    assert "whole table" in held.held_by


def test_files_with_other_rows_are_not_published(stage: Based) -> None:
    stage.days(8)
    stage.expire()

    def wrong(*_: Any) -> Written:
        raise WriteMismatch("the merged files do not have the same rows")

    with pytest.raises(WriteMismatch):
        BaseMerger(stage.scope(stage.me), wrong).merge(stage.orders)
    assert stage.run(base_lot.read, stage.lots, stage.orders).generation == 0
    assert stage.merge() is not None, "the failed attempt does not block the next"


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_table_that_stops_keeping_rows_removes_its_base(stage: Based, when: str) -> None:
    stage.days(8)
    stage.expire()
    stage.merge()
    stage.days(3)
    stage.expire()
    stage.keep(stage.orders)
    with crash.armed(f"retention.remove-base.{when}"), pytest.raises(crash.Crashed):
        stage.expire()
    stage.expire()
    with pytest.raises(HistoryExpired):
        stage.all_numbers()
    kept = stage.reader.at(stage.orders, stage.head, complete=False)
    assert [part.lot for part in kept] == stage.lots_of(stage.orders)
    stage.after_a_day()
    assert not [key for key in stage.keys_under("data/") if "lot=base/" in key]
    stage.keep(stage.orders, rows=True)
    stage.days(4)
    stage.expire()
    with pytest.raises(HistoryExpired):
        stage.all_numbers()


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize("seed", range(4))
def test_appends_corrections_expiry_merges_and_readers_in_any_order_lose_nothing(seed: int) -> None:
    stage, chance, numbers = Based(), random.Random(seed), iter(range(10**6))
    expected: Counter[int] = Counter()
    content: dict[str, list[int]] = {}
    readers: list[tuple[float, list[LotSlice], list[int]]] = []

    def append() -> None:
        rows = [next(numbers) for _ in range(chance.randrange(0, 4))]
        content[stage.append(rows)] = rows
        expected.update(rows)

    def correct() -> None:
        rows = stage.rows_of(stage.orders)
        if rows:
            lot, new = chance.choice(rows).lot, [next(numbers)]
            stage.replace(lot, new)
            expected.subtract(content[lot])
            content[lot] = new
            expected.update(new)

    def expire() -> None:
        stage.me = stage.living("n")
        stage.expire()

    def merge() -> None:
        stage.me = stage.living("n")
        points = [point for point in POINTS if chance.random() < 0.1]
        try:
            with crash.armed(points[0]) if points else crash.armed("none"):
                stage.merge()
        except crash.Crashed:
            pass

    def clean() -> None:
        stage.me = stage.living("n")
        stage.clean_all()

    def read() -> None:
        slices = stage.reader.at(stage.orders, stage.head)
        rows = stage.read(slices)
        assert rows == sorted(expected.elements())
        readers.append((stage.clock.monotonic() + READERS_S, slices, rows))

    for _ in range(120):
        chance.choice([append, append, append, correct, expire, merge, clean, read])()
        stage.clock.advance(chance.choice([1.0, 3600.0, DAY_S / 2]))
        now = stage.clock.monotonic()
        readers = [reader for reader in readers if reader[0] > now]
        for _, slices, rows in readers:
            assert stage.read(slices) == rows
    read()
    assert stage.expired.lots > 10
    assert stage.run(base_lot.read, stage.lots, stage.orders).generation


@pytest.mark.rule("LOT-39")
def test_a_view_is_built_from_the_base_and_whole_reads_hold_nothing() -> None:
    stage = AgingViews()
    stage.declare(spec("g", stage.orders))
    stage.keep(stage.orders, rows=True)
    stage.whole = frozenset({stage.orders})
    stage.go(10)
    stage.clock.advance(4 * DAY_S)
    (expired,) = stage.retention().expire()
    assert expired.lots == 10, "a view that reads the whole table reads the base"
    stage.me = stage.node("me", 10**15)
    stage.declare(spec("g", stage.orders, code="2"), spec("h", stage.orders), circuit="2")
    stage.settle(stage.me, "h")
    stage.go(2)
    assert stage.group("g").stale == stage.group("h").stale == frozenset()


@pytest.mark.rule("LOT-39")
def test_the_longest_time_of_all_pipelines_counts(stage: Based) -> None:
    lot_keys, orders = stage.lots, stage.orders

    def declare(pipeline: str, keep: KeepPolicy | None) -> dict[DatasetId, KeepPolicy]:
        stage.run(owners.declare, lot_keys, orders, pipeline)
        stage.run(expiry.set_keep, lot_keys, pipeline, {orders: keep})
        return stage.run(expiry.policies, lot_keys)

    stage.keep(orders, None)
    assert declare("a", KeepPolicy(5)) == {orders: KeepPolicy(5)}
    assert declare("b", KeepPolicy(9, rows=True)) == {orders: KeepPolicy(9, rows=True)}
    assert declare("a", KeepPolicy(7)) == {orders: KeepPolicy(9, rows=True)}, "the policy of b stays"
    assert declare("b", None) == {}, "b keeps the lots for ever"
    stage.run(owners.retire, lot_keys, orders, "b")
    assert stage.run(expiry.policies, lot_keys) == {orders: KeepPolicy(7)}
    assert stage.run(expiry.policies, lot_keys, "a", {orders: None}) == {}
    stage.run(owners.retire, lot_keys, orders, "a")
    stage.run(expiry.set_keep, lot_keys, "a", {})
    assert stage.run(expiry.policies, lot_keys) == {}


def test_a_policy_that_an_earlier_release_stored_counts_until_a_pipeline_declares_its_own(
    stage: Based,
) -> None:
    key = stage.lots.keep[stage.cleaned.parts]
    stage.store.run(lambda tx: tx.set(key, b"\x07"))
    stage.run(owners.declare, stage.lots, stage.cleaned, "a")
    assert stage.run(expiry.policies, stage.lots)[stage.cleaned] == KeepPolicy(7)
    stage.run(expiry.set_keep, stage.lots, "a", {stage.cleaned: KeepPolicy(8)})
    assert stage.run(expiry.policies, stage.lots)[stage.cleaned] == KeepPolicy(8)
    assert stage.store.run(lambda tx: tx.get(key)) is None


def test_an_expired_lot_cannot_be_corrected(stage: Based) -> None:
    appended = stage.days(8)
    stage.expire()
    with pytest.raises(HistoryExpired):
        stage.add(stage.orders, appended[0], 1)
    assert not stage.run(lots.exists, stage.lots, stage.orders, appended[0])
