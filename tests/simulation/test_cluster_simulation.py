"""The cluster package under random faults, 2,000 seeds (a twelfth in `make test`), and one test per claim."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation import Fault, SimulationReport, Swarm, Violation, World, simulate
from tests.simulation.cluster.scenario import ClusterWork, cluster_world
from tests.simulation.cluster.tasks import ClusterPlan, Gate, PlannedPiece
from tests.simulation.faults import DRAWN

SEEDS = 2000
CHUNKS = 12
CHOSEN = [0, *(pytest.param(chunk, marks=pytest.mark.crash) for chunk in range(1, CHUNKS))]


def run_seeds(seeds: range) -> list[SimulationReport]:
    """Run all seeds; fail with the list of failed seeds and the first violation."""
    reports, broken = [], {}
    for seed in seeds:
        try:
            reports.append(simulate(seed))
        except Violation as violation:
            broken[seed] = str(violation)
    if broken:
        first = next(iter(broken.values()))
        pytest.fail(f"{len(broken)} seeds of {seeds} failed: {list(broken)}\n{first}", pytrace=False)
    return reports


@pytest.mark.rule("CLU-4", "CLU-6", "CLU-7", "CLU-26")
@pytest.mark.parametrize("chunk", CHOSEN)
def test_no_rule_is_broken_under_any_fault(chunk: int) -> None:
    size = SEEDS // CHUNKS
    reports = run_seeds(range(chunk * size, (chunk + 1) * size))
    happened: Counter[str] = Counter()
    for report in reports:
        happened.update(report.counts)
    assert {fault for fault in DRAWN if happened[fault] < 10} == set(), "every kind of misfortune happened"
    assert sum(report.commits for report in reports) > 10_000
    conflicts = sum(report.conflicts for report in reports)
    assert conflicts - happened[Fault.CONFLICT] > 10, "real ones, of transactions that overlapped"


# --- one claim each -----------------------------------------------------------------------------------------

PLAN = ClusterPlan(
    groups={"g0": ["p0", "p1", "p2", "p3"], "g1": ["p0", "p1"]},
    rounds=3,
    gates=[Gate("s0", 1), Gate("s1", 2)],
    pieces={
        f"{group}/{part}": PlannedPiece(round=0, steps=6, step_s=0.6, gate=gate)
        for group, part, gate in [
            ("g0", "p0", 0),
            ("g0", "p1", 0),
            ("g0", "p2", 1),
            ("g0", "p3", -1),
            ("g1", "p0", 1),
            ("g1", "p1", 1),
        ]
    },
    queued=20,
)


def conditions(*faults: Fault, machines: int = 3, call_rate: float = 0.05) -> Swarm:
    return Swarm(
        machines=machines,
        ttl_s=3.0,
        every_s=0.6,
        patience_s=1.5,
        chaos_s=20.0,
        faults=faults,
        call_rate=call_rate,
        timed_mean_s=2.0,
    )


def run(world: World) -> SimulationReport:
    report = world.run()
    (work,) = world.workloads
    assert isinstance(work, ClusterWork)
    assert work.unfinished() == []
    return report


@pytest.mark.rule("CLU-17", "CLU-26")
@pytest.mark.parametrize("seed", range(3))
def test_all_nodes_killed_at_once_come_up_again_from_the_store_alone(seed: int) -> None:
    report = run(cluster_world(seed, conditions(Fault.BLACKOUT), PLAN))
    assert report.counts[Fault.BLACKOUT] >= 2
    assert report.counts[Fault.CRASH] >= report.counts[Fault.BLACKOUT]


@pytest.mark.rule("CLU-6", "CLU-26")
@pytest.mark.parametrize("seed", range(3))
def test_wall_clocks_that_are_off_by_hours_change_nothing(seed: int) -> None:
    """Not a single commit: the same world with right clocks has the very same timeline."""
    jumping = cluster_world(seed, conditions(Fault.JUMP), PLAN)
    report = run(jumping)
    right = cluster_world(seed, conditions(), PLAN)
    run(right)
    assert report.counts[Fault.JUMP] >= 3

    def without_weather(world: World) -> list[object]:
        return [entry for entry in world.timeline.entries if entry.source != "faults"]

    assert without_weather(jumping) == without_weather(right)


@pytest.mark.rule("CLU-4", "CLU-7", "CLU-26")
@pytest.mark.parametrize("seed", range(3))
def test_nodes_paused_beyond_their_ttl_neither_act_nor_write(seed: int) -> None:
    world = cluster_world(seed, conditions(Fault.PAUSE, Fault.DRIFT), PLAN)
    report = run(world)
    assert report.counts[Fault.PAUSE] >= 5
    assert any("PartitionLost" in line or "NodeLost" in line for line in world.timeline.lines())


@pytest.mark.rule("CLU-8", "CLU-26")
@pytest.mark.parametrize("seed", range(3))
def test_unknown_commits_and_store_restarts_lose_nothing_and_apply_nothing_twice(seed: int) -> None:
    report = run(cluster_world(seed, conditions(Fault.UNKNOWN, Fault.RESTART), PLAN))
    assert report.counts[Fault.UNKNOWN] >= 20
    assert report.counts[Fault.RESTART] >= 2


@pytest.mark.rule("CLU-9", "CLU-11", "CLU-16")
@pytest.mark.parametrize("seed", range(3))
def test_leaders_that_crash_and_stop_are_replaced_and_their_late_steps_abort(seed: int) -> None:
    """The rules judge each map, each cleaning and each mark of a leader by the epoch in the store."""
    world = cluster_world(seed, conditions(Fault.CRASH, Fault.PAUSE, Fault.SLOW, machines=5), PLAN)
    run(world)
    elected = [entry.detail[0] for entry in world.timeline.entries if entry.event == "LeaderElected"]
    assert len(elected) >= 3
    assert sorted(set(elected)) == elected, "each under a new epoch, in order"


@pytest.mark.rule("CLU-25")
@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_drain_take_nothing_new_and_leave(seed: int) -> None:
    world = cluster_world(seed, conditions(Fault.DRAIN, Fault.SLOW, machines=4), PLAN)
    report = run(world)
    exits = sum(entry.event == "exits" for entry in world.timeline.entries)
    assert report.counts[Fault.DRAIN] >= 3
    assert exits >= 3


def test_a_single_node_does_everything_alone() -> None:
    report = run(cluster_world(1, conditions(machines=1), PLAN))
    assert not report.counts.keys() & set(Fault) - {Fault.DRIFT}


# --- the simulation itself ----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_timeline_in_any_process() -> None:
    def digests(hash_seed: str) -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--start", "300", "--seeds", "12", "--digest"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.splitlines()[:12]

    first, second = digests("1"), digests("2")
    assert len({line.split()[1] for line in first}) == 12, "and different ones different timelines"
    assert first == second
