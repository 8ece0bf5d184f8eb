"""Old lots and changes expire; whatever a subscriber, a reader or a step still needs stays (LOT-39)."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.arcs_stage import ArcStage
from tests.unit.steps_stage import P, spec
from tests.unit.test_steps_collecting import Files
from tidemill import crash
from tidemill.arcs import declarations
from tidemill.arcs.gaps import Gaps
from tidemill.arcs.inventory import Inventory
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import HistoryExpired, LeaseLost, LotUnknown
from tidemill.lots import expiry, lots
from tidemill.lots.expiry import KeepPolicy
from tidemill.lots.keys import DatasetId
from tidemill.publish.cleaner import READERS_S
from tidemill.publish.projections import Projections
from tidemill.runner.retention import Retention, TableExpiry, lower_bound
from tidemill.store import Space
from tidemill.triggers import subscriptions
from tidemill.views.steps import groups, records, step_expiry
from tidemill.views.steps.collector import GRACE_S
from tidemill.views.steps.commits import StepBatch, StepOutput, StepState, WholeReads
from tidemill.views.steps.inputs import InputReader, ManifestReader
from tidemill.views.steps.keys import StepKeys, changes_of, group_source

DAY_S = 24 * 3600.0
DAY_US = int(DAY_S * 1_000_000)
KEYS = StepKeys("c")


class Aging(ArcStage):
    """A stage whose lots expire after two days and a half."""

    def __init__(self) -> None:
        super().__init__(scan=True)
        self.me = self.living("n")
        self.spec = self.clean()

    def keep(self, dataset: DatasetId, days: float | None = 2.5, *, rows: bool = False) -> None:
        keep = None if days is None else KeepPolicy(int(days * DAY_US), rows)
        self.run(expiry.set_keep, self.lots, f"pipeline of {dataset}", {dataset: keep})

    def retention(self) -> Retention:
        return Retention(self.scope(self.me, emit=self.told.append))

    def days(self, count: int, *groups: Any) -> list[str]:
        """Append one lot each day."""
        appended = []
        for n in range(count):
            appended.append(self.append(*(groups or ([n, n + 1],))))
            self.clock.advance(DAY_S)
        return appended

    def expire(self, **options: Any) -> dict[str, TableExpiry]:
        expired = {table.table: table for table in self.retention().expire(**options)}
        self.check()
        return expired

    def clean_all(self) -> None:
        cleaner = self.cleaner(self.me)
        while cleaner.clean():
            pass

    def everything(self) -> tuple[dict[bytes, bytes], list[str]]:
        rows = self.store.run(lambda tx: tx.range(*Space("c").all(), snapshot=True))
        return {row.key: row.value for row in rows}, self.keys_under("")

    def lots_of(self, dataset: DatasetId) -> list[str]:
        return [row.lot for row in self.rows_of(dataset)]

    def subscribe_arc(self) -> None:
        self.run(declarations.declare, self.keys, self.spec)
        self.subscribe(self.spec.id, self.orders)


@pytest.fixture
def stage() -> Aging:
    return Aging()


@pytest.mark.rule("LOT-39")
def test_lots_expire_when_they_are_old_and_their_files_are_deleted_a_day_later(stage: Aging) -> None:
    stage.keep(stage.orders)
    appended = stage.days(10)
    projections = Projections(stage.scope(stage.me))
    for lot in appended:
        projections.lot(stage.orders, lot)
    files = set(stage.keys_under(""))
    assert stage.expire()["orders"].lots == 8
    assert stage.lots_of(stage.orders) == appended[8:]
    assert stage.run(expiry.read, stage.lots, stage.orders).position == 8
    assert set(stage.keys_under("")) == files, "a reader may have listed them"
    stage.clean_all()
    kept = {key for key in stage.keys_under("data/") if any(f"lot={lot}/" in key for lot in appended[:8])}
    assert len(kept) == 8
    stage.clock.advance(READERS_S)
    stage.me = stage.living("n")
    stage.clean_all()
    assert not [key for key in stage.keys_under("") if any(f"lot={lot}/" in key for lot in appended[:8])]
    assert stage.table(stage.orders).keys() == set(appended[8:])
    assert stage.rows(stage.orders, appended[8]) == [8, 9]
    assert stage.append([1]) not in appended
    assert [event.position for event in stage.events(stage.orders)] == [9, 10, 11]


@pytest.mark.rule("LOT-39")
def test_a_dataset_without_keep_keeps_everything(stage: Aging) -> None:
    stage.days(5)
    assert stage.expire() == {}
    stage.keep(stage.orders)
    stage.keep(stage.orders, None)
    assert stage.expire() == {}


@pytest.mark.rule("LOT-39")
def test_a_dry_run_changes_nothing_and_lists_what_expires(stage: Aging) -> None:
    stage.keep(stage.orders)
    stage.days(60)
    before = stage.everything()
    planned = stage.expire(dry_run=True)
    assert stage.everything() == before
    assert planned["orders"].lots == 58
    assert stage.expire() == planned
    assert stage.expire() == {}


@pytest.mark.rule("LOT-39")
def test_lots_that_an_arc_has_not_read_stay(stage: Aging) -> None:
    stage.keep(stage.orders)
    stage.subscribe_arc()
    appended = stage.days(6)
    held = stage.expire()["orders"]
    assert (held.lots, held.held_by) == (0, stage.spec.id)
    stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert stage.expire()["orders"].lots == 4
    assert stage.lots_of(stage.orders) == appended[4:]
    arc_rows = stage.store.run(lambda tx: tx.range(*stage.keys.lot.under(stage.spec.id)))
    assert {stage.keys.lot.unpack(row.key)[1] for row in arc_rows} == set(appended[4:])
    assert stage.table(stage.cleaned).keys() == set(appended), "the lots that the arc wrote have no keep="


@pytest.mark.rule("LOT-39")
def test_the_inputs_of_a_failed_lot_stay_until_it_is_made(stage: Aging) -> None:
    stage.keep(stage.orders)
    stage.subscribe_arc()
    appended = stage.days(6)
    worker = stage.worker(stage.me)
    stage.parts.failing[3] = 99  # one of the numbers of lots 2 and 3
    stage.drain(stage.spec, worker, stage.me)
    stage.parts.failing.clear()
    held = stage.expire()["orders"]
    assert held.lots == 2
    assert appended[2] in held.held_by
    assert stage.lots_of(stage.orders) == appended[2:]


@pytest.mark.rule("LOT-39")
def test_a_registered_consumer_keeps_what_it_has_not_read(stage: Aging) -> None:
    stage.keep(stage.orders)
    appended = stage.days(6)
    stage.run(expiry.set_consumer, stage.lots, stage.orders, "export", 2)
    assert stage.expire()["orders"].held_by == "consumer export"
    assert stage.lots_of(stage.orders) == appended[2:]
    stage.run(expiry.set_consumer, stage.lots, stage.orders, "export", 6)
    stage.expire()
    assert stage.lots_of(stage.orders) == appended[4:]
    assert stage.run(expiry.remove_consumer, stage.lots, stage.orders, "export")
    assert not stage.run(expiry.remove_consumer, stage.lots, stage.orders, "export")


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize("read_to", [4, 7])
def test_a_replaced_generation_stays_until_its_replacement_was_read(stage: Aging, read_to: int) -> None:
    """A step that exchanges two generations reads both."""
    stage.keep(stage.orders)
    appended = stage.days(4)
    stage.correct(appended[1], 1, [7])  # appends a lot at position 5, and publishes the generation at 6
    stage.append([9])
    stage.clock.advance(4 * DAY_S)
    stage.run(expiry.set_consumer, stage.lots, stage.orders, "view", read_to)
    reader = InputReader(stage.store, stage.lots, ManifestReader(stage.objects))
    stage.expire()
    if read_to == 4:
        assert stage.run(expiry.read, stage.lots, stage.orders).position == 1
        change = reader.between(stage.orders, 4, 7)
        assert [part.lot for part in change.minus] == [appended[1]]
    else:
        assert stage.run(expiry.read, stage.lots, stage.orders).position == 7
        assert stage.lots_of(stage.orders) == []
        with pytest.raises(HistoryExpired):
            reader.between(stage.orders, 4, 7)


@pytest.mark.rule("LOT-39")
def test_changes_that_have_not_expired_find_the_generation_that_they_replace(stage: Aging) -> None:
    """A reader that is no registered consumer can read from any position that has not expired."""
    stage.keep(stage.orders)
    appended = stage.days(4)
    stage.correct(appended[1], 1, [7])  # replaces position 2 with position 6, which is young
    stage.expire()
    expired = stage.run(expiry.read, stage.lots, stage.orders).position
    reader = InputReader(stage.store, stage.lots, ManifestReader(stage.objects))
    change = reader.between(stage.orders, max(expired, 4), 6)
    assert [part.lot for part in change.minus] == [appended[1]]
    assert appended[1] in [part.lot for part in reader.at(stage.orders, 5, complete=False)]
    stage.clock.advance(4 * DAY_S)
    stage.expire()
    assert stage.lots_of(stage.orders) == []


@pytest.mark.rule("LOT-39")
def test_a_replaced_generation_that_expires_during_a_read_is_a_typed_error(stage: Aging) -> None:
    stage.keep(stage.orders)
    appended = stage.days(4)
    stage.correct(appended[1], 1, [7])
    stage.clock.advance(4 * DAY_S)

    def first_two(tx: Any) -> None:
        page = expiry.expiring(tx, stage.lots, stage.orders, 0, before=tx.now(), bound=6, limit=2)
        expiry.expire(tx, stage.lots, stage.orders, page)

    stage.store.run(first_two)
    reader = InputReader(stage.store, stage.lots, ManifestReader(stage.objects))
    with pytest.raises(HistoryExpired, match="replaced after position 4"):
        reader.between(stage.orders, 4, 6)
    assert appended[1] not in [part.lot for part in reader.at(stage.orders, 5, complete=False)]


@pytest.mark.rule("LOT-39", "LOT-43")
def test_lots_that_many_arcs_read_expire_in_transactions_of_limited_size(stage: Aging) -> None:
    stage.keep(stage.orders)
    stage.days(60)
    for number in range(40):
        spec = stage.clean(name=f"clean{number}")
        stage.run(declarations.declare, stage.keys, spec)
        terms = subscriptions.Terms(sources=(stage.orders,))
        at = {stage.orders: 60}
        stage.run(subscriptions.subscribe, stage.triggers, stage.lots, spec.id, terms, at)
    assert stage.retention().expire()[0].lots == 58


@pytest.mark.rule("LOT-39")
def test_a_node_without_a_lease_expires_nothing(stage: Aging) -> None:
    stage.keep(stage.orders)
    appended = stage.days(6)
    stage.kill(stage.me)
    with pytest.raises(LeaseLost):
        stage.expire()
    assert stage.lots_of(stage.orders) == appended


@pytest.mark.rule("LOT-39")
def test_what_needs_expired_lots_is_refused(stage: Aging) -> None:
    stage.keep(stage.orders)
    appended = stage.days(6)
    stage.expire()
    reader = InputReader(stage.store, stage.lots, ManifestReader(stage.objects))
    with pytest.raises(HistoryExpired, match="4 lots of orders"):
        reader.at(stage.orders, 6)
    assert [part.lot for part in reader.at(stage.orders, 6, complete=False)] == appended[4:]
    with pytest.raises(HistoryExpired, match="up to position 4"):
        reader.between(stage.orders, 3, 6)
    assert [part.lot for part in reader.between(stage.orders, 4, 6).plus] == appended[4:]
    with pytest.raises(LotUnknown):
        stage.run(lots.resolve, stage.lots, stage.orders, appended[0], 0)
    with pytest.raises(HistoryExpired, match="cannot be replaced"):
        stage.add(stage.orders, appended[0], 1)


@pytest.mark.rule("LOT-39")
def test_a_correction_does_not_bring_an_expired_output_back(stage: Aging) -> None:
    """Views have kept the rows of the expired lot, so a new generation would count them twice."""
    stage.keep(stage.cleaned)
    stage.keep(stage.odd)
    stage.subscribe_arc()
    appended = stage.days(6)
    stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    stage.clock.advance(4 * DAY_S)
    stage.me = stage.living("n")
    stage.expire()
    assert stage.lots_of(stage.cleaned) == []
    assert Gaps(Inventory(stage.store, stage.keys, [stage.spec])).of(stage.cleaned).gaps == ()
    stage.correct(appended[1], 1, [7])
    stage.drain(stage.spec, stage.worker(stage.me), stage.me)
    assert appended[1] not in stage.lots_of(stage.cleaned)


def test_a_reader_that_lists_while_lots_expire_sees_all_of_them_or_none(stage: Aging) -> None:
    stage.keep(stage.orders)
    appended = stage.days(6)
    reader = InputReader(stage.store, stage.lots, ManifestReader(stage.objects))
    listed, page = [], reader._page

    def interrupted(*args: Any) -> Any:
        answer = page(*args)
        listed.append(answer)
        return answer

    def expire_once(dataset: DatasetId) -> Any:
        expired = InputReader._expired(reader, dataset)
        if len(listed) == 1 and not expired[0].position:
            stage.retention().expire()
            return InputReader._expired(reader, dataset)
        return expired

    reader._page = interrupted  # type: ignore[method-assign]
    reader._expired = expire_once  # type: ignore[method-assign]
    assert [part.lot for part in reader.at(stage.orders, 6, complete=False)] == appended[4:]
    assert len(listed) == 2, "it read again"


@pytest.mark.rule("LOT-39")
def test_an_expired_lot_with_an_unreadable_part_does_not_keep_the_files_of_others(stage: Aging) -> None:
    stage.keep(stage.cleaned)
    made = [stage.append([1, 2], [3, 4]), stage.append([5, 6], [7, 8])]
    for lot in made:
        stage.worker(stage.me).work(stage.spec, lot)
    damaged = stage.rows_of(stage.cleaned)[0]
    part = stage.manifests.load(damaged.manifest).parts[0]
    stage.objects.put(part, b"no manifest")
    stage.clock.advance(4 * DAY_S)
    stage.me = stage.living("n")
    assert stage.expire()["cleaned"].lots == 2
    stage.clock.advance(READERS_S + 1)
    stage.me = stage.living("n")
    stage.cleaner(stage.me).remove_retired()
    data = [key for key in stage.keys_under("data/") if "name=cleaned/" in key]
    assert {lot for lot in made for key in data if f"lot={lot}/" in key} == {damaged.lot}
    retired = stage.store.run(lambda tx: tx.range(*stage.lots.retired.all()))
    assert len(retired) == 1, "a later cleaner tries again"


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize(
    "point",
    [
        "retention.expire.before",
        "retention.expire.after",
        "publish.retire-data.before",
        "publish.retire-data.after",
        "publish.retire-parts.before",
        "publish.retire-parts.after",
        "publish.retire-manifest.before",
        "publish.retire-manifest.after",
        "publish.retired.before",
        "publish.retired.after",
    ],
)
def test_a_death_at_any_point_leaves_nothing_after_the_next_vacuum(stage: Aging, point: str) -> None:
    stage.keep(stage.orders)
    appended = stage.days(6)
    projections = Projections(stage.scope(stage.me))
    for lot in appended:
        projections.lot(stage.orders, lot)

    def vacuum() -> None:
        stage.expire()
        stage.clock.advance(READERS_S + 1)
        stage.me = stage.living("n")
        stage.clean_all()

    died = False
    try:
        with crash.armed(point, visit=2 if "expire" not in point else 1):
            vacuum()
    except crash.Crashed:
        died = True
    assert died
    stage.me = stage.living("n")
    vacuum()
    assert not [key for key in stage.keys_under("") if any(f"lot={lot}/" in key for lot in appended[:4])]
    assert stage.store.run(lambda tx: tx.range(*stage.lots.retired.all())) == []


# --- views


class AgingViews(Files):
    """Views whose changes expire after three days."""

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepOutput | StepState | WholeReads, ...]:
        return (*super().compute(batch, attempt), WholeReads(datasets=self.whole))

    whole: frozenset[DatasetId] = frozenset()

    def retention(self) -> Retention:
        self.me = self.node("me", 10**15)
        return Retention(self.scope(self.me))

    def keep(self, dataset: DatasetId, days: float = 3, *, rows: bool = False) -> None:
        keep = KeepPolicy(int(days * DAY_US), rows)
        self.run(expiry.set_keep, self.lots, f"pipeline of {dataset}", {dataset: keep})

    def counts(self) -> Mapping[str, int]:
        spaces = {"commits": self.keys.step, "records": self.keys.record, "ranges": self.keys.range}
        rows = {name: self.store.run(lambda tx, s=s: tx.range(*s.all())) for name, s in spaces.items()}
        return {name: len(stored) for name, stored in rows.items()}

    def bound(self) -> int:
        return self.store.run(lambda tx: lower_bound(tx, KEYS, ArcKeys("c"), self.orders)).position


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> AgingViews:
    monkeypatch.setattr(step_expiry, "KEPT_COMMITS", 5)
    stage = AgingViews()
    stage.declare(spec("g", stage.orders))
    return stage


@pytest.mark.rule("LOT-39", "DBSP-30")
def test_the_changes_of_a_view_expire_and_its_table_stays(views: AgingViews) -> None:
    views.keep(changes_of(P, "g"))
    views.go(30)
    views.clock.advance(4 * DAY_S)
    table = views.group("g").tables["g"]
    needed = views.needed(table)
    files = views.files()
    (expired,) = views.retention().expire(dry_run=True)
    assert views.retention().expire() == [expired]
    assert expired.lots == 26
    assert views.counts()["commits"] == 5
    assert views.counts()["records"] <= 7
    assert views.counts()["ranges"] <= 7
    assert views.files() == files, "a reader may have listed the changes"
    with pytest.raises(HistoryExpired):
        views.run(expiry.check_position, views.lots, group_source(P, "g"), expired.position - 1, "g")
    views.run(expiry.check_position, views.lots, group_source(P, "g"), expired.position, "g")
    views.clock.advance(DAY_S + 1)
    views.retention().expire()
    views.clean()
    views.collect()
    assert views.needed(table) == needed <= views.files()
    changes = {key for key in views.files() if "version=changes" in key and key.endswith(".parquet")}
    assert len(changes) <= 5 + 3, "of the last steps, and those that the table lists"
    views.me = views.node("me", 10**15)
    views.go(3)
    assert views.group("g").step == 34
    positions = views.run(records.positions_at, views.keys, P, [views.orders], views.group("g").step)
    assert positions[views.orders] == 33


@pytest.mark.rule("LOT-39", "DBSP-30")
def test_the_position_of_a_dataset_without_new_lots_does_not_expire(views: AgingViews) -> None:
    """Otherwise the next step would read the dataset again from its beginning."""
    rates = views.dataset("rates")
    views.declare(spec("g", views.orders, rates), circuit="2")
    views.keep(changes_of(P, "g"))
    views.publish(rates)
    views.go(30)
    views.clock.advance(4 * DAY_S)
    (expired,) = views.retention().expire()
    assert expired.lots > 20
    step = views.group("g").step
    assert views.run(records.positions_at, views.keys, P, [rates], step)[rates] == 1


@pytest.mark.rule("LOT-39")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["retention.steps", "retention.records"])
def test_a_death_while_steps_expire_leaves_nothing_after_the_next_vacuum(
    views: AgingViews, step: str, when: str
) -> None:
    views.keep(changes_of(P, "g"))
    views.go(30)
    views.clock.advance(4 * DAY_S)
    with crash.armed(f"{step}.{when}"), pytest.raises(crash.Crashed):
        views.retention().expire()
    for _ in range(2):
        views.retention().expire()
        views.clock.advance(DAY_S + 1)
    views.clean()
    views.collect()
    assert views.counts()["commits"] == 5
    assert max(views.counts().values()) <= 7
    table = views.group("g").tables["g"]
    assert views.needed(table) <= views.files()
    changes = {key for key in views.files() if "version=changes" in key and key.endswith(".parquet")}
    assert len(changes) <= 5 + 3


@pytest.mark.rule("LOT-39")
def test_a_view_without_keep_keeps_the_changes_of_its_whole_group(views: AgingViews) -> None:
    views.go(20)
    views.clock.advance(9 * DAY_S)
    assert views.retention().expire() == []
    views.run(expiry.set_consumer, views.lots, changes_of(P, "g"), "follower", 4)
    views.keep(changes_of(P, "g"))
    (expired,) = views.retention().expire()
    assert (expired.position, expired.held_by) == (4, "consumer follower")


@pytest.mark.rule("LOT-39")
def test_the_lots_that_a_group_needs_stay(views: AgingViews) -> None:
    views.keep(views.orders)
    views.go(10)
    assert views.bound() == 10
    views.publish(views.orders)
    assert views.bound() == 10, "the group has not read the last lot"
    views.whole = frozenset({views.orders})
    views.settle(views.me, "g")
    assert views.bound() == 0, "the group reads the whole table in each step"
    views.whole = frozenset()
    views.go(1)
    assert views.bound() == 12
    views.declare(spec("g", views.orders, code="2"), circuit="2")
    assert views.bound() == 0, "the group has to build a view"
    views.settle(views.me, "g")
    assert views.bound() == 12


@pytest.mark.rule("LOT-39")
def test_a_view_cannot_be_built_from_a_table_with_expired_lots(views: AgingViews) -> None:
    views.keep(views.orders)
    views.go(10)
    views.clock.advance(4 * DAY_S)
    (expired,) = views.retention().expire()
    assert expired.lots == 10
    for changed in (spec("g", views.orders, code="2"), spec("h", views.orders)):
        with pytest.raises(HistoryExpired):
            views.run(groups.declare, views.keys, P, changed)
    views.declare(spec("g", views.orders))
    views.me = views.node("me", 10**15)
    views.go(2)
    assert views.group("g").tables


@pytest.mark.rule("LOT-39", "DBSP-37")
@pytest.mark.parametrize("seed", range(3))
def test_steps_readers_and_vacuums_in_any_order_lose_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers hold a table or a list of changes for up to a day; steps go on; a vacuum runs at any time."""
    monkeypatch.setattr(step_expiry, "KEPT_COMMITS", 5)
    stage, chance = AgingViews(), random.Random(seed)
    stage.declare(spec("g", stage.orders), spec("h", stage.orders))
    for view in ("g", "h"):
        stage.keep(changes_of(P, view), 1)
    stage.keep(stage.orders, 1)
    readers: list[tuple[float, set[str]]] = []
    collector = stage.collector()

    def step() -> None:
        stage.me = stage.node("me", 10**15)
        stage.publish(stage.orders)
        for name in ("g", "h"):
            if chance.random() < 0.8:
                stage.settle(stage.me, name)

    def read() -> None:
        name = chance.choice(["g", "h"])
        rows = stage.rows_of_group(name)
        if not rows:
            return
        manifests = {output.changes for row in rows for output in row.outputs}
        objects = {item.uri for key in manifests for item in ManifestReader(stage.objects).objects(key)}
        readers.append((stage.clock.monotonic() + DAY_S - GRACE_S, manifests | objects))

    def vacuum() -> None:
        stage.retention().expire()
        collector.collect(pages=chance.randrange(1, 4))

    def clean() -> None:
        stage.clean()

    for _ in range(90):
        chance.choice([step, step, step, read, vacuum, clean])()
        stage.clock.advance(chance.choice([1.0, 600.0, 6 * 3600.0]))
        now = stage.clock.monotonic()
        readers = [reader for reader in readers if reader[0] > now]
        files = stage.files()
        for _, needed in readers:
            assert needed <= files
        for name in ("g", "h"):
            for table in stage.group(name).tables.values():
                assert stage.needed(table) <= files
    assert stage.run(expiry.read, stage.lots, group_source(P, "g")).position > 0
    assert stage.run(expiry.read, stage.lots, stage.orders).position > 0
