"""The tally of a loop: what it has done so far, and what it has given up on."""

from dataclasses import dataclass, field

from tidemill.arcs.work import Outcome


@dataclass
class Tally:
    """What a loop has done so far. Written by its lines, read by anybody."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    settled: dict[str, bool] = field(default_factory=dict)  # sources: has everything been taken?
    later: dict[str, float] = field(default_factory=dict)  # what has something to do, and in how many seconds
    files: int = 0
    closed: int = 0
