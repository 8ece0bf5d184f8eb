"""Several nodes at the same arcs at once, on every backend: no lot twice, no limit exceeded, work shared."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.orphans import make_sweeps_due
from tests.unit.arcs_stage import LONG_US, ArcStage, LocalParts
from tidemill.arcs import lot_requests, lot_status
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.work import ArcWork, LotEnd, LotOutcome
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptEnded, LeaseLost
from tidemill.publish.parts import PartTask
from tidemill.store import open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import STUCK_S, Racer, together
from tidemill.triggers import runs, wakes
from tidemill.triggers.subscriptions import Waiting

LOTS = 6


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"


@pytest.fixture
def stage(url: str) -> Iterator[ArcStage]:
    with MemoryStore() if url == "memory" else open_store(url) as store:
        yield ArcStage(store, scan=False)


def named(stage: ArcStage, name: str, ttl_us: int = LONG_US) -> tuple[Node, ArcWork, LocalParts]:
    """A node with a port of its own."""
    node = stage.node(name, ttl_us)
    port = LocalParts(stage.objects, stage.parts.code, name)
    port.failing = stage.parts.failing
    return node, stage.worker(node, parts=port), port


@pytest.mark.rule("LOT-14")
@pytest.mark.rule("LOT-20")
def test_runners_and_producers_at_once_process_every_lot_once(stage: ArcStage) -> None:
    arcs = {spec.id: spec for spec in (stage.clean(max_concurrent=2), stage.sum())}
    for spec in arcs.values():
        stage.subscribe(spec.id, *spec.reads)
    stage.parts.failing[100] = 1
    store = stage.store

    def producer() -> int:
        for n in range(LOTS):
            stage.append([n, n + 10], [n + 20])
        stage.append([100])
        return 0

    def runner(name: str, rounds: int = 25) -> int:
        node, worker, port = named(stage, name)
        for _ in range(rounds):
            store.run(lambda tx: wakes.page_wakes(tx, stage.triggers, stage.lots))
            run_due(stage, arcs, node, worker)
        return len(port.ran)

    def tidier() -> int:
        cleaner = stage.cleaner(stage.node("tidier", LONG_US))
        for _ in range(20):
            cleaner.clean()
        return 0

    together(producer, lambda: runner("one"), lambda: runner("two"), tidier)
    node, worker, _ = named(stage, "last")
    while stage.page() or run_due(stage, arcs, node, worker):
        pass
    for ask in [stage.ask(stage.clean(), status.lot) for status in troubled(stage)]:
        assert worker.make_requested(arcs[ask.arc], ask).ended is LotEnd.COMPLETE
    while stage.page() or run_due(stage, arcs, node, worker):
        pass
    stage.check()
    for dataset in (stage.cleaned, stage.odd, stage.summed):
        published = [event.lot for event in stage.events(dataset)]
        assert len(published) == len(set(published)) == LOTS + 1
    numbers = sorted(n for rows in stage.table(stage.cleaned).values() for n in rows or ())
    assert numbers == sorted([n + step for n in range(LOTS) for step in (0, 10, 20)] + [100])
    for arc in arcs:
        row = stage.row(arc)
        assert isinstance(row, Waiting)
        assert row.tally.progress == (LOTS + 1,)
    make_sweeps_due(store, stage.keys.publish)
    stage.cleaner(node, keep_s=0).clean(limit=1000)
    left = [key for key in stage.orphans() if key.startswith(("data/", "datasets/"))]
    assert left == []


def run_due(stage: ArcStage, arcs: dict[str, ArcSpec], node: Node, worker: ArcWork) -> list[LotOutcome]:
    """Run what is due, unless another runner is faster."""
    outcomes: list[LotOutcome] = []
    for due in stage.due():
        ticket = stage.store.run(
            lambda tx, due=due: runs.start(  # type: ignore[misc]
                tx, stage.triggers, stage.lots, stage.cluster, node, due.name, due.epoch
            )
        )
        if ticket is not None:
            outcomes += worker.run(arcs[due.name], ticket, most=2)
    return outcomes


def troubled(stage: ArcStage) -> list[lot_status.LotStatus]:
    return stage.store.run(lambda tx: lot_status.failed(tx, stage.keys, stage.clean().id))


@pytest.mark.rule("LOT-14")
@pytest.mark.rule("LOT-9")
def test_while_one_node_works_the_other_may_begin_neither_the_lot_nor_one_too_many(stage: ArcStage) -> None:
    spec = stage.clean()
    lots = [stage.append([n]) for n in (1, 2)]
    inside, tried = threading.Event(), threading.Event()
    _, first, port = named(stage, "one")
    _, second, _ = named(stage, "two")

    def wait(task: PartTask) -> None:
        inside.set()
        assert tried.wait(STUCK_S)

    port.between = wait
    racer = Racer(lambda: first.work(spec, lots[0]))
    racer.start()
    assert inside.wait(STUCK_S)
    try:
        assert second.work(spec, lots[0]).ended is LotEnd.ELSEWHERE
        assert second.work(spec, lots[1]).ended is LotEnd.FULL
        assert second.work(stage.clean(max_concurrent=2), lots[1]).ended is LotEnd.COMPLETE
    finally:
        tried.set()
    assert racer.outcome().ended is LotEnd.COMPLETE
    assert second.work(spec, lots[0]).ended is LotEnd.DONE
    assert len(stage.events(stage.cleaned)) == 2


@pytest.mark.rule("LOT-14")
def test_many_that_begin_at_one_moment_are_never_more_than_the_arc_may(stage: ArcStage) -> None:
    spec = stage.clean(max_concurrent=2)
    lots = [stage.append([n]) for n in range(1, 5)]
    lock = threading.Lock()
    now, most = 0, 0

    class Counting(LocalParts):
        def _run(self, task: PartTask):  # type: ignore[no-untyped-def]
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            try:
                for _ in range(5):  # some time in which others could begin
                    stage.events(stage.cleaned)
                return super()._run(task)
            finally:
                with lock:
                    now -= 1

    def at(lot: str) -> Callable[[], int]:
        worker = stage.worker(
            stage.node(f"n{lot}", LONG_US), parts=Counting(stage.objects, stage.parts.code, lot)
        )

        def until_done() -> int:
            full = 0
            while (outcome := worker.work(spec, lot)).ended is LotEnd.FULL:
                full += 1
            assert outcome.ended is LotEnd.COMPLETE
            return full

        return until_done

    together(*(at(lot) for lot in lots))
    assert most <= 2
    assert len(stage.events(stage.cleaned)) == len(lots)


@pytest.mark.rule("LOT-20")
def test_of_many_adopters_of_one_attempt_one_publishes(stage: ArcStage) -> None:
    spec = stage.clean(max_concurrent=10)
    lot = stage.append([1, 2], [3, 4], [5])
    dead, worker, port = named(stage, "dead")

    def die(task: PartTask) -> None:
        raise Died

    port.between = die
    with pytest.raises(Died):
        worker.work(spec, lot)
    stage.kill(dead)

    def adopter(name: str) -> LotEnd | None:
        _, worker, _ = named(stage, name)
        try:
            return worker.work(spec, lot).ended
        except (LeaseLost, AttemptEnded):
            return None

    ends = together(*(lambda n=n: adopter(f"a{n}") for n in range(4)))  # type: ignore[misc]
    assert ends.count(LotEnd.COMPLETE) == 1
    assert set(ends) <= {LotEnd.COMPLETE, LotEnd.ELSEWHERE, LotEnd.DONE}
    (event,) = stage.events(stage.cleaned)
    assert event.attempt == port.ran[0][0]
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4, 5]


@pytest.mark.rule("LOT-11")
def test_a_retry_that_two_runners_see_is_made_once(stage: ArcStage) -> None:
    spec = stage.clean()
    lot = stage.append([1, 2], [3])
    stage.parts.failing[3] = 1
    _, first, _ = named(stage, "first")
    assert first.work(spec, lot).ended is LotEnd.PARTIAL
    stage.ask(spec, lot)

    def runner(name: str) -> list[str]:
        _, worker, port = named(stage, name)
        page = stage.store.run(lambda tx: lot_requests.pending(tx, stage.keys))
        ended = [worker.make_requested(spec, ask).ended for ask in page]
        return [*ended, *(part for _, part in port.ran)]

    results = [result for each in together(lambda: runner("a"), lambda: runner("b")) for result in each]
    assert results.count(LotEnd.COMPLETE) == 1
    assert len([result for result in results if result.startswith("00")]) == 1  # the part that failed, once
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3]
    assert stage.store.run(lambda tx: lot_requests.pending(tx, stage.keys)) == []


class Died(BaseException):
    pass
