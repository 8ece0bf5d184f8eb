"""When a subscription is to run next: one pure function of what is published and what it has seen (HEAP-8).

All times are the store's, in microseconds.
"""

from collections.abc import Hashable, Mapping
from typing import TypeAlias, TypeVar

import msgspec

Source = TypeVar("Source", bound=Hashable)

NEVER = 253_402_300_740_000_000
"""The last minute of the year 9999: when those run that are paused or dead. Their items lie there, so that
the signal stays on the heap and whoever looks for what is due never comes across it (HEAP-15)."""


class Now(msgspec.Struct, frozen=True):
    """There is something to process."""


class At(msgspec.Struct, frozen=True):
    """There is something, but it waits until then: for the other sources, or for its own to be quiet."""

    time: int


class Nothing(msgspec.Struct, frozen=True):
    """The next publication wakes it."""


Next: TypeAlias = Now | At | Nothing


def next_due(
    heads: Mapping[Source, int],
    progress: Mapping[Source, int],
    closed: Mapping[Source, int],
    now: int,
    *,
    gate: Source | None = None,
    barrier: bool = False,
    grace_us: int | None = None,
    newest: Mapping[Source, int] | None = None,
    debounce_us: int = 0,
    max_wait_us: int = 0,
) -> Next:
    """Now, at a time, or when something is published.

    - heads, progress: the newest position of each source, and the one up to which it was processed.
    - closed: since when the first unseen lot of a source has been there; a barrier and a debounce need it.
    - gate: run when this source has something new, whatever the others have.
    - barrier: run when every source has something new; a source that has nothing does not make it spin.
    - grace_us: how long a barrier waits for the others; None for ever.
    - newest: since when the newest lot of a source has been there; a debounce needs it.
    - debounce_us, max_wait_us: wait until there was nothing newer for so long, but for so long in all at
      most.
    """
    new = [source for source in progress if heads.get(source, 0) > progress[source]]
    if not new or (gate is not None and gate not in new):
        return Nothing()
    time = now
    if barrier and len(new) < len(progress):
        if grace_us is None:
            return Nothing()
        time = min(closed[source] for source in new) + grace_us
    elif debounce_us:
        quiet_at = max((newest or closed)[source] for source in new) + debounce_us
        time = min(quiet_at, min(closed[source] for source in new) + max_wait_us)
    return Now() if time <= now else At(time)
