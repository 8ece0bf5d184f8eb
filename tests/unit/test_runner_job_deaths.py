"""Jobs that end their runner are counted, and stopped: polls of sources and compactions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import tidemill as tm
from tests.unit.test_compaction import ORDERS, Layouts
from tests.unit.test_runner_loop import LoopStage
from tidemill.clock import SYSTEM
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.crash import Crashed
from tidemill.lots.datasets import DatasetRow
from tidemill.pipeline.status import status_of
from tidemill.runner import job_deaths
from tidemill.runner.failures import Failures
from tidemill.runner.job_deaths import MOST_COMPACTION_DEATHS, MOST_DEATHS
from tidemill.runner.keys import RunnerKeys
from tidemill.runner.loop_state import LoopState
from tidemill.runner.node_work import Engine, NodeWork
from tidemill.runner.program import Program
from tidemill.runner.run_threads import RunThreads
from tidemill.runner.upkeep import Upkeep
from tidemill.sources.keys import SourceKeys
from tidemill.sources.source import (
    Arrival,
    PlannedSource,
    PollResult,
    Source,
    SourceRuntime,
    SourceStatus,
    SourceTarget,
)
from tidemill.store import Tx

NAME = "source:shop/orders"


@dataclass(frozen=True, kw_only=True)
class ScriptedSource(Source):
    """A source whose polls do what a test says."""

    poll: Callable[[], PollResult]
    fetches: ClassVar[bool] = True
    description: str = "a script"  # type: ignore[misc] # a property of the base class
    polls: list[int] = field(default_factory=list)

    def open(self, target: SourceTarget, runtime: SourceRuntime) -> Arrival:
        source = self

        class Script:
            def poll(self) -> PollResult:
                source.polls.append(len(source.polls))
                return source.poll()

            def close(self) -> None:
                pass

        return Script()

    def status(self, tx: Tx, keys: SourceKeys, pipeline: str, dataset: str) -> SourceStatus:
        return SourceStatus()


class Scene:
    """A store with a node that is killed and starts again."""

    def __init__(self, **polls: Callable[[], PollResult]) -> None:
        self.stage = LoopStage()
        self.keys = RunnerKeys("c")
        self.node = self.stage.living("runner")
        self.sources = {name: ScriptedSource(poll=poll) for name, poll in polls.items()}

    def restart(self, node: Node) -> Node:
        return self.stage.store.run(lambda tx: nodes.join(tx, self.stage.cluster, node, 10**12))

    def work(self) -> NodeWork:
        """Start the runner again, as after it was killed."""
        self.node = self.restart(self.node)
        scope = self.stage.scope(self.node, clock=SYSTEM, emit=self.stage.told.append)
        sources = {
            f"source:shop/{name}": PlannedSource(
                source=source,
                target=SourceTarget(
                    pipeline="shop", dataset=DatasetRow(name=name), schema="id BIGINT", where="here"
                ),
            )
            for name, source in self.sources.items()
        }
        program = Program(pipeline="shop", datasets={}, arcs={}, sources=sources, groups={})
        parts: Any = None
        return NodeWork(
            scope, program, Engine(parts=parts, compute=self.stage.compute), LoopState(RunThreads(1))
        )

    def deaths(self, name: str = NAME) -> int:
        return self.stage.store.run(lambda tx: job_deaths.deaths(tx, self.keys, name))


def dies() -> PollResult:
    raise Crashed("a record that ends the process")


def fetches() -> PollResult:
    return PollResult(fetched=True)


def test_a_source_that_kills_its_runners_is_stopped_and_others_are_polled() -> None:
    scene = Scene(orders=dies, rates=fetches)
    for count in range(MOST_DEATHS):
        work = scene.work()
        work._poll("source:shop/rates")
        with pytest.raises(Crashed):
            work._poll(NAME)
        assert scene.deaths() == count
    work = scene.work()
    work._poll("source:shop/rates")
    work._poll(NAME)
    assert len(scene.sources["orders"].polls) == MOST_DEATHS
    assert len(scene.sources["rates"].polls) == MOST_DEATHS + 1
    (message,) = work._totals.failures[NAME]
    assert "died 10 times in a row while it polled this source" in message
    assert scene.deaths("source:shop/rates") == 0
    scene.stage.store.run(lambda tx: job_deaths.forgive(tx, scene.keys, NAME))
    with pytest.raises(Crashed):
        work._poll(NAME)


def test_a_success_resets_the_count_and_a_poll_of_another_node_does_not() -> None:
    idle = Scene(orders=PollResult)
    for _ in range(3):
        idle.work()._poll(NAME)
    assert idle.deaths() == 2  # another node fetches, so nothing was tried
    busy = Scene(orders=fetches)
    for _ in range(3):
        busy.work()._poll(NAME)
    assert busy.deaths() == 0


def test_a_runner_that_stops_or_loses_its_lease_leaves_no_mark() -> None:
    scene = Scene(orders=fetches)
    work = scene.work()
    work._poll(NAME)
    assert scene.stage.store.run(lambda tx: job_deaths.read(tx, scene.keys, NAME))
    work.close()
    assert not scene.stage.store.run(lambda tx: job_deaths.read(tx, scene.keys, NAME))
    scene.work()._poll(NAME)
    assert scene.deaths() == 0


def test_a_poll_writes_nothing_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(orders=fetches)
    work = scene.work()
    work._poll(NAME)

    def forbid(*_: Any, **__: Any) -> None:
        raise AssertionError("it writes")

    monkeypatch.setattr(job_deaths, "_write", forbid)
    work._poll(NAME)
    assert len(scene.sources["orders"].polls) == 2
    assert work._totals.failures[NAME] == []


def test_each_node_has_its_own_count_and_takes_over_that_of_a_node_that_is_gone() -> None:
    scene = Scene()
    stage, keys, first = scene.stage, scene.keys, scene.node
    second = stage.living("second")

    def begin(node: Node) -> int:
        return stage.store.run(lambda tx: job_deaths.begin(tx, keys, stage.cluster, node, NAME))

    assert (begin(first), begin(second)) == (0, 0)
    for count in (1, 2):
        first = scene.restart(first)
        assert begin(first) == count
    stage.store.run(lambda tx: job_deaths.succeed(tx, keys, second, NAME))
    assert scene.deaths() == 2  # the first node reads something else than the second
    stage.kill(first)
    assert begin(second) == 3
    assert list(stage.store.run(lambda tx: job_deaths.read(tx, keys, NAME))) == ["second"]


def test_a_lot_that_kills_its_runners_is_not_compacted_any_more() -> None:
    layouts = Layouts()
    layouts.publish(files=20)
    tries = []

    def rewrite(*_: Any) -> Any:
        tries.append(1)
        raise Crashed("Spark is out of memory")

    node = layouts.node

    def compact() -> LoopState:
        state = LoopState(RunThreads(1))
        scope = layouts.scope(node)
        program = Program(pipeline="shop", datasets={ORDERS.id: ORDERS}, arcs={}, sources={}, groups={})
        parts: Any = None
        upkeep = Upkeep(scope, program, parts, rewrite, None, state, Failures(scope, state))
        assert upkeep._compactor is not None
        upkeep.compact(upkeep._compactor)
        return state

    for _ in range(MOST_COMPACTION_DEATHS):
        with pytest.raises(Crashed):
            compact()
        node = layouts.store.run(lambda tx, node=node: nodes.join(tx, layouts.keys.cluster, node, 10**12))  # type: ignore[misc]
    state = compact()
    assert len(tries) == MOST_COMPACTION_DEATHS
    ((name, (message,)),) = state.totals.failures.items()
    assert name.startswith("compact orders@1")
    assert "so the lot keeps its small files" in message
    assert layouts.marks() == []
    assert compact().totals.failures == {}
    assert len(layouts.listed()) == 20


def test_the_status_shows_a_stopped_source_and_a_retry_lets_it_run(tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop:
        orders = shop.dataset("orders", "id BIGINT")
        shop.source(orders, tm.folder("in/*.json"))
        context, keys = shop.context, RunnerKeys(shop.context.place.cluster)
        assert status_of(shop).runs[0].state == "new", "it was never polled, so it is not caught up"
        orders.append([(1,)])
        for epoch in range(MOST_DEATHS + 1):
            begin = partial(
                job_deaths.begin,
                keys=keys,
                cluster=context.keys.cluster,
                node=Node(id="n1", epoch=epoch),
                name=NAME,
            )
            context.store.run(begin)
        (run,) = status_of(shop).runs
        assert run.dead
        assert run.needs_attention
        assert run.notes == ("stopped: the runner died 10 times in a row while it polled",)
        assert shop.retry("orders") == []
        (run,) = status_of(shop).runs
        assert (run.state, run.dead, run.failures) == ("waiting", False, 0)
