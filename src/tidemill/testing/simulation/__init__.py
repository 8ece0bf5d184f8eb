"""Simulation: many nodes in one thread on the memory store, one fake clock, one seed.

A `World` has machines that boot nodes, a store whose calls can go wrong at three moments, a weather that
decides when, and rules that look at every commit. Scenarios put workloads into it; `scenarios` names them.

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
