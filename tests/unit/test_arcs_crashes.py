"""The crash matrix of publication and arcs: a crash at any durable step does not change the end result.

A scene is a pipeline of two chained arcs with parts and two sinks, over lots of which one is empty, one has a
part that fails until somebody mends it, and one cannot be read until somebody restores it; and what a dead
node left. A life is one process: it works until there is nothing more to do, then cleans up. After a crash at
any point the next life, of the same node under a new epoch or of another node, ends as an undisturbed one:
the same tables, manifests, events, states and names, and nothing left over.
"""

import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from tests.unit.arcs_stage import ArcStage, repair_projections
from tests.unit.attempt_publisher import AttemptPublisher
from tidemill import crash
from tidemill.arcs import lot_requests, lot_status
from tidemill.arcs.work import ArcWork, LotEnd
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptEnded, LeaseLost
from tidemill.objects.local import LocalObjects
from tidemill.objects.port import Objects
from tidemill.publish.attempts import Draft, Target
from tidemill.publish.cleaner import KEEP_S
from tidemill.publish.manifests import data_start
from tidemill.publish.projections import Projections
from tidemill.testing.fake_clock import FakeClock

pytestmark = pytest.mark.slow  # hundreds of cases

BAD = 7


class Scene:
    """See above. `forgetful`: the port runs parts again that it ran in an earlier life."""

    def __init__(self, objects: Objects | None = None, *, forgetful: bool = False) -> None:
        self.stage = stage = ArcStage(objects=objects, scan=False)
        if forgetful:
            stage.parts.memory = None
        self.arcs = {spec.id: spec for spec in (stage.clean(), stage.sum())}
        for spec in self.arcs.values():
            stage.subscribe(spec.id, *spec.reads)
        stage.append([1, 2], [3, 4], [5])
        stage.append([6], [BAD, 8])
        stage.append()
        unread = stage.append([9, 11])
        self.manifest = next(row for row in stage.rows_of(stage.orders) if row.lot == unread).manifest
        self.body, _ = stage.objects.get(self.manifest)
        stage.objects.put(self.manifest, b"{")
        stage.parts.failing[BAD] = 10**9
        self._leave()
        self.projections = Projections(stage.scope())

    def _leave(self) -> None:
        """What another author's dead node left: an intent, a manifest, and data."""
        stage = self.stage
        target = Target(stage.summed, "A00000000000000077")
        publisher = AttemptPublisher(stage.scope(stage.node("dead", 1)))
        hold = publisher.open(Draft(id="z" * 26, author="other", lot=target.lot, targets=(target,)))
        stage.manifests.write_intents(hold)
        stage.objects.put(data_start(target, hold.draft.id) + ".1.1/x.json", b"[]")
        stage.clock.advance(1)

    def live(self, name: str, *, keep_s: float = 0) -> None:
        """One life of a process: it knows nothing of the ones before but what store and objects say."""
        stage = self.stage
        try:
            node = stage.node(name)
            worker = stage.worker(node, projections=self.projections)
            while self._round(node, worker):
                pass
            cleaner = stage.cleaner(node, keep_s=keep_s, grace_s=0)
            while cleaner.clean():
                pass
            self._rebuild()
        finally:
            stage.clock.advance(20)  # until its entry has run out

    def _round(self, node: Node, worker: ArcWork) -> bool:
        """Everything that is to be done now; False when there was nothing."""
        stage = self.stage
        outcomes = [outcome for spec in self.arcs.values() for outcome in stage.drain(spec, worker, node)]
        left = stage.run(lot_status.stale, stage.keys)[0]
        outcomes += [worker.work(self.arcs[status.arc], status.lot) for status in left]
        for arc in self.arcs:
            for trouble in stage.run(lot_status.failed, stage.keys, arc):
                self.mend()
                stage.run(lot_requests.request_retry, stage.keys, arc, trouble.lot)
        outcomes += [
            worker.make_requested(self.arcs[ask.arc], ask)
            for ask in stage.run(lot_requests.pending, stage.keys)
        ]
        return bool(outcomes)

    def mend(self) -> None:
        """What somebody does before they ask for a retry."""
        self.stage.parts.failing[BAD] = 0
        self.stage.objects.put(self.manifest, self.body)

    def _rebuild(self) -> None:
        for spec in self.arcs.values():
            repair_projections(self.stage, self.projections, spec)

    def seen(self) -> dict[str, object]:
        """All there is, whoever made it."""
        stage = self.stage
        stage.check()
        assert stage.orphans() == []
        tables = [stage.cleaned, stage.odd, stage.summed]
        return {
            "tables": [stage.table(table) for table in tables],
            "events": [
                [(event.position, event.lot, event.generation, event.state) for event in stage.events(table)]
                for table in tables
            ],
            "names": sorted(
                re.sub("part=(...)-[^/]+", r"part=\1", re.sub("attempt=[^/]+", "attempt=T", key))
                for key in stage.keys_under("")
                if "state=removed/gen=" not in key
            ),
            "manifests": [
                [
                    (root.state, root.inputs, len(root.parts), root.schema_fingerprint)
                    for root in (stage.manifests.load(row.manifest) for row in stage.rows_of(table))
                ]
                for table in tables
            ],
            "arcs": [
                [
                    (status.lot, status.generation, status.state)
                    for status in stage.run(lot_status.listed, stage.keys, arc)
                ]
                for arc in self.arcs
            ],
            "progress": [stage.row(arc).tally.progress for arc in self.arcs],
            "asked": stage.run(lot_requests.pending, stage.keys),
        }


@pytest.fixture(scope="module")
def calm() -> dict[str, object]:
    scene = Scene()
    scene.live("n")
    return scene.seen()


def visits() -> dict[str, int]:
    """How often an undisturbed life passes each point."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        scene = Scene()
        patch.setattr(crash, "point", lambda name: counts.update([name]))
        scene.live("n")
    return dict(counts)


VISITS = visits()
CASES = sorted({(name, visit) for name, count in VISITS.items() for visit in (1, count // 2 + 1, count)})
SEED = 9


def one_of_each_point(cases):
    """One case of each point in `make test`, drawn by a seed; all cases in `make crash`."""
    points = {}
    for case in cases:
        points.setdefault(case[0], []).append(case)
    chance = random.Random(SEED)
    chosen = [chance.choice(of_point) for of_point in points.values()]
    return [case if case in chosen else pytest.param(*case, marks=pytest.mark.crash) for case in cases]


def test_a_scene_without_crashes_finishes(calm):
    lots = [f"A{n:017}" for n in (1, 3, 2, 4)]  # what failed comes after what did not
    cleaned, odd, summed = calm["tables"]
    assert cleaned == dict(zip(lots, [[1, 2, 3, 4, 5], [], [6, 7, 8], [9, 11]], strict=True))
    assert odd == dict(zip(lots, [[1, 3, 5], [], [7], [9, 11]], strict=True))
    assert summed == dict(zip(lots, [[3, 5, 7], [], [6, 7, 8], [9, 11]], strict=True))  # by part
    assert calm["progress"] == [(4,), (4,)]
    assert {state for arc in calm["arcs"] for _, _, state in arc} == {"complete"}


def test_every_durable_step_has_a_crash_point_before_and_after_it():
    steps = {
        "arcs": {"begin", "fail", "miss"},
        "parts": {"write"},
        "publish": {"intent", "part-manifest", "part-failed", "manifest", "commit", "abandon"}
        | {"remove-data", "remove-manifests", "removed", "forget", "project-lot", "project-arc"},
    }
    assert set(VISITS) == {
        f"{room}.{step}.{side}"
        for room, names in steps.items()
        for step in names
        for side in ("before", "after")
    }


@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-9")
@pytest.mark.parametrize(
    ("point", "visit", "successor"),
    one_of_each_point([(*case, successor) for case in CASES for successor in ("same", "other")]),
)
def test_after_a_crash_at_any_point_the_next_process_reaches_the_same_end(point, visit, successor, calm):
    scene = Scene(forgetful=visit == 1)
    with crash.armed(point, visit=visit), pytest.raises(crash.Crashed):
        scene.live("n")
    scene.live("n" if successor == "same" else "m")
    assert scene.seen() == calm


@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.crash) for seed in range(15, 60))]
)
def test_also_after_several_crashes_in_a_row_wherever_they_are(seed, calm):
    chance = random.Random(seed)
    scene = Scene(forgetful=chance.random() < 0.5)
    for _ in range(chance.randint(2, 5)):
        point, visit = chance.choice(CASES)
        try:
            with crash.armed(point, visit=min(visit, chance.randint(1, visit))):
                scene.live(chance.choice("nml"))
        except crash.Crashed:
            continue
    scene.live("n")
    assert scene.seen() == calm


FILES = ["part-manifest", "manifest", "remove-data"]


@pytest.mark.parametrize("step", FILES)
def test_also_when_the_objects_are_files(step, calm, tmp_path):
    scene = Scene(LocalObjects(tmp_path, FakeClock(), random.Random(3)))
    with crash.armed(f"publish.{step}.after"), pytest.raises(crash.Crashed):
        scene.live("n")
    scene.live("m")
    assert scene.seen() == calm


# In these lives a day has to pass before anything is forgotten: that is not in the first one.
PAUSES = [case for case in CASES if not case[0].startswith("publish.forget")]


@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-19")
@pytest.mark.parametrize(("point", "visit"), one_of_each_point(PAUSES))
def test_a_process_paused_at_any_point_changes_nothing_after_another_did_the_work(
    point, visit, calm, monkeypatch
):
    """A zombie at every durable step: it has lost its lease, does not know it, and goes on writing."""
    scene = Scene(forgetful=visit == 1)
    left = visit

    def pause(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            scene.stage.clock.advance(20)
            scene.live("m", keep_s=KEEP_S)

    monkeypatch.setattr(crash, "point", pause)
    with contextlib.suppress(LeaseLost, AttemptEnded):
        scene.live("n", keep_s=KEEP_S)
    assert left <= 0
    for _ in range(12):
        scene.live("k", keep_s=KEEP_S)
        scene.stage.clock.advance(KEEP_S / 8)
    assert scene.seen() == calm


# --- steps that an undisturbed life has no need of


def to_renew(scene: Scene) -> None:
    """An attempt is left with all its parts, of which an object is lost."""
    with crash.armed("publish.manifest.before"), pytest.raises(crash.Crashed):
        scene.live("x")
    scene.stage.objects.delete(scene.stage.keys_under("data/name=cleaned/")[0])


def to_pass(scene: Scene) -> None:
    """Every lot is complete before the subscription's run comes to it."""
    scene.mend()
    stage = scene.stage
    worker = stage.worker(stage.node("x"))
    assert {worker.work(stage.clean(), row.lot).ended for row in stage.rows_of(stage.orders)} == {"complete"}


def to_give_up(scene: Scene) -> None:
    """A node that is taken to live works on as many lots as the arc may."""
    scene.mend()
    stage = scene.stage
    with crash.armed("parts.write.after"), pytest.raises(crash.Crashed):
        stage.worker(stage.node("x")).work(stage.clean(), stage.rows_of(stage.orders)[3].lot)


RARE: dict[str, Callable[[Scene], None]] = {"renew": to_renew, "pass": to_pass, "give-up": to_give_up}


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("step", RARE)
def test_a_crash_at_a_step_that_is_taken_when_others_were_in_the_way(step, side, calm):
    scene = Scene()
    RARE[step](scene)
    with crash.armed(f"arcs.{step}.{side}"), pytest.raises(crash.Crashed):
        scene.live("n")
    scene.live("m")
    scene.live("m")  # what stood in the way is gone by now
    state = scene.seen()
    assert state["tables"] == calm["tables"]  # in another order, maybe
    assert state["names"] == calm["names"]
    assert state["progress"] == calm["progress"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_run_without_lots_and_an_unneeded_retry_can_be_repeated(side):
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    lot = stage.append([1])
    stage.page_all()
    worker = stage.worker(node)
    ticket = stage.start(node, spec.id)
    nothing = msgspec.structs.replace(ticket, heads=ticket.progress)
    with crash.armed(f"arcs.finish.{side}"), pytest.raises(crash.Crashed):
        worker.run(spec, nothing)
    if side == "before":
        assert worker.run(spec, nothing) == []
    assert [outcome.ended for outcome in stage.drain(spec, worker, node)] == [LotEnd.COMPLETE]
    ask = lot_requests.LotRequest(arc=spec.id, lot=lot, generation=0, at=0)
    with crash.armed(f"arcs.withdraw.{side}"), pytest.raises(crash.Crashed):
        worker.make_requested(spec, ask)
    assert worker.make_requested(spec, ask).ended is LotEnd.DONE
    assert len(stage.events(stage.cleaned)) == 1
