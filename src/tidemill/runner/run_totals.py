"""Count the work that a runner has done so far, and the work that it has given up on.

A runner that watches for weeks makes millions of lots. It counts lots but does not keep a list of them, so
the size of the totals depends only on the pipeline.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.arcs.work import LotEnd, LotOutcome

MOST_ERRORS = 100
"""How many errors to keep per arc. Older errors are dropped."""


@dataclass
class ArcTotals:
    """Counts how the lots of one arc ended."""

    ended: Counter[LotEnd] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: LotOutcome) -> None:
        self.ended[outcome.ended] += 1
        self.rows.update({dataset.name: rows for dataset, rows in outcome.rows.items()})
        if outcome.error:
            self.errors.pop(outcome.lot, None)
            self.errors[outcome.lot] = outcome.error
            if len(self.errors) > MOST_ERRORS:
                del self.errors[next(iter(self.errors))]


@dataclass
class RunTotals:
    """The work of a runner so far. The run threads update these totals, and any thread may read them.

    Args:
        arcs: the totals of each arc.
        failures: for each run, source or arc, by name, the messages of its failures since it last succeeded.
        steps: the number of steps of each group of views.
        settled: for each source, whether a runner has taken all its new data.
        later: for each run that is due later, by name, the number of seconds until then.
        unfinished: (arc, lot) of each requested lot that failed.
        files: how many files of sources are in published lots.
        closed: how many intervals were closed.
        interrupted: whether the run was stopped before it had processed all new data.
    """

    arcs: dict[str, ArcTotals] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    settled: dict[str, bool] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)
    unfinished: set[tuple[str, str]] = field(default_factory=set)
    files: int = 0
    closed: int = 0
    interrupted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, outcomes: Iterable[LotOutcome]) -> None:
        """Add the outcomes of lots to the totals."""
        with self._lock:
            for outcome in outcomes:
                self.arcs.setdefault(outcome.arc, ArcTotals()).add(outcome)
