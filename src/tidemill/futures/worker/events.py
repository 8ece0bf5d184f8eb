"""The events that a worker emits."""

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
    """A child process ended unexpectedly."""

    node: str
    pid: int
    kind: str
    message: str


class TaskParked(Event, frozen=True):
    """The worker ended a waiting task to free its memory. The task restarts when its inputs are realized."""

    node: str
    future: str
    name: str


class WorkDropped(Event, frozen=True):
    """The node lost its lease. It killed its tasks and does not write their results."""

    node: str
    tasks: int


class ClaimsGivenBack(Event, frozen=True):
    """A worker released old claims in its name, such as those of an earlier boot or of a lost lease."""

    node: str
    claims: int


class StoreAway(Event, frozen=True):
    """The store does not answer. The worker keeps its pending writes and retries them."""

    node: str
    error: str


class WorkerEnded(Event, frozen=True):
    """A worker has left its cluster."""

    node: str
