"""Patterns for paths: `landing/*.json`, `in/**/orders-[0-9]*.csv.gz`, `day=*/{a,b}/*.parquet`.

`*` and `?` stay within one name, `**` stands for any number of folders, `[…]` for one of some characters and
`{a,b}` for one of some texts; `[*]` is a star. A pattern is split into the folder it begins with, which is
listed, and the rest. Folders that cannot hold a match are not entered.
"""

import re

import msgspec

from tidemill.errors import BadSource

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAGIC = re.compile(r"[*?\[{]")


class Pattern(msgspec.Struct, frozen=True):
    """Which paths below a folder are meant; names are joined by `/`."""

    text: str

    def __post_init__(self) -> None:
        names = self.text.split("/")
        if "" in names or "." in names or ".." in names:
            raise BadSource(f"the pattern {self.text!r}", hint="names and stars joined by single '/'")
        for name in names:
            if "**" in name and name != "**":
                raise BadSource(
                    f"{name!r} in the pattern {self.text!r}", hint="** is a name of its own: a/**/b"
                )
            _compiled(name)

    def matcher(self) -> "Matcher":
        """What decides; compiled once per listing."""
        return Matcher(self.text)


class Matcher:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        names = text.split("/")
        self._names = [None if name == "**" else _compiled(name) for name in names]
        whole = "".join("(?:[^/]+/)*" if name == "**" else _translated(name) + "/" for name in names[:-1])
        whole += "(?:[^/]+/)*[^/]+" if names[-1] == "**" else _translated(names[-1])
        self._whole = re.compile(whole)

    def matches(self, path: str) -> bool:
        """Is this file meant?"""
        return self._whole.fullmatch(path) is not None

    def enters(self, folder: str) -> bool:
        """Can this folder hold a file that is meant?"""
        at = {0}  # how many names of the pattern are behind us, in every way they can be
        for part in folder.split("/"):
            at = {
                place if wanted is None else place + 1
                for place in self._closed(at)
                if place < len(self._names)
                and ((wanted := self._names[place]) is None or wanted.fullmatch(part))
            }
        return any(place < len(self._names) for place in at)

    def _closed(self, at: set[int]) -> set[int]:
        """Places that are reached when `**` stands for no folder at all."""
        found = set(at)
        for place in range(len(self._names)):
            if place in found and self._names[place] is None:
                found.add(place + 1)
        return found


def split(text: str) -> tuple[str, str]:
    """The folder that a pattern begins with, as it is, and the pattern below it; empty when there is none."""
    names = text.split("/")
    for place, name in enumerate(names):
        if _MAGIC.search(name):
            return "/".join(names[:place]) + ("/" if place else ""), "/".join(names[place:])
    return text, ""


def expanded(text: str) -> list[str]:
    """The patterns that one with braces stands for."""
    found = _BRACES.search(text)
    if found is None:
        return [text]
    before, behind = text[: found.start()], text[found.end() :]
    return [one for choice in found[1].split(",") for one in expanded(before + choice + behind)]


def literal(name: str) -> str:
    """A pattern that only this name matches."""
    return _MAGIC.sub(lambda found: f"[{found[0]}]", name)


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
                raise BadSource(f"no ']' in {name!r}", hint="write [[] for a bracket")
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
        raise BadSource(f"no '}}' in {name!r}", hint="write [{] for a brace")
    return "".join(out)


def _one_of(inside: str, name: str) -> str:
    not_these = inside.startswith("!")
    chosen = inside[1:] if not_these else inside
    escaped = "".join(char if char == "-" or char.isalnum() else "\\" + char for char in chosen)
    found = f"(?!/)[{'^' if not_these else ''}{escaped}]"
    try:
        re.compile(found)
    except re.error:
        raise BadSource(f"[{inside}] in {name!r}", hint="a range goes upwards: [0-9]") from None
    return found
