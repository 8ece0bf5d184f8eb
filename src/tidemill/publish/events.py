"""Typed events of publication."""

from tidemill.events import Event


class AttemptOpened(Event, frozen=True):
    """An attempt at a lot began."""

    attempt: str
    author: str
    lot: str
    generation: int
    node: str


class AttemptAdopted(Event, frozen=True):
    """A node took over an attempt that another node left open."""

    attempt: str
    author: str
    lot: str
    generation: int
    node: str
    epoch: int


class AttemptPublished(Event, frozen=True):
    """An attempt was published; one entry per sink, as `dataset@version`."""

    attempt: str
    author: str
    lot: str
    generation: int
    positions: dict[str, int]
    rows: dict[str, int]


class AttemptAbandoned(Event, frozen=True):
    """An attempt was given up: it will not be published."""

    attempt: str
    author: str
    lot: str
    generation: int
    why: str


class AttemptCleaned(Event, frozen=True):
    """The cleaner removed objects that an ended attempt left behind."""

    attempt: str
    objects: int


class DatasetRemoved(Event, frozen=True):
    """The files and rows of a dropped dataset were deleted."""

    dataset: str


class PartEnded(Event, frozen=True):
    """A part of an attempt completed, or failed after all its retries (`error` is not empty)."""

    attempt: str
    author: str
    lot: str
    part: str
    rows: int = 0
    objects: int = 0
    reused: bool = False
    error: str = ""


class ChecksFailed(Event, frozen=True):
    """Rows of a part failed checks, but the lot is still published.

    Rows are counted by the name of the check.
    """

    attempt: str
    author: str
    dataset: str
    lot: str
    part: str
    checks: dict[str, int]


class LotCompacted(Event, frozen=True):
    """A lot has a new layout of the same content."""

    dataset: str
    lot: str
    generation: int
    revision: int
    files_before: int
    files: int


class LayoutRemoved(Event, frozen=True):
    """The cleaner removed the files of a replaced layout, after the grace period of its readers."""

    dataset: str
    lot: str
    generation: int
    revision: int
    objects: int


class IntervalClosed(Event, frozen=True):
    """The appends of an interval were published as its lot."""

    dataset: str
    lot: str
    position: int
    appends: int
    rows: int


class WallClockJumped(Event, frozen=True):
    """The wall clock jumped. Intervals, schedules and `now()` do not follow the new time at once.

    - shift_s: how far it jumped; negative if it was set back.
    - accepted_in_s: after how long the jump is accepted.
    """

    shift_s: float
    accepted_in_s: float
    message: str
