"""A clock for tests of a pipeline: it runs like the clock of the machine, and a test can move it forward."""

from collections.abc import Callable

from tidemill.clock import SYSTEM, Clock
from tidemill.pipeline.pace import Duration, seconds
from tidemill.testing.fake_clock import ShiftedClock


class PipelineClock(ShiftedClock):
    """The clock of the fixture `pipeline`.

    >>> clock = PipelineClock()
    >>> before = clock.wall()
    >>> clock.advance("PT2H")
    >>> 7200 <= clock.wall() - before < 7300
    True

    - before_jump: called before time jumps; it ends leases that would be over after the jump.
    """

    def __init__(self, true: Clock = SYSTEM, before_jump: Callable[[], None] = lambda: None) -> None:
        super().__init__(true)
        self.before_jump = before_jump

    def advance(self, duration: Duration) -> None:
        """Let time pass, such as `"PT1H"` or 3600 seconds. Intervals end, and schedules become due."""
        self.before_jump()
        passed_s = seconds("duration", duration) or 0.0
        self.wall_shift_s += passed_s
        self.monotonic_shift_s += passed_s
