"""The futures package under random faults, 2,000 seeds (a twelfth in `make test`), and one test per claim."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.simulation import Fault, SimulationReport, Swarm, Violation, World
from tests.simulation.faults import DRAWN
from tests.simulation.futures.plan import FuturesPlan, PlannedCall, PlannedSubmit
from tests.simulation.futures.scenario import FutureWork, futures_world
from tidemill.futures.protocol.retries import MOST_REAPS
from tidemill.futures.protocol.rows import AnyRow, Cancelled, Failed, Quarantined, Realized

SEEDS = 2000
CHUNKS = 12
CHOSEN = [0, *(pytest.param(chunk, marks=pytest.mark.crash) for chunk in range(1, CHUNKS))]


def work_of(world: World) -> FutureWork:
    (work,) = world.workloads
    assert isinstance(work, FutureWork)
    return work


def run_seeds(seeds: range) -> tuple[list[SimulationReport], Counter[str]]:
    """Run all seeds; fail with the failed seeds and the first violation; also count the states of futures."""
    reports, broken = [], {}
    became: Counter[str] = Counter()
    for seed in seeds:
        world = futures_world(seed)
        try:
            reports.append(world.run())
        except Violation as violation:
            broken[seed] = str(violation)
        for row in work_of(world).rules.mirror.futures.values():
            became[f"{row.state.value} {row.kind}" if isinstance(row, Failed) else row.state.value] += 1
            became["reaps"] += row.tally.reaps
            became["rebuilds"] += row.tally.rebuilds
    if broken:
        first = next(iter(broken.values()))
        pytest.fail(f"{len(broken)} seeds of {seeds} failed: {list(broken)}\n{first}", pytrace=False)
    return reports, became


@pytest.mark.rule("FUT-13", "FUT-15", "FUT-16", "FUT-55")
@pytest.mark.parametrize("chunk", CHOSEN)
def test_no_rule_is_broken_under_any_fault(chunk: int) -> None:
    size = SEEDS // CHUNKS
    reports, became = run_seeds(range(chunk * size, (chunk + 1) * size))
    happened: Counter[str] = Counter()
    for report in reports:
        happened.update(report.counts)
    assert {fault for fault in DRAWN if happened[fault] < 10} == set(), "every kind of misfortune happened"
    ends = ("realized", "cancelled", "quarantined", "failed exception", "failed upstream", "failed deadline")
    assert {end for end in ends if became[end] < 5} == set(), "and futures ended in every way"
    assert became["reaps"] > 50
    assert became["rebuilds"] > 30


# --- one claim each -----------------------------------------------------------------------------------------


def conditions(*faults: Fault, machines: int = 3, call_rate: float = 0.05) -> Swarm:
    return Swarm(
        machines=machines,
        ttl_s=6.0,
        every_s=1.5,
        patience_s=3.0,
        chaos_s=30.0,
        faults=faults,
        call_rate=call_rate,
        timed_mean_s=4.0,
    )


def order(name: str, after_s: float, *calls: PlannedCall) -> PlannedSubmit:
    return PlannedSubmit(name, after_s, calls)


def chain(name: str, length: int, **fields: object) -> tuple[PlannedCall, ...]:
    names = [f"{name}.{place}" for place in range(length)]
    plain = PlannedCall(name="", takes_s=2.0)
    return tuple(
        msgspec.structs.replace(plain, name=call_name, inputs=tuple(names[place - 1 : place]), **fields)
        for place, call_name in enumerate(names)
    )


def rows_of(world: World) -> dict[str, AnyRow]:
    rules = work_of(world).rules
    return {name: rules.mirror.futures[future_id] for name, future_id in rules.ids.items()}


WORK = FuturesPlan((order("a", 0.0, *chain("a", 6, big=True)), order("b", 5.0, *chain("b", 6))))


def lines_with(world: World, text: str) -> int:
    return sum(text in line for line in world.timeline.lines())


@pytest.mark.rule("FUT-13", "FUT-55")
@pytest.mark.parametrize("seed", range(3))
def test_workers_paused_beyond_their_ttl_write_nothing_of_their_old_life(seed: int) -> None:
    world = futures_world(seed, conditions(Fault.PAUSE), WORK)
    world.run()
    assert lines_with(world, "NodeLost") >= 1
    rows = rows_of(world)
    assert all(isinstance(row, Realized) for row in rows.values())
    assert max(row.tally.epoch for row in rows.values()) >= 3, "some claim was taken away and made again"


@pytest.mark.rule("FUT-7", "FUT-9", "FUT-51")
@pytest.mark.parametrize("seed", range(3))
def test_results_that_went_with_their_nodes_are_computed_again(seed: int) -> None:
    world = futures_world(seed, conditions(Fault.BLACKOUT), WORK)
    world.run()
    rows = rows_of(world)
    assert all(isinstance(row, Realized) for row in rows.values())
    assert sum(row.tally.rebuilds for row in rows.values()) >= 2
    assert all(row.tally.exceptions == 0 for row in rows.values())
    assert all(not rows[f"b.{place}"].tally.rebuilds for place in range(6)), "those in the store are not lost"


@pytest.mark.rule("FUT-54", "FUT-38")
@pytest.mark.parametrize("seed", range(3))
def test_unknown_commits_neither_lose_a_claim_nor_complete_one_twice(seed: int) -> None:
    world = futures_world(seed, conditions(Fault.UNKNOWN, Fault.RESTART, call_rate=0.1), WORK)
    report = world.run()
    assert report.counts[Fault.UNKNOWN] >= 20
    rows = rows_of(world)
    assert all(isinstance(row, Realized) for row in rows.values())
    assert not any(key.startswith(work_of(world).keys.own.prefix) for key in world.store.rows)


@pytest.mark.rule("FUT-8", "FUT-50", "FUT-53", "FUT-46")
def test_what_is_planned_to_fail_fails_for_that_reason_and_nothing_else_does() -> None:
    calls = (
        PlannedCall(name="x.works", raises=2, max_retries=2),
        PlannedCall(name="x.raises", raises=9, max_retries=2),
        PlannedCall(name="x.poison", crashes=9),
        PlannedCall(name="x.kills", kills=2),
        PlannedCall(name="x.behind", inputs=("x.works", "x.raises")),
        PlannedCall(name="x.late", deadline_s=0.5, takes_s=9.0),
        PlannedCall(name="x.cancelled", inputs=("x.works",), takes_s=9.0, cancel_after_s=4.0),
        PlannedCall(name="x.fine", inputs=("x.works", "x.kills")),
    )
    world = futures_world(1, conditions(), FuturesPlan((order("x", 0.0, *calls),), slots=2))
    report = world.run()
    rows = rows_of(world)
    assert report.counts[Fault.CRASH] == 2
    assert isinstance(rows["x.works"], Realized)
    assert rows["x.works"].tally.exceptions == 2
    assert isinstance(rows["x.raises"], Failed)
    assert (rows["x.raises"].kind, rows["x.raises"].tally.exceptions) == ("exception", 3)
    assert isinstance(rows["x.poison"], Quarantined)
    assert rows["x.poison"].tally.crashes == 3
    assert isinstance(rows["x.behind"], Failed)
    assert rows["x.behind"].kind == "upstream"
    assert isinstance(rows["x.late"], Failed)
    assert rows["x.late"].kind == "deadline"
    assert isinstance(rows["x.cancelled"], Cancelled)
    assert isinstance(rows["x.kills"], Realized)
    assert isinstance(rows["x.fine"], Realized)


@pytest.mark.rule("FUT-53", "FUT-48")
@pytest.mark.parametrize("machines", [1, 2])
def test_a_call_that_kills_every_node_is_quarantined_and_the_others_finish(machines: int) -> None:
    """A node restarts at once, at its address, before its lease expires."""
    calls = (
        PlannedCall(name="p.kills", kills=MOST_REAPS + 5),
        *(PlannedCall(name=f"p.{place}", takes_s=2.0) for place in range(6)),
    )
    world = futures_world(1, conditions(machines=machines), FuturesPlan((order("p", 0.0, *calls),), slots=3))
    report = world.run()
    rows = rows_of(world)
    assert isinstance(rows.pop("p.kills"), Quarantined)
    assert report.counts[Fault.CRASH] == MOST_REAPS
    assert all(isinstance(row, Realized) for row in rows.values())


@pytest.mark.rule("FUT-14")
@pytest.mark.parametrize("seed", range(3))
def test_one_idempotency_key_is_one_future_however_many_clients_submit_it(seed: int) -> None:
    calls = tuple(PlannedCall(name=f"k.{place}", keyed=True) for place in range(5))
    world = futures_world(
        seed, conditions(Fault.CRASH, Fault.UNKNOWN), FuturesPlan((order("k", 3.0, *calls),))
    )
    world.run()
    assert len(work_of(world).rules.mirror.specs) == 5


@pytest.mark.rule("FUT-17")
@pytest.mark.parametrize("seed", range(3))
def test_workers_that_drain_give_back_what_they_cannot_finish(seed: int) -> None:
    world = futures_world(seed, conditions(Fault.DRAIN, machines=2), WORK)
    report = world.run()
    rows = rows_of(world)
    assert report.counts[Fault.DRAIN] >= 2
    assert all(isinstance(row, Realized) for row in rows.values())
    assert all(not row.tally.reaps for row in rows.values()), "given back, not reaped"


def test_a_single_worker_does_everything_alone() -> None:
    world = futures_world(1, conditions(machines=1), WORK)
    world.run()
    assert all(isinstance(row, Realized) and row.tally.epoch == 1 for row in rows_of(world).values())


def test_a_seed_gives_the_same_timeline_in_any_process() -> None:
    def digests(hash_seed: str) -> list[str]:
        command = "-m tests.simulation --scenario futures --start 300 --seeds 8 --digest"
        ran = subprocess.run(
            [sys.executable, *command.split()],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.splitlines()[:8]

    first, second = digests("1"), digests("2")
    assert len({line.split()[1] for line in first}) == 8, "and different ones different timelines"
    assert first == second
