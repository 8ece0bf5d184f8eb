"""Record what happened, in order, as plain tuples that are formatted only when they are printed."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tidemill.store import unpack

Describe = Callable[[bytes, bytes | None], str | None]


class TimelineEntry(NamedTuple):
    """One line: true time, who, what, and its details (strings, numbers, or the rows of a commit)."""

    at_us: int
    who: str
    what: str
    detail: tuple[Any, ...] = ()


class Timeline:
    """The record of one run. Equal seeds give equal timelines, entry by entry."""

    def __init__(self) -> None:
        self.entries: list[TimelineEntry] = []
        self.describers: list[Describe] = []

    def add(self, at_us: int, who: str, what: str, *detail: object) -> None:
        self.entries.append(TimelineEntry(at_us, who, what, detail))

    def digest(self) -> str:
        """One number for the whole run."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr(tuple(entry)).encode())
        return digest.hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        """Readable lines, or only the last of them."""
        entries = self.entries if last is None else self.entries[-last:]
        return [self._line(entry) for entry in entries]

    def _line(self, entry: TimelineEntry) -> str:
        if entry.what == "commits":
            detail = "; ".join(filter(None, (self._row(key, value) for key, value in entry.detail)))
        else:
            detail = " ".join(str(one) for one in entry.detail)
        return f"{entry.at_us / 1_000_000:11.6f}  {entry.who:<8} {entry.what} {detail}".rstrip()

    def _row(self, key: bytes, value: bytes | None) -> str:
        for describe in self.describers:
            text = describe(key, value)
            if text is not None:
                return text
        name = "/".join(str(part) for part in unpack(key))
        if value is None:
            return f"-{name}"
        try:
            return f"{name}={msgspec.msgpack.decode(value)}"
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"{name}=0x{value.hex()}"
