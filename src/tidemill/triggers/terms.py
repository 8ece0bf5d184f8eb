"""Terms: what was asked for of a subscription, as data. Durations are of store time, in microseconds."""

from enum import StrEnum

import msgspec

from tidemill.errors import UsageError
from tidemill.lots.keys import DatasetId

DEBOUNCES = 10
"""A debounce without a max wait waits for so many of itself at most: a source that is never quiet is
processed."""


class AfterGrace(StrEnum):
    """What a barrier does when its grace is over and a source has nothing (LOT-28)."""

    WAIT = "wait"  # go on waiting
    PARTIAL = "partial"  # run on what is there
    SKIP = "skip"  # pass over what is there: progress moves, nothing runs


class CatchUp(StrEnum):
    """What is processed of that which was published while it was paused."""

    ALL = "all"
    LATEST = "latest"  # of each source the newest
    NONE = "none"


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for.

    - gate: of its sources the one that it waits for, a schedule say: what the others have is processed when
      the gate has something. Left out, each of them counts.
    - cadence_us: consecutive starts are at least so far apart (HEAP-1); 0 for as fast as can be.
    - debounce_us, max_wait_us: it starts when its sources have been quiet for so long, or its first unseen
      lot has waited for so long, whichever is sooner.
    - barrier, grace_us, after_grace: it starts when every source has something; after the grace, see
      `AfterGrace`. Without a grace it waits for ever.
    - backoff_us, most_backoff_us: what a failure waits, doubled with each that follows it, up to the most.
    - most_failures: after so many without a success it is dead, until somebody says `retry`; 0 for never.
    - catch_up: see `CatchUp`.
    """

    sources: tuple[DatasetId, ...]
    gate: DatasetId | None = None
    cadence_us: int = 0
    barrier: bool = False
    grace_us: int | None = None
    after_grace: AfterGrace = AfterGrace.PARTIAL
    debounce_us: int = 0
    max_wait_us: int | None = None
    backoff_us: int = 1_000_000
    most_backoff_us: int = 300_000_000
    most_failures: int = 0
    catch_up: CatchUp = CatchUp.ALL

    def __post_init__(self) -> None:
        for name in ("cadence_us", "debounce_us", "backoff_us", "most_backoff_us", "most_failures"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}", hint="0 or more")
        for name in ("grace_us", "max_wait_us"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name} is {value}", hint="0 or more, or None")
        if self.gate is not None and (self.barrier or self.debounce_us or self.gate not in self.sources):
            raise UsageError(
                f"a gate of {self.gate} among {', '.join(map(str, self.sources))}",
                hint="it is one of the sources, and neither a barrier nor a debounce goes with it",
            )
        if self.max_wait_us is not None and self.max_wait_us < self.debounce_us:
            raise UsageError(
                f"a max wait of {self.max_wait_us} µs with a debounce of {self.debounce_us} µs",
                hint="a max wait is at least its debounce: it bounds how long a busy source is waited for",
            )

    @property
    def tables(self) -> tuple[DatasetId, ...]:
        """The sources that it processes: all but a gate."""
        return tuple(one for one in self.sources if one != self.gate)

    @property
    def longest_wait_us(self) -> int:
        """How long the first unseen lot may wait for the others to stop coming."""
        return DEBOUNCES * self.debounce_us if self.max_wait_us is None else self.max_wait_us

    def backoff(self, failures: int, jitter: float) -> int:
        """What the given failure in a row waits (µs): exponential, half of it left to chance."""
        ceiling = min(self.most_backoff_us, self.backoff_us * 2 ** min(failures - 1, 40))
        return int(ceiling * (0.5 + 0.5 * jitter))
