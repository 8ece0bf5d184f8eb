"""The options of `submit` and `map`. They are checked before anything is stored."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import msgspec

from tidemill.errors import UsageError
from tidemill.futures.protocol.rows import Needs
from tidemill.futures.values.pickling import Handle

GRACE_S = 300.0
"""How long a future with `on_unsatisfiable="fail"` waits if its last suitable node leaves later.
The time is long enough to restart that node."""

_MOST_SECONDS = 10 * 365 * 86_400.0
_MOST_KEY_BYTES = 1_000
_MOST_QUEUE_BYTES = 200
_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?i?b?)\s*", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NAME = re.compile(r"[^\s+]{1,100}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a submission."""

    needs: Needs = Needs()
    max_retries: int = 0
    near: bytes = b""
    priority: int = 0
    deadline_s: float = 0.0  # seconds after the submission; 0 for none
    deadline_wall_us: int = 0  # or a point in time
    key: str = ""
    durable: bool = False
    queue: str = ""
    refuse: bool = True  # raise an error if no live node has the resources
    grace_s: float = GRACE_S
    progress_timeout_s: float = 0.0

    @staticmethod
    def of(values: Mapping[str, Any]) -> "Options":
        """Check the options that a user has passed. Raise `UsageError` if an option is invalid."""
        for name in values:
            if name not in NAMES:
                raise UsageError(
                    f"there is no option {name!r}",
                    hint=f"use one of {', '.join(NAMES)}; bind other arguments with functools.partial",
                )
        refuse, grace_s = _unsatisfiable(values.get("on_unsatisfiable", "fail"))
        deadline_s, deadline_wall_us = _deadline(values.get("deadline"))
        return Options(
            needs=Needs(
                number("cpu", values.get("cpu", 0)),
                amount_of_bytes("ram", values.get("ram", 0)),
                number("gpu", values.get("gpu", 0)),
                _names(values.get("resources", ())),
            ),
            max_retries=whole("retries", values.get("retries", 0), 0, 1_000),
            near=_near(values.get("near")),
            priority=whole("priority", values.get("priority", 0), -1_000_000, 1_000_000),
            deadline_s=deadline_s,
            deadline_wall_us=deadline_wall_us,
            key=text("key", values.get("key"), _MOST_KEY_BYTES),
            durable=_flag("durable", values.get("durable", False)),
            queue=text("queue", values.get("queue"), _MOST_QUEUE_BYTES),
            refuse=refuse,
            grace_s=grace_s,
            progress_timeout_s=seconds("progress_timeout", values.get("progress_timeout")),
        )

    def numbered(self, number: int) -> "Options":
        """Return the options of one call of `map`, with its own idempotency key."""
        return msgspec.structs.replace(self, key=f"{self.key}/{number}")

    def deadline_at(self, now_us: int, wall_us: int) -> int:
        """Return the deadline by the store's clock; 0 for none."""
        if self.deadline_wall_us:
            return max(1, now_us + self.deadline_wall_us - wall_us)
        return now_us + int(self.deadline_s * 1_000_000) if self.deadline_s else 0


class SubmitOptions(TypedDict, total=False):
    """The options as users pass them; see `Client.submit`."""

    cpu: float
    ram: int | str
    gpu: float
    resources: str | Iterable[str]
    retries: int
    near: Handle | None
    priority: int
    deadline: float | timedelta | datetime | None
    key: str | None
    durable: bool
    queue: str | None
    on_unsatisfiable: str | float | timedelta
    progress_timeout: float | timedelta | None


NAMES = tuple(SubmitOptions.__annotations__)
"""The names of all options."""

_KNOWN = frozenset(NAMES)


def split(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into options and arguments of the function."""
    options = {name: value for name, value in keywords.items() if name in _KNOWN}
    return options, {name: value for name, value in keywords.items() if name not in _KNOWN}


def amount_of_bytes(name: str, value: object) -> int:
    """Parse a number of bytes: an int, or text such as "2 GB" or "512MiB" (units are powers of 1024)."""
    expected = 'a number of bytes, or text such as "512MB" or "2GB"'
    if isinstance(value, str):
        parts = _AMOUNT.fullmatch(value)
        if parts is None:
            raise _invalid(name, value, expected)
        unit = parts["unit"].lower().rstrip("b").rstrip("i")
        return int(float(parts["number"]) * 1024 ** _UNITS[unit])
    return int(number(name, value, expected))


def seconds(name: str, value: object) -> float:
    """Check a duration, in seconds or as a timedelta; return 0 for None."""
    if value is None:
        return 0.0
    if isinstance(value, timedelta):
        value = value.total_seconds()
    expected = "a positive number of seconds, or a timedelta"
    duration_s = number(name, value, expected)
    if not 0 < duration_s <= _MOST_SECONDS:
        raise _invalid(name, value, expected)
    return duration_s


def timeout(value: object) -> float | None:
    """Check a timeout, in seconds or as a timedelta; None means no limit."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return number("timeout", value, "a number of seconds, 0 or more; a timedelta; or None for no limit")


def above_zero(name: str, value: object) -> float:
    """Check a positive number; return 0 for None."""
    if value is None:
        return 0.0
    expected = "a positive number; omit it for no limit"
    positive = number(name, value, expected)
    if not positive:
        raise _invalid(name, value, expected)
    return positive


def _deadline(value: object) -> tuple[float, int]:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _invalid("deadline", value, "a datetime with a time zone, e.g. datetime.now(UTC) + …")
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return 0.0, since // timedelta(microseconds=1)
    return seconds("deadline", value), 0


def number(name: str, value: object, hint: str = "a number, 0 or more") -> float:
    """Check a number that is 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _invalid(name, value, hint)
    return float(value)


def whole(name: str, value: object, least: int, most: int) -> int:
    """Check an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _invalid(name, value, f"an integer from {least:,} to {most:,}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _invalid(name, value, "True or False")
    return value


def text(name: str, value: object, most: int) -> str:
    """Check text that is not empty; return empty text for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value or len(value.encode(errors="replace")) > most:
        raise _invalid(name, value, f"text of 1 to {most:,} bytes")
    return value


def _names(value: object) -> tuple[str, ...]:
    expected = 'a list of resource names, e.g. resources=["spark"]; for amounts use cpu=, ram= and gpu='
    names = [value] if isinstance(value, str) else value
    if isinstance(names, Mapping) or not isinstance(names, Iterable):
        raise _invalid("resources", value, expected)
    unique: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _invalid("resources", value, expected)
        unique.add(name)
    return tuple(sorted(unique))


def _near(value: object) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, Handle):
        raise _invalid("near", value, "a future; the call runs on the node that has its result, if possible")
    return value.id


def _unsatisfiable(value: object) -> tuple[bool, float]:
    expected = '"fail" (raise an error), "wait" (no limit), or the seconds to wait for a suitable node'
    if value == "fail":
        return True, GRACE_S
    if value == "wait":
        return False, -1.0
    if isinstance(value, str):
        raise _invalid("on_unsatisfiable", value, expected)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return False, number("on_unsatisfiable", value, expected)


def _invalid(name: str, value: object, expected: str) -> UsageError:
    return UsageError(f"{name}={value!r:.100} is not valid", hint=f"{name} must be {expected}")
