"""Check and convert the values of rows before they are passed to Arrow.

Some values crash the whole process in `pyarrow.array`, and a sender could choose them: `[None]` for a MAP, or
a decimal with an extreme exponent. `pyarrow.array` also reads the text `"abc"` as an array of three letters,
and cannot parse the text of a TIME or an INTERVAL. So these types are checked and converted here, in Python.
"""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

import pyarrow as pa

Prepare = Callable[[Any], Any]
"""Converts one value, which is not None, to a value that Arrow accepts; raises `ValueError` if it cannot."""

_EXACT: Final = Context(prec=76, traps=[Inexact, InvalidOperation])
_TIME: Final = re.compile(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?", re.ASCII)
_SPARK_INTERVAL: Final = re.compile(
    r"([+-]?)(\d{1,9}) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?", re.ASCII
)
_ISO_INTERVAL: Final = re.compile(
    r"([+-]?)P(?=[\dT])(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15})(?:\.(\d{1,6}))?S)?)?",
    re.ASCII,
)
_LITERAL: Final = re.compile(r"INTERVAL '([^']*)' DAY TO SECOND", re.IGNORECASE)

MOST_DIGITS: Final = 40
"""No integer type has more digits."""


def preparation(arrow_type: pa.DataType) -> Prepare | None:
    """Return the function that prepares values of a type; None if this type needs no preparation."""
    types = pa.types
    if types.is_map(arrow_type):
        return _map(arrow_type)
    if types.is_struct(arrow_type):
        return _struct(arrow_type)
    if types.is_list(arrow_type):
        return _list(arrow_type)
    if types.is_decimal(arrow_type):
        unit = Decimal(1).scaleb(-arrow_type.scale)
        return lambda value: _decimal(value, unit)
    if types.is_time(arrow_type):
        return lambda value: _time(value) if isinstance(value, str) else value
    if types.is_duration(arrow_type):
        return lambda value: _interval_us(value) if isinstance(value, str) else value
    if types.is_temporal(arrow_type):
        return lambda value: _instant(_not_huge(value), arrow_type)
    if types.is_integer(arrow_type):
        return _not_huge
    return None


def _not_huge(value: Any) -> Any:
    """Refuse a decimal such as 1E+999999: Python needs minutes to convert it to an integer."""
    if isinstance(value, Decimal) and value.adjusted() > MOST_DIGITS:
        raise ValueError("it is too large for an integer")
    return value


def _optional(prepare: Prepare | None, value: Any) -> Any:
    return value if prepare is None or value is None else prepare(value)


def _map(arrow_type: pa.MapType) -> Prepare:
    key, item = preparation(arrow_type.key_type), preparation(arrow_type.item_type)

    def prepare(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            entries = list(value.items())
        elif isinstance(value, list | tuple):
            entries = [_entry(entry) for entry in value]
        else:
            raise ValueError("it is not a map")  # noqa: TRY004 - the value is bad, not the program
        if any(name is None for name, _ in entries):
            raise ValueError("a key of a map is NULL")
        return [(_optional(key, name), _optional(item, entry)) for name, entry in entries]

    return prepare


def _entry(entry: Any) -> tuple[Any, Any]:
    """Return the key and the value of one map entry: a pair, or a dictionary with `key` and `value`."""
    if isinstance(entry, tuple) and len(entry) == 2:
        return entry
    if isinstance(entry, Mapping) and "key" in entry and entry.keys() <= {"key", "value"}:
        return entry["key"], entry.get("value")
    raise ValueError("an entry of a map is not a pair of a key and a value")


def _struct(arrow_type: pa.StructType) -> Prepare:
    fields = {field.name: preparation(field.type) for field in arrow_type}

    def prepare(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple) and len(value) == len(fields):
            value = dict(zip(fields, value, strict=True))
        elif isinstance(value, list) and value and all(_is_field(entry) for entry in value):
            value = dict(value)
        if not isinstance(value, Mapping):
            raise ValueError("it is not a struct")  # noqa: TRY004 - the value is bad, not the program
        return {name: _optional(field, value.get(name)) for name, field in fields.items()}

    return prepare


def _is_field(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)


def _list(arrow_type: pa.ListType) -> Prepare:
    element = preparation(arrow_type.value_type)

    def prepare(value: Any) -> Any:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise ValueError("it is not an array")  # noqa: TRY004 - the value is bad, not the program
        return value if element is None else [_optional(element, item) for item in value]

    return prepare


def _decimal(value: Any, unit: Decimal) -> Any:
    """Return a decimal with the declared scale. A float is converted from its printed digits."""
    if isinstance(value, float):
        value = float.__repr__(value)  # a float of numpy prints differently
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = Decimal(value)
    if not isinstance(value, Decimal):
        return value
    return value.quantize(unit, context=_EXACT)


def _instant(value: Any, arrow_type: pa.DataType) -> Any:
    """Parse a date or timestamp in ISO 8601. For a number, check that its year is from 1 to 9999."""
    if isinstance(value, str):
        return pa.scalar(value, pa.string()).cast(arrow_type).value
    if isinstance(value, int) and not isinstance(value, bool):
        pa.scalar(value, arrow_type).as_py()  # raises for other years
    return value


def _time(text: str) -> dt.time:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is not a time such as 12:30:00")
    hour, minute, second, fraction = match.groups()
    return dt.time(int(hour), int(minute), int(second or 0), _microseconds(fraction))


def _interval_us(text: str) -> int:
    """Parse an interval as Spark (`1 02:03:04.5`) or ISO 8601 (`P1DT2H3M4.5S`) writes it."""
    literal = _LITERAL.fullmatch(text.strip())
    content = (literal[1] if literal else text).strip()
    match = _SPARK_INTERVAL.fullmatch(content)
    if match is not None and (int(match[3]) > 23 or int(match[4]) > 59 or int(match[5]) > 59):
        match = None
    match = match or _ISO_INTERVAL.fullmatch(content)
    if match is None:
        raise ValueError("it is not an interval such as 1 02:03:04 or P1DT2H3M4S")
    sign, days, hours, minutes, seconds, fraction = match.groups(default="")
    whole_s = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    microseconds = whole_s * 1_000_000 + _microseconds(fraction)
    return -microseconds if sign == "-" else microseconds


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "").ljust(6, "0"))
