"""Does a bound made of the clock only grow? Then it passes a value once, and when can be foretold (DBSP-22).

Known are the functions of the clock themselves, lengths of time added and taken away, casts between dates
and timestamps, and what cuts a moment off at its day or hour. What is a month before a timestamp may fall:
for the night to the 30th of March it is earlier in February than for the evening before; of a date it does
not. Whatever is not known here is not said to grow.
"""

import re

from sqlglot import exp

from tidemill.errors import QueryError
from tidemill.views.sql.catalog import KeptWhole
from tidemill.views.sql.parser import ParsedQuery

_CLOCKS = (exp.CurrentTimestamp, exp.CurrentDate, exp.Localtimestamp)
_CUTS = {"date_trunc", "trunc", "to_date", "date", "to_timestamp", "timestamp"}
_SHIFTS = {"date_add", "date_sub"}
_FIXED = re.compile(r"\b(week|day|hour|minute|second|millisecond|microsecond)s?\b", re.IGNORECASE)
_MONTHS = re.compile(r"\b(year|quarter|month)s?\b", re.IGNORECASE)
_DATES = {exp.DataType.Type.DATE}
_MOMENTS = _DATES | {
    exp.DataType.Type.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ,
    exp.DataType.Type.TIMESTAMPLTZ,
}


def is_monotonic(sql: str) -> bool:
    """Whether the value of this expression, of the clock alone, never falls while time passes."""
    try:
        query = ParsedQuery(f"SELECT {sql}")
    except (QueryError, KeptWhole):
        return False
    (node,) = query.tree.expressions
    return _rises(query, node)


def _rises(query: ParsedQuery, node: exp.Expr) -> bool:
    match node:
        case exp.Paren() | exp.Alias():
            return _rises(query, node.this)
        case exp.Cast():
            return node.to.this in _MOMENTS and _rises(query, node.this)
        case exp.Add() | exp.Sub():
            return _rises(query, node.left) and _shift(query, node.left, node.right)
        case _:
            return isinstance(node, _CLOCKS) or _called(query, node)


def _called(query: ParsedQuery, node: exp.Expr) -> bool:
    """A function that keeps the order of its one argument that has the clock."""
    if not isinstance(node, exp.Func):
        return False
    text = query.text(node)
    name = text.partition("(")[0].strip().lower()
    inner = [one for one in node.args.values() if isinstance(one, exp.Expr)]
    moving = [one for one in inner if one.find(*_CLOCKS)]
    if len(moving) != 1 or not _rises(query, moving[0]):
        return False
    return name in _CUTS or (name in _SHIFTS and not _MONTHS.search(text))


def _shift(query: ParsedQuery, base: exp.Expr, length: exp.Expr) -> bool:
    if length.find(*_CLOCKS) or length.find(exp.Column):
        return False
    said = query.text(length)
    if _MONTHS.search(said):
        return _is_date(base) and not _FIXED.search(said)
    # Days are added to a date as a number.
    return bool(_FIXED.search(said)) or (_is_date(base) and isinstance(length, exp.Literal))


def _is_date(node: exp.Expr) -> bool:
    if isinstance(node, exp.Paren):
        return _is_date(node.this)
    return isinstance(node, exp.CurrentDate) or (isinstance(node, exp.Cast) and node.to.this in _DATES)
