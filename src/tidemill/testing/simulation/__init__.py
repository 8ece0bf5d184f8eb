"""Simulate many nodes in one thread, on the memory store, with one fake clock and one seed.

A `World` has machines that start nodes, a store whose calls can fail at three moments, a weather that decides
when they fail, and rules that check every commit. Scenarios add workloads; `scenarios` lists them.

>>> from tidemill.testing.simulation import simulate
>>> report = simulate(seed=7)
>>> report.seed
7
"""

from tidemill.testing.simulation.node import SimNode
from tidemill.testing.simulation.rules import Act, Rule, Violation, Workload
from tidemill.testing.simulation.scenarios import SCENARIOS, simulate
from tidemill.testing.simulation.scheduler import Next, Wait
from tidemill.testing.simulation.store import Change, RecordedCommit
from tidemill.testing.simulation.swarm import Fault, Swarm
from tidemill.testing.simulation.world import SimulationReport, World

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
