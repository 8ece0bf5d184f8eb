"""Check that nodes never believe that they hold more permits than there are."""

from typing import TYPE_CHECKING

from tidemill.cluster.keeper import Held
from tidemill.testing.simulation.cluster.plan import Gate
from tidemill.testing.simulation.node import SimNode

if TYPE_CHECKING:
    from tidemill.testing.simulation.world import World


class Holders:
    """All permits in all hands of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._held: dict[str, list[tuple[SimNode, Held]]] = {}

    def entered(self, gate: Gate, node: SimNode, held: Held) -> None:
        """A node has got a permit."""
        holders = [(who, one) for who, one in self._held.get(gate.name, ()) if who.running and one.alive()]
        holders.append((node, held))
        self._held[gate.name] = holders
        believing = sum(one.alive() for _, one in holders)
        if believing > gate.permits:
            names = ", ".join(who.name for who, _ in holders)
            raise self._world.violated(f"{believing} hold {gate.name}, which has {gate.permits}: {names}")
