"""What the futures room tells. Ids are in hex, as people see them."""

from tidemill.events import Event


class FuturesSubmitted(Event, frozen=True):
    """Futures were entered together."""

    ids: list[str]
    names: list[str]


class FuturesClaimed(Event, frozen=True):
    """A node claimed futures together."""

    node: str
    ids: list[str]


class FutureRealized(Event, frozen=True):
    """A future has a result."""

    id: str
    name: str
    node: str
    epoch: int
    size: int
    took_s: float


class FutureRetried(Event, frozen=True):
    """An attempt failed, and there will be another."""

    id: str
    name: str
    node: str
    kind: str
    error: str
    attempt: int


class FutureEnded(Event, frozen=True):
    """A future ended without a result: failed, cancelled or quarantined."""

    id: str
    name: str
    state: str
    kind: str
    error: str


class FuturesRelinquished(Event, frozen=True):
    """A node gave claims back."""

    node: str
    ids: list[str]
    why: str


class FuturesReaped(Event, frozen=True):
    """Claims of a dead node were ended for it."""

    node: str
    ids: list[str]


class AssignmentsRerouted(Event, frozen=True):
    """Assignments of a dead, busy or too small node went to the pool, or failed."""

    node: str
    ids: list[str]
    why: str


class ResultLost(Event, frozen=True):
    """A result is gone: the future is computed again, or failed."""

    id: str
    state: str


class ActorsDied(Event, frozen=True):
    """Actors are gone with their node."""

    node: str
    ids: list[str]


class DeadlinesPassed(Event, frozen=True):
    """Futures were ended by their deadline."""

    ids: list[str]


class FuturesStranded(Event, frozen=True):
    """No live node can run these."""

    ids: list[str]


class FuturesSatisfied(Event, frozen=True):
    """Some that were stranded can run again, or their grace is over."""

    ids: list[str]


class FuturesSwept(Event, frozen=True):
    """Ended futures that nobody needs were deleted."""

    ids: list[str]


class ClientReleased(Event, frozen=True):
    """A client is gone, and its handles with it."""

    client: str
    handles: int
