"""All leases of a node last as long as its own entry: those of its sources, and the locks of its tasks."""

from pathlib import Path

import pytest

import tidemill as tm
from tests.unit.test_runner_loop import LivePresence, LoopStage
from tidemill.cli import main
from tidemill.clock import SYSTEM
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.leases import LeaseTiming
from tidemill.futures.worker.task_context import WorkerSite
from tidemill.futures.worker.wire import ChildHello
from tidemill.pipeline.run import join_cluster
from tidemill.runner.loop_state import LoopState
from tidemill.runner.node_work import Engine, NodeWork
from tidemill.runner.program import Program
from tidemill.runner.run_threads import RunThreads
from tidemill.runner.supervisor import RunnerOptions

TTL_S = 40.0


def ttl_of(keeper: Keeper) -> float:
    """Return how long a lease of this keeper lasts."""
    held = keeper.acquire(b"a lease")
    assert isinstance(held, HeldLease)
    now = keeper.store.run(lambda tx: tx.now())
    assert 0 < held.lease.expires_at - now <= keeper.timing.ttl_us
    return keeper.timing.ttl_s


@pytest.mark.rule("CLU-4")
def test_the_leases_of_sources_last_as_long_as_the_entry_of_their_node() -> None:
    stage = LoopStage()
    scope = stage.scope(LivePresence(stage).node, clock=SYSTEM, timing=LeaseTiming(TTL_S))
    program = Program(pipeline="shop", datasets={}, arcs={}, sources={}, groups={})
    parts: object = None
    work = NodeWork(scope, program, Engine(parts=parts, compute=stage.compute), LoopState(RunThreads(1)))  # type: ignore[arg-type]
    assert ttl_of(work._keeper) == TTL_S


@pytest.mark.rule("CLU-23")
def test_the_locks_of_tasks_last_as_long_as_the_entry_of_their_worker() -> None:
    site = WorkerSite(ChildHello("c", "memory://", "", b"s" * 32, "node", 1, "", "", ttl_s=TTL_S))
    try:
        assert ttl_of(site.keeper) == TTL_S
    finally:
        site.keeper.stop()


def test_a_runner_uses_the_ttl_that_it_was_started_with(tmp_path: Path) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home") as shop, join_cluster(shop, ttl_s=TTL_S) as presence:
        assert presence.timing.ttl_s == TTL_S
        assert shop.context.scope_of(presence.node, timing=presence.timing).timing.ttl_s == TTL_S


def test_the_option_ttl_of_a_run_reaches_its_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text("import tidemill as tm\nshop = tm.Pipeline('shop', home='home')\n")
    monkeypatch.chdir(tmp_path)
    ttls = []

    def run_runner(_place: object, _main: str, _request: object, options: RunnerOptions, **_: object) -> int:
        ttls.append(options.timing.ttl_s)
        return 0

    monkeypatch.setattr("tidemill.cli.run.run_runner", run_runner)
    assert main(["run", "-f", "shop.py", "--ttl", "40"]) == 0
    assert main(["run", "-f", "shop.py", "--ttl", "1"]) == 2
    assert ttls == [TTL_S]
