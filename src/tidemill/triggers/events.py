"""Typed events of the heap and of subscriptions."""

from tidemill.events import Event


class StrangeKey(Event, frozen=True):
    """The heap contains an object that is not a known item; it is ignored."""

    key: str


class ItemsPushed(Event, frozen=True):
    """Items were pushed to the heap. If `again` is set, they were overdue and may have been lost before."""

    count: int
    again: bool = False


class ItemsPruned(Event, frozen=True):
    """Items that can no longer start a run were removed."""

    count: int


class RunLapsed(Event, frozen=True):
    """The run of a subscription ended because its node is gone.

    `deaths` counts such runs in a row. If the subscription is now `dead`, it does not run until a retry.
    """

    name: str
    epoch: int
    deaths: int = 1
    dead: bool = False


class UnreadyCollected(Event, frozen=True):
    """Subscriptions that never became ready were deleted."""

    names: list[str]


class SubscribersWoken(Event, frozen=True):
    """The scheduler went through pages of subscribers and templates."""

    pages: int


class CronMissed(Event, frozen=True):
    """No scheduler was active at some times of a schedule, and its policy skips them."""

    name: str
    left_out: int


class TemplateMatchless(Event, frozen=True):
    """The pattern of a declared template matches no dataset yet."""

    name: str
    reads: str
    where: str


class RunStarted(Event, frozen=True):
    """The run of an arc or view group began; `behind` counts the positions it has not processed yet.

    - most: the same for the table that is furthest behind. This is how many lots the run processes, if all
      tables have the same lots.
    """

    name: str
    epoch: int
    behind: int
    most: int = 0


class RunEnded(Event, frozen=True):
    """A run processed everything that it began with."""

    name: str
    epoch: int


class RunFailed(Event, frozen=True):
    """A run failed; it is retried after the backoff."""

    name: str
    code: str
    message: str
    backoff_s: float
    failures: int
