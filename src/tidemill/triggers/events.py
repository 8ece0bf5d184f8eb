"""What happens to the heap and to subscriptions, for whoever wants to know."""

from tidemill.events import Event


class StrangeKey(Event, frozen=True):
    """Something lies among the items of the heap that is none: it is passed over."""

    key: str


class ItemsPushed(Event, frozen=True):
    """Items that were owed are on the heap; `again`: they were overdue, and may have been lost."""

    count: int
    again: bool = False


class ItemsPruned(Event, frozen=True):
    """Items that nothing can start any more were removed."""

    count: int


class RunLapsed(Event, frozen=True):
    """The node that ran a subscription is gone."""

    name: str
    epoch: int


class UnreadyCollected(Event, frozen=True):
    """Subscriptions whose attaching did not come to its end were removed."""

    names: list[str]


class SubscribersWoken(Event, frozen=True):
    """Pages of subscribers and templates were gone through."""

    pages: int


class CronMissed(Event, frozen=True):
    """Nobody was there at some times of a schedule, and its policy leaves them out."""

    name: str
    left_out: int


class TemplateMatchless(Event, frozen=True):
    """A template was declared whose pattern matches no dataset; it is there for those that come."""

    name: str
    reads: str
    where: str


class RunStarted(Event, frozen=True):
    """A subscription's run began: an arc's, or a view group's; `behind` is what it has not seen yet."""

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
