"""Decide when a subscription runs next, with a pure function (HEAP-8).

All times are store times, in microseconds.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from tidemill.lots.keys import DatasetId

NEVER = 253_402_300_740_000_000
"""The last minute of the year 9999: the time of paused and dead subscriptions. Their items stay on the heap,
but a query for due runs never finds them (HEAP-15)."""


class Now(msgspec.Struct, frozen=True):
    """The subscription can run now."""


class At(msgspec.Struct, frozen=True):
    """The subscription waits until this time: for other inputs, or for its inputs to be quiet."""

    time: int


class Nothing(msgspec.Struct, frozen=True):
    """The subscription has nothing to process; the next publication wakes it."""


Next: TypeAlias = Now | At | Nothing


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """When a subscription with unseen positions may run.

    - gate: run when this input has something new, even if the others have nothing.
    - barrier: run when every input has something new.
    - grace_us: how long a barrier waits for the other inputs; None for no limit.
    - debounce_us, max_wait_us: wait until nothing new has arrived for `debounce_us`, but at most for
      `max_wait_us` in total.
    """

    gate: DatasetId | None = None
    barrier: bool = False
    grace_us: int | None = None
    debounce_us: int = 0
    max_wait_us: int = 0


def next_due(
    heads: Mapping[DatasetId, int],
    progress: Mapping[DatasetId, int],
    closed: Mapping[DatasetId, int],
    now: int,
    conditions: Conditions,
    newest: Mapping[DatasetId, int] | None = None,
) -> Next:
    """Decide whether a subscription runs now, at a later time, or after the next publication.

    - heads, progress: the newest position of each input, and the last position that was processed.
    - closed: when the first unseen lot of each input was published; needed for a barrier and a debounce.
    - newest: when the newest lot of each input was published; needed for a debounce.
    """
    new = [source for source in progress if heads.get(source, 0) > progress[source]]
    if not new or (conditions.gate is not None and conditions.gate not in new):
        return Nothing()
    time = now
    if conditions.barrier and len(new) < len(progress):
        if conditions.grace_us is None:
            return Nothing()
        time = min(closed[source] for source in new) + conditions.grace_us
    elif conditions.debounce_us:
        quiet_at = max((newest or closed)[source] for source in new) + conditions.debounce_us
        time = min(quiet_at, min(closed[source] for source in new) + conditions.max_wait_us)
    return Now() if time <= now else At(time)
