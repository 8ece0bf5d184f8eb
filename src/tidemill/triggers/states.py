"""States of a subscription and their transitions, as a table (HEAP-3). No other code decides the next state.

Running is not a state: a run is a lease on a scheduled subscription. Paused and dead are not states either
but flags: such a subscription is scheduled or waits like any other, but does not run (HEAP-15). The table in
`tests.heap_table` shows how rows, heap items and templates change together.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class SubscriptionState(StrEnum):
    """The state of a subscription. An absent subscription has no row."""

    ABSENT = "absent"
    SCHEDULED = "scheduled"  # the time of its next run is set
    WAITING = "waiting"  # it has processed everything that was published


class SubscriptionEdge(StrEnum):
    """The transitions of a subscription."""

    SUBSCRIBE = "subscribe"
    ATTACH = "attach"  # created in the state scheduled, even if there is nothing to process (INV3)
    READY = "ready"  # its first item is on the heap
    COLLECT = "collect"  # it never became ready
    WAKE = "wake"  # an input has something new
    START = "start"
    AGAIN = "again"  # a run ended, and there is more to process
    REST = "rest"  # a run ended and nothing is left to process, or there was nothing to process
    POSTPONE = "postpone"  # its inputs are not quiet yet
    SKIP = "skip"  # the grace period of a barrier is over, and its policy is to skip
    FAIL = "fail"
    LAPSE = "lapse"  # the node that ran it is gone
    HASTEN = "hasten"  # what it waited for has arrived
    CHANGE = "change"  # it has other inputs or another gate, so its progress is decided again
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"  # a dead subscription runs again, or a failed one does not wait for its backoff
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
    """Return the next state; raise `IllegalTransition` if the table has no such transition."""
    try:
        return SUBSCRIPTION[state][edge]
    except KeyError:
        raise IllegalTransition(
            f"a trigger in state {state.value} has no transition {edge.value!r}"
        ) from None
