"""When a subscription is to run next: one pure function of what is published and what it has seen (HEAP-8).

All times are the store's, in microseconds.
"""

from collections.abc import Hashable, Mapping
from typing import TypeAlias, TypeVar

import msgspec

Source = TypeVar("Source", bound=Hashable)


class Now(msgspec.Struct, frozen=True):
    """There is something to process."""


class At(msgspec.Struct, frozen=True):
    """There is something, but it waits for the other sources until then."""

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
    barrier: bool = False,
    grace_us: int | None = None,
) -> Next:
    """Now, at a time, or when something is published.

    - heads, progress: the newest position of each source, and the one up to which it was processed.
    - closed: since when the first unseen lot of a source has been there; only a barrier needs it.
    - barrier: run when every source has something new; a source that has nothing does not make it spin.
    - grace_us: how long a barrier waits for the others; None for ever.
    """
    new = [source for source in progress if heads.get(source, 0) > progress[source]]
    if not new:
        return Nothing()
    if not barrier or len(new) == len(progress):
        return Now()
    if grace_us is None:
        return Nothing()
    time = min(closed[source] for source in new) + grace_us
    return Now() if time <= now else At(time)
