"""Subscriptions: scheduled when a source has something new, run under a fence, and limited by their
cadence.
"""

import msgspec
import pytest

from tests.unit.lots_stage import SECOND_US, Stage
from tidemill.cluster import nodes
from tidemill.crash import Crashed
from tidemill.errors import (
    DatasetUnknown,
    IllegalTransition,
    LeaseLost,
    SubscriptionChanged,
    SubscriptionUnknown,
    UsageError,
)
from tidemill.lots.keys import DatasetId
from tidemill.store import Tx
from tidemill.triggers import runs, subscriptions, wakes
from tidemill.triggers.due import At, Conditions, Nothing, Now, next_due
from tidemill.triggers.states import SUBSCRIPTION, SubscriptionEdge, SubscriptionState, step
from tidemill.triggers.subscriptions import Scheduled, Terms, Waiting


def next_look_at(stage: Stage) -> int:
    """When the first subscription has to be looked at (store time, µs)."""
    (first,) = stage.store.run(lambda tx: tx.range(*stage.triggers.due.all(), limit=1))
    return stage.triggers.due.unpack(first.key)[0]


def test_every_state_has_the_edges_of_the_table_and_no_others():
    for state in SubscriptionState:
        for edge in SubscriptionEdge:
            if edge in SUBSCRIPTION[state]:
                assert step(state, edge) is SUBSCRIPTION[state][edge]
            else:
                with pytest.raises(IllegalTransition):
                    step(state, edge)


@pytest.mark.rule("HEAP-8")
@pytest.mark.parametrize(
    ("heads", "progress", "closed", "terms", "expected"),
    [
        ({"a": 0}, {"a": 0}, {}, {}, Nothing()),
        ({"a": 3}, {"a": 3}, {}, {}, Nothing()),
        ({"a": 4}, {"a": 3}, {}, {}, Now()),
        ({"a": 3, "b": 1}, {"a": 3, "b": 0}, {}, {}, Now()),
        ({}, {"a": 0}, {}, {}, Nothing()),
        # a barrier runs when every source has something, and does not spin while one has not
        ({"a": 4, "b": 1}, {"a": 3, "b": 0}, {}, {"barrier": True}, Now()),
        ({"a": 4, "b": 0}, {"a": 3, "b": 0}, {}, {"barrier": True}, Nothing()),
        ({"a": 3, "b": 0}, {"a": 3, "b": 0}, {}, {"barrier": True, "grace_us": 5}, Nothing()),
        # its grace counts from the first lot that waits
        ({"a": 4, "b": 0}, {"a": 3, "b": 0}, {"a": 90}, {"barrier": True, "grace_us": 20}, At(110)),
        ({"a": 4, "b": 0}, {"a": 3, "b": 0}, {"a": 80}, {"barrier": True, "grace_us": 20}, Now()),
        (
            {"a": 4, "b": 2, "c": 0},
            {"a": 3, "b": 1, "c": 0},
            {"a": 95, "b": 93},
            {"barrier": True, "grace_us": 20},
            At(113),
        ),
    ],
)
def test_the_next_run_follows_from_heads_and_progress(heads, progress, closed, terms, expected):
    assert next_due(heads, progress, closed, 100, Conditions(**terms)) == expected


def test_a_new_subscription_is_scheduled_if_there_is_something_already():
    stage = Stage()
    orders, quiet = stage.dataset(), stage.dataset("quiet")
    stage.publish(orders)
    assert isinstance(stage.subscribe("early", orders), Scheduled)
    assert isinstance(stage.subscribe("later", quiet), Waiting)
    row = stage.run(
        subscriptions.subscribe, stage.triggers, stage.lots, "seen", Terms(sources=(orders,)), {orders: 1}
    )
    assert isinstance(row, Waiting)
    assert [due.name for due in stage.due()] == ["early"]


def test_subscribing_again_is_a_no_op_and_other_sources_are_refused():
    stage = Stage()
    orders, other = stage.dataset(), stage.dataset("other")
    first = stage.subscribe("s", orders)
    assert stage.subscribe("s", orders) == first
    assert stage.writes == 0
    assert stage.subscribe("s", orders, cadence_us=5).tally.terms.cadence_us == 5
    with pytest.raises(SubscriptionChanged):
        stage.subscribe("s", other)
    with pytest.raises(DatasetUnknown):
        stage.subscribe("t", DatasetId("nothing"))
    for sources in ((), (orders, orders)):
        with pytest.raises(UsageError):
            stage.subscribe("t", *sources)
    for progress in ({orders: 1}, {orders: -1}, {other: 0}):
        with pytest.raises(UsageError):
            stage.run(
                subscriptions.subscribe, stage.triggers, stage.lots, "t", Terms(sources=(orders,)), progress
            )
    with pytest.raises(SubscriptionUnknown):
        stage.row("t")


@pytest.mark.rule("HEAP-7")
def test_a_start_needs_the_epoch_the_time_and_no_current_run():
    stage = Stage()
    orders = stage.dataset()
    node, other = stage.node("n"), stage.node("m")
    stage.publish(orders)
    stage.subscribe("s", orders, cadence_us=10 * SECOND_US)
    assert stage.start(node, "s", epoch=0) is None
    assert stage.start(node, "s", epoch=2) is None
    ticket = stage.start(node, "s")
    assert ticket is not None
    assert (ticket.fence, ticket.progress, ticket.heads) == (1, {orders: 0}, {orders: 1})
    assert stage.row("s").tally.last_start == stage.store.run(lambda tx: tx.now())
    assert stage.start(other, "s") is None  # it runs
    stage.publish(orders)
    row = stage.finish(ticket)
    assert isinstance(row, Scheduled)  # what was published since the start
    assert (row.tally.epoch, row.tally.progress) == (2, (1,))
    assert stage.start(other, "s") is None  # a cadence has not passed
    assert stage.due() == []
    stage.clock.advance(10)
    again = stage.start(other, "s")
    assert again is not None
    assert again.fence == 2
    assert isinstance(stage.finish(again), Waiting)
    assert stage.start(node, "s") is None  # it waits


@pytest.mark.rule("HEAP-7")
def test_a_node_that_is_gone_starts_and_ends_nothing():
    stage = Stage()
    orders = stage.dataset()
    node = stage.node("n")
    stage.publish(orders)
    stage.subscribe("s", orders)
    ticket = stage.start(node, "s")
    assert not stage.look("s")  # it is alive
    stage.clock.advance(20)  # its entry has run out
    before = stage.row("s")
    for step_ in (stage.finish, stage.fail):
        with pytest.raises(LeaseLost):
            step_(ticket)
    with pytest.raises(LeaseLost):
        stage.start(node, "s")
    assert stage.row("s") == before


@pytest.mark.rule("HEAP-7")
def test_a_paused_runners_finish_is_refused_after_its_successor_began():
    stage = Stage()
    orders = stage.dataset()
    node = stage.node("n")
    stage.publish(orders)
    stage.subscribe("s", orders)
    zombie = stage.start(node, "s")
    stage.clock.advance(20)
    assert [due.running for due in stage.due()] == [True]
    assert stage.look("s")
    successor_node, back = stage.node("m"), stage.node("n")  # the paused one has joined again
    successor = stage.start(successor_node, "s")
    assert successor is not None
    assert successor.fence == 2
    for ticket in (zombie, msgspec.structs.replace(zombie, node=back)):
        with pytest.raises(LeaseLost):
            stage.finish(ticket)
        with pytest.raises(LeaseLost):
            stage.fail(ticket)
    assert isinstance(stage.finish(successor), Waiting)
    with pytest.raises(LeaseLost):
        stage.finish(successor)  # once


def test_a_run_of_a_removed_subscription_cannot_finish_its_successors():
    stage = Stage()
    orders = stage.dataset()
    node = stage.node("n")
    stage.publish(orders)
    stage.subscribe("s", orders)
    old = stage.start(node, "s")
    assert stage.run(subscriptions.remove, stage.triggers, "s")
    assert not stage.run(subscriptions.remove, stage.triggers, "s")
    spaces = (stage.triggers.subscriber, stage.triggers.due, stage.triggers.subscription)
    assert stage.run(lambda tx: [tx.range(*space.all()) for space in spaces]) == [[], [], []]
    with pytest.raises(LeaseLost):
        stage.finish(old)
    stage.subscribe("s", orders)
    assert stage.start(node, "s") is not None
    with pytest.raises(LeaseLost):
        stage.finish(old)


def test_the_run_of_a_live_node_is_looked_at_again_when_its_entry_would_run_out():
    stage = Stage()
    orders = stage.dataset()
    node = stage.node("n")
    stage.publish(orders)
    stage.subscribe("s", orders)
    stage.start(node, "s")
    first = next_look_at(stage)
    stage.clock.advance(10)
    stage.store.run(lambda tx: nodes.beat(tx, stage.cluster, node, 15 * SECOND_US))
    stage.clock.advance(6)
    assert [due.running for due in stage.due()] == [True]
    assert not stage.look("s")
    assert stage.due() == []
    assert next_look_at(stage) == first + 10 * SECOND_US


def test_a_failed_run_is_tried_again_after_its_backoff_and_no_sooner_than_its_cadence():
    stage = Stage()
    orders = stage.dataset()
    node = stage.node("n", 1000 * SECOND_US)
    stage.publish(orders)
    stage.subscribe("s", orders, cadence_us=30 * SECOND_US)
    begun = stage.store.run(lambda tx: tx.now())
    row = stage.fail(stage.start(node, "s"), backoff_s=5)
    assert (row.next_run, row.tally.failures, row.tally.progress) == (begun + 30 * SECOND_US, 1, (0,))
    stage.clock.advance(30)
    row = stage.fail(stage.start(node, "s"), backoff_s=50)
    assert (row.next_run, row.tally.failures) == (begun + 80 * SECOND_US, 2)
    stage.page_all()  # a wake-up does not shorten the backoff
    stage.publish(orders)
    stage.page_all()
    assert stage.row("s") == row
    stage.clock.advance(50)
    assert stage.finish(stage.start(node, "s")).tally.failures == 0


def test_progress_neither_falls_nor_passes_the_head():
    stage = Stage()
    orders = stage.dataset()
    node = stage.node("n")
    for _ in range(3):
        stage.publish(orders)
    stage.subscribe("s", orders)
    row = stage.finish(stage.start(node, "s"), {orders: 2})  # as much as fits one run
    assert isinstance(row, Scheduled)
    ticket = stage.start(node, "s")
    assert ticket.progress == {orders: 2}
    for position in (1, 4):
        with pytest.raises(UsageError):
            stage.finish(ticket, {orders: position})
    assert isinstance(stage.finish(ticket), Waiting)


@pytest.mark.rule("HEAP-8")
def test_a_barrier_waits_for_its_other_source_and_its_grace_wakes_it_by_time():
    stage = Stage()
    a, b = stage.dataset("a"), stage.dataset("b")
    node = stage.node("n", 1000 * SECOND_US)
    stage.subscribe("patient", a, b, barrier=True)
    stage.subscribe("hasty", a, b, barrier=True, grace_us=60 * SECOND_US)
    begun = stage.store.run(lambda tx: tx.now())
    stage.publish(a)
    stage.page_all()
    assert isinstance(stage.row("patient"), Waiting)
    hasty = stage.row("hasty")
    assert (hasty.next_run, hasty.held) == (begun + 60 * SECOND_US, True)
    assert stage.due() == []
    stage.clock.advance(30)
    stage.publish(a)  # the grace counts from the first
    stage.page_all()
    assert stage.row("hasty") == hasty
    stage.publish(b)
    stage.page_all()
    assert {due.name for due in stage.due()} == {"patient", "hasty"}
    assert stage.row("hasty").tally.epoch == hasty.tally.epoch + 1  # one epoch has one time
    row = stage.finish(stage.start(node, "hasty"), {a: 1, b: 1})
    assert (row.held, row.next_run) == (True, begun + 90 * SECOND_US)
    stage.clock.advance(60)
    assert stage.finish(stage.start(node, "hasty"), {a: 2}).state is SubscriptionState.WAITING


@pytest.mark.rule("HEAP-20")
@pytest.mark.rule("HEAP-2")
def test_five_thousand_subscribers_all_run_although_their_scheduler_is_killed():
    stage = Stage(scan=False)
    orders, node, count = stage.dataset(), stage.node("n"), 5_000
    names = [f"s{n:05}" for n in range(count)]
    terms = Terms(sources=(orders,))
    for first in range(0, count, 250):
        stage.run(
            lambda tx, page: [
                subscriptions.subscribe(tx, stage.triggers, stage.lots, name, terms) for name in page
            ],
            names[first : first + 250],
        )
    stage.publish(orders)
    assert stage.writes <= 5  # however many subscribe

    def killed(tx: Tx) -> None:
        wakes.page_wakes(tx, stage.triggers, stage.lots)
        raise Crashed("before the commit")

    pages = 0
    while True:
        if pages % 10 == 7:
            with pytest.raises(Crashed):
                stage.run(killed)
        if not stage.page():
            break
        assert stage.writes <= 3 * wakes.PAGE + 4
        pages += 1
        if pages == 25:
            stage.publish(orders)  # while the cursor is in the middle
    assert pages > 2 * count // wakes.PAGE
    ran = set()

    def run_page(tx: Tx) -> list[str]:
        finished = []
        for due in runs.due_page(tx, stage.triggers, b"", 100)[0]:
            ticket = runs.start(tx, stage.triggers, stage.lots, stage.cluster, node, due.name, due.epoch)
            assert ticket is not None
            runs.finish(tx, stage.triggers, stage.lots, stage.cluster, ticket, ticket.heads)
            finished.append(due.name)
        return finished

    while finished := stage.run(run_page):
        assert not ran & set(finished)
        ran |= set(finished)
    assert ran == set(names)
    stage.check()
    assert all(isinstance(stage.row(name), Waiting) for name in names[::100])


@pytest.mark.rule("HEAP-20")
def test_the_last_subscriber_and_the_last_dataset_are_reached_however_fast_publications_follow():
    stage = Stage(scan=False)
    busy, quiet = stage.dataset("a busy one"), stage.dataset("quiet")
    for n in range(9):
        stage.subscribe(f"s{n}", busy)
    stage.subscribe("t", quiet)
    stage.publish(quiet)
    for _ in range(30):
        stage.publish(busy)
        stage.page(limit=2)
    assert isinstance(stage.row("s8"), Scheduled)
    assert isinstance(stage.row("t"), Scheduled)


def test_more_marks_than_one_round_takes_are_taken_by_the_next():
    stage = Stage(scan=False)
    sources = [stage.dataset(f"d{n:03}") for n in range(wakes.WAKE_ROWS + 20)]
    stage.subscribe("last", sources[-1])
    for _ in range(2):
        for source in sources:
            stage.publish(source)
        stage.page()  # a round of a hundred marks
    while stage.run(lambda tx: tx.range(*stage.triggers.waking.all())):
        stage.publish(sources[0])  # the first ones are marked again and again
        stage.page()
    stage.page_all()
    assert isinstance(stage.row("last"), Scheduled)


@pytest.mark.rule("HEAP-20")
def test_a_dataset_gets_its_turn_although_others_publish_all_the_time(monkeypatch):
    monkeypatch.setattr(wakes, "WAKE_ROWS", 2)
    stage = Stage()
    a, b, c = (stage.dataset(name) for name in "abc")
    stage.subscribe("s", c)
    stage.publish(c)
    for _ in range(2):
        stage.publish(a)
        stage.publish(b)
        stage.run(wakes.page_wakes, stage.triggers, stage.lots)
    assert isinstance(stage.row("s"), Scheduled)
