"""The base of typed events, which packages emit and the log, the progress display and tests receive.

Each package defines its own events as frozen msgspec structs. Code that emits an event does not print or
count anything itself. Nothing depends on an event: a lost one changes only what people see.
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
    """Ignore an event: the default receiver."""
