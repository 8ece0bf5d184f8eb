"""A clock whose time can be moved on, for tests that would have to wait otherwise."""

from tidemill.clock import SystemClock


class JumpingClock(SystemClock):
    """The machine's clock, plus what it was told to skip. It really sleeps when it is asked to."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped_s

    def skip(self, seconds: float) -> None:
        self.skipped_s += seconds
