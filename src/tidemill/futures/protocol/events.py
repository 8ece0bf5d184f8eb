"""What the futures room tells. Ids are in hex, as people see them."""

from tidemill.events import Event


class FuturesReaped(Event, frozen=True):
    """Claims of a dead node were ended for it."""

    node: str
    ids: list[str]


class AssignmentsRerouted(Event, frozen=True):
    """Assignments of a dead, busy or too small node went to the pool, or failed."""

    node: str
    ids: list[str]
    why: str


class ResultLossFound(Event, frozen=True):
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
