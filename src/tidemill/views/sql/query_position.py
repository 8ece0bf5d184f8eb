"""Positions in the text of a query, and errors that point at them."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from tidemill.errors import NameUnknown, QueryError

Kind = TypeVar("Kind", bound=QueryError)


@dataclass(frozen=True)
class QueryPosition:
    """A line and a column of the query, both counted from 1, and a number of characters."""

    line: int
    column: int
    length: int = 1


def position_of(sql: str, start: int, end: int) -> QueryPosition:
    """Return the position of the characters from start to end (inclusive)."""
    line = sql.count("\n", 0, start) + 1
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    last = min(end, (len(sql) if line_end < 0 else line_end) - 1)
    return QueryPosition(line, start - line_start + 1, max(1, last - start + 1))


def error_at(
    kind: type[Kind], message: str, sql: str, position: QueryPosition, hint: str | None = None
) -> Kind:
    """Return an error that shows the line of the query with carets under the position."""
    lines = sql.split("\n")
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    margin = f"{position.line} | "
    # Tabs stay tabs, so that the carets are aligned.
    indent = "".join("\t" if char == "\t" else " " for char in line[: position.column - 1])
    carets = " " * (len(margin) - 2) + "| " + indent + "^" * position.length
    where = f"line {position.line}, column {position.column}"
    error = kind(f"{message} ({where})\n{margin}{line}\n{carets}", hint=hint)
    error.line, error.column = position.line, position.column
    return error


def unknown_name(
    noun: str, name: str, available: list[str], sql: str, position: QueryPosition
) -> NameUnknown:
    """Return the error for a name that does not exist, with similar names as a hint."""
    near = near_names(name, available)
    names = sorted(dict.fromkeys(available))
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        hint = f"available: {', '.join(names[:12])}{more}"
    else:
        hint = None
    error = error_at(NameUnknown, f"there is no {noun} {name}", sql, position, hint)
    error.name, error.near = name, tuple(near)
    return error


def near_names(name: str, available: list[str]) -> list[str]:
    """Return up to three similar names, ignoring case."""
    lower = {candidate.lower(): candidate for candidate in available}
    matches = get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)
    return [lower[candidate] for candidate in matches]
