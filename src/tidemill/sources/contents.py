"""Find copies: files whose content a source has already read under another path (`dedupe="content"`).

Discovery computes a digest of each new file. The transaction that takes the file also writes a row for its
digest. So if two nodes find two copies at the same time, their transactions conflict, and only one copy is
taken.

A copy is recorded as taken only when the window with the same content is published. Until then it waits: if
the first file disappears before it is read, its rows are removed, and the copy is taken in its place. So no
content is lost, and none is read twice. For the same reason, a file that changes after it was taken waits
until the window of its earlier version has ended: that window either reads the earlier content or removes its
rows.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.sources import windows
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import FileListing, ListedFile
from tidemill.sources.taken_files import KnownContent, TakenFile, decode_content, encode
from tidemill.sources.windows import DroppedWindow, FailedWindow, PublishedWindow
from tidemill.store import Tx

CHUNK = 1 << 20

Digests = Mapping[str, bytes]
"""The digest of each file's content, by path."""


class SplitFiles(NamedTuple):
    """Files by their content.

    - new: files whose content is new.
    - copies: copies of files that were read, each with that file.
    - waiting: copies of files that were taken, but not read yet; and files that have changed, whose earlier
      version was taken, but not read yet.
    - stuck: those of them that wait for a window that failed.
    """

    new: list[ListedFile]
    copies: dict[ListedFile, KnownContent]
    waiting: list[ListedFile]
    stuck: list[ListedFile]


def digest_of(listing: FileListing, file: ListedFile) -> bytes | None:
    """Read a file and return the SHA-256 of its content; None if it changed since it was listed."""
    digest = hashlib.sha256()
    try:
        with listing.open(file.path) as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
    except OSError:
        return None
    (now,) = listing.stat([file.path])
    return digest.digest() if now is not None and now.version == file.version else None


def split(
    tx: Tx, keys: SourceKeys, source: str, files: Mapping[ListedFile, TakenFile | None], digests: Digests
) -> SplitFiles:
    """Separate new files from copies. Of several new files with the same content, the first one is new.

    - files: each with the row of an earlier version of the file, or None.
    """
    stored = tx.get_many([keys.content[source, digests[file.path]] for file in files])
    known = [None if raw is None else decode_content(raw) for raw in stored]
    earlier = {file: row for file, row in files.items() if row is not None and row.digest}
    numbers = {content.window for content in known if content is not None}
    numbers |= {row.window for row in earlier.values()}
    states = {number: windows.read(tx, keys, source, number) for number in sorted(numbers)}
    split_files = SplitFiles([], {}, [], [])
    seen: set[bytes] = set()
    for file, content in zip(files, known, strict=True):
        window = None if content is None else states[content.window]
        before = states[earlier[file].window] if file in earlier else None
        if not (before is None or isinstance(before, PublishedWindow | DroppedWindow)):
            split_files.waiting.append(file)
            if isinstance(before, FailedWindow):
                split_files.stuck.append(file)
        elif content is not None and isinstance(window, PublishedWindow):
            split_files.copies[file] = content
        elif digests[file.path] in seen or not (window is None or isinstance(window, DroppedWindow)):
            split_files.waiting.append(file)
            if isinstance(window, FailedWindow):
                split_files.stuck.append(file)
        else:
            split_files.new.append(file)
            seen.add(digests[file.path])
    return split_files


def record_copies(
    tx: Tx, keys: SourceKeys, source: str, copies: Mapping[ListedFile, KnownContent], digests: Digests
) -> None:
    """Record copies as taken, so that the next listing neither reads nor reports them again."""
    for file, content in copies.items():
        row = TakenFile(file.version, file.size, content.window, digest=digests[file.path])
        tx.set(keys.file[source, file.path], encode(row), quiet=True)
