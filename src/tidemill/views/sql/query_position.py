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
    begins = sql.rfind("\n", 0, start) + 1
    stops = sql.find("\n", start)
    last = min(end, (len(sql) if stops < 0 else stops) - 1)
    return QueryPosition(line, start - begins + 1, max(1, last - start + 1))


def error_at(kind: type[Kind], message: str, sql: str, place: QueryPosition, hint: str | None = None) -> Kind:
    """An error that shows the line of the query with carets under the place."""
    lines = sql.split("\n")
    shown = lines[place.line - 1] if place.line <= len(lines) else ""
    margin = f"{place.line} | "
    # Tabs stay tabs, so that the carets stand under what they mean.
    indent = "".join("\t" if letter == "\t" else " " for letter in shown[: place.column - 1])
    carets = " " * (len(margin) - 2) + "| " + indent + "^" * place.length
    where = f"line {place.line}, column {place.column}"
    error = kind(f"{message} ({where})\n{margin}{shown}\n{carets}", hint=hint)
    error.line, error.column = place.line, place.column
    return error


def unknown_name(what: str, name: str, known: list[str], sql: str, place: QueryPosition) -> NameUnknown:
    """A name that is not there, with those that look like it."""
    near = near_names(name, known)
    shown = sorted(dict.fromkeys(known))
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif shown:
        more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
        hint = f"there is {', '.join(shown[:12])}{more}"
    else:
        hint = None
    error = error_at(NameUnknown, f"there is no {what} {name}", sql, place, hint)
    error.name, error.near = name, tuple(near)
    return error


def near_names(name: str, known: list[str]) -> list[str]:
    """Up to three names that look like this one; case counts for nothing."""
    lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)
    return [lower[one] for one in found]
