"""The options of a submission: checked where the user wrote them, with a hint, before anything is stored."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import msgspec

from tidemill.errors import UsageError
from tidemill.futures.protocol.rows import Needs
from tidemill.futures.values.pickling import Handle

GRACE_S = 300.0
"""How long a future waits that was submitted with `on_unsatisfiable="fail"` and whose last fitting node left
only later: long enough for that node to be started again."""

_MOST_SECONDS = 10 * 365 * 86_400.0
_MOST_KEY_BYTES = 1_000
_MOST_QUEUE_BYTES = 200
_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?i?b?)\s*", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NAME = re.compile(r"[^\s+]{1,100}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `submit` and `map` take besides the call."""

    needs: Needs = Needs()
    max_retries: int = 0
    near: bytes = b""
    priority: int = 0
    deadline_s: float = 0.0  # from the submission; 0 is none
    deadline_wall_us: int = 0  # or a time of day
    key: str = ""
    durable: bool = False
    queue: str = ""
    refuse: bool = True  # what no live node can run
    grace_s: float = GRACE_S
    progress_timeout_s: float = 0.0

    @staticmethod
    def of(given: Mapping[str, Any]) -> "Options":
        """The options as a user gives them; `UsageError` names the one that is wrong."""
        for name in given:
            if name not in NAMES:
                raise UsageError(
                    f"there is no option {name!r}",
                    hint=f"options are {', '.join(NAMES)}; bind other arguments with functools.partial",
                )
        values = dict(given)
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
        """The options of one of several calls: each has a key of its own."""
        return msgspec.structs.replace(self, key=f"{self.key}/{number}")

    def deadline_at(self, now_us: int, wall_us: int) -> int:
        """The deadline in the store's time; 0 for none."""
        if self.deadline_wall_us:
            return max(1, now_us + self.deadline_wall_us - wall_us)
        return now_us + int(self.deadline_s * 1_000_000) if self.deadline_s else 0


class SubmitOptions(TypedDict, total=False):
    """The options as users write them; see `Client.submit`."""

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
"""Every option by its name."""

_KNOWN = frozenset(NAMES)


def split(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of `submit`: those that are options, and those of the function."""
    options = {name: value for name, value in keywords.items() if name in _KNOWN}
    return options, {name: value for name, value in keywords.items() if name not in _KNOWN}


def amount_of_bytes(name: str, value: object) -> int:
    """Bytes as a number, or as a text such as "2 GB" or "512MiB" (both are powers of 1024 here)."""
    if isinstance(value, str):
        parts = _AMOUNT.fullmatch(value)
        if parts is None:
            raise _wrong(name, value, 'bytes as a number, or a text such as "512MB" or "2GB"')
        unit = parts["unit"].lower().rstrip("b").rstrip("i")
        return int(float(parts["number"]) * 1024 ** _UNITS[unit])
    return int(number(name, value, 'bytes as a number, or a text such as "512MB" or "2GB"'))


def seconds(name: str, value: object) -> float:
    """A duration in seconds, or as a timedelta; 0 for None."""
    if value is None:
        return 0.0
    if isinstance(value, timedelta):
        value = value.total_seconds()
    found = number(name, value, "seconds above 0, or a timedelta")
    if not 0 < found <= _MOST_SECONDS:
        raise _wrong(name, value, "seconds above 0, or a timedelta")
    return found


def timeout(value: object) -> float | None:
    """How long somebody waits: seconds, or a timedelta; None for ever."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return number("timeout", value, "seconds, 0 or more; a timedelta; or None to wait for ever")


def above_zero(name: str, value: object) -> float:
    """A number above 0; 0 for None."""
    if value is None:
        return 0.0
    found = number(name, value, "a number above 0, or left out")
    if not found:
        raise _wrong(name, value, "a number above 0, or left out")
    return found


def _deadline(value: object) -> tuple[float, int]:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _wrong("deadline", value, "a datetime with its time zone, e.g. datetime.now(UTC) + …")
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return 0.0, since // timedelta(microseconds=1)
    return seconds("deadline", value), 0


def number(name: str, value: object, hint: str = "a number, 0 or more") -> float:
    """A number that is 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _wrong(name, value, hint)
    return float(value)


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, value, f"a whole number from {least:,} to {most:,}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def text(name: str, value: object, most: int) -> str:
    """A text that is not empty; empty for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value or len(value.encode(errors="replace")) > most:
        raise _wrong(name, value, f"a text of 1 to {most:,} bytes")
    return value


def _names(value: object) -> tuple[str, ...]:
    hint = 'names of resources, e.g. resources=["spark"]; amounts are cpu=, ram= and gpu='
    names = [value] if isinstance(value, str) else value
    if isinstance(names, Mapping) or not isinstance(names, Iterable):
        raise _wrong("resources", value, hint)
    found = []
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _wrong("resources", value, hint)
        found.append(name)
    return tuple(sorted(set(found)))


def _near(value: object) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, Handle):
        raise _wrong("near", value, "a future, whose result this one should run beside")
    return value.id


def _unsatisfiable(value: object) -> tuple[bool, float]:
    hint = '"fail" (refused at once), "wait" (for ever), or how many seconds to wait for a node that fits'
    if value == "fail":
        return True, GRACE_S
    if value == "wait":
        return False, -1.0
    if isinstance(value, str):
        raise _wrong("on_unsatisfiable", value, hint)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return False, number("on_unsatisfiable", value, hint)


def _wrong(name: str, value: object, expected: str) -> UsageError:
    return UsageError(f"{name}={value!r:.100} is not possible", hint=f"{name} is {expected}")
