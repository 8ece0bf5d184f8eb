"""The life of a subscription, as a table (HEAP-3). Nothing else decides which state follows which.

That it runs is not a state: a run is a lease on a scheduled subscription, and ends with it.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class SubscriptionState(StrEnum):
    """Exactly one of these at a time; an absent one has no row."""

    ABSENT = "absent"
    SCHEDULED = "scheduled"  # it is to run, at a time
    WAITING = "waiting"  # it has seen everything that was published


class SubscriptionEdge(StrEnum):
    """What may happen to a subscription."""

    SUBSCRIBE = "subscribe"
    WAKE = "wake"  # a head is beyond its progress
    START = "start"
    AGAIN = "again"  # a run ended, and there is more
    REST = "rest"  # a run ended, and there is no more
    FAIL = "fail"
    LAPSE = "lapse"  # the node that ran it is gone
    HASTEN = "hasten"  # what it held back for has come
    REMOVE = "remove"


S, E = SubscriptionState, SubscriptionEdge

SUBSCRIPTION: dict[SubscriptionState, dict[SubscriptionEdge, SubscriptionState]] = {
    S.ABSENT: {E.SUBSCRIBE: S.WAITING},
    S.WAITING: {E.WAKE: S.SCHEDULED, E.REMOVE: S.ABSENT},
    S.SCHEDULED: {
        E.START: S.SCHEDULED,
        E.AGAIN: S.SCHEDULED,
        E.REST: S.WAITING,
        E.FAIL: S.SCHEDULED,
        E.LAPSE: S.SCHEDULED,
        E.HASTEN: S.SCHEDULED,
        E.REMOVE: S.ABSENT,
    },
}


def step(state: SubscriptionState, edge: SubscriptionEdge) -> SubscriptionState:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return SUBSCRIPTION[state][edge]
    except KeyError:
        raise IllegalTransition(f"a subscription that is {state.value} has no edge {edge.value!r}") from None
