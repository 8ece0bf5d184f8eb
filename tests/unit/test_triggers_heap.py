"""Cadence, debounce, barriers, flags, templates and the scheduler's steps, one by one, on one store."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.heap_observer import HeapObserver
from tests.heap_table import AMENDED, FIRST, FORBIDDING, CellCode, HeapState, allowed, check, codes
from tests.unit.lots_stage import SECOND_US, Stage
from tidemill import crash
from tidemill.crash import Crashed
from tidemill.errors import (
    BadName,
    BadTemplate,
    HeapDiffers,
    IllegalTransition,
    TemplateChanged,
    TemplateChild,
    TemplateUnknown,
    UsageError,
)
from tidemill.events import Event
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.objects import open_objects
from tidemill.objects.memory import MemoryObjects
from tidemill.store import Tx
from tidemill.triggers import attach, heap_sync, runs, subscriptions, templates
from tidemill.triggers.due import NEVER, At, Conditions, Now, next_due
from tidemill.triggers.due_query import DueQuery
from tidemill.triggers.events import ItemsPruned, ItemsPushed, StrangeKey, UnreadyCollected
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.object_heap import ObjectHeap
from tidemill.triggers.patterns import Pattern
from tidemill.triggers.scheduler import Scheduler, open_heap
from tidemill.triggers.store_heap import StoreHeap
from tidemill.triggers.subscriptions import Scheduled, Terms, Waiting
from tidemill.triggers.templates import Template
from tidemill.triggers.terms import AfterGrace, CatchUp

DAY_US = 86_400 * SECOND_US


class HeapStage(Stage):
    """A stage with a heap, whose every step is held against the table."""

    def __init__(self, kind: str = "store", **options: Any) -> None:
        super().__init__(**options)
        self.told: list[Event] = []
        self.objects = MemoryObjects(self.clock)
        real: Heap = StoreHeap(self.store, self.triggers)
        if kind == "objects":
            real = ObjectHeap(self.objects, emit=self.told.append)
        self.observer = HeapObserver(self.store, self.triggers, real)
        self.store, self.heap = self.observer.store, self.observer.heap
        self.scheduler = self.new_scheduler()
        self.due_query = DueQuery(self.scope(), self.heap)
        self.runner = self.node("runner", 1000 * DAY_US)

    def new_scheduler(self, **options: Any) -> Scheduler:
        return Scheduler(self.scope(emit=self.told.append), self.heap, **options)

    def attach(self, name: str, *sources: DatasetId, **terms: Any) -> Any:
        return attach.attach(
            self.store, self.triggers, self.lots, self.heap, name, Terms(sources=sources, **terms)
        )

    def declare(self, template: Template) -> Template:
        return self.run(templates.declare, self.triggers, template)

    def tend(self) -> None:
        while self.scheduler.tick() == 0.0:
            pass

    def begin(self) -> list[runs.Ticket]:
        """Start all that can be started."""
        tickets = [self.start(self.runner, due.name, due.epoch) for due in self.due_query.due().due]
        return [ticket for ticket in tickets if ticket is not None]

    def work(self) -> list[str]:
        """Tend, and run all that can be run; their names."""
        self.tend()
        names = []
        for ticket in self.begin():
            self.finish(ticket)
            names.append(ticket.name)
        self.tend()
        return sorted(names)

    def items(self) -> list[tuple[str, int]]:
        return sorted(item.id for item in (*self.heap.listed(0, NEVER), *self.heap.parked()))

    def now(self) -> int:
        return self.store.run(lambda tx: tx.now())


@pytest.fixture(params=["store", "objects"])
def stage(request: pytest.FixtureRequest) -> HeapStage:
    return HeapStage(request.param)


# --- the table

ORIGINAL = """
    A_1  A_2  B_1  B_2  C_1  C_2  D_1  D_2  E_1  E_2  F_1  F_2
A_1 -    INV2 DEL1 X    DEL1 X    TT2  X    X    X    X    X
A_2 STOP -    X    GC   X    DEL1 X    TT2  X    X    X    X
B_1 INV1 X    -    R1   R1   X    X    X    T2   X    X    X
B_2 X    ADD1 INV4 -    X    WT1  X    X    X    T2   X    X
C_1 INV1 X    DO1  X    -    INV4 X    X    X    X    T2   X
C_2 X    INV3 X    DO2  INV4 -    X    X    X    X    X    T2
D_1 TT1  X    X    X    X    X    -    INV2 INV6 X    INV6 X
D_2 X    TT1  X    X    X    X    INV5 -    X    INV6 X    INV6
E_1 X    X    TT1  X    X    X    X    X    -    R1   WT1  X
E_2 X    X    X    TT1  X    X    X    TT3  INV4 -    X    WT1
F_1 X    X    X    X    TT1  X    TT3  X    DO1  X    -    X
F_2 X    X    X    X    X    TT1  X    HOLE2 X   DO2  INV4 -
"""
"""The design's table as it was drawn: from the column to the row."""


@pytest.mark.rule("HEAP-3", "HEAP-5")
def test_the_table_has_twelve_states_and_the_144_cells_of_the_design() -> None:
    heading, *lines = ORIGINAL.strip("\n").splitlines()
    columns = [HeapState(name) for name in heading.split()]
    assert columns == list(HeapState)
    assert len(FIRST) == 144
    for line in lines:
        to, *cells_ = line.split()
        for before, cell in zip(columns, cells_, strict=True):
            assert FIRST[before, HeapState(to)] == ("=" if cell == "-" else cell), (before, to)


@pytest.mark.rule("HEAP-6")
def test_every_amendment_has_a_reason_and_changes_its_cell() -> None:
    changed = {"T2": ("TT2",), "INV5": ("STOP",), "HOLE2": ("INV3",), "DO2": ("X",), "INV2": ("LATE",)}
    for (before, after), amendment in AMENDED.items():
        first = FIRST[before, after]
        assert amendment.codes != (first,)
        assert len(amendment.reason) > 5
        if first.value in changed:
            assert amendment.codes == changed[first.value], (before, after)
    leftover = {code for move, code in FIRST.items() if move not in AMENDED} & {
        CellCode.T2,
        CellCode.HOLE2,
        CellCode.DO2,
    }
    assert leftover == set()
    assert codes(HeapState.C_1, HeapState.B_1) == (CellCode.WT1,)
    assert codes(HeapState.C_1, HeapState.C_2) == codes(HeapState.F_1, HeapState.F_2) == (CellCode.PRUNE,)
    assert codes(HeapState.B_2, HeapState.A_2) == (CellCode.GC, CellCode.DEL1)
    for forbidden in (HeapState.E_1, HeapState.F_1):
        assert not allowed(HeapState.D_1, forbidden)


@pytest.mark.rule("HEAP-6", "HEAP-4")
def test_allowed_moves_change_one_axis_and_all_others_are_refused() -> None:
    for before in HeapState:
        for after in HeapState:
            axes = (before.value[2] != after.value[2]) + (before.value[0] != after.value[0])
            if allowed(before, after):
                assert axes <= 1
                check(before, after)
            else:
                assert FORBIDDING & set(codes(before, after))
                with pytest.raises(IllegalTransition, match=f"{before} to {after}"):
                    check(before, after)


# --- attaching


@pytest.mark.rule("HEAP-13", "HEAP-11")
def test_attaching_pushes_before_ready_and_a_run_without_data_waits(
    stage: HeapStage,
) -> None:
    orders = stage.dataset()
    row = stage.attach("s", orders)
    assert (row.state, row.tally.ready, stage.items()) == ("scheduled", True, [("s", 1)])  # INV3
    assert stage.attach("s", orders) == row
    assert stage.begin() == []  # there is nothing to run for
    assert isinstance(stage.row("s"), Waiting)
    stage.tend()
    assert stage.items() == []


@pytest.mark.rule("HEAP-13")
@pytest.mark.parametrize("point", ["attach.row.after", "attach.push.after"])
def test_an_interrupted_attach_is_not_started_and_is_deleted_or_completed(
    stage: HeapStage, point: str
) -> None:
    orders = stage.dataset()
    stage.publish(orders)
    for name in ("left", "again"):
        with pytest.raises(Crashed), crash.armed(point):
            stage.attach(name, orders)
    stage.tend()
    assert stage.begin() == []
    stage.clock.advance(300)
    assert stage.attach("again", orders).tally.ready
    stage.clock.advance(301)
    stage.tend()
    assert [event.names for event in stage.told if isinstance(event, UnreadyCollected)] == [["left"]]
    assert stage.work() == ["again"]
    assert stage.run(subscriptions.read, stage.triggers, "left") is None
    stage.clock.advance(60)
    stage.tend()
    assert stage.items() == []


@pytest.mark.rule("HEAP-13")
def test_a_subscription_that_is_attached_again_is_not_deleted_for_its_first_attempt(stage: HeapStage) -> None:
    orders = stage.dataset()
    for _ in range(2):
        with pytest.raises(Crashed), crash.armed("attach.row.after"):
            stage.attach("s", orders)
        stage.clock.advance(400)
        stage.scheduler.collect()
        row = stage.run(subscriptions.read, stage.triggers, "s")
        assert row is not None, "its own grace period is not over"
        stage.run(subscriptions.remove, stage.triggers, "s")


@pytest.mark.rule("HEAP-13", "HEAP-15")
def test_a_subscription_that_is_paused_before_it_is_ready_does_not_start(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.publish(orders)
    with pytest.raises(Crashed), crash.armed("attach.push.after"):
        stage.attach("s", orders)
    stage.run(subscriptions.pause, stage.triggers, "s")
    assert stage.attach("s", orders).tally.ready
    assert stage.work() == []
    stage.run(subscriptions.resume, stage.triggers, stage.lots, "s")
    assert stage.work() == ["s"]


@pytest.mark.rule("HEAP-11")
def test_an_id_is_used_once_even_if_its_name_is_reused(stage: HeapStage) -> None:
    orders = stage.dataset()
    first = stage.attach("s", orders)
    assert stage.run(subscriptions.remove, stage.triggers, "s")
    again = stage.attach("s", orders)
    assert again.tally.born == again.tally.epoch > first.tally.epoch  # INV1
    stage.clock.advance(60)
    stage.work()
    stage.clock.advance(60)
    stage.tend()
    assert stage.items() == []


def test_a_name_that_no_key_could_carry_is_refused(stage: HeapStage) -> None:
    orders = stage.dataset()
    for name in ("", "x" * 300):
        with pytest.raises(BadName):
            stage.attach(name, orders)


# --- cadence, debounce, backoff


@pytest.mark.rule("HEAP-1")
def test_starts_are_a_cadence_apart_also_after_failures_and_lapses(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, cadence_us=10 * SECOND_US, backoff_us=1, most_failures=0)
    starts = []
    chance = random.Random(5)
    for number in range(60):
        stage.publish(orders)
        stage.tend()
        for ticket in stage.begin():
            starts.append(stage.now())
            if number % 3 == 0:
                stage.run(runs.fail, stage.triggers, stage.cluster, ticket, jitter=chance.random())
            elif number % 3 == 1:
                stage.finish(ticket)
            else:  # its node dies with it
                stage.kill(stage.runner)
                stage.clock.advance(0.5)
                stage.look("s")
                stage.runner = stage.node(f"runner {number}", 1000 * DAY_US)
        stage.clock.advance(chance.choice([0.5, 1, 7]))
    assert len(starts) > 8
    assert min(b - a for a, b in pairwise(starts)) >= 10 * SECOND_US


@pytest.mark.rule("HEAP-14")
def test_a_burst_of_writes_is_one_run_when_it_is_over_and_all_of_it_is_seen(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, debounce_us=5 * SECOND_US)
    assert stage.work() == []
    epochs = stage.row("s").tally.epoch
    for _ in range(20):
        stage.publish(orders)
        stage.clock.advance(1)
        assert stage.work() == []
    stage.clock.advance(4)
    ran = stage.work()
    assert ran == ["s"]
    row = stage.row("s")
    assert row.tally.progress == (20,)
    assert row.tally.epoch - epochs <= 7, "a burst costs a new time for each debounce, not for each write"


@pytest.mark.rule("HEAP-14")
def test_a_source_that_is_never_quiet_is_waited_for_no_longer_than_the_max_wait(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, debounce_us=5 * SECOND_US, max_wait_us=12 * SECOND_US)
    stage.work()
    begun, ran = stage.now(), []
    for _ in range(40):
        stage.publish(orders)
        if stage.work():
            ran.append((stage.now() - begun) // SECOND_US)
        stage.clock.advance(1)
    assert ran[0] == 12
    assert all(12 <= b - a <= 13 for a, b in pairwise(ran))
    assert stage.row("s").tally.progress[0] > 20


def test_next_due_waits_for_quiet_and_not_beyond_the_max_wait() -> None:
    def due(now: int, newest: int) -> Any:
        conditions = Conditions(debounce_us=10, max_wait_us=30)
        return next_due({"a": 3}, {"a": 1}, {"a": 100}, now, conditions, {"a": newest})

    assert due(105, 105) == At(115)
    assert due(115, 105) == Now()
    assert due(125, 124) == At(130)
    assert due(130, 129) == Now()


@pytest.mark.rule("HEAP-14")
def test_a_debounce_waits_until_every_input_is_quiet() -> None:
    a, b = DatasetId("a"), DatasetId("b")
    conditions = Conditions(debounce_us=10, max_wait_us=100)
    closed, newest = {a: 0, b: 4}, {a: 2, b: 7}
    assert next_due({a: 3, b: 2}, {a: 0, b: 0}, closed, 12, conditions, newest) == At(17)
    assert next_due({a: 3, b: 2}, {a: 0, b: 0}, closed, 17, conditions, newest) == Now()


def test_terms_that_make_no_sense_are_refused() -> None:
    source = (DatasetId("d"),)
    for wrong in (
        {"cadence_us": -1},
        {"debounce_us": -1},
        {"grace_us": -1},
        {"most_failures": -1},
        {"debounce_us": 10, "max_wait_us": 9},
    ):
        with pytest.raises(UsageError):
            Terms(sources=source, **wrong)


def test_a_cadence_of_zero_is_as_fast_as_can_be_and_does_not_spin(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, cadence_us=0)
    stage.publish(orders)
    assert stage.work() == ["s"]
    assert stage.work() == []
    stage.publish(orders)
    assert stage.work() == ["s"]
    assert stage.due_query.due() == stage.due_query.due()
    assert stage.due_query.due().due == []


@pytest.mark.rule("HEAP-15")
def test_failures_back_off_with_jitter_and_end_as_a_dead_letter_that_retry_arms_again(
    stage: HeapStage,
) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, backoff_us=SECOND_US, most_backoff_us=3 * SECOND_US, most_failures=5)
    stage.publish(orders)
    waits = []
    for jitter in (0.0, 1.0, 1.0, 0.5):
        stage.tend()
        (ticket,) = stage.begin()
        row = stage.run(
            runs.fail,
            stage.triggers,
            stage.cluster,
            ticket,
            jitter=jitter,
            why=f"boom {jitter} " + "x" * 1000,
        )
        waits.append((row.next_run - stage.now()) / SECOND_US)
        stage.clock.advance(4)
    assert waits == [0.5, 2.0, 3.0, 2.25]
    stage.tend()
    (ticket,) = stage.begin()
    row = stage.run(runs.fail, stage.triggers, stage.cluster, ticket, why="the last")
    assert (row.tally.dead, row.tally.why, row.next_run) == (True, "the last", NEVER)
    assert len(stage.row("s").tally.why) <= 500
    stage.clock.advance(1000)
    assert stage.work() == []
    stage.publish(orders)  # a dead one keeps what wakes it
    assert stage.work() == []
    assert [item.name for item in stage.heap.parked()] == ["s"]
    row = stage.run(subscriptions.retry, stage.triggers, "s")
    assert (row.tally.dead, row.tally.failures) == (False, 0)
    assert stage.work() == ["s"]
    assert stage.row("s").tally.progress == (2,)
    stage.clock.advance(60)
    stage.tend()
    assert stage.items() == []
    assert stage.run(subscriptions.retry, stage.triggers, "s") == stage.row("s")


@pytest.mark.rule("HEAP-15")
def test_those_that_are_dead_or_stuck_are_left_out_before_the_limit_counts(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.publish(orders)
    for n in range(15):
        stage.attach(f"a{n:02}", orders, most_failures=1)
    stage.attach("z", orders)
    for due in stage.due_query.due(15).due:
        ticket = stage.start(stage.runner, due.name, due.epoch)
        if ticket is not None and due.name != "z":
            stage.run(runs.fail, stage.triggers, stage.cluster, ticket, why="poison")
    # nothing was swept since, so the old items of the dead still lie before the one that is well
    assert len([item for item in stage.items() if item[0].startswith("a")]) >= 15
    assert [due.name for due in stage.due_query.due(1).due] == ["z"]
    stage.tend()
    assert [due.name for due in stage.due_query.due(1).due] == ["z"]
    assert stage.due_query.due(1).lag_us >= 0
    assert stage.due_query.due(1, matches=lambda name: name != "z").due == []


# --- pause and resume


@pytest.mark.rule("HEAP-15", "LOT-38")
@pytest.mark.parametrize(
    ("policy", "progress"), [(CatchUp.ALL, 0), (CatchUp.LATEST, 3), (CatchUp.NONE, None)]
)
def test_a_paused_subscription_loses_no_wake_up_and_catches_up_by_policy(
    stage: HeapStage, policy: CatchUp, progress: int | None
) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, catch_up=policy)
    stage.work()
    row = stage.run(subscriptions.pause, stage.triggers, "s")
    assert (row.state, row.tally.paused) == ("waiting", True)
    for _ in range(4):
        stage.publish(orders)
        assert stage.work() == []
        stage.clock.advance(100)
    row = stage.row("s")
    assert (row.state, row.next_run) == ("scheduled", NEVER)  # HEAP-20: a head is beyond its progress
    assert len(stage.items()) == 1
    stage.run(subscriptions.resume, stage.triggers, stage.lots, "s")
    stage.tend()
    tickets = stage.begin()
    assert [ticket.progress[orders] for ticket in tickets] == ([] if progress is None else [progress])
    for ticket in tickets:
        stage.finish(ticket)
    assert stage.row("s").tally.progress == (4,)
    stage.tend()
    stage.clock.advance(100)
    stage.tend()
    assert stage.items() == []
    stage.publish(orders)
    assert stage.work() == ["s"]


@pytest.mark.rule("LOT-38")
def test_a_running_subscription_finishes_its_run_when_it_is_paused(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders)
    stage.publish(orders)
    stage.tend()
    (ticket,) = stage.begin()
    stage.publish(orders)
    stage.run(subscriptions.pause, stage.triggers, "s")
    row = stage.finish(ticket)
    assert (row.tally.progress, row.tally.paused, row.next_run) == ((1,), True, NEVER)
    assert stage.work() == []
    stage.run(subscriptions.resume, stage.triggers, stage.lots, "s")
    assert stage.work() == ["s"]


# --- barriers


@pytest.mark.rule("LOT-28")
@pytest.mark.parametrize("policy", list(AfterGrace))
def test_after_its_grace_a_barrier_waits_runs_without_a_source_or_skips(
    stage: HeapStage, policy: AfterGrace
) -> None:
    a, b = stage.dataset("a"), stage.dataset("b")
    stage.attach("s", a, b, barrier=True, grace_us=60 * SECOND_US, after_grace=policy)
    assert stage.work() == []
    stage.publish(a)
    assert stage.work() == []
    stage.clock.advance(59)
    assert stage.work() == []
    stage.clock.advance(2)
    assert stage.work() == (["s"] if policy is AfterGrace.PARTIAL else [])
    row = stage.row("s")
    assert row.state == "waiting"
    assert row.tally.progress == ((0, 0) if policy is AfterGrace.WAIT else (1, 0))
    assert row.tally.skipped == (policy is AfterGrace.SKIP)
    stage.publish(b)
    stage.publish(a)
    assert stage.work() == ["s"]  # both have something
    assert stage.row("s").tally.progress == (2, 1)


# --- the scheduler


@pytest.mark.rule("HEAP-9", "HEAP-4")
@pytest.mark.parametrize("point", ["triggers.push.before", "triggers.push.after"])
def test_a_push_that_is_cut_short_is_made_again_by_the_next_sweep(stage: HeapStage, point: str) -> None:
    orders = stage.dataset()
    stage.attach("s", orders)
    stage.work()
    stage.publish(orders)
    with pytest.raises(Crashed), crash.armed(point):
        stage.scheduler.tick()
    stage.scheduler = stage.new_scheduler()
    assert stage.work() == ["s"]
    assert stage.run(heap_sync.owed, stage.triggers) == []


@pytest.mark.rule("HEAP-7")
def test_a_run_that_is_due_later_in_this_minute_sets_the_time_of_the_next_query() -> None:
    """A heap of objects lists an item from the beginning of its minute."""
    stage = HeapStage("objects")
    orders = stage.dataset()
    stage.attach("s", orders, cadence_us=7 * SECOND_US)
    stage.publish(orders)
    assert stage.work() == ["s"]
    stage.publish(orders)
    assert stage.work() == []
    assert stage.due_query.due().next_at == stage.row("s").next_run


@pytest.mark.rule("HEAP-17")
def test_a_heap_is_rebuilt_page_by_page(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.publish(orders)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        stage.attach(name, orders)
    stage.scheduler.push()
    assert stage.run(heap_sync.owed, stage.triggers) == []
    stage.run(heap_sync.begin_rebuild, stage.triggers)
    while stage.run(heap_sync.rebuild, stage.triggers, 2):
        pass
    assert [item.name for item in stage.run(heap_sync.owed, stage.triggers)] == names


@pytest.mark.rule("HEAP-9")
def test_a_slow_push_of_an_old_item_does_not_clear_the_debt_of_the_next_epoch(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders)
    stage.work()
    stage.publish(orders)
    stage.scheduler.wake()
    old = stage.run(heap_sync.owed, stage.triggers)
    stage.run(subscriptions.pause, stage.triggers, "s")
    stage.run(heap_sync.clear_debts, stage.triggers, old)
    (item,) = stage.run(heap_sync.owed, stage.triggers)
    assert (item.name, item.epoch) == ("s", old[0].epoch + 1)


@pytest.mark.rule("HEAP-9")
def test_failure_lapse_debounce_hasten_pause_and_retry_each_have_an_epoch_and_a_time_of_their_own(
    stage: HeapStage,
) -> None:
    a, b = stage.dataset("a"), stage.dataset("b")
    stage.attach("s", a, b, barrier=True, grace_us=60 * SECOND_US, backoff_us=SECOND_US)
    times: dict[int, int] = {}

    def note() -> None:
        row = stage.row("s")
        if isinstance(row, Scheduled):
            assert times.setdefault(row.tally.epoch, row.next_run) == row.next_run

    note()
    stage.work()
    steps: list[Callable[[], Any]] = [
        lambda: stage.publish(a),
        stage.tend,  # held for b
        lambda: stage.publish(b),
        stage.tend,  # hastened
        lambda: stage.run(runs.fail, stage.triggers, stage.cluster, stage.begin()[0]),
        lambda: stage.run(subscriptions.retry, stage.triggers, "s"),
        lambda: stage.run(subscriptions.pause, stage.triggers, "s"),
        lambda: stage.run(subscriptions.resume, stage.triggers, stage.lots, "s"),
        stage.tend,
        stage.begin,
        lambda: stage.kill(stage.runner),
        lambda: stage.look("s"),
    ]
    for step in steps:
        step()
        note()
        stage.tend()
        note()
    assert len(times) >= 6
    assert len(set(stage.items())) == len(stage.items())


@pytest.mark.rule("HEAP-10", "HEAP-11")
def test_an_item_is_pruned_when_its_row_is_gone_or_waits_or_has_a_newer_one(stage: HeapStage) -> None:
    orders = stage.dataset()
    for name in ("gone", "waits", "newer", "runs"):
        stage.attach(name, orders, backoff_us=SECOND_US)
    stage.publish(orders)
    stage.tend()
    tickets = {ticket.name: ticket for ticket in stage.begin()}
    stage.finish(tickets["waits"])
    stage.run(runs.fail, stage.triggers, stage.cluster, tickets["newer"])
    stage.run(subscriptions.remove, stage.triggers, "gone")
    before = stage.items()
    listed = list(stage.heap.listed(0, NEVER))
    verdict = stage.run(heap_sync.classify, stage.triggers, listed)
    assert {item.name for item in verdict.dead} == {"gone", "waits"}
    assert [item.name for item, _ in verdict.old] == ["newer"]
    assert (
        heap_sync.removable(verdict, stage.heap.has) == verdict.dead
    )  # the newer one is not pushed yet: INV4
    assert stage.items() == before
    stage.tend()
    assert ("newer", stage.row("newer").tally.epoch) in stage.items()
    stage.clock.advance(20)
    stage.tend()
    assert stage.items() == sorted(
        [("newer", stage.row("newer").tally.epoch), ("runs", stage.row("runs").tally.epoch)]
    )
    assert sum(event.count for event in stage.told if isinstance(event, ItemsPruned)) == 3


def test_an_unknown_item_is_reported_and_ignored(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders)
    stage.observer._real.push([Item(0, "never was", 1), Item(0, "s", 99)])
    stage.clock.advance(20)
    stage.work()
    strange = {event.key for event in stage.told if isinstance(event, StrangeKey)}
    assert strange == {"never was under epoch 1", "s under epoch 99"}
    assert ("never was", 1) in stage.items()
    stage.publish(orders)
    assert stage.work() == ["s"]


@pytest.mark.rule("HEAP-17")
@pytest.mark.parametrize("how", ["sweep", "rebuild"])
def test_a_heap_that_was_lost_is_rebuilt_from_the_rows(how: str) -> None:
    stage = HeapStage("objects")
    orders = stage.dataset()
    names = [f"s{n:02}" for n in range(20)]
    for name in names:
        stage.attach(name, orders)
    stage.work()
    stage.publish(orders)
    stage.tend()
    assert len(stage.items()) >= 20
    stage.observer._real.remove([*stage.heap.listed(0, NEVER)])
    stage.observer.lost()
    assert stage.due_query.due().due == []
    if how == "rebuild":
        stage.run(heap_sync.begin_rebuild, stage.triggers)
    else:
        stage.clock.advance(31)  # they are overdue: the sweep looks whether they are there
    assert stage.work() == names
    again = [event for event in stage.told if isinstance(event, ItemsPushed) and event.again]
    assert bool(again) == (how == "sweep")


def test_runners_agree_on_one_heap_until_it_is_rebuilt() -> None:
    stage = HeapStage("store")
    stage.tend()
    other = Scheduler(stage.scope(), ObjectHeap(stage.objects))
    with pytest.raises(HeapDiffers, match="objects, 1 shards"):
        other.tick()
    stage.run(heap_sync.begin_rebuild, stage.triggers)
    other.tick()
    with pytest.raises(HeapDiffers):
        stage.new_scheduler().tick()
    with pytest.raises(UsageError):
        ObjectHeap(stage.objects, shards=0)


def test_the_default_heap_is_in_the_bucket_if_there_is_one_else_in_the_store(tmp_path: Path) -> None:
    stage = HeapStage("store")
    bucket = open_objects("s3://key:secret@bucket/root?region=x", clock=stage.clock, probe=False)
    folder = open_objects(str(tmp_path), clock=stage.clock)
    assert isinstance(open_heap(stage.scope(objects=bucket)), ObjectHeap)
    for objects in (folder, stage.objects, None):
        assert isinstance(open_heap(stage.scope(objects=objects)), StoreHeap)


@pytest.mark.slow
@pytest.mark.rule("HEAP-20", "HEAP-2")
def test_five_thousand_subscribers_all_run_although_schedulers_are_killed_during_the_fan_out() -> None:
    stage = Stage(scan=False)
    heap = StoreHeap(stage.store, stage.triggers)
    orders, node, count = stage.dataset(), stage.node("n", 1000 * DAY_US), 5_000
    names = [f"s{n:05}" for n in range(count)]
    for first in range(0, count, 200):
        stage.run(
            lambda tx, page: [
                subscriptions.subscribe(tx, stage.triggers, stage.lots, name, Terms(sources=(orders,)))
                for name in page
            ],
            names[first : first + 200],
        )
    stage.publish(orders)
    pull, ran, deaths = DueQuery(stage.scope(), heap), set[str](), 0
    points = ["triggers.push.before", "triggers.push.after"]
    chance = random.Random(11)
    for number in range(300):
        scheduler = Scheduler(stage.scope(), heap)
        point = "triggers.wake.after" if number < 20 else chance.choice(points)
        try:
            with crash.armed(point, visit=chance.randrange(1, 4)):
                scheduler.tick()
        except Crashed:
            deaths += 1
        due = pull.due(500).due
        if not due and ran == set(names):
            break
        for page in (due[n : n + 100] for n in range(0, len(due), 100)):
            ran |= set(stage.run(_run_all, stage, node, page))
    assert ran == set(names)
    assert deaths > 10


def _run_all(tx: Tx, stage: Stage, node: Any, page: list[runs.Due]) -> list[str]:
    names = []
    for due in page:
        ticket = runs.start(tx, stage.triggers, stage.lots, stage.cluster, node, due.name, due.epoch)
        if ticket is not None:
            runs.finish(tx, stage.triggers, stage.lots, stage.cluster, ticket, ticket.heads)
            names.append(due.name)
    return names


def test_a_wall_clock_that_jumps_back_changes_nothing(stage: HeapStage) -> None:
    orders = stage.dataset()
    stage.attach("s", orders, cadence_us=10 * SECOND_US)
    stage.publish(orders)
    assert stage.work() == ["s"]
    stage.clock.wall_s -= 86_400
    stage.publish(orders)
    assert stage.work() == []
    stage.clock.advance(10)
    assert stage.work() == ["s"]


# --- templates

CLEAN = Template(name="clean", reads="raw_*", writes="clean_{name}", terms=Terms(sources=(), cadence_us=5))


@pytest.mark.rule("HEAP-12", "HEAP-11")
def test_a_template_has_a_child_for_each_dataset_that_matches_now_or_later(stage: HeapStage) -> None:
    early = [stage.dataset(f"raw_{n:03}") for n in range(12)]
    stage.dataset("other")
    stage.publish(early[7])
    stage.declare(CLEAN)
    assert stage.declare(CLEAN) == CLEAN
    pages = 0
    while stage.run(templates.page_templates, stage.triggers, stage.lots, 5):
        pages += 1
    assert pages == 3
    assert stage.work() == ["clean[raw_007]"]
    assert stage.work() == []
    late = stage.dataset("raw_new")
    stage.tend()
    with pytest.raises(TemplateChild):
        stage.run(subscriptions.remove, stage.triggers, "clean[raw_007]")  # INV6
    stage.publish(late)
    assert stage.work() == ["clean[raw_new]"]
    rows = stage.store.run(lambda tx: tx.range(*stage.triggers.subscription.all()))
    assert len(rows) == 13
    assert stage.row("clean[raw_new]").tally.terms.cadence_us == 5
    moves = {(a.value, b.value) for a, b in stage.observer.moves}
    assert ("D_2", "E_2") in moves
    assert not {("D_2", "F_2"), ("A_2", "C_2")} & moves  # INV3
    assert stage.run(templates.remove, stage.triggers, "clean")
    assert not stage.run(templates.remove, stage.triggers, "clean")
    assert stage.run(subscriptions.remove, stage.triggers, "clean[raw_007]")
    stage.publish(early[3])
    stage.clock.advance(1)
    assert stage.work() == ["clean[raw_003]"]  # the children that are left go on


@pytest.mark.rule("HEAP-12")
def test_children_take_over_other_terms_and_another_pattern_is_refused(stage: HeapStage) -> None:
    stage.dataset("raw_a")
    fixed = stage.dataset("rates")
    template = Template(name="t", reads="raw_*", terms=Terms(sources=(fixed,)))
    stage.declare(template)
    stage.tend()
    assert stage.row("t[raw_a]").tally.terms.sources == (DatasetId("raw_a"), fixed)
    stage.declare(msgspec.structs.replace(template, terms=Terms(sources=(fixed,), cadence_us=9)))
    stage.tend()
    assert stage.row("t[raw_a]").tally.terms.cadence_us == 9
    with pytest.raises(TemplateChanged):
        stage.declare(msgspec.structs.replace(template, reads="row_*"))
    with pytest.raises(TemplateUnknown):
        stage.run(templates.must_find, stage.triggers, "u")


def test_templates_of_a_hundred_sources_fit_their_transactions(stage: HeapStage) -> None:
    others = tuple(stage.dataset(f"x{n}") for n in range(99))
    stage.observer = HeapObserver(stage.store, stage.triggers, stage.heap)
    for n in range(12):
        stage.run(datasets.declare, stage.lots, DatasetRow(name=f"raw_{n}", schema="id BIGINT"))
    stage.scan = False
    stage.declare(Template(name="t", reads="raw_*", terms=Terms(sources=others)))
    stage.tend()
    rows = stage.store.run(lambda tx: tx.range(*stage.triggers.subscription.all()))
    assert len(rows) == 12


@pytest.mark.parametrize(
    ("reads", "writes", "words"),
    [
        ("raw_*", "raw_clean_{name}", "its own pattern"),
        ("*", "clean_{name}", "its own pattern"),
        ("*_x", "{name}_y_x", "its own pattern"),
        ("raw", "clean_{name}", "invalid dataset pattern"),
        ("raw_*_*", "clean_{name}", "invalid dataset pattern"),
        ("raw_?", "clean_{name}", "invalid dataset pattern"),
        ("raw_*", "clean", "invalid target pattern"),
        ("raw_*", "clean_{name}_{name}", "invalid target pattern"),
        ("raw_*", "clean_{other}", "invalid target pattern"),
    ],
)
def test_a_template_that_reads_its_output_or_has_no_pattern_is_refused(
    stage: HeapStage, reads: str, writes: str, words: str
) -> None:
    with pytest.raises(BadTemplate, match=words) as caught:
        stage.declare(Template(name="t", reads=reads, writes=writes))
    assert caught.value.hint
    assert stage.run(templates.listed, stage.triggers) == []


def test_templates_that_go_round_in_a_circle_are_refused(stage: HeapStage) -> None:
    stage.declare(Template(name="one", reads="a_*", writes="b_{name}"))
    stage.declare(Template(name="two", reads="b_*", writes="c_{name}"))
    with pytest.raises(BadTemplate, match="through 'two'"):
        stage.declare(Template(name="three", reads="c_x*", writes="a_{name}"))
    stage.declare(Template(name="three", reads="c_*", writes="d_{name}"))


def test_a_pattern_that_matches_everything_or_nothing_is_fine_without_a_target(stage: HeapStage) -> None:
    for name in ("a", "b"):
        stage.publish(stage.dataset(name))
    stage.declare(Template(name="all", reads="*"))
    stage.declare(Template(name="none", reads="zzz_*", writes="x_{name}"))
    assert stage.work() == ["all[a]", "all[b]"]


def test_a_pattern_matches_the_text_between_its_ends() -> None:
    assert Pattern.parse("raw_*").match("raw_") is None
    assert Pattern.parse("a*a").match("aa") is None
    assert Pattern.parse("a*a").match("aba") == "b"
    assert Pattern.parse_target("x_{name}_y").fill("b") == "x_b_y"
