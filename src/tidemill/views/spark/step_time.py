"""Write the time of a step into the text of a query, in place of `now()` and similar functions (DBSP-22).

Spark itself would use the time at which it plans a job. But a step that runs again, perhaps on another
runner, must return the same result. So the time in the step's record replaces every function of the clock.
Named moments (`TIMESTAMP 'today'`) are functions of the clock too.
"""

import datetime as dt
from collections.abc import Collection, Iterator
from itertools import pairwise

from sqlglot.tokenizer_core import Token, TokenType

from tidemill.views.circuit.expr import ClockValue
from tidemill.views.sql.parser import ParsedQuery

_MOMENTS = {"now": 0, "today": 0, "yesterday": -1, "tomorrow": 1, "epoch": None}
_DAY_US = 86_400_000_000


def clock_values(now_us: int | str) -> dict[ClockValue, str]:
    """Return SQL for the time of a step in the three types that circuits use.

    Args:
        now_us: the time in µs since 1970, or the name of a column that holds it.
    """
    stamp = f"timestamp_micros({now_us})"
    return {
        ClockValue.TIMESTAMP: stamp,
        ClockValue.DATE: f"CAST({stamp} AS DATE)",
        ClockValue.LOCAL: f"CAST({stamp} AS TIMESTAMP_NTZ)",
    }


def reads_clock(sql: str, columns: Collection[str] = ()) -> bool:
    """Return whether the result of a query depends on when it runs."""
    return next(_replacements(sql, columns, 0), None) is not None


def with_step_time(sql: str, now_us: int, columns: Collection[str] = ()) -> str:
    """Return the query with the time of a step written into it.

    Args:
        sql: the query.
        now_us: the time of the step in µs since 1970.
        columns: the column names of the query's tables. As in Spark, such a name without parentheses means
            the column.
    """
    text, last = [], 0
    for start, end, replacement in _replacements(sql, columns, now_us):
        text += [sql[last:start], replacement]
        last = end
    return "".join(text) + sql[last:]


def _replacements(sql: str, columns: Collection[str], now_us: int) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and replacement of each function of the clock."""
    tokens = ParsedQuery(sql).tokens
    stamps = clock_values(now_us)
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=now_us)
    calls = {
        "now": stamps[ClockValue.TIMESTAMP],
        "current_timestamp": stamps[ClockValue.TIMESTAMP],
        "current_date": stamps[ClockValue.DATE],
        "curdate": stamps[ClockValue.DATE],
        "localtimestamp": stamps[ClockValue.LOCAL],
        "current_time": f"TIME '{moment:%H:%M:%S.%f}'",
        "localtime": f"TIME '{moment:%H:%M:%S.%f}'",
        "unix_timestamp": f"unix_timestamp({stamps[ClockValue.TIMESTAMP]})",
    }
    bare = frozenset({"current_timestamp", "current_date", "localtimestamp", "current_time", "localtime"})
    column_names = {name.lower() for name in columns} | {
        after.text.lower() for token, after in pairwise(tokens) if token.token_type == TokenType.ALIAS
    }
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else None
        after = [following.token_type for following in tokens[place + 1 : place + 3]]
        word = token.text.lower()
        if before is not None and before.token_type in {TokenType.DOT, TokenType.ALIAS}:
            continue
        if token.token_type == TokenType.STRING:
            if before is not None and word.strip() in _MOMENTS:
                yield from _moment(before, token, word.strip(), now_us)
        elif token.token_type == TokenType.IDENTIFIER or word not in calls:
            continue
        elif after == [TokenType.L_PAREN, TokenType.R_PAREN]:
            yield token.start, tokens[place + 2].end + 1, calls[word]
        elif word in bare and TokenType.L_PAREN not in after[:1] and word not in column_names:
            yield token.start, token.end + 1, calls[word]


def _moment(before: Token, token: Token, word: str, now_us: int) -> Iterator[tuple[int, int, str]]:
    kind = before.text.upper()
    if kind not in {"TIMESTAMP", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}:
        return
    days = _MOMENTS[word]
    at = 0 if days is None else now_us if word == "now" else now_us // _DAY_US * _DAY_US + days * _DAY_US
    yield before.start, token.end + 1, f"CAST(timestamp_micros({at}) AS {kind})"
