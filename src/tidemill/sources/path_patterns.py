"""Patterns for paths: `landing/*.json`, `in/**/orders-[0-9]*.csv.gz`, `day=*/{a,b}/*.parquet`.

`*` and `?` match within one name, and `**` matches any number of folders. `[…]` matches one character of a
set, `{a,b}` matches one of several strings, and `[*]` matches a star. `split` cuts a pattern in two: the
folder at its beginning, and the rest. A source lists that folder, and skips subfolders that cannot contain a
match.
"""

import re

import msgspec

from tidemill.errors import BadSource

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAGIC = re.compile(r"[*?\[{]")


class PathPattern(msgspec.Struct, frozen=True):
    """A pattern for paths below a folder; names are joined by `/`."""

    text: str

    def __post_init__(self) -> None:
        names = self.text.split("/")
        if "" in names or "." in names or ".." in names:
            raise BadSource(
                f"invalid pattern {self.text!r}",
                hint="separate names with single slashes; . and .. are not allowed",
            )
        for name in names:
            if "**" in name and name != "**":
                raise BadSource(
                    f"the pattern {self.text!r} is invalid: ** must stand alone, but it is part of {name!r}",
                    hint="write ** between slashes: a/**/b",
                )
            _compiled(name)

    def matcher(self) -> "PathMatcher":
        """Compile the pattern; a listing does this once."""
        return PathMatcher(self.text)


class PathMatcher:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        names = text.split("/")
        self._names = [None if name == "**" else _compiled(name) for name in names]
        expression = "".join(
            "(?:[^/]+/)*" if name == "**" else _translated(name) + "/" for name in names[:-1]
        )
        expression += "(?:[^/]+/)*[^/]+" if names[-1] == "**" else _translated(names[-1])
        self._whole = re.compile(expression)

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches a file."""
        return self._whole.fullmatch(path) is not None

    def enters(self, folder: str) -> bool:
        """Return whether a folder can contain a file that matches."""
        matched = {0}  # all possible numbers of names of the pattern that are matched so far
        for part in folder.split("/"):
            matched = {
                count if regex is None else count + 1
                for count in self._closed(matched)
                if count < len(self._names)
                and ((regex := self._names[count]) is None or regex.fullmatch(part))
            }
        return any(count < len(self._names) for count in matched)

    def _closed(self, matched: set[int]) -> set[int]:
        """Return these counts of matched names, and those that follow if `**` matches no folder."""
        reached = set(matched)
        for count in range(len(self._names)):
            if count in reached and self._names[count] is None:
                reached.add(count + 1)
        return reached


def split(text: str) -> tuple[str, str]:
    """Split a pattern into the folder at its beginning and the rest, which may be empty."""
    names = text.split("/")
    for number, name in enumerate(names):
        if _MAGIC.search(name):
            return "/".join(names[:number]) + ("/" if number else ""), "/".join(names[number:])
    return text, ""


def expanded(text: str) -> list[str]:
    """Expand the braces of a pattern; return the equivalent patterns without braces."""
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    before, after = text[: braces.start()], text[braces.end() :]
    return [pattern for choice in braces[1].split(",") for pattern in expanded(before + choice + after)]


def literal(name: str) -> str:
    """Return a pattern that matches only this name."""
    return _MAGIC.sub(lambda magic: f"[{magic[0]}]", name)


def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(_translated(name))


def _translated(name: str) -> str:
    out, at, depth = [], 0, 0
    while at < len(name):
        char = name[at]
        at += 1
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            end = name.find("]", at + 2 if name[at : at + 1] == "!" else at + 1)
            if end < 0:
                raise BadSource(
                    f"missing ']' in {name!r}", hint="add it; to match a literal bracket, write [[]"
                )
            out.append(_one_of(name[at:end], name))
            at = end + 1
        elif char == "{":
            depth += 1
            out.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            out.append(")")
        elif char == "," and depth:
            out.append("|")
        else:
            out.append(re.escape(char))
    if depth:
        raise BadSource(f"missing '}}' in {name!r}", hint="add it; to match a literal brace, write [{]")
    return "".join(out)


def _one_of(inside: str, name: str) -> str:
    not_these = inside.startswith("!")
    chosen = inside[1:] if not_these else inside
    escaped = "".join(char if char == "-" or char.isalnum() else "\\" + char for char in chosen)
    expression = f"(?!/)[{'^' if not_these else ''}{escaped}]"
    try:
        re.compile(expression)
    except re.error:
        raise BadSource(
            f"invalid set [{inside}] in {name!r}", hint="start with the earlier character: [0-9]"
        ) from None
    return expression
