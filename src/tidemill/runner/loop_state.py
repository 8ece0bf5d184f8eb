"""The state of a runner's loop that outlives an epoch of its node, shared by all that works for it."""

import threading
from dataclasses import dataclass, field

from tidemill.publish.projections import ProjectionThread
from tidemill.runner.run_threads import RunThreads
from tidemill.runner.run_totals import RunTotals

PATIENCE = 3
"""How often a run may fail before a runner that catches up leaves it. One that watches never gives up."""


@dataclass
class LoopState:
    """What the loop and its run threads tell each other.

    Args:
        threads: where runs take place.
        totals: what was done so far.
        projections: shows states as names in object storage; None if that is switched off.
        watching: whether the runner stays for what arrives, or ends when it has caught up.
        dead: whether this process counts as killed; then it writes nothing any more.
        ending: whether the loop has ended, and only waits for its threads.
        stop: set by the user to end the loop.
    """

    threads: RunThreads
    totals: RunTotals = field(default_factory=RunTotals)
    projections: ProjectionThread | None = None
    watching: bool = False
    dead: bool = False
    ending: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def stops(self) -> bool:
        """Whether nothing new may begin."""
        return self.ending or self.stop.is_set()

    def is_patient(self, name: str) -> bool:
        """Whether something that failed is tried again, by its name."""
        return self.watching or len(self.totals.failures.get(name, ())) < PATIENCE
