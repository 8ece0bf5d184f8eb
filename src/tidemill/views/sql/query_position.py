"""Where in a query something stands, and how an error points at it."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from tidemill.errors import NameUnknown, QueryError

Kind = TypeVar("Kind", bound=QueryError)


@dataclass(frozen=True)
class QueryPosition:
    """A line and a column of the query, both counted from 1, and how many characters are meant."""

    line: int
    column: int
    length: int = 1


def position_of(sql: str, start: int, end: int) -> QueryPosition:
    """The place of the characters start to end (inclusive)."""
    line = sql.count("\n", 0, start) + 1
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    last = min(end, (len(sql) if line_end < 0 else line_end) - 1)
    return QueryPosition(line, start - line_start + 1, max(1, last - start + 1))


def error_at(
    kind: type[Kind], message: str, sql: str, position: QueryPosition, hint: str | None = None
) -> Kind:
    """An error that shows the line of the query with carets under the place."""
    lines = sql.split("\n")
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    margin = f"{position.line} | "
    # Tabs stay tabs, so that the carets stand under what they mean.
    indent = "".join("\t" if char == "\t" else " " for char in line[: position.column - 1])
    carets = " " * (len(margin) - 2) + "| " + indent + "^" * position.length
    where = f"line {position.line}, column {position.column}"
    error = kind(f"{message} ({where})\n{margin}{line}\n{carets}", hint=hint)
    error.line, error.column = position.line, position.column
    return error


def unknown_name(noun: str, name: str, known: list[str], sql: str, position: QueryPosition) -> NameUnknown:
    """A name that is not there, with those that look like it."""
    near = near_names(name, known)
    names = sorted(dict.fromkeys(known))
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        hint = f"there is {', '.join(names[:12])}{more}"
    else:
        hint = None
    error = error_at(NameUnknown, f"there is no {noun} {name}", sql, position, hint)
    error.name, error.near = name, tuple(near)
    return error


def near_names(name: str, known: list[str]) -> list[str]:
    """Up to three names that look like this one; case counts for nothing."""
    lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)
    return [lower[candidate] for candidate in matches]
