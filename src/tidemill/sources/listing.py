"""Listing: what is there, in the order of the names, and which of it may be taken.

The port is narrow so that a folder and a bucket are the same to everything above it. Files come in the order
of their whole paths, from behind any path on: so a listing can be cut into stretches that nodes share, and is
compared with what was taken page by page, whatever their number.

**Left alone** are files that somebody may still be writing: hidden names (of the file or a folder), endings
that programs give to unfinished files, empty ones, and files that changed less than `settle_s` ago. By the
wall clock of this machine that would fail where clocks differ, so a file also counts as settled when it has
been seen unchanged for that long by our own monotonic clock.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from tidemill.clock import Clock

UNFINISHED = (
    ".tmp",
    ".temp",
    ".part",
    ".partial",
    ".crdownload",
    ".filepart",
    ".inprogress",
    ".swp",
    "~",
    "._COPYING_",
)
_UNFINISHED = tuple(ending.lower() for ending in UNFINISHED)
_HIDDEN = re.compile(r"(?:^|/)[._]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MOST_PATH_BYTES = 900
"""Of a path below its folder: two of them and the rest of a row fit the store's limits many times over."""

Skip = Callable[[str, str], None]
"""Told of what is there and cannot be taken: its path, and why."""


class Found(NamedTuple):
    """A file as its place describes it; `version` changes with its bytes, `modified_at` is s since 1970."""

    path: str
    size: int
    modified_at: float
    version: str


class Listing(Protocol):
    """One folder or bucket, from outside: it is read and never written."""

    @property
    def url(self) -> str:
        """Where it is, with secrets left out."""
        ...

    def files(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[Found]:
        """Files with after < path <= until, by path; `SourceUnavailable` when it cannot be listed."""
        ...

    def entries(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[Found]:
        """The same, and with them what `wanted` leaves out, where that is cheaper to list."""
        ...

    def wanted(self, path: str, skip: Skip) -> bool:
        """Is an entry one of the files? Says always the same of one path."""
        ...

    def look(self, paths: Sequence[str]) -> list[Found | None]:
        """Files as they are at this moment, in this order; None for one that is gone."""
        ...

    def can_read(self, path: str) -> bool:
        """May this process read it? Asked of new files only; True where asking is dear."""
        ...

    def uri(self, path: str) -> str:
        """What Spark is told to read, as it is: nothing in it is a pattern."""
        ...

    def read_options(self) -> dict[str, str]:
        """What Spark needs to reach it; may hold secrets."""
        ...

    def open(self, path: str) -> BinaryIO:
        """The bytes of one file; an `OSError` when it cannot be read."""
        ...


def is_left_alone(path: str) -> bool:
    """Hidden, or named as an unfinished file."""
    return _HIDDEN.search(path) is not None or path.lower().endswith(_UNFINISHED)


def fault(path: str) -> str:
    """Why a path cannot be kept track of; empty when it can."""
    try:
        size = len(path) if path.isascii() else len(path.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if size > MOST_PATH_BYTES:
        return f"its path has {size} bytes, {MOST_PATH_BYTES} at most"
    if _CONTROL.search(path):
        return "a control character in its name"
    return ""


class Settling:
    """Which of the new files have come to rest. Remembers those that have not, and no others."""

    def __init__(self, clock: Clock, settle_s: float) -> None:
        self._clock = clock
        self._settle_s = settle_s
        self._seen: dict[str, tuple[str, float]] = {}

    def settled(self, file: Found) -> bool:
        """Has it been like this for long enough?"""
        if self._settle_s <= 0 or self._clock.wall() - file.modified_at >= self._settle_s:
            self._seen.pop(file.path, None)
            return True
        now = self._clock.monotonic()
        version, since = self._seen.get(file.path, ("", now))
        if version != file.version:
            self._seen[file.path] = (file.version, now)
            return False
        if now - since >= self._settle_s:
            del self._seen[file.path]
            return True
        return False

    def wait_s(self) -> float | None:
        """When the first of those that have not settled can have; None when there is none."""
        if not self._seen:
            return None
        oldest = min(since for _, since in self._seen.values())
        return max(0.0, oldest + self._settle_s - self._clock.monotonic())

    def keep(self, paths: set[str]) -> None:
        """Forget all but these: the others are gone."""
        self._seen = {path: seen for path, seen in self._seen.items() if path in paths}
