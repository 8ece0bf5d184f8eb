"""List the files of a folder or bucket in the order of their paths, and decide which of them to take.

Folders and buckets have the same small interface. A listing returns files sorted by their whole paths, and it
can start after a given path. So nodes can split a listing into shards and share them. A node compares a
listing with the taken files page by page, so a listing can have any number of files.

These files are ignored, because another program may still be writing them: hidden files and files in hidden
folders, files with an ending that programs give to unfinished files, empty files, and files that changed less
than `settle_s` ago. The wall clock of this machine may differ from the writer's. So a file also counts as
settled when this process has seen it unchanged for `settle_s` on its own monotonic clock.
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
"""The maximum length of a path below a source's folder, in bytes.

A row with two such paths is within the limits of the store.
"""

Skip = Callable[[str, str], None]
"""Called with the path of a file that cannot be taken, and the reason."""


class ListedFile(NamedTuple):
    """A file as its storage describes it.

    `version` changes with the content. `modified_at` is in seconds since 1970.
    """

    path: str
    size: int
    modified_at: float
    version: str


class FileListing(Protocol):
    """A folder or bucket of the user. Tidemill reads it, and never writes to it."""

    @property
    def url(self) -> str:
        """The URL of the folder or bucket, without secrets."""
        ...

    def files(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        """List the files with after < path <= until, sorted by path; raise `SourceUnavailable` on failure."""
        ...

    def entries(self, skip: Skip, *, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        """List the same files as `files`. If that is cheaper, also return entries that `wanted` rejects."""
        ...

    def wanted(self, path: str, skip: Skip) -> bool:
        """Return whether an entry of `entries` is also in `files`. The answer for a path never changes."""
        ...

    def stat(self, paths: Sequence[str]) -> list[ListedFile | None]:
        """Return the current versions of files, in the order of `paths`; None for a missing file."""
        ...

    def can_read(self, path: str) -> bool:
        """Return whether this process may read a file. If checking is expensive, return True."""
        ...

    def uri(self, path: str) -> str:
        """Return the URI under which Spark reads a file. Spark takes it literally, not as a pattern."""
        ...

    def read_options(self) -> dict[str, str]:
        """Return the options that Spark needs to read the files; they may contain secrets."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open one file; raise `OSError` if it cannot be read."""
        ...


def is_ignored(path: str) -> bool:
    """Return whether a path is hidden, or named like an unfinished file."""
    return _HIDDEN.search(path) is not None or path.lower().endswith(_UNFINISHED)


def path_fault(path: str) -> str:
    """Return why the store cannot keep a path; an empty string if it can."""
    try:
        size = len(path) if path.isascii() else len(path.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if size > MOST_PATH_BYTES:
        return f"its path has {size} bytes; the limit is {MOST_PATH_BYTES}"
    if _CONTROL.search(path):
        return "its name contains a control character"
    return ""


class SettleTracker:
    """Decides which new files have settled. It remembers only files that have not settled yet."""

    def __init__(self, clock: Clock, settle_s: float) -> None:
        self._clock = clock
        self._settle_s = settle_s
        self._seen: dict[str, tuple[str, float]] = {}

    def settled(self, file: ListedFile, wall_s: float) -> bool:
        """Return whether a file has been unchanged for long enough.

        - wall_s: the wall time, without a jump (`wall_clock.steady`). Otherwise a clock that is ahead for a
          moment would settle a file that is still written.
        """
        if self._settle_s <= 0 or wall_s - file.modified_at >= self._settle_s:
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
        """Return the time until the first unsettled file can settle; None if there is no such file."""
        if not self._seen:
            return None
        oldest = min(since for _, since in self._seen.values())
        return max(0.0, oldest + self._settle_s - self._clock.monotonic())

    def keep(self, paths: set[str]) -> None:
        """Forget all files except these, which still have to settle."""
        self._seen = {path: first for path, first in self._seen.items() if path in paths}
