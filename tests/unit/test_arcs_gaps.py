"""Gaps: expected lots that are missing, classified, and followed upstream to their cause."""

import pytest

from tests.unit.arcs_stage import lapse
from tests.unit.life_stage import LifeStage
from tests.unit.lots_stage import FIVE_MINUTES, SECOND_US
from tidemill.arcs import gaps as gaps_module
from tidemill.arcs import inventory as inventory_module
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.gaps import Coverage, Gaps, GapState
from tidemill.arcs.inventory import Inventory, Span
from tidemill.arcs.work import LotEnd
from tidemill.lots import ids, staging
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.keys import DatasetId
from tidemill.lots.states import LotState
from tidemill.publish.parts import PartSink
from tidemill.store import Store
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.terms import CatchUp


def gaps(stage: LifeStage, table: DatasetId, *specs: ArcSpec, span: Span = Span()) -> Coverage:  # noqa: B008
    return Gaps(Inventory(stage.store, stage.keys, specs, span)).of(table)


def told(coverage: Coverage) -> dict[str, tuple[str, str, str]]:
    """Of each gap its state, and the table and the state of its cause."""
    return {gap.lot: (gap.state, gap.cause.table, gap.cause.state) for gap in coverage.gaps}


@pytest.mark.rule("LOT-32")
def test_each_gap_has_its_class_and_its_cause_is_looked_for_upstream():
    stage = LifeStage()
    clean, sum_ = stage.clean(max_concurrent=9), stage.sum()
    specs = (clean, sum_)
    names = ("done", "empty", "partial", "missing", "running", "lost", "below", "absent")
    rows = {name: [] if name == "empty" else [number, number + 30] for number, name in enumerate(names)}
    lots = {name: stage.append(rows[name]) if rows[name] else stage.append() for name in names}
    worker = stage.worker(stage.living())
    for name in ("done", "empty", "below"):
        worker.work(clean, lots[name])
    for name in ("done", "empty"):
        worker.work(sum_, lots[name])
    stage.parts.failing[rows["partial"][0]] = 9
    worker.work(clean, lots["partial"])
    manifest = next(row for row in stage.rows_of(stage.orders) if row.lot == lots["missing"]).manifest
    stage.objects.delete(manifest)
    worker.work(clean, lots["missing"])

    class Died(BaseException):
        pass

    def die(task) -> None:
        raise Died

    for name, node in (("lost", stage.node("gone", SECOND_US)), ("running", stage.living("alive"))):
        stage.parts.between = die
        with pytest.raises(Died):
            stage.worker(node).work(clean, lots[name])
    lapse(stage)
    stage.subscribe(clean.id, stage.orders)
    stage.subscribe(sum_.id, stage.cleaned)

    assert gaps(stage, stage.orders, *specs).gaps == ()
    coverage = gaps(stage, stage.cleaned, *specs)
    assert (coverage.expected, coverage.complete, coverage.empty) == (8, 2, 1)
    assert told(coverage) == {
        lots["partial"]: ("partial", "cleaned", "partial"),
        lots["missing"]: ("missing", "cleaned", "missing"),
        lots["running"]: ("running", "cleaned", "running"),
        lots["lost"]: ("running", "cleaned", "running"),
        lots["absent"]: ("absent", "cleaned", "absent"),
    }
    why = {gap.lot: gap.cause.why for gap in coverage.gaps}
    assert "2 is bad" in why[lots["partial"]]
    assert manifest in why[lots["missing"]]
    assert why[lots["running"]] == "on alive"
    assert "gone is gone" in why[lots["lost"]]
    assert why[lots["absent"]] == "arc clean is scheduled"
    assert coverage.counts == {"absent": 1, "running": 2, "partial": 1, "missing": 1, "dead": 0}

    # below: what its input lacks is absent here, and the cause is told where it began
    below = gaps(stage, stage.summed, *specs)
    assert told(below) == {
        lots["partial"]: ("absent", "cleaned", "partial"),
        lots["missing"]: ("absent", "cleaned", "missing"),
        lots["running"]: ("absent", "cleaned", "running"),
        lots["lost"]: ("absent", "cleaned", "running"),
        lots["below"]: ("absent", "summed", "absent"),
        lots["absent"]: ("absent", "cleaned", "absent"),
    }
    assert gaps(stage, stage.summed, *specs).gaps[0].cause.arc == "clean"
    narrow = gaps(stage, stage.summed, *specs, span=Span(lots["missing"], lots["running"]))
    assert [gap.lot for gap in narrow.gaps] == [lots["missing"], lots["running"]]
    assert narrow.expected == 2


@pytest.mark.rule("LOT-32")
def test_several_attempts_at_one_lot_hide_no_gap_and_a_failed_replay_is_none():
    """The count is of distinct lots: as many generations and tries as there are of one are one lot."""
    stage = LifeStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    first, second = stage.append([1]), stage.append([2])
    for number in range(3):
        worker.work(spec, first, replay=number > 0)
    assert told(gaps(stage, stage.cleaned, spec)) == {second: ("absent", "cleaned", "absent")}
    worker.work(spec, second)
    stage.parts.failing[1] = 1
    assert worker.work(spec, first, replay=True).ended is LotEnd.PARTIAL
    coverage = gaps(stage, stage.cleaned, spec)
    assert (coverage.expected, coverage.complete, coverage.gaps) == (2, 2, ())


@pytest.mark.rule("LOT-32")
def test_a_lot_that_waits_for_a_schedule_or_a_retry_is_not_called_skipped():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    ticks = stage.dataset("ticks")
    stage.subscribe(spec.id, stage.orders, ticks, gate=ticks)
    stage.append([1])
    stage.page_all()
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert gap.cause.why == "arc clean waits: 1 lot to process at the next time of its schedule"
    stage.publish(ticks)
    stage.page_all()
    ticket = stage.start(node, spec.id)
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert gap.cause.why.startswith("arc clean is running on node")
    stage.run(runs.fail, stage.triggers, stage.cluster, ticket, why="no such column", backoff_us=10**9)
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert gap.cause.why == "arc clean is scheduled: retries after failure 1: no such column"


@pytest.mark.rule("LOT-32")
def test_lots_of_an_arc_that_is_dead_paused_or_was_passed_over_say_so():
    stage = LifeStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1])
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert gap.cause.why == "arc clean has never run"
    stage.subscribe(spec.id, stage.orders, most_failures=1)
    stage.run(subscriptions.pause, stage.triggers, spec.id)
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert (gap.state, gap.cause.why) == (GapState.ABSENT, "arc clean is paused")
    stage.run(subscriptions.resume, stage.triggers, stage.lots, spec.id)
    ticket = stage.start(node, spec.id)
    stage.run(runs.fail, stage.triggers, stage.cluster, ticket, why="no such column")
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert (gap.state, gap.cause.state) == (GapState.DEAD, GapState.DEAD)
    assert gap.cause.why == "arc clean failed once, last: no such column"
    stage.run(subscriptions.retry, stage.triggers, spec.id)
    stage.run(subscriptions.pause, stage.triggers, spec.id)
    stage.run(subscriptions.resume, stage.triggers, stage.lots, spec.id, CatchUp.NONE)
    (gap,) = gaps(stage, stage.cleaned, spec).gaps
    assert (gap.lot, gap.cause.why) == (lot, "arc clean skipped this lot")


@pytest.mark.rule("LOT-32")
def test_intervals_are_expected_from_the_first_on_that_was_opened_until_the_last_that_is_over():
    stage = LifeStage()
    spec = stage.join()
    first = LotId.parse(stage.run(staging.begin, stage.lots, stage.clicks).lot)
    lots = list(ids.texts_between(first, first.next().next().next()))
    assert gaps(stage, stage.clicks, spec).gaps == ()  # it is not over
    stage.clock.advance(3 * FIVE_MINUTES.seconds)
    told_late = gaps(stage, stage.clicks, spec)
    assert {gap.lot for gap in told_late.gaps} >= set(lots[:2])
    assert {gap.cause.why for gap in told_late.gaps} == {"its interval is over but not closed"}
    for lot in lots[:3]:
        stage.lot_of(stage.clicks, lot, 1)
    assert gaps(stage, stage.clicks, spec).gaps == ()
    # a source that has not closed what another one has
    stage.lot_of(stage.rates, lots[0], 1)
    coverage = gaps(stage, stage.joined, spec, span=Span(lots[0], lots[1]))
    assert told(coverage)[lots[1]] == ("absent", "rates", "absent")
    assert told(coverage)[lots[0]] == ("absent", "joined", "absent")
    # what was taken back on purpose is not missed
    stage.add(stage.clicks, lots[2], 1, state=LotState.REMOVED)
    after = gaps(stage, stage.clicks, spec)
    assert (after.expected, after.complete, after.gaps) == (2, 2, ())


def test_ids_of_a_range_are_spelled_as_each_lot_spells_itself():
    for unit, first, last in (
        ("PT5M", "20230101PT5M286", "20230103PT5M002"),
        ("PT1H", "20230101PT1H022", "20230102PT1H001"),
        ("P1D", "20221230", "20230102"),
    ):
        assert Unit.parse(unit) == LotId.parse(first).unit
        lot, texts = LotId.parse(first), []
        while lot <= LotId.parse(last):
            texts.append(str(lot))
            lot = lot.next()
        assert list(ids.texts_between(LotId.parse(first), LotId.parse(last))) == texts
        assert texts == sorted(texts)


class CountingStore:
    """Counts transactions, and hands everything on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.runs = 0

    def run(self, fn, **options):
        self.runs += 1
        return self._store.run(fn, **options)


def test_a_report_reads_in_large_pages_and_never_a_transaction_per_lot(monkeypatch):
    stage = LifeStage(scan=False)
    spec = stage.clean()
    for number in range(1, 201):
        stage.add(stage.orders, f"A{number:017}")
        if number % 2:
            stage.add(stage.cleaned, f"A{number:017}")
    monkeypatch.setattr(inventory_module, "PAGE", 50)
    monkeypatch.setattr(gaps_module, "PAGE", 50)
    counting = CountingStore(stage.store)
    coverage = Gaps(Inventory(counting, stage.keys, [spec])).of(stage.cleaned)  # type: ignore[arg-type]
    assert (coverage.expected, coverage.complete, len(coverage.gaps)) == (200, 100, 100)
    assert counting.runs < 20


def test_an_arc_with_two_inputs_of_which_one_is_made_by_another_arc_is_walked_to_the_first_cause():
    stage = LifeStage()
    first = ArcSpec(
        pipeline="shop",
        name="first",
        reads=(stage.clicks,),
        sinks=(PartSink(dataset=stage.rates),),
        code="join",
    )
    both = stage.join()
    lot = "20230101PT5M000"
    stage.lot_of(stage.clicks, lot, 1)
    span = Span(lot, lot)
    (gap,) = gaps(stage, stage.joined, first, both, span=span).gaps
    assert (gap.state, gap.cause.table, gap.cause.arc) == (GapState.ABSENT, "rates", "first")
