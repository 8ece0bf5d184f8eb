"""File discovery: compare a listing with the files already taken, and take new files into windows.

For each page of the listing, discovery reads the stored rows of the paths on that page. So it costs one read
of the store per thousand listed files. Files that were taken earlier and deleted since then cost nothing.
If a page has no new files, discovery remembers its digest for some minutes, and skips the page while it stays
the same. A page ends at a path whose hash has a certain value, so a new file changes only the page that it is
on. Patterns are matched only for changed pages. So if most files are known, discovery costs hardly more than
the listing itself.

Discovery itself needs no coordination: if two nodes discover the same files at the same time, only one of
them takes each file (`windows.add`). A node can also discover only a range of paths, so that several nodes
can share a listing.

If the source looks for copies (`contents`), discovery also reads each new file, to compute its digest.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tidemill.lots import wall_clock
from tidemill.scope import Scope
from tidemill.sources import contents, taken_files, windows
from tidemill.sources.events import FileChanged, FilesDiscovered, FileSkipped
from tidemill.sources.file_source import FilePolicy
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import FileListing, ListedFile, SettleTracker
from tidemill.store import Tx

PAGE = 1000
"""The average number of files in a page; a page has at most twice as many."""

TRUST_S = 300.0
"""How long to remember a page without new files."""

WINDOW_ROW_BYTES = 700_000
"""The maximum size of one window's rows in the store, estimated from the paths.

It is well below the limit of a transaction.
"""

MOST_DIGESTS = 400
"""The maximum number of files in a window with digests: each file has two rows in one transaction."""

MOST_REPORTED = 10_000
"""How many skipped files to remember, so that they are not reported again."""


class DiscoveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one discovery.

    - listed: how many files were listed, including files that were taken earlier.
    - taken: how many new files were taken.
    - windows: the numbers of the windows that were created.
    - waiting_s: the time until the first unsettled file can settle; None if all files have settled.
    - complete: whether all files were listed, by this node or by other nodes that share the listing.
    - copies_waiting: whether a copy waits until the window with the same content is published.
    """

    listed: int = 0
    taken: int = 0
    windows: tuple[int, ...] = ()
    waiting_s: float | None = None
    complete: bool = True
    copies_waiting: bool = False

    def merge(self, other: "DiscoveryResult") -> "DiscoveryResult":
        """Add up two results."""
        waits = [wait_s for wait_s in (self.waiting_s, other.waiting_s) if wait_s is not None]
        return DiscoveryResult(
            listed=self.listed + other.listed,
            taken=self.taken + other.taken,
            windows=self.windows + other.windows,
            waiting_s=min(waits) if waits else None,
            complete=self.complete and other.complete,
            copies_waiting=self.copies_waiting or other.copies_waiting,
        )


class FileDiscovery:
    """Discovers the new files of one source, each time that `discover` is called."""

    def __init__(self, source: str, listing: FileListing, policy: FilePolicy, scope: Scope) -> None:
        self._source = source
        self._listing = listing
        self._policy = policy
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._settling = SettleTracker(scope.clock, policy.settle_s)
        self._reported: set[tuple[str, str]] = set()
        self._trusted: dict[bytes, tuple[float, int]] = {}
        """Digest of a page without new files -> monotonic time until which it is trusted, number of files."""
        self._digests: dict[tuple[str, str], bytes] = {}
        """(path, version) of a file -> digest of its content, until the file is taken."""

    def discover(
        self,
        *,
        after: str = "",
        until: str | None = None,
        fence: Callable[[Tx], None] | None = None,
        each_page: Callable[[], None] = lambda: None,
    ) -> DiscoveryResult:
        """List the files once, and take the new ones.

        Args:
            after: list only paths after this one.
            until: list only paths up to this one.
            fence: called whenever files are taken, to check that this node still holds the lease for listing.
            each_page: called for every page, to renew that lease.
        """
        totals = _Totals()
        waiting: set[str] = set()
        listed = self._listing.entries(self._skip, after=after, until=until)
        window = _Window(self._policy)
        now = self._scope.clock.monotonic()
        self._trusted = {digest: trust for digest, trust in self._trusted.items() if trust[0] > now}
        for entries in _pages(listed):
            each_page()
            digest = _digest(entries)
            if digest in self._trusted:
                totals.listed += self._trusted[digest][1]
                continue
            page = [file for file in entries if self._listing.wanted(file.path, self._skip)]
            totals.listed += len(page)
            for file in self._new(page, digest, waiting):
                if self._policy.dedupe is not None:
                    each_page()  # reading the file may have taken long
                    if not self._has_digest(file):
                        continue
                if not window.has_room(file):
                    self._take(window.pop_all(), totals, fence)
                window.add(file)
        self._take(window.pop_all(), totals, fence)
        if len(self._digests) >= MOST_REPORTED:  # files that disappeared, or that wait for a failed window
            self._digests.clear()
        if not after and until is None:
            self._settling.keep(waiting)
        if totals.windows:
            self._scope.emit(
                FilesDiscovered(
                    source=self._source, files=totals.taken, size=totals.size, windows=len(totals.windows)
                )
            )
        return DiscoveryResult(
            listed=totals.listed,
            taken=totals.taken,
            windows=tuple(totals.windows),
            waiting_s=self._settling.wait_s() if waiting else None,
            copies_waiting=totals.copies_waiting,
        )

    def _new(self, page: Sequence[ListedFile], digest: bytes, waiting: set[str]) -> Iterator[ListedFile]:
        """Return the files of a page that can be taken now; remember a page without new or changed files."""
        again = self._policy.on_change == "take"
        rows, wall_us = self._scope.store.run(
            lambda tx: (
                taken_files.read_many(tx, self._keys, self._source, [file.path for file in page]),
                wall_clock.steady(tx, self._keys.publish.lots),
            )
        )
        changed = []
        nothing_new = True
        for file, row in zip(page, rows, strict=True):
            if row is not None and row.version == file.version:
                continue
            nothing_new = False
            if not windows.may_take(file, row, again=again):
                if row is not None and row.ignored != file.version:
                    changed.append(file)
            elif file.size == 0:
                continue  # nothing is in it yet
            elif not self._settling.settled(file, wall_us / 1_000_000):
                waiting.add(file.path)
            elif not self._listing.can_read(file.path):
                self._skip(file.path, "this process is not allowed to read it")
            else:
                if row is not None and (file.path, file.version) not in self._digests:  # it does not wait
                    self._scope.emit(FileChanged(source=self._source, path=file.path, taken=True))
                yield file
        if changed:
            self._warn(changed)
        if nothing_new:
            self._trusted[digest] = self._scope.clock.monotonic() + TRUST_S, len(page)

    def _warn(self, changed: Sequence[ListedFile]) -> None:
        for first in range(0, len(changed), 500):
            part = changed[first : first + 500]
            for file in self._scope.store.run(
                lambda tx, part=part: taken_files.ignore(tx, self._keys, self._source, part)  # type: ignore[misc]
            ):
                self._scope.emit(FileChanged(source=self._source, path=file.path, taken=False))

    def _has_digest(self, file: ListedFile) -> bool:
        """Compute the digest of a file, unless it is known. Return False if the file has changed."""
        known = (file.path, file.version)
        if known not in self._digests:
            digest = contents.digest_of(self._listing, file)
            if digest is None:
                return False
            self._digests[known] = digest
        return True

    def _take(
        self, files: Sequence[ListedFile], totals: "_Totals", fence: Callable[[Tx], None] | None
    ) -> None:
        if not files:
            return
        again = self._policy.on_change == "take"
        if self._policy.dedupe is None:
            window = self._scope.step(
                "sources.take",
                lambda tx: windows.add(tx, self._keys, self._source, files, again=again, fence=fence),
            )
        else:
            window, split = self._take_new_contents(files, again, fence)
            totals.copies_waiting |= len(split.waiting) > len(split.stuck)
        if window is not None:
            totals.taken += window.about.files
            totals.size += window.about.size
            totals.windows.append(window.about.number)

    def _take_new_contents(
        self, files: Sequence[ListedFile], again: bool, fence: Callable[[Tx], None] | None
    ) -> tuple[windows.ListedWindow | None, contents.SplitFiles]:
        """Take the files whose content is new, and record copies of files that were read before."""
        digests = {file.path: self._digests[file.path, file.version] for file in files}
        keys, source = self._keys, self._source

        def step(tx: Tx) -> tuple[windows.ListedWindow | None, contents.SplitFiles]:
            rows = taken_files.read_many(tx, keys, source, [file.path for file in files])
            read = zip(files, rows, strict=True)
            free = {file: row for file, row in read if windows.may_take(file, row, again=again)}
            split = contents.split(tx, keys, source, free, digests)
            contents.record_copies(tx, keys, source, split.copies, digests)
            return windows.add(tx, keys, source, split.new, again=again, fence=fence, digests=digests), split

        window, split = self._scope.step("sources.take", step)
        for copy, original in split.copies.items():
            self._skip(copy.path, f"it has the same content as {original.path}, which was read before")
        waiting = set(split.waiting)
        for file in files:
            if file not in waiting:
                self._digests.pop((file.path, file.version), None)
        return window, split

    def _skip(self, path: str, why: str) -> None:
        """Report a skipped file only once, as long as the reason stays the same."""
        if (path, why) in self._reported:
            return
        if len(self._reported) >= MOST_REPORTED:
            self._reported.clear()
        self._reported.add((path, why))
        self._scope.emit(FileSkipped(source=self._source, path=path, why=why))


class _Totals:
    """The counts of a discovery so far."""

    def __init__(self) -> None:
        self.listed = 0
        self.taken = 0
        self.size = 0
        self.copies_waiting = False
        self.windows: list[int] = []


class _Window:
    """The files of the next window."""

    def __init__(self, policy: FilePolicy) -> None:
        self._policy = policy
        self._most_files = policy.max_files if policy.dedupe is None else min(policy.max_files, MOST_DIGESTS)
        self._files: list[ListedFile] = []
        self._bytes = 0
        self._row_bytes = 0

    def has_room(self, file: ListedFile) -> bool:
        """Return whether a file fits. An empty window has room for any file."""
        return not self._files or (
            len(self._files) < self._most_files
            and self._bytes + file.size <= self._policy.max_bytes
            and self._row_bytes + self._bytes_of(file) <= WINDOW_ROW_BYTES
        )

    def add(self, file: ListedFile) -> None:
        self._files.append(file)
        self._bytes += file.size
        self._row_bytes += self._bytes_of(file)

    def pop_all(self) -> list[ListedFile]:
        """Return the files, and begin an empty window."""
        files, self._files, self._bytes, self._row_bytes = self._files, [], 0, 0
        return files

    def _bytes_of(self, file: ListedFile) -> int:
        """Return the size of a file's rows."""
        rows = 2 if self._policy.dedupe is None else 3
        return rows * (len(file.path.encode()) + 125)


def _pages(files: Iterator[ListedFile]) -> Iterator[list[ListedFile]]:
    page: list[ListedFile] = []
    crc32 = zlib.crc32
    for file in files:
        page.append(file)
        if crc32(file[0].encode()) % PAGE == 0 or len(page) >= 2 * PAGE:
            yield page
            page = []
    if page:
        yield page


def _digest(page: Sequence[ListedFile]) -> bytes:
    text = "\0".join([f"{path}\0{version}" for path, _, _, version in page])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
