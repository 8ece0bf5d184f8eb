"""Simulate many nodes in one thread, on the memory store, with one fake clock and one seed.

A `World` has machines that start nodes, a store whose calls can fail at three moments, an injector that
decides when they fail, and rules that check every commit. A scenario builds a world with workloads from a
seed. `python -m tests.simulation --seed 12345 --trace` replays a seed.
"""

from collections.abc import Callable

from tests.simulation.cluster.scenario import cluster_world
from tests.simulation.faults import Fault, Swarm
from tests.simulation.futures.scenario import futures_world
from tests.simulation.scheduler import Next, SimNode, Wait
from tests.simulation.store import Change, RecordedCommit
from tests.simulation.world import Act, Rule, SimulationReport, Violation, Workload, World

__all__ = [
    "SCENARIOS",
    "Act",
    "Change",
    "Fault",
    "Next",
    "RecordedCommit",
    "Rule",
    "SimNode",
    "SimulationReport",
    "Swarm",
    "Violation",
    "Wait",
    "Workload",
    "World",
    "simulate",
]

SCENARIOS: dict[str, Callable[[int], World]] = {"cluster": cluster_world, "futures": futures_world}


def simulate(seed: int, scenario: str = "cluster") -> SimulationReport:
    """Run one seed to its end; `Violation`, with the command that replays it, when a rule is broken."""
    return SCENARIOS[scenario](seed).run()
