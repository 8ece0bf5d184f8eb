"""The life of a subscription, as a table (HEAP-3). Nothing else decides which state follows which.

That it runs is not a state: a run is a lease on a scheduled subscription, and ends with it. That it is paused
or dead is none either: those are flags, under which it is scheduled and waits like any other, only that
nobody runs it (HEAP-15). How rows, items on the heap and templates move together is the table of
`tests.heap_table`.
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
    ATTACH = "attach"  # born as scheduled, whatever there is to see (INV3)
    READY = "ready"  # its first item is on the heap
    COLLECT = "collect"  # it never became ready
    WAKE = "wake"  # a head is beyond its progress
    START = "start"
    AGAIN = "again"  # a run ended, and there is more
    REST = "rest"  # a run ended, and there is no more; or there was nothing to run for
    POSTPONE = "postpone"  # its sources have not been quiet for long enough
    SKIP = "skip"  # the grace of a barrier is over, and its policy is to skip
    FAIL = "fail"
    LAPSE = "lapse"  # the node that ran it is gone
    HASTEN = "hasten"  # what it held back for has come
    CHANGE = "change"  # it has other sources, or another gate: what there is to see is decided anew
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"  # a dead one is armed again, or one that backs off runs at once
    REMOVE = "remove"


S, E = SubscriptionState, SubscriptionEdge

SUBSCRIPTION: dict[SubscriptionState, dict[SubscriptionEdge, SubscriptionState]] = {
    S.ABSENT: {E.SUBSCRIBE: S.WAITING, E.ATTACH: S.SCHEDULED},
    S.WAITING: {
        E.WAKE: S.SCHEDULED,
        E.CHANGE: S.SCHEDULED,
        E.PAUSE: S.WAITING,
        E.RESUME: S.WAITING,
        E.REMOVE: S.ABSENT,
    },
    S.SCHEDULED: {
        E.READY: S.SCHEDULED,
        E.START: S.SCHEDULED,
        E.AGAIN: S.SCHEDULED,
        E.REST: S.WAITING,
        E.POSTPONE: S.SCHEDULED,
        E.SKIP: S.SCHEDULED,
        E.FAIL: S.SCHEDULED,
        E.LAPSE: S.SCHEDULED,
        E.HASTEN: S.SCHEDULED,
        E.CHANGE: S.SCHEDULED,
        E.PAUSE: S.SCHEDULED,
        E.RESUME: S.SCHEDULED,
        E.RETRY: S.SCHEDULED,
        E.COLLECT: S.ABSENT,
        E.REMOVE: S.ABSENT,
    },
}


def step(state: SubscriptionState, edge: SubscriptionEdge) -> SubscriptionState:
    """The state an edge leads to; `IllegalTransition` when the table has no such edge."""
    try:
        return SUBSCRIPTION[state][edge]
    except KeyError:
        raise IllegalTransition(f"a subscription that is {state.value} has no edge {edge.value!r}") from None
