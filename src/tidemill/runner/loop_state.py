"""The state of a runner's loop and threads. It is kept when the node joins again under a new epoch."""

import threading
from dataclasses import dataclass, field

from tidemill.publish.projections import ProjectionThread
from tidemill.runner.run_threads import RunThreads
from tidemill.runner.run_totals import RunTotals

PATIENCE = 3
"""After this many failures, a runner that only catches up gives up on a run. A watching runner never does."""


@dataclass
class LoopState:
    """State that the loop and its run threads share.

    Args:
        threads: the threads of runs.
        totals: the work done so far.
        projections: shows the states of lots as file names in object storage; None if that is switched off.
        watching: whether the runner waits for new data; otherwise it ends when it has caught up.
        dead: whether this process is treated as killed; then it writes nothing more.
        ending: whether the loop has ended and only waits for its threads.
        interrupting: whether the runner is interrupting its work; errors then do not count.
        stop: set by the user to end the loop.
        selected: the sources, arcs and view groups that may start; None for all.
    """

    threads: RunThreads
    totals: RunTotals = field(default_factory=RunTotals)
    projections: ProjectionThread | None = None
    watching: bool = False
    dead: bool = False
    ending: bool = False
    interrupting: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    selected: frozenset[str] | None = None

    def selects(self, name: str) -> bool:
        """Return whether the user selected a source, arc or group. A template selects its arcs."""
        return self.selected is None or bool({name, name.partition("[")[0]} & self.selected)

    def may_start(self, name: str) -> bool:
        """Return whether to start or retry a run, source or arc with this name."""
        return self.selects(name) and self.is_patient(name)

    def stops(self) -> bool:
        """Return True if no new work may start."""
        return self.ending or self.stop.is_set()

    def is_patient(self, name: str) -> bool:
        """Return whether to retry a failed run, source or arc with this name."""
        return self.watching or len(self.totals.failures.get(name, ())) < PATIENCE
