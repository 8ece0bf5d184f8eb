"""Session windows that have a kernel: `session_window(ts, '10 minutes')` with a gap of a fixed length.

The time must be a TIMESTAMP or a TIMESTAMP_NTZ. In the time zone of the session, a day has 23 to 25 hours, so
a gap for a TIMESTAMP must be shorter than a day. Spark computes session windows with other gaps, such as an
expression or a month.
"""

import re
from typing import NamedTuple

from tidemill.views.circuit.column_types import expression_type
from tidemill.views.circuit.expr import SESSION_WINDOW, Expr, merge_parts
from tidemill.views.circuit.operators import Aggregate, Operator

_GAP = re.compile(r", ?'([^'\\\\]*)' ?\)$")
_LENGTH = re.compile(r"(\d{1,12}) +([a-z]+?)s?", re.IGNORECASE)
_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_DAY = _UNITS["day"]


class SessionForm(NamedTuple):
    """The time of a session window, and its gap in microseconds."""

    time: Expr
    gap_us: int


def session_key(op: Aggregate) -> int | None:
    """Return which key of a GROUP BY is a session window; None if none is."""
    return next((place for place, expr in enumerate(op.groups) if expr.is_session_window), None)


def session_form(below: Operator, expr: Expr) -> SessionForm | None:
    """Return what a kernel must know about a session window over the rows of `below`; None if it has none."""
    first, last = expr.parts[0], expr.parts[-1]
    if not isinstance(first, str) or not isinstance(last, str) or len(expr.parts) == 1:
        return None
    called, gap = SESSION_WINDOW.match(first), _GAP.search(last)
    length = None if gap is None else _microseconds(gap[1])
    if called is None or gap is None or length is None:
        return None
    time = Expr(
        merge_parts((first[called.end() :], *expr.parts[1:-1], last[: gap.start()])),
        expr.calls - {"session_window"},
    )
    longest = {"timestamp": _DAY - 1, "timestamp_ntz": 1_000 * _DAY}.get(expression_type(below, time), 0)
    return SessionForm(time, length) if 0 < length <= longest else None


def _microseconds(gap: str) -> int | None:
    """Return the length of a gap such as `1 hour 30 minutes`; None if it has no fixed length."""
    words, total = gap.split(), 0
    for number, unit in zip(words[::2], words[1::2], strict=False):
        length = _LENGTH.fullmatch(f"{number} {unit}")
        if length is None or length[2].lower() not in _UNITS:
            return None
        total += int(length[1]) * _UNITS[length[2].lower()]
    return total if len(words) % 2 == 0 else None
