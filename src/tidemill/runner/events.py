"""What a runner tells."""

from tidemill.events import Event


class RunStarted(Event, frozen=True):
    """A subscription's run began here: an arc's, or a view group's."""

    name: str
    epoch: int
    behind: int


class RunFailed(Event, frozen=True):
    """A run ended with an error; it is tried again after the backoff."""

    name: str
    code: str
    message: str
    backoff_s: float
    failures: int


class RunLapsed(Event, frozen=True):
    """A run whose node is gone was ended, so that it can be run again."""

    name: str
