"""Replays, corrections, pauses and reports at once, on every backend: each lot once, seen whole."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.arcs_stage import LONG_US, LocalParts
from tests.unit.life_stage import LifeStage
from tidemill.arcs import lot_requests, running_lots
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.gaps import Gaps
from tidemill.arcs.inventory import Inventory
from tidemill.arcs.lot_requests import RequestKind
from tidemill.arcs.work import ArcWork, LotEnd
from tidemill.cluster.nodes import Node
from tidemill.errors import LotConflict
from tidemill.lots import lots as lot_rows
from tidemill.publish.publisher import Publisher
from tidemill.store import open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import together
from tidemill.triggers import runs, subscriptions, wakes
from tidemill.triggers.subscriptions import Waiting

LOTS = 6


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LifeStage]:
    url = str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else ""
    url = url or f"sqlite:///{tmp_path}/s.db"
    with MemoryStore() if request.param == "memory" else open_store(url) as store:
        yield LifeStage(store, scan=False)


@pytest.mark.rule("LOT-31")
def test_runners_that_share_a_replay_make_each_lot_once_and_never_too_many_at_once(stage: LifeStage) -> None:
    spec = stage.clean(max_concurrent=4)
    first = stage.worker(stage.living("first"))
    made = [stage.append([n, n + 10]) for n in range(LOTS)]
    for lot in made:
        first.work(spec, lot)
    for lot in made:
        assert stage.enter(spec, lot, RequestKind.REPLAY, "batch", 2) is not None
    seen: list[int] = []

    def runner(name: str) -> list[LotEnd]:
        node = stage.node(name, LONG_US)
        port = LocalParts(stage.objects, stage.parts.code, name)
        worker = stage.worker(node, parts=port)
        ended = []
        for _ in range(60):
            page = stage.store.run(lambda tx: lot_requests.startable(tx, stage.keys, [spec]))
            for ask in page:
                port.between = lambda _: seen.append(
                    stage.store.run(
                        lambda tx: running_lots.running_lots(tx, stage.keys, spec.id)
                    ).batches.get("batch", 0)
                )
                ended.append(worker.make_requested(spec, ask).ended)
        return ended

    ends = [end for each in together(lambda: runner("a"), lambda: runner("b")) for end in each]
    rest = stage.work_off(spec, first)
    assert (ends + [outcome.ended for outcome in rest]).count(LotEnd.COMPLETE) == LOTS
    assert set(ends) <= {LotEnd.COMPLETE, LotEnd.DONE, LotEnd.ELSEWHERE, LotEnd.FULL}
    assert 1 <= max(seen) <= 2
    assert [row.generation for row in stage.rows_of(stage.cleaned)] == [1] * LOTS
    assert sorted(event.generation for event in stage.events(stage.cleaned)) == [0] * LOTS + [1] * LOTS
    stage.check()


@pytest.mark.rule("LOT-30")
def test_corrections_while_runners_work_are_all_followed_and_readers_see_whole_generations(
    stage: LifeStage,
) -> None:
    arcs = {spec.id: spec for spec in (stage.clean(), stage.sum())}
    for spec in arcs.values():
        stage.subscribe(spec.id, *spec.reads)
    lot = stage.append([0])

    def corrector(name: str, numbers: range) -> int:
        publisher = Publisher(stage.scope(stage.node(name, LONG_US)))
        refused = 0
        for number in numbers:
            while True:
                hold = publisher.begin_correction(stage.orders, lot, stage.scope().new_attempt())
                try:
                    publisher.publish(hold, [stage.written(hold, [number, number])])
                    break
                except LotConflict:
                    publisher.abandon(hold, "too late")
                    refused += 1
        return refused

    def runner(name: str) -> int:
        node = stage.node(name, LONG_US)
        worker = stage.worker(node, parts=LocalParts(stage.objects, stage.parts.code, name))
        for _ in range(25):
            turn(stage, arcs, node, worker)
        return 0

    def reader() -> int:
        for _ in range(40):
            rows = stage.store.run(lambda tx: lot_rows.current(tx, stage.lots, stage.cleaned, lot))
            if rows is not None:
                listed = stage.manifests.lot_objects(rows.manifest)
                numbers = [n for item in listed for n in json.loads(stage.objects.get(item.uri)[0])]
                assert numbers in ([0], [numbers[0]] * 2)
        return 0

    together(
        lambda: corrector("x", range(10, 14)),
        lambda: corrector("y", range(20, 24)),
        lambda: runner("a"),
        reader,
    )
    node = stage.node("last", LONG_US)
    worker = stage.worker(node)
    while stage.page() or turn(stage, arcs, node, worker):
        pass
    last = stage.rows(stage.orders, lot)
    assert stage.rows(stage.cleaned, lot) == last
    assert stage.rows(stage.summed, lot) == [sum(last or [])]
    assert [row.generation for row in stage.rows_of(stage.orders)] == [8]
    for arc in arcs:
        assert isinstance(stage.row(arc), Waiting)
    assert Gaps(Inventory(stage.store, stage.keys, arcs.values())).of(stage.summed).gaps == ()
    stage.check()


def turn(stage: LifeStage, arcs: Mapping[str, ArcSpec], node: Node, worker: ArcWork) -> bool:
    """What a runner does: wake, start what is due, see it to its end."""
    did = False
    stage.store.run(lambda tx: wakes.page_wakes(tx, stage.triggers, stage.lots))
    for due in stage.due():
        if due.running:
            continue
        ticket = stage.store.run(
            lambda tx, due=due: runs.start(
                tx, stage.triggers, stage.lots, stage.cluster, node, due.name, due.epoch
            )
        )
        if ticket is not None:
            worker.run(arcs[due.name], ticket)
            did = True
    return did


@pytest.mark.rule("LOT-32")
@pytest.mark.rule("LOT-38")
def test_a_report_says_what_is_missing_and_why_on_every_store(stage: LifeStage) -> None:
    clean, join = stage.clean(), stage.join()
    stage.subscribe(clean.id, stage.orders)
    node = stage.living()
    worker = stage.worker(node)
    good, bad = stage.append([1]), stage.append([7])
    stage.parts.failing[7] = 1
    stage.drain(clean, worker, node)
    stage.run(subscriptions.pause, stage.triggers, clean.id)
    late = stage.append([3])
    stage.lot_of(stage.clicks, "20230101PT5M000", 1)
    gaps = Gaps(Inventory(stage.store, stage.keys, [clean, join]))
    covered = gaps.of(stage.cleaned)
    assert (covered.expected, covered.complete) == (3, 1)
    assert {gap.lot: (gap.state.value, gap.cause.why[:20]) for gap in covered.gaps} == {
        bad: ("partial", "1 parts failed: part"),
        late: ("absent", "arc clean is paused"),
    }
    assert good not in {gap.lot for gap in covered.gaps}
    stage.run(subscriptions.resume, stage.triggers, stage.lots, clean.id)
    stage.ask(clean, bad)
    stage.drain(clean, worker, node)
    stage.work_off(clean, worker)
    assert Gaps(Inventory(stage.store, stage.keys, [clean])).of(stage.cleaned).gaps == ()
