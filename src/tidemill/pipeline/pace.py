"""Define when an arc or a view group runs: its pace, and its grace period for late inputs.

See HEAP-1, HEAP-14 and LOT-28.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from tidemill.errors import BadSchedule, DeclarationError
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.pipeline.source_line import caller_line, errors_at
from tidemill.store import Tx
from tidemill.triggers import schedules
from tidemill.triggers.cron import Cron, next_after, zone_of
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.schedules import Schedule
from tidemill.triggers.terms import AfterGrace, CatchUp, Terms

Duration: TypeAlias = float | str | timedelta | None
"""Seconds, a timedelta, or text like `PT5M`."""

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_MAX_S = 10**8
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # every valid schedule has a time within nine years after it
CatchUpWord = Literal["all", "latest", "none"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """When an arc or a view runs. By default, it runs as soon as one of its inputs is published.

    >>> Pace(cadence="PT5M").cadence
    'PT5M'

    Args:
        cadence: the minimum time between two starts: seconds, a timedelta, or text like `PT5M`.
        debounce: start when nothing has arrived for this long.
        max_wait: with `debounce`, the longest time that the first change waits.
        cron: run only at these times, like `0 6 * * *`, and process everything published until then.
        zone: the time zone of `cron`.
        catch_up: `all`, `latest` or `none`: which lots an arc processes after a pause, and which missed
            `cron` times it makes up for. A time is missed if no runner was running. By default, an arc
            processes all lots that were published during a pause, and runs once for all missed times
            together. A view never skips lots.
        most_failures: stop after this many failed runs in a row, until a retry; 0 means never. A lot that
            fails is not a failed run: the arc continues with the next lot.
    """

    cadence: Duration = None
    debounce: Duration = None
    max_wait: Duration = None
    cron: str | None = None
    zone: str = "UTC"
    catch_up: CatchUpWord | None = None
    most_failures: int = 0

    def __post_init__(self) -> None:
        with errors_at(caller_line()):
            _check(self)


def terms_of(pace: Pace, sources: tuple[DatasetId, ...], name: str) -> Terms:
    """Return the terms of the subscription `name` to these inputs."""
    gate = schedules.source(name) if pace.cron else None
    max_wait_s = seconds("max_wait", pace.max_wait)
    return Terms(
        sources=sources if gate is None else (*sources, gate),
        gate=gate,
        cadence_us=int((seconds("cadence", pace.cadence) or 0.0) * 1e6),
        debounce_us=int((seconds("debounce", pace.debounce) or 0.0) * 1e6),
        max_wait_us=None if max_wait_s is None else int(max_wait_s * 1e6),
        most_failures=pace.most_failures,
        catch_up=CatchUp.ALL if pace.catch_up is None else CatchUp(pace.catch_up),
    )


def declare_schedule(tx: Tx, keys: TriggerKeys, lots: LotKeys, pace: Pace, name: str) -> None:
    """Store the schedule of the subscription `name`, or remove it if the pace has no cron expression."""
    if not pace.cron:
        schedules.remove(tx, keys, name)
        return
    policy = CatchUp.LATEST if pace.catch_up is None else CatchUp(pace.catch_up)
    schedules.declare(
        tx, keys, lots, Schedule(name=name, expression=pace.cron, zone=pace.zone, catch_up=policy)
    )


def shortest(paces: Sequence[Pace]) -> Pace:
    """Combine the paces of a group's views: use the shortest time of each kind. Schedules must be equal."""
    crons = {(pace.cron, pace.zone) for pace in paces if pace.cron}
    if len(crons) > 1:
        expressions = " and ".join(sorted(repr(cron) for cron, _ in crons))
        raise DeclarationError(
            f"views of one group have different schedules: {expressions}",
            hint='use the same schedule, or move a view to another group: group="…"',
        )
    cron, zone = next(iter(crons), (None, "UTC"))
    debounce_s = _least("debounce", [pace.debounce for pace in paces])
    max_wait_s = _least("max_wait", [pace.max_wait for pace in paces])
    if cron and debounce_s:
        raise DeclarationError(
            "views of one group use both cron= and debounce=", hint="use only one of them in a group"
        )
    return Pace(
        cadence=_least("cadence", [pace.cadence for pace in paces]),
        debounce=debounce_s,
        max_wait=None if max_wait_s is None else max(max_wait_s, debounce_s or 0.0),
        cron=cron,
        zone=zone,
        catch_up=next((pace.catch_up for pace in paces if pace.catch_up is not None), None),
        most_failures=min((pace.most_failures for pace in paces if pace.most_failures), default=0),
    )


def _least(name: str, durations: Sequence[Duration]) -> float | None:
    lengths = [length for value in durations if (length := seconds(name, value)) is not None]
    return min(lengths, default=None)


def _check(pace: Pace) -> None:
    """Raise `DeclarationError` for values that are invalid or cannot be combined."""
    seconds("cadence", pace.cadence)
    debounce_s, max_wait_s = seconds("debounce", pace.debounce), seconds("max_wait", pace.max_wait)
    if max_wait_s is not None and debounce_s is None:
        raise DeclarationError("max_wait= needs debounce=", hint="add debounce=, or omit max_wait=")
    if max_wait_s is not None and debounce_s is not None and max_wait_s < debounce_s:
        raise DeclarationError(
            f"max_wait={pace.max_wait!r} is less than debounce={pace.debounce!r}",
            hint="make max_wait at least as long as debounce, or omit max_wait",
        )
    if pace.cron is not None and pace.debounce is not None:
        raise DeclarationError("cron= and debounce= cannot be combined", hint="omit one of them")
    if pace.cron is None and pace.zone != "UTC":
        raise DeclarationError(f"zone={pace.zone!r} needs cron=", hint="add cron=, or omit zone=")
    if pace.cron is not None:
        _check_cron(pace.cron, pace.zone)
    if pace.catch_up is not None and pace.catch_up not in set(CatchUp):
        raise DeclarationError(f"invalid catch_up={pace.catch_up!r}", hint=f"use one of {', '.join(CatchUp)}")
    if not 0 <= pace.most_failures < 10**6:
        raise DeclarationError(
            f"invalid most_failures={pace.most_failures}",
            hint="use 1 to 999999 (consecutive failures), or 0 for no limit",
        )


def check_pace(pace: object) -> None:
    """Raise `DeclarationError` for anything but a `Pace`, which has checked its values itself."""
    if not isinstance(pace, Pace):
        raise DeclarationError(
            f"invalid pace={pace!r:.80}", hint='use tm.Pace(…), for example tm.Pace(cadence="PT5M")'
        )


def _check_cron(cron: str, zone: str) -> None:
    """Check that a cron expression is valid, and that some future time matches it."""
    try:
        next_after(Cron.parse(cron), zone_of(zone), _EPOCH)
    except BadSchedule as error:
        raise DeclarationError(f"invalid cron={cron!r}: {error.message}", hint=error.hint) from None


class Grace(msgspec.Struct, frozen=True, kw_only=True):
    """How long an arc waits for the last input of a lot, and what happens after that (LOT-28)."""

    grace_s: float = 0.0
    then: AfterGrace = AfterGrace.WAIT

    @property
    def grace_us(self) -> int:
        return int(self.grace_s * 1e6)


NO_GRACE = Grace()
"""Wait until every input has the lot."""


def grace_of(grace: Duration, then: str, tables: int) -> Grace:
    """Check the grace period of an arc and return it; `tables` is the number of tables that the arc reads."""
    if then not in set(AfterGrace):
        raise DeclarationError(f"invalid after_grace={then!r}", hint=f"use one of {', '.join(AfterGrace)}")
    if grace is not None and tables < 2:
        raise DeclarationError(
            "grace= needs an arc that reads several tables", hint="omit grace=, or read several tables"
        )
    if grace is None and then != AfterGrace.WAIT:
        raise DeclarationError(
            f"after_grace={then!r} needs grace=",
            hint="add grace=, for example grace='PT10M', or omit after_grace=",
        )
    return Grace(grace_s=seconds("grace", grace) or 0.0, then=AfterGrace(then))


def seconds(name: str, duration: Duration) -> float | None:
    """Return a duration in seconds; `name` is the parameter, for errors."""
    if duration is None:
        return None
    if isinstance(duration, timedelta):
        length = duration.total_seconds()
    elif isinstance(duration, str):
        match = _DURATION.fullmatch(duration)
        if match is None or not any(match.groups()):
            raise DeclarationError(
                f"invalid {name}={duration!r}: it is not a duration",
                hint="use seconds, a timedelta, or a string like 'PT5M'",
            )
        days, hours, minutes, rest = (float(part or 0) for part in match.groups())
        length = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    else:
        length = float(min(duration, _MAX_S))  # an integer of any size
    if not 0 < length < _MAX_S:
        raise DeclarationError(
            f"invalid {name}={duration!r}",
            hint=f"use a positive duration below {_MAX_S:.0f} seconds, or omit {name}=",
        )
    return length


FASTEST = Pace()
"""Run as soon as an input is published."""
