"""List the scenarios by name; each builds a world from a seed."""

from collections.abc import Callable

from tidemill.testing.simulation.cluster.scenario import cluster_world
from tidemill.testing.simulation.futures.scenario import futures_world
from tidemill.testing.simulation.world import SimulationReport, World

SCENARIOS: dict[str, Callable[[int], World]] = {"cluster": cluster_world, "futures": futures_world}


def simulate(seed: int, scenario: str = "cluster") -> SimulationReport:
    """Run one seed to its end; `Violation`, with the command that replays it, when a rule is broken."""
    return SCENARIOS[scenario](seed).run()
