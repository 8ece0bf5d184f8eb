"""Producers, two runners of two groups and a reader at once, on every backend: each step once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tidemill.errors import LeaseLost
from tidemill.store import Store, open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import together
from tidemill.triggers import runs, wakes
from tidemill.triggers.subscriptions import Waiting
from tidemill.views.steps import commits
from tidemill.views.steps.commits import StepResult
from tidemill.views.steps.keys import group_id, group_source
from tidemill.views.steps.stepper import Stepper

EACH = 8
LONG_US = 10**12


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        opened: Store = MemoryStore()
    elif request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path}/s.db")
    else:
        opened = open_store(str(request.getfixturevalue("postgres_url")))
    with opened as store:
        yield store


@pytest.mark.rule("DBSP-34")
@pytest.mark.rule("DBSP-39")
def test_every_publication_is_in_one_step_and_every_step_is_committed_once(store: Store) -> None:
    stage = StepStage(store, scan=False)
    keys = stage.keys
    a, b = stage.dataset("a"), stage.dataset("b")
    stage.declare(spec("g", a), spec("h", a, b))
    stage.subscribe("reader", group_source(P, "g"), group_source(P, "h"))

    def producer() -> int:
        for number in range(EACH):
            stage.publish(b if number % 3 == 0 else a)
        return EACH

    def run_due(stepper: Stepper, node: object) -> int:
        done = 0
        for due in stage.due():
            ticket = store.run(
                lambda tx, due=due: runs.start(
                    tx, keys.triggers, keys.lots, keys.cluster, node, due.name, due.epoch
                )
            )
            if ticket is None:
                continue
            if due.name == "reader":
                store.run(
                    lambda tx, ticket=ticket: runs.finish(
                        tx, keys.triggers, keys.lots, keys.cluster, ticket, ticket.heads
                    )
                )
            else:
                done += stepper.run(ticket).commits
        return done

    def runner(name: str) -> int:
        node = stage.node(name, LONG_US)
        stepper = stage.stepper(compute=outputs)
        done = 0
        for _ in range(12):
            store.run(lambda tx: wakes.page_wakes(tx, keys.triggers, keys.lots, 2))
            done += run_due(stepper, node)
        return done

    together(producer, producer, lambda: runner("r1"), lambda: runner("r2"))
    last = stage.node("last", LONG_US)
    stepper = stage.stepper(compute=outputs)
    while stage.page() or stage.due():
        run_due(stepper, last)
    stage.check()
    log = stage.records()
    for name in ("g", "h"):
        assert stage.group(name).step == len(log)
        assert isinstance(stage.row(group_id(P, name)), Waiting)
    group = stage.group("h")
    at_end = store.run(lambda tx: commits.progress(tx, keys, P, group))
    assert at_end[a] + at_end[b] == 2 * EACH
    assert stage.row("reader").tally.progress == (len(log), len(log))


@pytest.mark.rule("DBSP-35", "DBSP-2")
def test_of_two_that_compute_the_same_step_one_commits_it(store: Store) -> None:
    stage = StepStage(store, scan=False)
    a = stage.dataset("a")
    stage.publish(a)
    stage.declare(spec("g", a))
    node, other = stage.node("n", LONG_US), stage.node("m", LONG_US)
    stage.page_all()
    name = group_id(P, "g")
    ticket = stage.start(node, name)
    assert ticket is not None
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    hold = stage.run(commits.open_step, stage.keys, ticket, batch, "zombie")
    stage.kill(node)
    assert stage.look(name)
    second = stage.start(other, name)
    assert second is not None

    def late() -> str:
        try:
            result = StepResult.of(hold, outputs(batch, "zombie"))
            store.run(lambda tx: commits.commit(tx, stage.keys, ticket, batch, result, ends=True))
        except LeaseLost:
            return "refused"
        return "committed"

    def successor() -> str:
        stage.stepper().run(second)
        return "committed"

    assert together(late, successor) == ["refused", "committed"]
    assert [row.step for row in stage.rows_of_group("g")] == [1]
    stage.check()
