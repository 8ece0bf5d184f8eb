"""Pace: how fast an arc or a view follows what it reads (HEAP-1, HEAP-14)."""

import re
from datetime import timedelta
from typing import TypeAlias

import msgspec

from tidemill.errors import DeclarationError
from tidemill.lots.keys import DatasetId
from tidemill.triggers.terms import AfterGrace, Terms

Duration: TypeAlias = float | str | timedelta | None
"""Seconds, a timedelta, or text like `PT5M`; None where nothing was said."""

_TEXT = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_MOST_S = 10**8


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds.

    - cadence_s: consecutive starts are at least so far apart.
    - debounce_s: it starts when nothing has come for so long; `max_wait_s`: but no later than that.
    """

    cadence_s: float = 0.0
    debounce_s: float = 0.0
    max_wait_s: float | None = None

    def terms(self, sources: tuple[DatasetId, ...]) -> Terms:
        """As a subscription has it."""
        return Terms(
            sources=sources,
            cadence_us=int(self.cadence_s * 1e6),
            debounce_us=int(self.debounce_s * 1e6),
            max_wait_us=None if self.max_wait_s is None else int(self.max_wait_s * 1e6),
        )


FASTEST = Pace()
"""As soon as there is something."""


class Grace(msgspec.Struct, frozen=True, kw_only=True):
    """How long an arc waits for the last of its tables, from the first on, and what follows (LOT-28)."""

    grace_s: float = 0.0
    then: AfterGrace = AfterGrace.WAIT

    @property
    def grace_us(self) -> int:
        return int(self.grace_s * 1e6)


WAITING = Grace()
"""For ever."""


def grace_of(grace: Duration, then: str, tables: int) -> Grace:
    """A grace from what a user says, for an arc that reads so many tables."""
    if then not in set(AfterGrace):
        raise DeclarationError(f"after_grace={then!r}", hint=", ".join(AfterGrace))
    if grace is not None and tables < 2:
        raise DeclarationError(
            "grace= of an arc that reads one table", hint="it is how long the last of several is waited for"
        )
    if grace is None and then != AfterGrace.WAIT:
        raise DeclarationError(f"after_grace={then!r} without grace=", hint="grace='PT10M': after how long")
    return Grace(grace_s=_seconds("grace", grace) or 0.0, then=AfterGrace(then))


def pace_of(cadence: Duration, debounce: Duration = None, max_wait: Duration = None) -> Pace:
    """A pace from what a user says."""
    if max_wait is not None and debounce is None:
        raise DeclarationError("max_wait= without debounce=", hint="it is the longest that a debounce waits")
    return Pace(
        cadence_s=_seconds("cadence", cadence) or 0.0,
        debounce_s=_seconds("debounce", debounce) or 0.0,
        max_wait_s=_seconds("max_wait", max_wait),
    )


def _seconds(name: str, said: Duration) -> float | None:
    if said is None:
        return None
    if isinstance(said, timedelta):
        seconds = said.total_seconds()
    elif isinstance(said, str):
        found = _TEXT.fullmatch(said)
        if found is None or not any(found.groups()):
            raise DeclarationError(f"{name}={said!r} is no duration", hint="seconds, or text like PT5M")
        days, hours, minutes, rest = (float(part or 0) for part in found.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    else:
        seconds = float(said)
    if not 0 < seconds < _MOST_S:
        raise DeclarationError(
            f"{name}={said!r}", hint="more than nothing; leave it out for as fast as can be"
        )
    return seconds
