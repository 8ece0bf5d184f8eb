"""The crash matrix of corrections, replays and backfills: a process dies at any durable step of them.

An operator corrects a lot, takes one back, asks for the replay of a third and for the backfill of one that
was passed over; a life is a process that does what of this is not done yet, then everything that follows, and
cleans up. After a death anywhere the next life ends as an undisturbed one: nothing is lost, nothing is made
twice, and readers never see a lot that is neither what it was nor what it is to be.
"""

from collections import Counter

import pytest

from tests.unit.life_stage import LifeStage
from tests.unit.test_publish_corrections import remove, replace
from tidemill import crash
from tidemill.arcs import lot_requests, lot_status, rows
from tidemill.arcs.lot_requests import RequestKind
from tidemill.cluster.nodes import Node
from tidemill.lots.states import LotState
from tidemill.publish.projections import Projections
from tidemill.triggers import subscriptions
from tidemill.triggers.terms import CatchUp

pytestmark = pytest.mark.slow  # hundreds of cases


class Scene:
    def __init__(self) -> None:
        self.stage = stage = LifeStage(scan=False)
        self.specs = {spec.id: spec for spec in (stage.clean(), stage.sum())}
        self.passed = stage.append([100])
        clean, sum_ = self.specs
        stage.subscribe(clean, stage.orders)
        stage.run(subscriptions.pause, stage.triggers, clean)
        stage.run(subscriptions.resume, stage.triggers, stage.lots, clean, CatchUp.NONE)
        stage.subscribe(sum_, stage.cleaned)
        self.wrong, self.spurious, self.old = stage.append([1], [2]), stage.append([3]), stage.append([4])
        node = stage.node("before")
        worker = stage.worker(node)
        for spec in self.specs.values():
            stage.drain(spec, worker, node)
        stage.clock.advance(20)
        self.projections = Projections(stage.scope())
        self.clean = self.specs[clean]
        self.allowed = {
            self.wrong: ([1, 2], [9, 11]),
            self.spurious: ([3], []),
            self.old: ([4], [4]),
            self.passed: (None, [100]),
        }

    def live(self, name: str) -> None:
        stage = self.stage
        try:
            node = stage.node(name)
            self._operate()
            while self._round(node):
                self.look()
            cleaner = stage.cleaner(node, keep_s=0, grace_s=0)
            while cleaner.clean():
                pass
        finally:
            stage.clock.advance(20)

    def _operate(self) -> None:
        """What an operator does, who looks what is done already."""
        stage = self.stage
        if stage.rows(stage.orders, self.wrong) != [9, 11]:
            replace(stage, self.wrong, 9, 11)
        row = next(row for row in stage.rows_of(stage.orders) if row.lot == self.spurious)
        if row.state is not LotState.REMOVED:
            remove(stage, self.spurious)
        if stage.run(rows.read, stage.keys, self.clean.id, self.old, 1) is None:
            self._ask(self.old, RequestKind.REPLAY)
        if stage.run(rows.read, stage.keys, self.clean.id, self.passed, 0) is None:
            self._ask(self.passed, RequestKind.BACKFILL)

    def _ask(self, lot: str, kind: RequestKind) -> None:
        crash.point("ask.before")
        self.stage.enter(self.clean, lot, kind, "batch", 1)
        crash.point("ask.after")

    def _round(self, node: Node) -> bool:
        stage = self.stage
        worker = stage.worker(node, projections=self.projections)
        outcomes = [outcome for spec in self.specs.values() for outcome in stage.drain(spec, worker, node)]
        outcomes += [worker.work(self.specs[status.arc], status.lot) for status in worker.left()]
        for ask in stage.run(lot_requests.startable, stage.keys, list(self.specs.values())):
            outcomes.append(worker.make_requested(self.specs[ask.arc], ask))
            self.look()
        return bool(outcomes)

    def look(self) -> None:
        """What readers may see at any moment: of each lot what it was, or what it is to be."""
        for lot, (before, after) in self.allowed.items():
            assert self.stage.rows(self.stage.cleaned, lot) in (before, after)

    def seen(self) -> dict[str, object]:
        stage = self.stage
        stage.check()
        assert stage.orphans() == []
        tables = (stage.orders, stage.cleaned, stage.odd, stage.summed)
        return {
            "rows": [stage.table(table) for table in tables],
            "generations": [
                sorted((row.lot, row.generation) for row in stage.rows_of(table)) for table in tables
            ],
            "arcs": [
                [
                    (status.lot, status.generation, status.state)
                    for status in stage.run(lot_status.listed, stage.keys, arc)
                ]
                for arc in self.specs
            ],
            "asked": stage.run(lot_requests.pending, stage.keys),
            "progress": [stage.row(arc).tally.progress for arc in self.specs],
        }


@pytest.fixture(scope="module")
def calm() -> dict[str, object]:
    scene = Scene()
    scene.live("n")
    return scene.seen()


def visits() -> Counter[str]:
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        scene = Scene()
        patch.setattr(crash, "point", lambda name: counts.update([name]))
        scene.live("n")
    return counts


VISITS = visits()
CASES = [
    (name, visit) for name, count in sorted(VISITS.items()) for visit in sorted({1, count // 2 + 1, count})
]


def test_the_undisturbed_life_does_all_of_it(calm):
    scene = Scene()
    _, cleaned, _, summed = calm["rows"]
    assert cleaned == {scene.wrong: [9, 11], scene.spurious: [], scene.old: [4], scene.passed: [100]}
    assert summed == {scene.wrong: [9, 11], scene.spurious: [], scene.old: [4], scene.passed: [100]}
    assert dict(calm["generations"][1]) == {
        scene.wrong: 1,
        scene.spurious: 1,
        scene.old: 1,
        scene.passed: 0,
    }
    assert calm["asked"] == []
    steps = {name.rpartition(".")[0] for name in VISITS}
    assert steps >= {"publish.correct-open", "publish.part-manifest", "publish.manifest", "publish.commit"}
    assert steps >= {"arcs.begin", "ask", "publish.forget", "publish.project-lot"}


@pytest.mark.rule("LOT-30")
@pytest.mark.rule("LOT-31")
@pytest.mark.parametrize("successor", ["n", "m"])
@pytest.mark.parametrize(("point", "visit"), CASES)
def test_after_a_death_at_any_step_the_next_life_ends_as_an_undisturbed_one(point, visit, successor, calm):
    scene = Scene()
    with crash.armed(point, visit=visit), pytest.raises(crash.Crashed):
        scene.live("n")
    scene.look()
    scene.live(successor)
    assert scene.seen() == calm
