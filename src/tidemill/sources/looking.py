"""Looking: what is listed is compared with what was taken, and new files become windows.

A page of the listing is compared with the rows of its own paths, so a look costs one read of the store per
thousand files, whatever was taken before and is gone by now; files that were taken cost nothing else. A page
in which nothing was new is remembered by its digest for some minutes, and not looked up again as long as it
is the same; pages end at paths that are chosen by their hash, so a new file changes the page it is on and no
other. Which entries of a page are files that are meant is asked after that, and so of the others alone. So a
look at many known files costs hardly more than listing them.

The look of one node needs no other: two that look at once find the same files, and each is taken by one of
them (`windows.add`). A stretch of paths can be looked at by itself, so that nodes share a listing.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tidemill import crash
from tidemill.clock import Clock
from tidemill.events import Emit, ignore
from tidemill.sources import files, windows
from tidemill.sources.declarations import Policy
from tidemill.sources.events import FileChanged, FilesFound, FileSkipped
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import Found, Listing, Settling
from tidemill.sources.windows import Listed
from tidemill.store import Store, Tx

PAGE = 1000
"""Files of a page, on average; twice as many at most."""

TRUST_S = 300.0
"""For how long a page is remembered in which nothing was new."""

WINDOW_ROW_BYTES = 700_000
"""Of the rows of one window, twice their paths: well below what a transaction takes."""

MOST_TOLD = 10_000
"""Skipped files that are remembered as told of."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What a look found.

    - listed: files that are there, taken ones included.
    - waiting_s: when the first of those that have not come to rest can have; None when all have.
    - whole: everything was listed, by us or by others that share the listing.
    """

    listed: int = 0
    taken: int = 0
    windows: tuple[int, ...] = ()
    waiting_s: float | None = None
    whole: bool = True

    def joined(self, other: "Looked") -> "Looked":
        """Both together."""
        waits = [one for one in (self.waiting_s, other.waiting_s) if one is not None]
        return Looked(
            listed=self.listed + other.listed,
            taken=self.taken + other.taken,
            windows=self.windows + other.windows,
            waiting_s=min(waits) if waits else None,
            whole=self.whole and other.whole,
        )


class Looker:
    """Looks at one source, again and again."""

    def __init__(
        self,
        source: str,
        listing: Listing,
        policy: Policy,
        *,
        store: Store,
        keys: SourceKeys,
        clock: Clock,
        emit: Emit = ignore,
    ) -> None:
        self._source = source
        self._listing = listing
        self._policy = policy
        self._store = store
        self._keys = keys
        self._emit = emit
        self._settling = Settling(clock, policy.settle_s)
        self._told: set[tuple[str, str]] = set()
        self._clock = clock
        self._trusted: dict[bytes, tuple[float, int]] = {}
        """Digest of a page -> until when (monotonic), and how many files it has."""

    def look(
        self,
        *,
        after: str = "",
        until: str | None = None,
        fence: Callable[[Tx], None] | None = None,
        each_page: Callable[[], None] = lambda: None,
    ) -> Looked:
        """List once, and take what is new.

        - after, until: the stretch of paths to look at; everything unless given.
        - fence: the lease under which we look, checked whenever something is taken.
        - each_page: called for every thousand files, to keep that lease.
        """
        looked = _Tally()
        waiting: set[str] = set()
        found = self._listing.entries(self._skip, after=after, until=until)
        filling = _Filling(self._policy)
        now = self._clock.monotonic()
        self._trusted = {digest: kept for digest, kept in self._trusted.items() if kept[0] > now}
        for entries in _pages(found):
            each_page()
            digest = _digest(entries)
            if digest in self._trusted:
                looked.listed += self._trusted[digest][1]
                continue
            page = [file for file in entries if self._listing.wanted(file.path, self._skip)]
            looked.listed += len(page)
            for file in self._new(page, digest, waiting):
                if not filling.has_room(file):
                    self._take(filling.emptied(), looked, fence)
                filling.add(file)
        self._take(filling.emptied(), looked, fence)
        if not after and until is None:
            self._settling.keep(waiting)
        if looked.windows:
            self._emit(
                FilesFound(
                    source=self._source, files=looked.taken, size=looked.size, windows=len(looked.windows)
                )
            )
        return Looked(
            listed=looked.listed,
            taken=looked.taken,
            windows=tuple(looked.windows),
            waiting_s=self._settling.wait_s() if waiting else None,
        )

    def _new(self, page: Sequence[Found], digest: bytes, waiting: set[str]) -> Iterator[Found]:
        """The files of a page that may be taken now; one that has none is remembered."""
        again = self._policy.on_change == "take"
        known = self._store.run(
            lambda tx: files.known(tx, self._keys, self._source, [file.path for file in page])
        )
        changed = []
        nothing_new = True
        for file, row in zip(page, known, strict=True):
            if row is not None and row.version == file.version:
                continue
            nothing_new = False
            if not windows.may_take(file, row, again=again):
                if row is not None and row.ignored != file.version:
                    changed.append(file)
            elif file.size == 0:
                continue  # nothing is in it yet
            elif not self._settling.settled(file):
                waiting.add(file.path)
            elif not self._listing.can_read(file.path):
                self._skip(file.path, "it may not be read")
            else:
                if row is not None:
                    self._emit(FileChanged(source=self._source, path=file.path, taken=True))
                yield file
        if changed:
            self._warn(changed)
        if nothing_new:
            self._trusted[digest] = self._clock.monotonic() + TRUST_S, len(page)

    def _warn(self, changed: Sequence[Found]) -> None:
        for first in range(0, len(changed), 500):
            part = changed[first : first + 500]
            for file in self._store.run(
                lambda tx, part=part: files.ignore(tx, self._keys, self._source, part)  # type: ignore[misc]
            ):
                self._emit(FileChanged(source=self._source, path=file.path, taken=False))

    def _take(
        self, found: Sequence[Found], looked: "_Tally", fence: Callable[[Tx], None] | None
    ) -> Listed | None:
        if not found:
            return None
        again = self._policy.on_change == "take"
        crash.point("sources.take.before")
        window = self._store.run(
            lambda tx: windows.add(tx, self._keys, self._source, found, again=again, fence=fence)
        )
        crash.point("sources.take.after")
        if window is not None:
            looked.taken += window.about.files
            looked.size += window.about.size
            looked.windows.append(window.about.number)
        return window

    def _skip(self, path: str, why: str) -> None:
        """Tell of a file once, as long as the reason is the same."""
        if (path, why) in self._told:
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told.add((path, why))
        self._emit(FileSkipped(source=self._source, path=path, why=why))


class _Tally:
    """What a look has found so far."""

    def __init__(self) -> None:
        self.listed = 0
        self.taken = 0
        self.size = 0
        self.windows: list[int] = []


class _Filling:
    """The window that is being filled."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._files: list[Found] = []
        self._bytes = 0
        self._row_bytes = 0

    def has_room(self, file: Found) -> bool:
        """A file that is too large for any window has one of its own."""
        return not self._files or (
            len(self._files) < self._policy.max_files
            and self._bytes + file.size <= self._policy.max_bytes
            and self._row_bytes + _row_bytes(file) <= WINDOW_ROW_BYTES
        )

    def add(self, file: Found) -> None:
        self._files.append(file)
        self._bytes += file.size
        self._row_bytes += _row_bytes(file)

    def emptied(self) -> list[Found]:
        """What it holds; it is empty then."""
        found, self._files, self._bytes, self._row_bytes = self._files, [], 0, 0
        return found


def _row_bytes(file: Found) -> int:
    return 2 * len(file.path.encode()) + 250


def _pages(found: Iterator[Found]) -> Iterator[list[Found]]:
    page: list[Found] = []
    crc32 = zlib.crc32
    for file in found:
        page.append(file)
        if crc32(file[0].encode()) % PAGE == 0 or len(page) >= 2 * PAGE:
            yield page
            page = []
    if page:
        yield page


def _digest(page: Sequence[Found]) -> bytes:
    said = "\0".join([f"{path}\0{version}" for path, _, _, version in page])
    return hashlib.blake2b(said.encode(), digest_size=16).digest()
