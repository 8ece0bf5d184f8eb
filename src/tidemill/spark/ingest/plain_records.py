"""Read the values of plain records without Spark: texts that Spark reads in only one way.

Spark accepts many spellings of a value: `1e2` for a decimal, `2026-1-5` for a date, a number in a text
column. A *plain* text has the usual spelling of its type. Each function of this module returns the value that
Spark reads from a plain text, and raises `NotPlain` for any other text: Spark then reads the files.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tidemill.schemas.columns import Simple, Type

_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_FLOAT: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,6}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_FIRST_YEAR: Final = 1900
"""Before this year, programs disagree about calendars and time zones."""

_BYTE_ORDER_MARK: Final = "\ufeff"


class NotPlain(Exception):
    """A record has a value that only Spark can read."""


class NumberText(str):
    """A number in JSON, as it is written."""

    __slots__ = ()


Convert = Callable[[str], Any]


def converter(column_type: Type) -> Convert:
    """Return a function that reads the plain texts of a type; raise `NotPlain` for other types."""
    if not isinstance(column_type, Simple):
        raise NotPlain
    name = column_type.name
    if name in _INTEGERS:
        bits = _INTEGERS[name]
        return lambda text: _integer(text, bits)
    if (parameters := _DECIMAL.fullmatch(name)) is not None:
        precision, scale = int(parameters[1]), int(parameters[2])
        return lambda text: _decimal(text, precision, scale)
    functions: dict[str, Convert] = {
        "string": _text,
        "double": _double,
        "boolean": _boolean,
        "date": _date,
        "timestamp": _timestamp,
        "timestamp_ntz": _local_timestamp,
    }
    if name not in functions:
        raise NotPlain
    return functions[name]


def _text(text: str) -> str:
    return text


def _integer(text: str, bits: int) -> int:
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise NotPlain
    return value


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise NotPlain
    whole, _, fraction = text.removeprefix("-").partition(".")
    if len(fraction) > scale or len(whole.lstrip("0")) > precision - scale:
        raise NotPlain
    return Decimal(text)


def _double(text: str) -> float:
    value = float(text) if _FLOAT.fullmatch(text) else float("inf")
    if value in (float("inf"), float("-inf")) or (value == 0 and text.startswith("-")):
        raise NotPlain
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise NotPlain
    return text == "true"


def _date(text: str) -> date:
    if not _DATE.fullmatch(text):
        raise NotPlain
    return _of_our_calendar(text)


def _of_our_calendar(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise NotPlain from None
    if day.year < _FIRST_YEAR:
        raise NotPlain
    return day


def _timestamp(text: str) -> datetime:
    value, zone = _moment(text)
    if zone in ("", "Z"):
        return value.replace(tzinfo=UTC)
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 18 or minutes > 59:
        raise NotPlain
    offset = timedelta(hours=hours, minutes=minutes)
    return (value + offset if zone.startswith("-") else value - offset).replace(tzinfo=UTC)


def _local_timestamp(text: str) -> datetime:
    value, zone = _moment(text)
    if zone:
        raise NotPlain
    return value


def _moment(text: str) -> tuple[datetime, str]:
    parts = _TIMESTAMP.fullmatch(text)
    if parts is None:
        raise NotPlain
    day, clock, fraction, zone = parts.groups()
    try:
        value = datetime.fromisoformat(f"{_of_our_calendar(day)}T{clock}")
    except ValueError:
        raise NotPlain from None
    return value.replace(microsecond=int((fraction or "").ljust(6, "0"))), zone or ""


# --- lines


def lines_of(body: bytes) -> list[str]:
    """Return the lines of a file, as Spark divides it into lines."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise NotPlain from None
    if text.startswith(_BYTE_ORDER_MARK):
        raise NotPlain
    text = text.replace("\r\n", "\n")
    if "\r" in text:
        raise NotPlain
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return lines


# --- JSON


def json_objects(lines: Sequence[str]) -> Iterator[Mapping[str, object]]:
    """Yield the object of each line that is not blank; numbers are `NumberText`."""
    decoder = json.JSONDecoder(
        parse_int=NumberText,
        parse_float=NumberText,
        parse_constant=_not_json,
        object_pairs_hook=_without_duplicates,
    )
    for line in lines:
        text = line.strip(" ")
        if not text:
            continue
        if not (text.startswith("{") and text.endswith("}")):
            raise NotPlain
        try:
            yield decoder.decode(text)
        except (ValueError, RecursionError):
            raise NotPlain from None


def _not_json(_: str) -> object:
    raise NotPlain


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotPlain
    return value


def json_text(value: object, column_type: Type) -> str | None:
    """Return the text of a JSON value as it is passed to the converter of its column; None for NULL."""
    name = str(column_type)
    if value is None:
        return None
    if isinstance(value, NumberText):
        if name == "string" or name.startswith(("date", "timestamp", "boolean")):
            raise NotPlain
        if name == "double" and value.startswith("-0") and not value.strip("-0."):
            raise NotPlain
        return value
    if isinstance(value, bool):
        if name != "boolean":
            raise NotPlain
        return "true" if value else "false"
    if not isinstance(value, str) or not name.startswith(("string", "date", "timestamp", "decimal")):
        raise NotPlain
    return value


# --- CSV


def csv_values(line: str, separator: str, count: int) -> list[str | None]:
    """Return the values of a CSV record without quotes; an empty value is NULL."""
    values = line.split(separator)
    if len(values) != count or any(value != value.strip() for value in values):
        raise NotPlain
    return [value or None for value in values]
