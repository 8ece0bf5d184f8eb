"""What the sources room tells."""

from tidemill.events import Event


class FilesFound(Event, frozen=True):
    """A look at a source found new files and took them."""

    source: str
    files: int
    size: int
    windows: int


class StretchesMade(Event, frozen=True):
    """The listing of a source was cut into stretches that nodes share."""

    source: str
    stretches: int
    files: int


class StretchLooked(Event, frozen=True):
    """A node has looked at a stretch of a source's paths."""

    source: str
    stretch: str
    holder: str
    listed: int


class FileSkipped(Event, frozen=True):
    """A file or folder is left alone, as long as it is like that."""

    source: str
    path: str
    why: str


class FileChanged(Event, frozen=True):
    """A file changed after it was taken; `taken` says whether it is taken again."""

    source: str
    path: str
    taken: bool


class FilesLeftOut(Event, frozen=True):
    """Files of a window changed or went away before they were read; what is there is taken again."""

    source: str
    window: int
    paths: list[str]


class WindowTaken(Event, frozen=True):
    """A node began to work on a window, or went on with one whose node is gone."""

    source: str
    window: int
    node: str
    attempt: str
    files: int
    over: bool


class WindowPublished(Event, frozen=True):
    """The files of a window are in a lot."""

    source: str
    window: int
    lot: str
    position: int
    files: int
    rows: int


class ColumnsDrifted(Event, frozen=True):
    """Records had columns that are not declared, or values that are not of their type, and are in a lot.

    - unknown: records of which columns were left out.
    - rescued: records of which something was kept as JSON beside the row.
    - added: columns that the dataset has from now on.
    """

    source: str
    window: int
    dataset: str
    lot: str
    unknown: int = 0
    rescued: int = 0
    added: tuple[str, ...] = ()


class RecordsQuarantined(Event, frozen=True):
    """Records that do not fit, and files that cannot be read, are in a lot of the quarantine dataset."""

    source: str
    window: int
    dataset: str
    lot: str
    records: int


class WindowFailed(Event, frozen=True):
    """A window could not be read; it is tried again after a while."""

    source: str
    window: int
    kind: str
    message: str
    wait_s: float


class BatchReceived(Event, frozen=True):
    """Requests that were pushed are in a lot, and answered."""

    source: str
    lot: str
    requests: int
    rows: int


class BatchDrawn(Event, frozen=True):
    """What was fetched is in a lot, and `bad` records of it in the quarantine dataset."""

    source: str
    lot: str
    rows: int
    bad: int


class MarkSkipped(Event, frozen=True):
    """What a source had come to is not there any more, and it goes on elsewhere, as it was told to."""

    source: str
    mark: str
    before: str
    after: str


class PartitionStuck(Event, frozen=True):
    """What a partition had come to is not there any more, and somebody has to say where it goes on."""

    source: str
    mark: str
    message: str


class PushBegan(Event, frozen=True):
    """A node receives what is pushed to a source, at this address."""

    source: str
    url: str
    epoch: int


class PushEnded(Event, frozen=True):
    """A node does not receive any more."""

    source: str
    url: str
    why: str
