"""Forget files that are gone: delete the rows of files that were read and no longer exist (`forget_after_s`).

The row of each file that was ever read makes sure that no file is read twice. If other programs delete the
files after a while, these rows make the store grow for ever. A source with `forget_after_s` deletes a row if
both are true:

- the window of the file ended at least this long ago;
- the file does not exist any more.

If such a file comes back, it is read again. So users choose a time after which they never restore files. If
the listing is empty, nothing is forgotten: an empty folder may be a disk that is not mounted.

The rows and the listing have the same order, so a pass compares them page by page. One node makes a pass once
a day. At its end it deletes the windows that no row refers to any more.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from tidemill.scope import Scope
from tidemill.sources import taken_files, windows
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import FileListing, ListedFile
from tidemill.sources.taken_files import TakenFile
from tidemill.sources.windows import SECOND_US, DroppedWindow, PublishedWindow
from tidemill.store import Tx

EVERY_S = 24 * 3600
PAGE = 300
CHECKPOINT = "forget"
"""The checkpoint that holds the time of the last pass."""


class GoneFiles:
    """Forgets the gone files of one source.

    - after_s: how long ago the window of a file must have ended.
    - by_content: whether the source looks for copies. Then rows of contents refer to windows too, and windows
      stay.
    """

    def __init__(
        self, source: str, listing: FileListing, after_s: float, scope: Scope, *, by_content: bool = False
    ) -> None:
        self._source = source
        self._listing = listing
        self._after_us = int(after_s * SECOND_US)
        self._deletes_windows = not by_content
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)

    def forget(self) -> int:
        """Make a pass, unless one began less than a day ago. Return how many files were forgotten."""
        if not self._scope.store.run(self._begin) or next(self._files(), None) is None:
            return 0
        total, after = 0, ""
        used: set[int] = set()
        while page := self._page(after):
            gone = self._gone(page, after)
            forgotten = self._scope.step(
                "sources.forget",
                lambda tx, gone=gone: self._forget(tx, gone),  # type: ignore[misc]
            )
            total += len(forgotten)
            used |= {row.window for path, row in page if path not in forgotten}
            after = page[-1][0]
        if self._deletes_windows:
            self._delete_windows(used)
        return total

    def _files(self, after: str = "", until: str | None = None) -> Iterator[ListedFile]:
        return self._listing.files(lambda _path, _why: None, after=after, until=until)

    def _gone(self, page: Sequence[tuple[str, TakenFile]], after: str) -> dict[str, TakenFile]:
        """Return the files of a page that do not exist.

        A listing leaves out files that exist but do not match the pattern, so each missing path is checked.
        """
        listed = {file.path for file in self._files(after, page[-1][0])}
        missing = {path: row for path, row in page if path not in listed}
        files = self._listing.stat(list(missing))
        return {path: row for (path, row), file in zip(missing.items(), files, strict=True) if file is None}

    def _page(self, after: str) -> list[tuple[str, TakenFile]]:
        return self._scope.store.run(
            lambda tx: taken_files.page(tx, self._keys, self._source, after=after, limit=PAGE)
        )

    def _begin(self, tx: Tx) -> bool:
        key, now = self._keys.checkpoint[self._source, CHECKPOINT], tx.now()
        raw = tx.get(key, lock=True)
        if raw is not None and now - msgspec.msgpack.decode(raw, type=int) < EVERY_S * SECOND_US:
            return False
        tx.set(key, msgspec.msgpack.encode(now))
        return True

    def _forget(self, tx: Tx, gone: Mapping[str, TakenFile]) -> set[str]:
        """Delete the rows of files whose windows ended long ago; return their paths."""
        numbers = sorted({row.window for row in gone.values()})
        old = {number for number in numbers if self._is_old(tx, self._read(tx, number))}
        rows = {path: row for path, row in gone.items() if row.window in old}
        return taken_files.forget(tx, self._keys, self._source, rows)

    def _read(self, tx: Tx, number: int) -> windows.AnyWindow | None:
        return windows.read(tx, self._keys, self._source, number)

    def _is_old(self, tx: Tx, window: windows.AnyWindow | None) -> bool:
        return isinstance(window, PublishedWindow | DroppedWindow) and window.at + self._after_us <= tx.now()

    def _delete_windows(self, used: Collection[int]) -> None:
        """Delete the windows that ended long ago, except those of files with a row."""
        after: int | None = 0
        while after is not None:
            after = self._scope.step(
                "sources.forget-windows",
                lambda tx, after=after: self._delete_page(tx, used, after),  # type: ignore[misc]
            )

    def _delete_page(self, tx: Tx, used: Collection[int], after: int) -> int | None:
        """Delete a page of windows; return the number of its last one, or None after the last page."""
        page = windows.page(tx, self._keys, self._source, after, PAGE)
        for window in page:
            if window.about.number not in used and self._is_old(tx, window):
                tx.clear(self._keys.window[self._source, window.about.number], quiet=True)
        return page[-1].about.number if len(page) == PAGE else None
