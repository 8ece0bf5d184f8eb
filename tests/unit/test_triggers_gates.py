"""Gates: a subscription runs at the times of its schedule, and processes all new data then (HEAP-16)."""

import msgspec
import pytest

from tests.unit.test_triggers_heap import HeapStage
from tidemill.errors import SubscriptionChanged, TemplateChild, UsageError
from tidemill.lots.keys import DatasetId
from tidemill.triggers import listing, schedules, subscriptions, templates
from tidemill.triggers.schedules import Schedule, source
from tidemill.triggers.subscriptions import Scheduled, Waiting
from tidemill.triggers.templates import Template
from tidemill.triggers.terms import CatchUp, Terms

TICK = source("tick")


def stage_with_a_tick(kind: str = "store") -> HeapStage:
    stage = HeapStage(kind)
    stage.run(schedules.declare, stage.triggers, stage.lots, Schedule(name="tick", expression="*/5 * * * *"))
    return stage


def gated(*tables: DatasetId, **more: object) -> Terms:
    return Terms(sources=(*tables, TICK), gate=TICK, **more)  # type: ignore[arg-type]


def subscribe(stage: HeapStage, terms: Terms, **options: object) -> subscriptions.AnyRow:
    return stage.run(
        subscriptions.subscribe,
        stage.triggers,
        stage.lots,
        "s",
        terms,
        creation=subscriptions.SCHEDULED,
        **options,
    )


@pytest.mark.rule("HEAP-16")
@pytest.mark.parametrize("kind", ["store", "objects"])
def test_new_data_waits_for_the_gate_and_an_empty_tick_is_used_up(kind: str) -> None:
    stage = stage_with_a_tick(kind)
    orders = stage.dataset()
    subscribe(stage, gated(orders))
    assert stage.work() == []
    for _ in range(3):
        stage.publish(orders)
    assert stage.work() == []
    assert isinstance(stage.row("s"), Waiting)
    (shown,) = listing.listed(stage.store, stage.triggers, stage.lots)
    assert shown.state == "waiting"
    assert shown.why == "3 lots to process at the next time of its schedule"
    assert shown.in_s is not None
    assert 0 < shown.in_s <= 300
    stage.clock.advance(300)
    assert stage.work() == ["s"], "once, for all three"
    assert stage.row("s").tally.progress == (3, 1)
    stage.clock.advance(300)
    assert stage.work() == ["s"], "a tick with nothing behind it opens nothing for what comes after"
    stage.publish(orders)
    assert stage.work() == []
    stage.clock.advance(300)
    assert stage.work() == ["s"]
    assert stage.row("s").tally.progress == (4, 3)


@pytest.mark.rule("HEAP-8")
def test_a_run_that_did_not_process_everything_continues_without_another_tick() -> None:
    stage = stage_with_a_tick()
    orders = stage.dataset()
    subscribe(stage, gated(orders))
    stage.work()
    for _ in range(5):
        stage.publish(orders)
    stage.clock.advance(300)
    stage.tend()
    (ticket,) = stage.begin()
    stage.publish(orders)  # behind the tick: it waits for the next
    row = stage.finish(ticket, {orders: 3})
    assert isinstance(row, Scheduled)
    assert row.tally.progress == (3, 0)
    stage.tend()
    (ticket,) = stage.begin()
    row = stage.finish(ticket, {orders: 6})
    assert isinstance(row, Waiting)
    assert row.tally.progress == (6, 1)


def test_another_gate_keeps_progress_flags_and_cadence() -> None:
    stage = stage_with_a_tick()
    orders, rates = stage.dataset(), stage.dataset("rates")
    subscribe(stage, Terms(sources=(orders,), cadence_us=60_000_000))
    stage.publish(orders)
    assert stage.work() == ["s"]
    stage.publish(orders)
    stage.tend()
    before = stage.row("s").tally
    assert (before.progress, before.last_start is None) == ((1,), False)
    stage.run(subscriptions.pause, stage.triggers, "s")
    row = subscribe(stage, gated(orders, cadence_us=60_000_000))
    assert (row.tally.seen[orders], row.tally.last_start, row.tally.paused) == (1, before.last_start, True)
    assert row.tally.epoch > before.epoch
    assert subscribe(stage, gated(orders, cadence_us=60_000_000)) == row, "an equal one is a no-op"
    stage.clock.advance(301)
    assert stage.work() == [], "paused is paused"
    stage.run(subscriptions.resume, stage.triggers, stage.lots, "s")
    assert stage.work() == ["s"], "the tick was kept for it"
    row = subscribe(stage, Terms(sources=(orders,)))
    assert row.tally.terms.gate is None
    assert row.tally.progress == (2,)
    assert stage.work() == []
    stage.publish(orders)
    assert stage.work() == ["s"]
    with pytest.raises(SubscriptionChanged):
        subscribe(stage, Terms(sources=(rates,)))
    row = subscribe(stage, Terms(sources=(orders, rates)), replace_inputs=True)
    assert row.tally.progress == (3, 0)


def test_a_run_of_the_one_before_finishes_nothing_of_the_one_with_another_gate() -> None:
    stage = stage_with_a_tick()
    orders = stage.dataset()
    subscribe(stage, Terms(sources=(orders,)))
    stage.publish(orders)
    stage.tend()
    (ticket,) = stage.begin()
    subscribe(stage, gated(orders))
    with pytest.raises(BaseException, match="no longer holds the ticket"):
        stage.finish(ticket)
    stage.clock.advance(301)
    assert stage.work() == ["s"]
    assert stage.row("s").tally.progress == (1, 1)


@pytest.mark.rule("HEAP-15")
@pytest.mark.parametrize(("policy", "ran"), [(CatchUp.ALL, 3), (CatchUp.LATEST, 1), (CatchUp.NONE, 0)])
def test_data_of_a_pause_is_processed_by_policy_when_the_gate_opens(policy: CatchUp, ran: int) -> None:
    stage = stage_with_a_tick()
    orders = stage.dataset()
    subscribe(stage, gated(orders, catch_up=policy))
    stage.work()
    stage.run(subscriptions.pause, stage.triggers, "s")
    for _ in range(3):
        stage.publish(orders)
    stage.run(subscriptions.resume, stage.triggers, stage.lots, "s")
    assert stage.work() == []
    assert stage.row("s").tally.seen[orders] == 3 - ran
    stage.clock.advance(301)
    assert stage.work() == ["s"]
    assert stage.row("s").tally.seen[orders] == 3


def test_a_gate_is_one_of_the_sources_and_goes_with_no_barrier_and_no_debounce() -> None:
    orders = DatasetId("orders")
    for terms, message in (
        ({"sources": (orders,)}, "is not one of the inputs"),
        ({"barrier": True}, "cannot have a barrier"),
        ({"debounce_us": 5}, "cannot have a barrier or a debounce"),
    ):
        with pytest.raises(UsageError, match=message):
            Terms(**{"sources": (orders, TICK), "gate": TICK, **terms})  # type: ignore[arg-type]


@pytest.mark.rule("HEAP-12")
def test_children_of_a_template_share_its_schedule_are_born_paused_if_it_is_and_go_with_it() -> None:
    stage = stage_with_a_tick()
    raw = stage.dataset("raw_a")
    stage.dataset("raw_a_quarantine")
    template = Template(name="t", reads="raw_*", writes="x_{name}", also=("y_{name}",), paused=True)
    stage.declare(template)
    stage.tend()
    assert stage.store.run(lambda tx: list(templates.children(tx, stage.triggers, "t"))) == ["t[raw_a]"]
    assert stage.row("t[raw_a]").tally.paused
    stage.publish(raw)
    assert stage.work() == []
    awake = msgspec.structs.replace(template, paused=False, terms=Terms(sources=(TICK,), gate=TICK))
    stage.declare(awake)
    two = stage.dataset("raw_b")
    stage.run(subscriptions.resume, stage.triggers, stage.lots, "t[raw_a]")
    stage.publish(two)
    assert stage.work() == []
    stage.clock.advance(301)
    assert stage.work() == ["t[raw_a]", "t[raw_b]"]
    with pytest.raises(TemplateChild):
        stage.run(templates.remove_children, stage.triggers, "t")
    stage.run(templates.remove, stage.triggers, "t")
    while stage.run(templates.remove_children, stage.triggers, "t", 1):
        pass
    assert stage.store.run(lambda tx: templates.children(tx, stage.triggers, "t")) == {}
    stage.clock.advance(20)
    stage.tend()
    assert stage.items() == []
