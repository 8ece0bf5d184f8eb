"""Record the files that a source has taken, one row for each file (CLU-22).

A file is identified by its path below the source's folder. Its row holds the version of the file and the
number of its window. The transaction that creates the window reads the row and then writes it. So if two
nodes discover the same file, their transactions conflict, and only one node takes the file.
"""

from collections.abc import Sequence

import msgspec

from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import ListedFile
from tidemill.store import Tx


class TakenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that belongs to a window.

    `ignored` is a later version of the file that was reported but not taken.
    """

    version: str
    size: int
    window: int
    ignored: str = ""


_decoder = msgspec.msgpack.Decoder(TakenFile)


def read_many(tx: Tx, keys: SourceKeys, source: str, paths: Sequence[str]) -> list[TakenFile | None]:
    """Return the rows of these paths, in the same order; None for a file that was not taken."""
    space = keys.file.space(source)
    rows = tx.get_many([space[path] for path in paths])
    return [None if raw is None else _decoder.decode(raw) for raw in rows]


def take(tx: Tx, keys: SourceKeys, source: str, files: Sequence[ListedFile], window: int) -> None:
    """Add files to a window. The caller has checked in this transaction that the files may be taken."""
    rows = [
        (keys.file[source, file.path], msgspec.msgpack.encode(TakenFile(file.version, file.size, window)))
        for file in files
    ]
    tx.set_many(rows, quiet=True)


def ignore(tx: Tx, keys: SourceKeys, source: str, changed: Sequence[ListedFile]) -> list[ListedFile]:
    """Record that files changed after they were taken; return those that were not reported yet."""
    unreported = []
    for file, row in zip(changed, read_many(tx, keys, source, [file.path for file in changed]), strict=True):
        if row is not None and file.version not in (row.version, row.ignored):
            new = msgspec.structs.replace(row, ignored=file.version)
            tx.set(keys.file[source, file.path], msgspec.msgpack.encode(new), quiet=True)
            unreported.append(file)
    return unreported


def release(tx: Tx, keys: SourceKeys, source: str, paths: Sequence[str], window: int) -> None:
    """Free files that a window did not read, so that the next listing can take them."""
    for path, row in zip(paths, read_many(tx, keys, source, paths), strict=True):
        if row is not None and row.window == window:
            tx.clear(keys.file[source, path], quiet=True)
