"""A node that starts again ends the runs of its earlier starts. Each of them counts as a death."""

from collections.abc import Callable

import pytest

from tests.unit.lots_stage import SECOND_US, TTL_US, Stage
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.triggers import heap_sync, runs, subscriptions
from tidemill.triggers.due import NEVER
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.runs import LEAST_DEATHS, MOST_DEATHS, Ticket
from tidemill.triggers.subscriptions import Scheduled, Terms


def again(stage: Stage, node: Node) -> Node:
    return stage.store.run(lambda tx: nodes.join(tx, stage.cluster, node, TTL_US))


def lapse(stage: Stage, node: Node, **options: int) -> list[str]:
    """End the runs of the earlier starts of a node; return their names."""
    ended, after = stage.run(runs.end_earlier_runs, stage.triggers, stage.cluster, node, **options)
    while after:
        more, after = stage.run(
            runs.end_earlier_runs, stage.triggers, stage.cluster, node, after=after, **options
        )
        ended |= more
    return list(ended)


@pytest.mark.rule("HEAP-7")
def test_runs_of_an_earlier_start_end_at_once_and_others_continue() -> None:
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    for name in ("mine", "others", "resting"):
        stage.subscribe(name, orders)
    me, other = stage.node("runner-0"), stage.node("runner-1")
    own_ticket, other_ticket = stage.start(me, "mine"), stage.start(other, "others")
    assert own_ticket is not None
    assert other_ticket is not None
    new = again(stage, me)
    assert lapse(stage, new) == ["mine"]
    assert lapse(stage, new) == []
    row = stage.row("mine")
    assert isinstance(row, Scheduled)
    assert row.run is None
    with pytest.raises(LeaseLost):
        stage.finish(own_ticket)
    second = stage.start(new, "mine")
    assert second is not None
    assert second.fence == own_ticket.fence + 1
    assert lapse(stage, new) == []  # of this life
    stage.finish(other_ticket)
    stage.finish(second)


@pytest.mark.rule("HEAP-7")
def test_a_run_of_an_earlier_start_is_lost_although_its_node_is_in_the_list_again() -> None:
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    stage.subscribe("s", orders)
    me = stage.node("runner-0")
    ticket = stage.start(me, "s")
    assert ticket is not None
    ended = stage.run(runs.end_if_lost, stage.triggers, stage.cluster, "s", ticket.epoch)
    assert ended is None, "its node is alive"
    again(stage, me)
    row = stage.run(runs.end_if_lost, stage.triggers, stage.cluster, "s", ticket.epoch)
    assert row is not None
    assert (row.run, row.tally.deaths) == (None, 1)


@pytest.mark.rule("HEAP-7", "HEAP-9")
def test_other_inputs_begin_a_new_epoch_so_the_current_run_cannot_finish() -> None:
    stage = Stage()
    orders, other = stage.dataset(), stage.dataset("other")
    stage.publish(orders)
    stage.subscribe("s", orders)
    ticket = stage.start(stage.node("runner-0"), "s")
    assert ticket is not None
    stage.clock.advance(5)
    terms = Terms(sources=(orders, other))
    row = stage.run(subscriptions.subscribe, stage.triggers, stage.lots, "s", terms, replace_inputs=True)
    assert row.tally.epoch == ticket.epoch + 1
    with pytest.raises(LeaseLost):
        stage.finish(ticket)


@pytest.mark.rule("HEAP-9", "HEAP-17")
def test_a_running_subscription_is_not_overdue() -> None:
    """Its time in the index is that of the next check, which is not the time of its item."""
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    for name in ("running", "waiting for a runner"):
        stage.subscribe(name, orders)
    assert stage.start(stage.node("runner-0"), "running") is not None
    stage.clock.advance(60)
    items, _ = stage.run(heap_sync.overdue, stage.triggers, SECOND_US)
    assert [item.name for item in items] == ["waiting for a runner"]


def test_many_runs_lapse_page_by_page() -> None:
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    me = stage.node("runner-0")
    names = [f"s{n}" for n in range(7)]
    for name in names:
        stage.subscribe(name, orders)
        assert stage.start(me, name) is not None
    assert sorted(lapse(stage, again(stage, me), limit=2)) == names


def test_a_node_that_lost_its_lease_ends_no_runs() -> None:
    stage = Stage()
    old = stage.node("runner-0")
    again(stage, old)
    with pytest.raises(LeaseLost):
        lapse(stage, old)


# --- runs that kill their nodes


def restart(stage: Stage, node: Node, name: str) -> Node:
    """The node dies, and its next start ends the run."""
    node = again(stage, node)
    assert lapse(stage, node) == [name]
    return node


def expire(stage: Stage, node: Node, name: str) -> Node:
    """The node dies, and a scheduler ends the run when its lease has expired."""
    stage.clock.advance(TTL_US / SECOND_US + 1)
    assert stage.look(name)
    return again(stage, node)


class Deaths:
    """A subscription whose runs die with their node."""

    def __init__(self, end: Callable[[Stage, Node, str], Node], **terms: int) -> None:
        self.stage = Stage()
        self.end = end
        self.orders = self.stage.dataset()
        self.stage.publish(self.orders)
        self.stage.subscribe("s", self.orders, **terms)
        self.node = self.stage.node("runner-0")

    def die(self) -> Scheduled:
        """Wait until a run can start, start it, and let its node die."""
        assert self.start() is not None
        self.node = self.end(self.stage, self.node, "s")
        return self.row()

    def start(self) -> Ticket | None:
        wait_us = max(0, self.row().next_run - self.now_us())
        self.stage.clock.advance((wait_us + 1) / SECOND_US)  # it rounds down
        self.node = again(self.stage, self.node)
        return self.stage.start(self.node, "s")

    def row(self) -> Scheduled:
        row = self.stage.row("s")
        assert isinstance(row, Scheduled)
        return row

    def now_us(self) -> int:
        return self.stage.store.run(lambda tx: tx.now())


@pytest.mark.rule("HEAP-15")
@pytest.mark.parametrize("end", [restart, expire])
def test_a_run_that_kills_its_nodes_backs_off_and_is_dead_after_ten_deaths(
    end: Callable[[Stage, Node, str], Node],
) -> None:
    deaths = Deaths(end, backoff_us=SECOND_US, most_backoff_us=20 * SECOND_US)
    pauses = []
    for number in range(1, MOST_DEATHS):
        row = deaths.die()
        assert (row.tally.failures, row.tally.deaths, row.tally.dead) == (number, number, False)
        pauses.append((row.next_run - deaths.now_us()) / SECOND_US)
    assert pauses[0] == 0, "the first retry starts at once"
    for pause, longest in zip(pauses[1:], (1, 2, 4, 8, 16, 20, 20, 20), strict=True):
        assert longest / 2 <= pause <= longest
    row = deaths.die()
    assert (row.tally.dead, row.next_run) == (True, NEVER)
    assert row.tally.why == "its node runner-0 died or lost its lease during the run (10 times in a row)"
    stage = deaths.stage
    stage.clock.advance(1_000_000)
    deaths.node = again(stage, deaths.node)
    assert stage.start(deaths.node, "s") is None
    row = stage.run(subscriptions.retry, stage.triggers, "s")
    assert (row.tally.dead, row.tally.failures, row.tally.deaths) == (False, 0, 0)
    ticket = deaths.start()
    assert ticket is not None
    stage.finish(ticket)


@pytest.mark.rule("HEAP-15")
def test_a_run_that_succeeds_forgets_the_deaths_before_it() -> None:
    deaths = Deaths(restart)
    for _ in range(MOST_DEATHS - 1):
        deaths.die()
    ticket = deaths.start()
    assert ticket is not None
    row = deaths.stage.finish(ticket)
    assert (row.tally.failures, row.tally.deaths, row.tally.why) == (0, 0, "")
    assert b"deaths" not in deaths.stage.store.run(
        lambda tx: tx.get(TriggerKeys("c").subscription["s"]) or b""
    ), "rows without deaths are stored as before"


@pytest.mark.rule("HEAP-15")
def test_deaths_count_as_failures_but_one_death_is_never_enough() -> None:
    deaths = Deaths(restart, most_failures=1)
    for number in range(1, LEAST_DEATHS + 1):
        assert deaths.die().tally.dead == (number == LEAST_DEATHS)


@pytest.mark.rule("HEAP-15")
def test_runs_that_died_together_start_again_at_different_times() -> None:
    stage = Stage()
    orders = stage.dataset()
    stage.publish(orders)
    names = [f"s{number}" for number in range(20)]
    node = stage.node("runner-0")
    for name in names:
        stage.subscribe(name, orders, backoff_us=100 * SECOND_US)
    for _ in range(2):
        for name in names:
            assert stage.start(node, name) is not None
        node = again(stage, node)
        lapse(stage, node)
    times = {row.next_run for name in names if isinstance(row := stage.row(name), Scheduled)}
    assert len(times) == len(names)
