"""Typed events: what happened, told once, for whoever wants to know.

Each room defines its own events (frozen, msgspec); nothing prints or counts by itself. The log, the
metrics, the page and the lineage subscribe above. Emitting is never a way to act: an event that is lost
changes nothing but what people see.
"""

from collections.abc import Callable

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base class of all events. Fields are plain values, and never hold a secret (STO-14).

    >>> class FileArrived(Event):
    ...     path: str
    >>> FileArrived(path="landing/1.json")
    FileArrived(path='landing/1.json')
    """


Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The emit port of those nobody listens to."""
