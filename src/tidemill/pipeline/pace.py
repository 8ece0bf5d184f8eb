"""Pace: how fast an arc or a view follows what it reads (HEAP-1, HEAP-14)."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from tidemill.errors import BadSchedule, DeclarationError
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx
from tidemill.triggers import schedules
from tidemill.triggers.cron import Cron, next_after, zone_of
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.schedules import Schedule
from tidemill.triggers.terms import AfterGrace, CatchUp, Terms

Duration: TypeAlias = float | str | timedelta | None
"""Seconds, a timedelta, or text like `PT5M`; None where nothing was said."""

_TEXT = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_MOST_S = 10**8
_ANY_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)  # a schedule that ever comes does so within years of it
CatchUpWord = Literal["all", "latest", "none"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds.

    - cadence_s: consecutive starts are at least so far apart.
    - debounce_s: it starts when nothing has come for so long; `max_wait_s`: but no later than that.
    - cron, zone: it starts at these times alone, for all that has come by then.
    - catch_up: what is made up for, of times at which nobody ran and of what came in a pause; left out, the
      last of those times, and all that came.
    - most_failures: after so many in a row it is dead, until somebody says retry; 0 for never.
    """

    cadence_s: float = 0.0
    debounce_s: float = 0.0
    max_wait_s: float | None = None
    cron: str = ""
    zone: str = "UTC"
    catch_up: CatchUp | None = None
    most_failures: int = 0

    def terms(self, sources: tuple[DatasetId, ...], name: str = "") -> Terms:
        """As the subscription of this name has it."""
        gate = schedules.source(name) if self.cron else None
        return Terms(
            sources=sources if gate is None else (*sources, gate),
            gate=gate,
            cadence_us=int(self.cadence_s * 1e6),
            debounce_us=int(self.debounce_s * 1e6),
            max_wait_us=None if self.max_wait_s is None else int(self.max_wait_s * 1e6),
            most_failures=self.most_failures,
            catch_up=self.catch_up or CatchUp.ALL,
        )

    def enter(self, tx: Tx, keys: TriggerKeys, lots: LotKeys, name: str) -> None:
        """Have the schedule that the subscription of this name waits for, or have none."""
        if self.cron:
            policy = self.catch_up or CatchUp.LATEST
            schedule = Schedule(name=name, expression=self.cron, zone=self.zone, catch_up=policy)
            schedules.declare(tx, keys, lots, schedule)
        else:
            schedules.remove(tx, keys, name)


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


def pace_of(
    cadence: Duration = None,
    debounce: Duration = None,
    max_wait: Duration = None,
    *,
    cron: str | None = None,
    zone: str = "UTC",
    catch_up: CatchUpWord | None = None,
    most_failures: int = 0,
) -> Pace:
    """A pace from what a user says."""
    if max_wait is not None and debounce is None:
        raise DeclarationError("max_wait= without debounce=", hint="it is the longest that a debounce waits")
    waits, longest = _seconds("debounce", debounce) or 0.0, _seconds("max_wait", max_wait)
    if longest is not None and longest < waits:
        raise DeclarationError(
            f"max_wait={max_wait!r} is less than debounce={debounce!r}",
            hint="it is the longest that a debounce waits",
        )
    if cron is not None and debounce is not None:
        raise DeclarationError(
            "cron= and debounce= together", hint="a schedule says when: what comes before waits for it anyway"
        )
    if cron is None and zone != "UTC":
        raise DeclarationError(f"zone={zone!r} without cron=", hint="it is the time zone of cron")
    if catch_up is not None and catch_up not in set(CatchUp):
        raise DeclarationError(f"catch_up={catch_up!r}", hint=", ".join(CatchUp))
    if not 0 <= most_failures < 10**6:
        raise DeclarationError(f"most_failures={most_failures}", hint="0 for never, or how many in a row")
    return Pace(
        cadence_s=_seconds("cadence", cadence) or 0.0,
        debounce_s=waits,
        max_wait_s=longest,
        cron="" if cron is None else _expression(cron, zone),
        zone=zone,
        catch_up=None if catch_up is None else CatchUp(catch_up),
        most_failures=most_failures,
    )


def _expression(cron: str, zone: str) -> str:
    """A cron expression that names a time at all."""
    try:
        next_after(Cron.parse(cron), zone_of(zone), _ANY_MOMENT)
    except BadSchedule as error:
        raise DeclarationError(f"cron={cron!r}: {error.message}", hint=error.hint) from None
    return cron


def shortest(paces: Sequence[Pace]) -> Pace:
    """One pace for what runs together: the shortest that is declared of each kind; schedules are equal."""
    schedules_ = {(one.cron, one.zone) for one in paces if one.cron}
    if len(schedules_) > 1:
        said = " and ".join(sorted(repr(cron) for cron, _ in schedules_))
        raise DeclarationError(
            f"one group with {said}", hint='views of one group run together: group="…" sets one apart'
        )
    cron, zone = next(iter(schedules_), ("", "UTC"))
    debounce_s = min((one.debounce_s for one in paces if one.debounce_s), default=0.0)
    if cron and debounce_s:
        raise DeclarationError("one group with cron= and debounce=", hint="one of them decides")
    longest = min((one.max_wait_s for one in paces if one.max_wait_s is not None), default=None)
    return Pace(
        cadence_s=min((one.cadence_s for one in paces if one.cadence_s), default=0.0),
        debounce_s=debounce_s,
        max_wait_s=None if longest is None else max(longest, debounce_s),
        cron=cron,
        zone=zone,
        catch_up=next((one.catch_up for one in paces if one.catch_up is not None), None),
        most_failures=min((one.most_failures for one in paces if one.most_failures), default=0),
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
