"""What a worker tells."""

from tidemill.events import Event


class WorkerStarted(Event, frozen=True):
    """A worker joins its cluster."""

    node: str
    pid: int
    slots: int


class TaskFailed(Event, frozen=True):
    """An attempt at a future failed on this worker."""

    node: str
    future: str
    name: str
    kind: str
    message: str


class ChildEnded(Event, frozen=True):
    """A child process ended that was not asked to."""

    node: str
    pid: int
    kind: str
    message: str


class TaskParked(Event, frozen=True):
    """A waiting task was ended to make room; it starts again when what it awaits is there."""

    node: str
    future: str
    name: str


class WorkDropped(Event, frozen=True):
    """The node's lease was lost: its tasks were killed, and nothing of them is written."""

    node: str
    tasks: int


class ClaimsGivenBack(Event, frozen=True):
    """A worker gave back claims that it knows nothing of: of an earlier boot, or of a lease it lost."""

    node: str
    claims: int


class StoreAway(Event, frozen=True):
    """The store does not answer; what there is to write is kept and tried again."""

    node: str
    error: str


class WorkerEnded(Event, frozen=True):
    """A worker has left its cluster."""

    node: str
