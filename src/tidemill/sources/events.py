"""The events of sources."""

from tidemill.events import Event


class FilesDiscovered(Event, frozen=True):
    """A node discovered new files and took them."""

    source: str
    files: int
    size: int
    windows: int


class ListingSharded(Event, frozen=True):
    """The listing of a source was split into shards that nodes share."""

    source: str
    shards: int
    files: int


class ListingShardDone(Event, frozen=True):
    """A node listed a shard of a source's paths."""

    source: str
    shard: str
    holder: str
    listed: int


class FileSkipped(Event, frozen=True):
    """A file or folder cannot be taken. It is skipped until it can be taken."""

    source: str
    path: str
    why: str


class FileChanged(Event, frozen=True):
    """A file changed after it was taken. `taken` means that it is taken again."""

    source: str
    path: str
    taken: bool


class FilesLeftOut(Event, frozen=True):
    """Files of a window changed or disappeared before they were read. Changed files are taken again later."""

    source: str
    window: int
    paths: list[str]


class WindowTaken(Event, frozen=True):
    """A node began to work on a window. `over` means that the node took it over from a dead node."""

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
    """Records of a lot had columns that are not declared, or values that do not fit the declared type.

    - unknown: how many records had columns that were left out.
    - rescued: how many records had values that are kept as JSON in the row.
    - added: the columns that the dataset gained.
    """

    source: str
    window: int
    dataset: str
    lot: str
    unknown: int = 0
    rescued: int = 0
    added: tuple[str, ...] = ()


class RecordsQuarantined(Event, frozen=True):
    """A quarantine lot was published, with records that do not fit or files that cannot be read."""

    source: str
    window: int
    dataset: str
    lot: str
    records: int


class WindowFailed(Event, frozen=True):
    """A window could not be read; a node retries it after `wait_s`."""

    source: str
    window: int
    kind: str
    message: str
    wait_s: float


class BatchReceived(Event, frozen=True):
    """The rows of pushed requests are in a lot, and their senders have received a response."""

    source: str
    lot: str
    requests: int
    rows: int


class BatchFetched(Event, frozen=True):
    """Fetched records were published: `rows` of them in a lot, and `bad` of them in a quarantine lot."""

    source: str
    lot: str
    rows: int
    bad: int


class CheckpointSkipped(Event, frozen=True):
    """The data that follows a checkpoint no longer exists. `on_gone` decides where the source continues."""

    source: str
    checkpoint: str
    before: str
    after: str


class PartitionStuck(Event, frozen=True):
    """The source stopped reading a partition, because the data that follows its checkpoint no longer exists.

    This happens with `on_gone="fail"`.
    """

    source: str
    checkpoint: str
    message: str


class PushStarted(Event, frozen=True):
    """A node receives pushed rows at this address."""

    source: str
    url: str
    epoch: int


class PushStopped(Event, frozen=True):
    """A node no longer receives pushed rows."""

    source: str
    url: str
    why: str
