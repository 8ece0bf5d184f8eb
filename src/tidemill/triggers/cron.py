"""Cron expressions: parse them and compute the next time in a time zone.

An expression has five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday).
Each field is `*`, a number, a range `a-b`, any of these with a step `/n`, or a comma-separated list. Months
and weekdays can be written as names. If both day fields are set, a day needs to match only one of them.
`@hourly`, `@daily` (`@midnight`), `@weekly`, `@monthly` and `@yearly` (`@annually`) are supported.

When clocks go forward, a local time that does not exist on that day is shifted by the same amount. When they
go back, a local time that occurs twice counts once. An expression that matches every hour is different: it
follows elapsed time, and skips or repeats local hours.
"""

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill.errors import BadSchedule

DAYS = 366 * 9
"""How many days ahead to search: the next 29th of February is up to eight years away."""

SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = {
    word: number + 1
    for number, word in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    )
}
_WEEKDAYS = {word: number for number, word in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


class Field(NamedTuple):
    """One of the five fields: its name, its bounds, and the names of its values."""

    name: str
    least: int
    most: int
    names: dict[str, int]


FIELDS = (
    Field("minute", 0, 59, {}),
    Field("hour", 0, 23, {}),
    Field("day of the month", 1, 31, {}),
    Field("month", 1, 12, _MONTHS),
    Field("day of the week", 0, 7, _WEEKDAYS),
)


class Cron(NamedTuple):
    """A parsed expression."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool  # the day of the month is `*`
    any_weekday: bool

    @staticmethod
    def parse(text: str) -> "Cron":
        """Parse an expression; raise `BadSchedule` if it is invalid.

        >>> sorted(Cron.parse("*/20 6 * * mon-fri").minutes)
        [0, 20, 40]
        """
        fields = SHORT.get(text.strip().lower(), text).split()
        if len(fields) != len(FIELDS):
            raise BadSchedule(f"{text!r} has {len(fields)} fields, but needs 5")
        minutes, hours, days, months, weekdays = (
            _parse_field(part.lower(), field, text) for part, field in zip(fields, FIELDS, strict=True)
        )
        return Cron(
            minutes,
            hours,
            days,
            months,
            frozenset(day % 7 for day in weekdays),
            any_day=fields[2] == "*",
            any_weekday=fields[4] == "*",
        )

    def on(self, day: date) -> bool:
        """Return whether the schedule has times on this day."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday


def _parse_field(field_text: str, field: Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for part in field_text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, field, text, {}, least=1, most=field.most) if slash else 1
        if span == "*":
            first, last = field.least, field.most
        elif "-" in span:
            first, last = (_number(end, field, text, field.names) for end in span.split("-", 1))
        else:
            first = _number(span, field, text, field.names)
            last = field.most if slash else first
        if first > last:
            raise BadSchedule(f"{text!r}: the range {part!r} ends before it starts (field: {field.name})")
        values.update(range(first, last + 1, step))
    return frozenset(values)


def _number(
    word: str,
    field: Field,
    text: str,
    names: dict[str, int],
    *,
    least: int | None = None,
    most: int | None = None,
) -> int:
    low, high = field.least if least is None else least, field.most if most is None else most
    value = names.get(word)
    if value is None and word.isascii() and word.isdecimal() and len(word) <= 4:
        value = int(word)
    if value is None or not low <= value <= high:
        raise BadSchedule(f"{text!r}: {word!r} is not a valid {field.name} ({low} to {high})")
    return value


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by name; raise `BadSchedule` if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(
            f"there is no time zone {name!r}", hint="use an IANA name, such as Europe/Madrid or UTC"
        ) from None


def next_after(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime:
    """Return the first time after `after`, in UTC; raise `BadSchedule` if there is none.

    >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> next_after(Cron.parse("30 6 * * *"), ZoneInfo("Europe/Madrid"), noon).isoformat()
    '2026-02-01T05:30:00+00:00'
    """
    day = after.astimezone(zone).date() - timedelta(days=1)
    for _ in range(DAYS):
        if cron.on(day):
            times = _times(cron, zone, day)
            at = bisect_right(times, after)
            if at < len(times):
                return times[at]
        day += timedelta(days=1)
    raise BadSchedule(
        f"this cron expression matches no date in the next {DAYS // 366} years",
        hint="check that the day exists in that month",
    )


@lru_cache(maxsize=64)
def _times(cron: Cron, zone: ZoneInfo, day: date) -> list[datetime]:
    """Return all times of one local day, in UTC and in order; cached, because most calls are about today."""
    every_hour = len(cron.hours) == 24
    times = []
    for hour in cron.hours:
        for minute in cron.minutes:
            for fold in (0, 1) if every_hour else (0,):
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone, fold=fold)
                moment = local.astimezone(UTC)
                exists = moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
                if exists or not every_hour:
                    times.append(moment)
    return sorted(set(times))
