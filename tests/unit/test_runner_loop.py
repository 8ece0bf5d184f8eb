"""The loop of a runner, without Spark: parts are made in this process."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.unit.arcs_stage import ArcStage
from tests.unit.lots_stage import FIVE_MINUTES
from tidemill.clock import SYSTEM, poll
from tidemill.cluster import nodes
from tidemill.errors import DiskFull, ObjectError, ObjectUnavailable, StoreUnavailable, ViewRefused
from tidemill.events import Event
from tidemill.lots import lots, staging
from tidemill.lots.datasets import DatasetRow
from tidemill.objects.memory import MemoryObjects
from tidemill.pipeline.run_report import report_of
from tidemill.publish import attempts
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.intervals import IntervalCloser
from tidemill.publish.parts import PartTask
from tidemill.runner.job_tags import JobTags
from tidemill.runner.loop import Loop
from tidemill.runner.node_work import Engine, NodeWork
from tidemill.runner.program import ArcProgram, Program
from tidemill.store import Tx
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import STUCK_S
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.events import RunFailed
from tidemill.triggers.subscriptions import Scheduled
from tidemill.views.spark.step_computer import StepComputer
from tidemill.views.spark.view_sources import ViewSources
from tidemill.views.steps.commits import StepBatch, StepOutput
from tidemill.views.steps.groups import GroupSpec

NOTHING: Callable[..., Any] = lambda *_: None  # noqa: E731 - the port has the functions


class LivePresence:
    """A node that lives as long as the test."""

    def __init__(self, stage: ArcStage) -> None:
        self.node = stage.living("runner")

    def alive(self) -> bool:
        return True

    def accepts(self) -> bool:
        return True

    def left_s(self) -> float:
        return 60.0

    def check(self) -> None:
        pass


class Parts:
    """The stage's port, with the other methods of `PartFutures` that a loop calls."""

    def __init__(self, stage: ArcStage) -> None:
        self.run = stage.parts.run

    def forget(self, attempt: str) -> int:
        return 0

    def forget_ended(self) -> int:
        return 0


class LoopStage(ArcStage):
    """Two consecutive arcs, `clean` and `sum`, and loops that run them."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(clock=SYSTEM, chance=random.Random(7)), scan=False)
        self.specs = [self.clean(), self.sum()]
        for spec in self.specs:
            self.subscribe(spec.id, *spec.reads)

    def loop(self, kind: type[Loop] = Loop, emit: Callable[[Event], None] | None = None) -> Loop:
        arcs = {spec.id: ArcProgram(spec=spec, function=NOTHING, where="here") for spec in self.specs}
        presence = LivePresence(self)
        parts: Any = Parts(self)  # what the loop uses of it
        return kind(
            self.scope(presence.node, clock=SYSTEM, emit=emit or self.told.append),
            presence,
            Program(pipeline="shop", datasets={}, arcs=arcs, sources={}, groups={}),
            Engine(parts=parts, compute=self.compute),
            projections=False,
        )

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepOutput, ...]:
        raise AssertionError("there are no views")


def until(ready: Callable[[], bool]) -> None:
    assert poll(ready, SYSTEM, every_s=0.005, timeout_s=STUCK_S)


def test_a_lot_published_at_the_end_of_a_pass_is_processed() -> None:
    stage, go = LoopStage(), threading.Event()
    lot = stage.append([1, 2, 3])

    loop = stage.loop()
    work, busy_passes = loop.work(), 0
    start_due = work.start_due

    def start_due_late() -> bool:
        """Let the run of `clean` end between the last pass and the check whether anything is left."""
        nonlocal busy_passes
        did = start_due()
        busy_passes += "arc:shop/clean" in loop.state.threads.busy
        if busy_passes == 2:  # another pass follows the one that started the run in any case
            go.set()
            until(lambda: "arc:shop/clean" not in loop.state.threads.busy)
        return did

    work.start_due = start_due_late  # type: ignore[method-assign]

    def hold(_: PartTask) -> None:
        go.wait(STUCK_S)

    stage.parts.between = hold
    loop.run(watch=False)
    loop.end()
    assert stage.rows(stage.summed, lot) == [1, 2, 3]


@pytest.mark.slow
def test_a_loop_that_watches_retries_an_arc_without_limit() -> None:
    stage, stop = LoopStage(), threading.Event()
    lot = stage.append([1, 2, 3])
    broken = 4

    def trouble(_: PartTask) -> None:
        nonlocal broken
        broken -= 1
        if broken:
            stage.parts.between = trouble
            raise OSError("the network is down")

    stage.parts.between = trouble
    loop = stage.loop()
    thread = threading.Thread(target=partial(loop.run, watch=True, stop=stop), daemon=True)
    thread.start()
    until(lambda: stage.rows(stage.summed, lot) == [1, 2, 3])
    stop.set()
    thread.join(STUCK_S)
    loop.end()
    assert not loop.state.totals.failures


@pytest.mark.slow
def test_a_loop_that_catches_up_gives_up_an_arc_that_keeps_failing() -> None:
    stage = LoopStage()
    stage.append([1, 2, 3])

    def trouble(_: PartTask) -> None:
        stage.parts.between = trouble
        raise OSError("the network is down")

    stage.parts.between = trouble
    loop = stage.loop()
    totals = loop.run(watch=False)
    loop.end()
    assert len(totals.failures["arc:shop/clean"]) == 3


def test_a_run_that_is_stopped_ends_after_its_current_lot_and_is_not_caught_up() -> None:
    stage, stop = LoopStage(), threading.Event()
    first, second = stage.append([1]), stage.append([2])
    stage.parts.between = lambda _: stop.set()
    loop = stage.loop()
    totals = loop.run(watch=False, stop=stop)
    assert loop.wait(STUCK_S)
    loop.end()
    assert stage.rows(stage.cleaned, first) == [1]
    assert stage.rows(stage.cleaned, second) is None
    report = report_of("shop", totals, 1.0)
    assert (report.interrupted, report.ok) == (True, False)
    assert "shop: interrupted after 1.0 s" in str(report)
    loop = stage.loop()
    totals = loop.run(watch=False)
    loop.end()
    assert report_of("shop", totals, 1.0).ok
    assert [stage.rows(stage.summed, lot) for lot in (first, second)] == [[1], [2]]


def test_a_run_that_watches_is_not_interrupted_when_it_is_stopped() -> None:
    stage, stop = LoopStage(), threading.Event()
    stop.set()
    loop = stage.loop()
    assert not loop.run(watch=True, stop=stop).interrupted
    loop.end()


def test_errors_of_work_that_the_runner_interrupts_are_no_failures() -> None:
    stage = LoopStage()
    stage.append([1])
    loop = stage.loop()

    def interrupt(_: PartTask) -> None:
        loop.state.interrupting = True
        loop.state.stop.set()
        raise OSError("the job was cancelled")

    stage.parts.between = interrupt
    totals = loop.run(watch=False)
    loop.end()
    assert not totals.failures
    assert not [event for event in stage.told if isinstance(event, RunFailed)]
    row = stage.run(subscriptions.read, stage.keys.publish.triggers, "arc:shop/clean")
    assert isinstance(row, Scheduled)
    assert (row.run, row.tally.failures) == (None, 0)


def test_a_failure_of_the_cleaner_is_in_the_report_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = LoopStage()
    loop = stage.loop()
    upkeep = loop.work().upkeep

    def fail(_: object) -> int:
        raise ObjectUnavailable("storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Cleaner, "clean", fail)
        upkeep.clean()
    report = report_of("shop", loop.state.totals, 1.0)
    assert not report.ok
    assert report.failures == {"clean": "storage does not answer"}
    upkeep.clean()
    assert report_of("shop", loop.state.totals, 1.0).ok
    loop.end()


@pytest.mark.slow
@pytest.mark.parametrize("outage", [StoreUnavailable("it restarts"), ObjectError("it restarts")])
def test_a_loop_that_watches_survives_an_outage_of_its_storage(outage: Exception) -> None:
    stage, stop = LoopStage(), threading.Event()

    class Away(Loop):
        left = 3

        def work(self) -> NodeWork:
            if self.left:
                self.left -= 1
                raise outage
            return super().work()

    loop = stage.loop(Away)
    thread = threading.Thread(target=partial(loop.run, watch=True, stop=stop), daemon=True)
    thread.start()
    lot = stage.append([1, 2, 3])
    until(lambda: stage.rows(stage.summed, lot) == [1, 2, 3])
    stop.set()
    thread.join(STUCK_S)
    loop.end()
    failures = [event for event in stage.told if isinstance(event, RunFailed)]
    name = "store" if isinstance(outage, StoreUnavailable) else "objects"
    assert [(event.name, event.message) for event in failures] == [(name, "it restarts")] * 3


def test_a_loop_that_catches_up_raises_on_a_store_outage() -> None:
    stage = LoopStage()

    class Away(Loop):
        def work(self) -> NodeWork:
            raise StoreUnavailable("it is gone")

    loop = stage.loop(Away)
    with pytest.raises(StoreUnavailable):
        loop.run(watch=False)
    loop.end()


def test_a_loop_that_catches_up_does_not_wait_for_a_long_cadence() -> None:
    stage = LoopStage()
    stage.subscribe("arc:shop/sum", stage.cleaned, cadence_us=3_600_000_000)
    first = stage.append([1])
    loop = stage.loop()
    assert loop.run(watch=False).later == {}
    loop.end()
    second = stage.append([2])
    loop = stage.loop()
    totals = loop.run(watch=False)
    loop.end()
    assert stage.rows(stage.summed, first) == [1]
    assert stage.rows(stage.cleaned, second) == [2]
    assert stage.rows(stage.summed, second) is None
    assert totals.later.keys() == {"arc:shop/sum"}
    assert 3000 < totals.later["arc:shop/sum"] <= 3600
    report = report_of("shop", totals, 1.0)
    assert report.ok
    assert "sum runs again in 3," in str(report)


def die(stage: LoopStage, name: str, times: int) -> None:
    """Start runs of a subscription whose nodes die."""
    node = stage.living("dies")
    for _ in range(times):
        row = stage.row(name)
        assert isinstance(row, Scheduled)
        stage.run(lambda tx: subscriptions.write(tx, stage.triggers, name, row, due_now(tx, row)))  # noqa: B023
        assert stage.start(node, name) is not None
        node = stage.store.run(lambda tx: nodes.join(tx, stage.cluster, node, 10**9))  # noqa: B023
        stage.run(runs.end_earlier_runs, stage.triggers, stage.cluster, node)


def due_now(tx: Tx, row: Scheduled) -> Scheduled:
    return Scheduled(msgspec.structs.replace(row.tally, epoch=row.tally.epoch + 1), tx.now())


@pytest.mark.rule("HEAP-15")
def test_a_loop_that_catches_up_reports_a_run_that_killed_its_nodes_and_does_the_rest() -> None:
    stage = LoopStage()
    first = stage.append([1])
    loop = stage.loop()
    loop.run(watch=False)
    loop.end()
    stage.append([2])
    stage.page_all()
    die(stage, "arc:shop/clean", runs.MOST_DEATHS)
    loop = stage.loop()
    totals = loop.run(watch=False)
    loop.end()
    assert stage.rows(stage.summed, first) == [1]
    report = report_of("shop", totals, 1.0)
    assert not report.ok
    assert "died or lost its lease during the run (10 times in a row)" in report.failures["arc:shop/clean"]


def test_a_loop_that_catches_up_does_not_wait_for_a_long_pause_after_deaths() -> None:
    stage = LoopStage()
    stage.subscribe("arc:shop/clean", stage.orders, backoff_us=3_600_000_000, most_backoff_us=3_600_000_000)
    stage.append([1])
    stage.page_all()
    die(stage, "arc:shop/clean", 2)
    loop = stage.loop()
    totals = loop.run(watch=False)
    loop.end()
    assert 1700 < totals.later["arc:shop/clean"] <= 3600


@pytest.mark.slow
def test_an_interval_that_cannot_be_written_is_retried_while_other_work_continues() -> None:
    stage = LoopStage()
    lot = stage.append([1, 2, 3])
    loop, closer = stage.loop(), Troubled(2)
    loop.work().intervals = closer  # type: ignore[assignment] # what the loop uses of it
    totals = loop.run(watch=False)
    loop.end()
    assert stage.rows(stage.summed, lot) == [1, 2, 3]
    assert closer.left == 0
    assert not totals.failures
    assert [event.name for event in stage.told if isinstance(event, RunFailed)] == ["intervals"] * 2


class Troubled:
    """Closes intervals where storage does not answer, so often."""

    def __init__(self, left: int) -> None:
        self.left = left

    def close_due(self) -> int:
        if self.left:
            self.left -= 1
            raise ObjectUnavailable("storage does not answer")
        return 0


def test_a_failed_close_of_an_interval_leaves_no_attempt_open() -> None:
    stage = ArcStage()
    clicks = stage.dataset("clicks", unit=FIVE_MINUTES)
    stage.run(staging.begin, stage.lots, clicks)
    stage.clock.advance(600)

    class Full(MemoryObjects):
        def put(self, key: str, data: Any, **options: Any) -> Any:
            raise ObjectUnavailable("storage does not answer")

    closer = IntervalCloser(stage.scope(stage.living(), objects=Full(stage.clock)))
    for _ in range(3):
        with pytest.raises(ObjectUnavailable):
            closer.close_due()
    assert stage.run(attempts.open_ids, stage.keys.publish) == []


def test_compaction_ends_after_the_current_lot_when_a_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LoopStage()
    loop, begun = stage.loop(), list[str]()
    loop.program = replace(
        loop.program, datasets={stage.orders: DatasetRow(name="orders", schema="id BIGINT")}
    )
    monkeypatch.setattr(lots, "fragmented", lambda tx, keys, dataset: ["a", "b", "c"])

    class Slow:
        def compact(self, dataset: object, lot: str) -> None:
            begun.append(lot)
            loop.end(0.0)

    loop.work().upkeep.compact(Slow())  # type: ignore[arg-type] # what the loop uses of it
    assert begun == ["a"]


def test_a_failure_of_a_compaction_is_in_the_report_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = LoopStage()
    loop, broken = stage.loop(), {"b"}
    loop.program = replace(
        loop.program, datasets={stage.orders: DatasetRow(name="orders", schema="id BIGINT")}
    )
    monkeypatch.setattr(lots, "fragmented", lambda tx, keys, dataset: ["a", "b"])

    class Broken:
        def compact(self, dataset: object, lot: str) -> None:
            if lot in broken:
                raise ObjectUnavailable("storage does not answer")

    compactor: Any = Broken()
    upkeep = loop.work().upkeep
    upkeep.compact(compactor)
    assert report_of("shop", loop.state.totals, 1.0).failures.keys() == {"compact orders@1 b"}
    broken.clear()
    upkeep.compact(compactor)
    assert report_of("shop", loop.state.totals, 1.0).ok
    loop.end()


class NoSpark:
    """The parts of a session that a step uses apart from computing."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.conf = self
        self.tags: list[str] = []

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.remove(tag)

    def set(self, name: str, value: str) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SystemExit(3), ViewRefused),
        (KeyboardInterrupt(), ViewRefused),
        (RuntimeError("Caused by: java.io.IOException: No space left on device"), DiskFull),
    ],
)
def test_a_step_that_exits_the_process_or_fills_the_disk_counts_as_failed(
    error: BaseException, expected: type[Exception]
) -> None:
    spark: Any = NoSpark()

    def session() -> Any:
        raise error

    unread: Any = None
    sources = ViewSources(session=session, tables=unread, inputs=unread, datasets={}, views={})
    steps = StepComputer(sources, during=JobTags(spark).marked)
    batch = StepBatch(
        pipeline="shop",
        spec=GroupSpec(name="main", views=()),
        after=0,
        step=1,
        moved=frozenset(),
        positions={},
        stale=frozenset(),
        tables={},
        now=0,
        more=False,
    )
    with pytest.raises(expected, match=r"'main' raised|disk for temporary files is full"):
        steps(batch, "a1")
    assert not spark.tags
