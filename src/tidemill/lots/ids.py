"""Lot ids: readable names that sort by time (LOT-2, LOT-3, LOT-4).

    20230101              a day
    20230101PT5M050       the 51st five-minute interval of that day: [04:10, 04:15), UTC
    20230101PT1H023       the last hour of that day
    A00000000000000017    the 17th append of a dataset whose producers decide their own batches

Intervals are half-open and in UTC, and their length divides the day evenly. So every day has the same lots,
and the id alone tells when its interval begins and ends. All ordinals of a unit have the same number of
digits, so ids of the same unit sort by time. Every id has exactly one spelling; `parse` refuses all others.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import msgspec

from tidemill.errors import BadLotId

DAY_S = 86_400
_INTERVAL = re.compile(r"(\d{8})(?:(PT(?:\d+H)?(?:\d+M)?(?:\d+S)?)(\d+))?", re.ASCII)
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", re.ASCII)
_APPEND = re.compile(r"A(\d{17})", re.ASCII)
EPOCH = date(1970, 1, 1)


class Unit(msgspec.Struct, frozen=True, order=True):
    """The length of a dataset's intervals in seconds, a divisor of 24 hours."""

    seconds: int

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= DAY_S or DAY_S % self.seconds:
            raise BadLotId(
                f"invalid lot length: {self.seconds} s",
                hint="use a length that divides 24 hours: PT5M, PT1H, P1D",
            )

    @staticmethod
    def parse(text: str) -> "Unit":
        """Parse a duration such as `PT5M`, `PT1H30M`, `PT10S` or `P1D`, in its shortest spelling."""
        if text == "P1D":
            return Unit(DAY_S)
        match = _DURATION.fullmatch(text)
        if match is None or not any(match.groups()):
            raise BadLotId(f"invalid duration: {text!r}", hint="write it as PT5M, PT1H or P1D")
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        unit = Unit(hours * 3600 + minutes * 60 + seconds)
        if str(unit) != text:
            raise BadLotId(f"{text!r} is not in the standard form", hint=f"write it as {unit}")
        return unit

    @property
    def per_day(self) -> int:
        return DAY_S // self.seconds

    @property
    def digits(self) -> int:
        """The number of digits of an ordinal, at least three, so that common units look the same."""
        return max(3, len(str(self.per_day - 1)))

    def __str__(self) -> str:
        if self.seconds == DAY_S:
            return "P1D"
        hours, rest = divmod(self.seconds, 3600)
        minutes, seconds = divmod(rest, 60)
        parts = ((hours, "H"), (minutes, "M"), (seconds, "S"))
        return "PT" + "".join(f"{amount}{letter}" for amount, letter in parts if amount)

    def at(self, moment: datetime) -> "LotId":
        """Return the lot whose interval contains this time."""
        if moment.tzinfo is None:
            raise BadLotId(
                "the time has no time zone", hint="pass a datetime with a time zone; lots are in UTC"
            )
        utc = moment.astimezone(UTC)
        since_midnight = utc.hour * 3600 + utc.minute * 60 + utc.second
        return LotId((utc.date() - EPOCH).days, self, since_midnight // self.seconds)


DAY = Unit(DAY_S)


class LotId(msgspec.Struct, frozen=True, order=True):
    """The id of an interval's lot. Ids sort by day, unit and ordinal, so ids of one unit sort by time."""

    day: int  # days since 1970
    unit: Unit
    ordinal: int

    def __post_init__(self) -> None:
        if not 0 <= self.ordinal < self.unit.per_day:
            raise BadLotId(
                f"invalid lot number {self.ordinal}: a day has only {self.unit.per_day} lots of {self.unit}",
                hint=f"use a number from 0 to {self.unit.per_day - 1}",
            )

    @staticmethod
    def parse(text: str) -> "LotId":
        """Parse the id of an interval's lot, in its exact spelling."""
        match = _INTERVAL.fullmatch(text)
        if match is None:
            raise BadLotId(f"invalid lot id: {text!r}", hint="write it as 20230101PT5M050 or 20230101")
        day_text, unit_text, ordinal_text = match.groups()
        try:
            day = date(int(day_text[:4]), int(day_text[4:6]), int(day_text[6:]))
        except ValueError:
            raise BadLotId(f"invalid lot id: {text!r} (there is no day {day_text})") from None
        unit = DAY if unit_text is None else Unit.parse(unit_text)
        lot = LotId((day - EPOCH).days, unit, int(ordinal_text or 0))
        if str(lot) != text:
            raise BadLotId(f"{text!r} is not in the standard form", hint=f"write it as {lot}")
        return lot

    @property
    def date(self) -> date:
        return EPOCH + timedelta(days=self.day)

    @property
    def start(self) -> datetime:
        """When the interval begins."""
        midnight = datetime(self.date.year, self.date.month, self.date.day, tzinfo=UTC)
        return midnight + timedelta(seconds=self.ordinal * self.unit.seconds)

    @property
    def end(self) -> datetime:
        """When the interval ends; the next one begins at this time."""
        return self.start + timedelta(seconds=self.unit.seconds)

    def next(self) -> "LotId":
        """Return the lot of the next interval."""
        if self.ordinal + 1 < self.unit.per_day:
            return LotId(self.day, self.unit, self.ordinal + 1)
        return LotId(self.day + 1, self.unit, 0)

    def __str__(self) -> str:
        day = f"{self.date:%Y%m%d}"
        return day if self.unit == DAY else f"{day}{self.unit}{self.ordinal:0{self.unit.digits}}"


def texts_between(first: LotId, last: LotId) -> Iterator[str]:
    """Yield the ids of the lots from `first` to `last`, both included, as text.

    It formats each day only once, so that reports over years of lots stay fast.
    """
    if first.unit == DAY:
        for day in range(first.day, last.day + 1):
            yield str(LotId(day, DAY, 0))
        return
    unit, most, digits = str(first.unit), first.unit.per_day - 1, first.unit.digits
    ordinals = [f"{ordinal:0{digits}}" for ordinal in range(most + 1)]
    for day in range(first.day, last.day + 1):
        begin = first.ordinal if day == first.day else 0
        end = last.ordinal if day == last.day else most
        start = f"{EPOCH + timedelta(days=day):%Y%m%d}{unit}"
        for ordinal in ordinals[begin : end + 1]:
            yield start + ordinal


class AppendId(msgspec.Struct, frozen=True, order=True):
    """The id of an append's lot, in a dataset without intervals: a number in the order of appends."""

    number: int

    def __post_init__(self) -> None:
        if not 0 < self.number < 10**17:
            raise BadLotId(f"invalid append number: {self.number}", hint="use a number from 1 to 10^17 - 1")

    @staticmethod
    def parse(text: str) -> "AppendId":
        match = _APPEND.fullmatch(text)
        if match is None:
            raise BadLotId(f"invalid append id: {text!r}", hint="write it as A00000000000000017")
        return AppendId(int(match[1]))

    def __str__(self) -> str:
        return f"A{self.number:017}"


AnyLotId = LotId | AppendId


def parse(text: str) -> AnyLotId:
    """Parse a lot id of either kind."""
    return AppendId.parse(text) if text.startswith("A") else LotId.parse(text)


def between(first: LotId, last: LotId) -> list[LotId]:
    """List the lots from `first` to `last`, both included."""
    if first.unit != last.unit:
        raise BadLotId(
            f"{first} and {last} have different interval lengths", hint="use two lots from the same dataset"
        )
    lots = []
    lot = first
    while lot <= last:
        lots.append(lot)
        lot = lot.next()
    return lots
