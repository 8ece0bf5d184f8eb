"""The events that the leader emits while it looks after futures. Ids are in hex."""

from tidemill.events import Event


class FuturesReaped(Event, frozen=True):
    """The claims of a dead node were released."""

    node: str
    ids: list[str]


class AssignmentsRerouted(Event, frozen=True):
    """Assignments of a node that is dead, busy or too small were moved to the pool, or failed."""

    node: str
    ids: list[str]
    why: str


class ActorsDied(Event, frozen=True):
    """Actors died with their node."""

    node: str
    ids: list[str]


class DeadlinesPassed(Event, frozen=True):
    """Futures ended because their deadline passed."""

    ids: list[str]


class FuturesStranded(Event, frozen=True):
    """No live node can run these futures."""

    ids: list[str]


class FuturesSatisfied(Event, frozen=True):
    """Futures that no node could run can now run, or have failed because their grace period is over."""

    ids: list[str]


class FuturesSwept(Event, frozen=True):
    """Ended futures that are no longer needed were deleted."""

    ids: list[str]


class CodeDeleted(Event, frozen=True):
    """Stored functions that no future uses were deleted."""

    functions: int


class ClientReleased(Event, frozen=True):
    """The handles of a dead client were released."""

    client: str
    handles: int
