"""What the publish room tells."""

from tidemill.events import Event


class AttemptOpened(Event, frozen=True):
    """An attempt at a lot began."""

    attempt: str
    author: str
    lot: str
    generation: int
    node: str


class AttemptAdopted(Event, frozen=True):
    """A node goes on with an attempt that was left open."""

    attempt: str
    author: str
    lot: str
    generation: int
    node: str
    epoch: int


class AttemptPublished(Event, frozen=True):
    """An attempt became the lot; one entry per sink that has it, as `dataset@version`."""

    attempt: str
    author: str
    lot: str
    generation: int
    positions: dict[str, int]
    rows: dict[str, int]


class AttemptAbandoned(Event, frozen=True):
    """An attempt never will be a lot."""

    attempt: str
    author: str
    lot: str
    generation: int
    why: str


class AttemptCleaned(Event, frozen=True):
    """Objects that an ended attempt left over were removed."""

    attempt: str
    objects: int


class PartEnded(Event, frozen=True):
    """A part of an attempt is made, or failed after all its retries (`error` is not empty)."""

    attempt: str
    author: str
    lot: str
    part: str
    rows: int = 0
    objects: int = 0
    reused: bool = False
    error: str = ""


class ChecksFailed(Event, frozen=True):
    """Rows of a part failed checks that let the lot be published: how many, by the name of the check."""

    attempt: str
    author: str
    dataset: str
    lot: str
    part: str
    checks: dict[str, int]


class LotCompacted(Event, frozen=True):
    """A lot has another layout of the same content."""

    dataset: str
    lot: str
    generation: int
    revision: int
    files_before: int
    files: int


class LayoutRemoved(Event, frozen=True):
    """The files of a layout that was replaced are gone: its readers' grace is over."""

    dataset: str
    lot: str
    generation: int
    revision: int
    objects: int


class IntervalClosed(Event, frozen=True):
    """What was appended while an interval was open became its lot."""

    dataset: str
    lot: str
    position: int
    appends: int
    rows: int
