"""The grace period of a barrier: how long a lot waits for its last source, and what happens then (LOT-28)."""

from typing import Any

import pytest

from tests.unit.life_stage import LifeStage
from tests.unit.lots_stage import FIVE_MINUTES
from tidemill import crash
from tidemill.arcs import barriers, rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.gaps import Gaps, GapState
from tidemill.arcs.inventory import Inventory
from tidemill.arcs.lot_requests import RequestKind
from tidemill.arcs.rows import MissingLot
from tidemill.arcs.states import ArcState
from tidemill.arcs.work import ArcWork, LotEnd, LotOutcome
from tidemill.cluster.nodes import Node
from tidemill.errors import BadArc
from tidemill.triggers.terms import AfterGrace

LOTS = [f"20230101PT5M{n:03}" for n in range(5)]
GRACE_S = 600


class GraceStage(LifeStage):
    """A life stage whose arc `join` has a grace, and one worker that does all there is to do."""

    def __init__(self, then: AfterGrace, **changes: Any) -> None:
        super().__init__()
        self.spec = self.graced(then, **changes)
        self.me: Node = self.living()
        self.hands: ArcWork = self.worker(self.me)
        self.subscribe(self.spec.id, *self.spec.reads)

    def graced(self, then: AfterGrace, grace_s: float = GRACE_S, **changes: Any) -> ArcSpec:
        return self.join(grace_us=int(grace_s * 1e6), after_grace=then, **changes)

    def everything(self, worker: ArcWork | None = None, node: Node | None = None) -> list[LotOutcome]:
        """What a runner's turns do until there is nothing more to do at this moment."""
        worker, node = worker or self.hands, node or self.me
        outcomes: list[LotOutcome] = []
        while True:
            round_outcomes = self.drain(self.spec, worker, node)
            round_outcomes += [worker.work(self.spec, status.lot) for status in worker.left()]
            round_outcomes += [worker.end_grace(self.spec, lot) for lot in self.over()]
            round_outcomes += self.work_off(self.spec, worker)
            if not round_outcomes:
                return outcomes
            outcomes += round_outcomes

    def over(self) -> list[str]:
        return self.run(barriers.expired, self.keys, self.spec)

    def waiting(self) -> dict[str, str]:
        """Lots that wait, with the words for it."""
        awaited = self.run(barriers.awaited_lots, self.keys, self.spec)
        now = self.store.run(lambda tx: tx.now())
        return {lot.lot: barriers.explain(lot, self.spec, now) for lot in awaited}

    def made(self) -> dict[str, int]:
        return {row.lot: row.generation for row in self.rows_of(self.joined)}


def ends(outcomes: list[LotOutcome]) -> list[tuple[str, LotEnd]]:
    return [(outcome.lot, outcome.ended) for outcome in outcomes]


@pytest.mark.rule("LOT-28")
def test_after_its_grace_a_lot_is_made_without_a_source_and_late_data_makes_its_next_generation():
    stage = GraceStage(AfterGrace.PARTIAL)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.WAITING)]
    assert stage.waiting() == {
        LOTS[0]: "waits for rates (0 s so far); will be made without rates in 10.0 min"
    }
    stage.clock.advance(GRACE_S - 1)
    assert stage.everything() == []
    assert stage.made() == {}
    stage.clock.advance(1)
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.COMPLETE)]
    assert stage.rows(stage.joined, LOTS[0]) == [1]
    assert stage.waiting() == {}
    assert stage.everything() == []

    stage.lot_of(stage.rates, LOTS[0], 7)
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.COMPLETE)]
    assert stage.made() == {LOTS[0]: 1}
    assert stage.rows(stage.joined, LOTS[0]) == [1, 7]
    row = stage.standing(stage.spec, LOTS[0]).row
    assert [source.dataset for source in row.inputs] == ["clicks", "rates"]

    # one whose sources are all there in time is made at once, and once
    stage.lot_of(stage.rates, LOTS[1], 8)
    stage.lot_of(stage.clicks, LOTS[1], 2)
    assert ends(stage.everything()) == [(LOTS[1], LotEnd.COMPLETE), (LOTS[1], LotEnd.DONE)]
    stage.clock.advance(10 * GRACE_S)
    assert stage.everything() == []
    assert stage.made() == {LOTS[0]: 1, LOTS[1]: 0}


@pytest.mark.slow
@pytest.mark.rule("LOT-28")
def test_a_skipped_lot_is_missing_and_made_only_on_request():
    stage = GraceStage(AfterGrace.SKIP)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    stage.lot_of(stage.clicks, LOTS[1], 2)
    stage.everything()
    stage.clock.advance(GRACE_S)
    stage.lot_of(stage.rates, LOTS[1], 9)  # at the last moment
    assert set(ends(stage.everything())) == {(LOTS[0], LotEnd.MISSING), (LOTS[1], LotEnd.COMPLETE)}
    row = stage.standing(stage.spec, LOTS[0]).row
    assert isinstance(row, MissingLot)
    assert row.skipped
    assert row.error == "skipped: rates had no such lot within the grace period"
    gaps = Gaps(Inventory(stage.store, stage.keys, [stage.spec], late_s=0)).of(stage.joined).gaps
    assert [(gap.lot, gap.state, gap.cause.why) for gap in gaps if gap.lot == LOTS[0]] == [
        (LOTS[0], GapState.MISSING, row.error)
    ]

    # too late, and corrected besides: it stays skipped
    stage.lot_of(stage.rates, LOTS[0], 5)
    stage.lot_of(stage.clicks, LOTS[0], 3, generation=1)
    assert {outcome.ended for outcome in stage.everything()} == {LotEnd.DONE}
    assert stage.made() == {LOTS[1]: 0}
    assert stage.enter(stage.spec, LOTS[0], RequestKind.BACKFILL) is not None
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.COMPLETE)]
    assert stage.rows(stage.joined, LOTS[0]) == [3, 5]


@pytest.mark.rule("LOT-28")
def test_with_wait_nothing_follows_however_long_it_takes():
    stage = GraceStage(AfterGrace.WAIT)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    stage.everything()
    stage.clock.advance(1000 * GRACE_S)
    assert stage.everything() == []
    assert stage.over() == []
    assert stage.waiting() == {LOTS[0]: "waits for rates (6.9 d so far)"}
    gaps = Gaps(Inventory(stage.store, stage.keys, [stage.spec], late_s=0)).of(stage.joined).gaps
    assert [gap.cause.why for gap in gaps if gap.lot == LOTS[0]] == ["waits for rates (6.9 d so far)"]
    assert stage.run(barriers.next_expiry, stage.keys, stage.spec) is None
    stage.lot_of(stage.rates, LOTS[0], 5)
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.COMPLETE)]
    assert stage.waiting() == {}


@pytest.mark.rule("LOT-28")
def test_a_grace_counts_from_the_first_source_and_a_changed_grace_applies_at_once():
    stage = GraceStage(AfterGrace.PARTIAL)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    stage.clock.advance(GRACE_S + 5)  # the runner was away
    stage.lot_of(stage.clicks, LOTS[1], 2)
    assert set(ends(stage.everything())) == {
        (LOTS[0], LotEnd.WAITING),
        (LOTS[1], LotEnd.WAITING),
        (LOTS[0], LotEnd.COMPLETE),
    }
    at = stage.store.run(lambda tx: tx.now())
    assert stage.run(barriers.next_expiry, stage.keys, stage.spec) == at + GRACE_S * 1_000_000
    stage.clock.advance(30)
    stage.spec = stage.graced(AfterGrace.PARTIAL, 20)  # declared anew
    assert ends(stage.everything()) == [(LOTS[1], LotEnd.COMPLETE)]


@pytest.mark.rule("LOT-28")
@pytest.mark.rule("LOT-30")
def test_each_late_source_of_three_makes_a_generation_and_a_failed_one_can_be_retried():
    stage = GraceStage(AfterGrace.PARTIAL)
    fees = stage.dataset("fees", unit=FIVE_MINUTES)
    stage.spec = stage.graced(
        AfterGrace.PARTIAL, name="three", reads=(stage.clicks, stage.rates, fees), code="join"
    )
    stage.subscribe(stage.spec.id, *stage.spec.reads)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    stage.parts.failing[1] = 1
    stage.everything()
    stage.clock.advance(GRACE_S)
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.PARTIAL)]
    assert stage.everything() == []  # not again by itself
    stage.ask(stage.spec, LOTS[0])
    assert ends(stage.everything()) == [(LOTS[0], LotEnd.COMPLETE)]
    stage.lot_of(fees, LOTS[0], 4)
    stage.everything()
    assert stage.rows(stage.joined, LOTS[0]) == [1, 4]
    assert stage.made() == {LOTS[0]: 1}
    stage.lot_of(stage.rates, LOTS[0], 3)
    stage.everything()
    assert stage.rows(stage.joined, LOTS[0]) == [1, 3, 4]
    assert stage.made() == {LOTS[0]: 2}
    assert len(stage.events(stage.joined)) == 3


@pytest.mark.slow
@pytest.mark.rule("LOT-28")
@pytest.mark.parametrize("then", [AfterGrace.PARTIAL, AfterGrace.SKIP])
def test_after_a_crash_at_any_step_of_a_grace_the_next_process_reaches_the_same_end(then):
    def scene(point: str = "", visit: int = 1) -> tuple[object, ...]:
        stage = GraceStage(then)
        stage.lot_of(stage.clicks, LOTS[0], 1)
        for life, moment in enumerate(("sees it", "grace over", "late", "after")):
            node = stage.node(f"n{life}")
            if moment == "grace over":
                stage.clock.advance(GRACE_S)
                node = stage.node(f"n{life}")
            elif moment == "late":
                stage.lot_of(stage.rates, LOTS[0], 5)
            if moment == "after" or not point:
                stage.everything(stage.worker(node), node)
            else:
                try:
                    with crash.armed(point, visit=visit):
                        stage.everything(stage.worker(node), node)
                except crash.Crashed:
                    stage.clock.advance(20)  # its leases are over
        cleaner = stage.cleaner(stage.living("cleaner"), keep_s=0, grace_s=0)
        while cleaner.clean():
            pass
        rows = stage.rows(stage.joined, LOTS[0])
        return rows, stage.standing(stage.spec, LOTS[0]).state, stage.waiting(), stage.orphans()

    with crash.recorded() as points:
        calm = scene()
    made_rows = [1, 5] if then is AfterGrace.PARTIAL else None
    state = ArcState.COMPLETE if then is AfterGrace.PARTIAL else ArcState.MISSING
    assert calm == (made_rows, state, {}, [])
    assert {"arcs.wait.after", "arcs.begin.after" if made_rows else "arcs.skip.after"} <= points
    for point in sorted(points):
        for visit in (1, 2):
            end = scene(point, visit)
            assert end == calm or (end[0] == [1, 5] and not made_rows), (point, visit, end)


def test_two_that_find_a_grace_over_make_one_generation_and_a_paused_arc_none():
    stage = GraceStage(AfterGrace.PARTIAL)
    stage.lot_of(stage.clicks, LOTS[0], 1)
    stage.everything()
    stage.clock.advance(GRACE_S)
    other = stage.worker(stage.living("other"))
    answers: list[LotOutcome] = []
    stage.parts.between = lambda task: answers.append(other.end_grace(stage.spec, LOTS[0]))
    first = stage.hands.end_grace(stage.spec, LOTS[0])
    assert (first.ended, answers[0].ended) == (LotEnd.COMPLETE, LotEnd.ELSEWHERE)
    assert stage.hands.end_grace(stage.spec, LOTS[0]).ended is LotEnd.DONE
    assert [event.generation for event in stage.events(stage.joined)] == [0]
    assert stage.run(rows.newest, stage.keys, stage.spec.id, LOTS[0])[0] == 0


def test_a_grace_is_for_several_sources():
    stage = LifeStage()
    with pytest.raises(BadArc, match="grace"):
        stage.join(reads=(stage.clicks,), after_grace=AfterGrace.SKIP)
