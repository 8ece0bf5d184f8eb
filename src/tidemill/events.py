"""The base class of typed events. Packages emit events; the log, the progress display and tests receive them.

Each package defines its events as frozen msgspec structs. Code that emits an event does not print or count
anything itself. No decision depends on an event: a lost event changes only what users see.
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
    """Ignore an event. This is the default receiver."""
