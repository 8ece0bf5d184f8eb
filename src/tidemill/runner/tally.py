"""The tally of a loop: what it has done so far, and what it has given up on.

A loop that stays for weeks has done millions of lots, so they are counted and not kept: the tally is as large
as the pipeline, whatever it has done.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.arcs.work import Ended, Outcome

MOST_ERRORS = 100
"""Of one arc: the newest are kept."""


@dataclass
class ArcTally:
    """What became of the lots of one arc."""

    ended: Counter[Ended] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.ended[outcome.ended] += 1
        self.rows.update({dataset.name: rows for dataset, rows in outcome.rows.items()})
        if outcome.error:
            self.errors.pop(outcome.lot, None)
            self.errors[outcome.lot] = outcome.error
            if len(self.errors) > MOST_ERRORS:
                del self.errors[next(iter(self.errors))]


@dataclass
class Tally:
    """What a loop has done so far. Written by its lines, read by anybody."""

    arcs: dict[str, ArcTally] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    settled: dict[str, bool] = field(default_factory=dict)  # sources: has everything been taken?
    later: dict[str, float] = field(default_factory=dict)  # what has something to do, and in how many seconds
    files: int = 0
    closed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count what became of lots."""
        with self._lock:
            for one in outcomes:
                self.arcs.setdefault(one.arc, ArcTally()).add(one)
