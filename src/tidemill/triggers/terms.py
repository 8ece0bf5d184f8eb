"""Terms: the declared conditions of a subscription, as data. Durations are in microseconds of store time."""

from enum import StrEnum

import msgspec

from tidemill.errors import UsageError
from tidemill.lots.keys import DatasetId
from tidemill.triggers.due import Conditions

DEBOUNCES = 10
"""Without a max wait, a debounce waits at most for this many times its length, so an input that is never
quiet is processed too."""


class AfterGrace(StrEnum):
    """What a barrier does when its grace period ends and an input has nothing new (LOT-28)."""

    WAIT = "wait"  # keep waiting
    PARTIAL = "partial"  # run with the inputs that have something new
    SKIP = "skip"  # skip: progress advances, nothing runs


class CatchUp(StrEnum):
    """Which of the lots published during a pause an arc processes. A view group skips none of them."""

    ALL = "all"
    LATEST = "latest"  # the newest of each input
    NONE = "none"


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions under which a subscription runs.

    - gate: the input that starts runs, such as a schedule. The other inputs are processed when the gate has
      something new. Without a gate, every input starts runs.
    - cadence_us: the minimum time between two starts (HEAP-1); 0 for no limit.
    - debounce_us, max_wait_us: start when the inputs have been quiet for `debounce_us`, or the first unseen
      lot has waited for `max_wait_us`, whichever is earlier.
    - barrier, grace_us, after_grace: start when every input has something new. `AfterGrace` decides what
      happens when the grace period ends. Without a grace period, the barrier waits without limit.
    - backoff_us, most_backoff_us: the pause after a failure; it doubles with each further failure, up to a
      limit.
    - most_failures: after this many failures in a row the subscription is dead, until `retry`; 0 for no
      limit.
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
                raise UsageError(f"{name} is negative: {getattr(self, name)}", hint="use 0 or more")
        for name in ("grace_us", "max_wait_us"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name} is negative: {value}", hint="use 0 or more, or None")
        if self.gate is not None and self.gate not in self.sources:
            raise UsageError(
                f"the gate {self.gate} is not one of the inputs: {', '.join(map(str, self.sources))}",
                hint="use one of the inputs as the gate",
            )
        if self.gate is not None and (self.barrier or self.debounce_us):
            raise UsageError(
                f"a trigger with the gate {self.gate} cannot have a barrier or a debounce",
                hint="omit the barrier and the debounce, or omit the gate",
            )
        if self.max_wait_us is not None and self.max_wait_us < self.debounce_us:
            raise UsageError(
                f"the max wait ({self.max_wait_us / 1_000_000:g} s) is shorter than the debounce "
                f"({self.debounce_us / 1_000_000:g} s)",
                hint="make the max wait at least as long as the debounce",
            )

    @property
    def tables(self) -> tuple[DatasetId, ...]:
        """The inputs that are processed: all except the gate."""
        return tuple(source for source in self.sources if source != self.gate)

    @property
    def conditions(self) -> Conditions:
        """The conditions for `next_due`."""
        longest_us = DEBOUNCES * self.debounce_us if self.max_wait_us is None else self.max_wait_us
        return Conditions(
            gate=self.gate,
            barrier=self.barrier,
            grace_us=None if self.after_grace is AfterGrace.WAIT else self.grace_us,
            debounce_us=self.debounce_us,
            max_wait_us=longest_us,
        )

    def backoff(self, failures: int, jitter: float) -> int:
        """Return the pause after this many failures in a row (µs): exponential, half of it random."""
        ceiling = min(self.most_backoff_us, self.backoff_us * 2 ** min(failures - 1, 40))
        return int(ceiling * (0.5 + 0.5 * jitter))
