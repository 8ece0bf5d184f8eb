"""Record the files that a source has taken, one row for each file (CLU-22).

A file is identified by its path below the source's folder. Its row holds the version of the file and the
number of its window. The transaction that creates the window reads the row and then writes it. So if two
nodes discover the same file, their transactions conflict, and only one node takes the file.

If the source recognizes copies by their content (`contents`), the row also has the digest of the content,
and a second row leads from the digest to the file.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import ListedFile
from tidemill.store import Tx


class TakenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that belongs to a window, or a copy of such a file.

    - ignored: a later version of the file that was reported but not taken.
    - digest: the digest of the content; empty if the source does not look for copies.
    """

    version: str
    size: int
    window: int
    ignored: str = ""
    digest: bytes = b""


class KnownContent(msgspec.Struct, frozen=True, array_like=True):
    """The file with which a content was taken first, and its window."""

    path: str
    window: int


_decoder = msgspec.msgpack.Decoder(TakenFile)
_contents = msgspec.msgpack.Decoder(KnownContent)


def encode(row: TakenFile) -> bytes:
    """Encode the row of a file. Without a digest, the row has the same form as in earlier releases."""
    fields = msgspec.structs.astuple(row)
    return msgspec.msgpack.encode(fields if row.digest else fields[:-1])


def decode_content(raw: bytes) -> KnownContent:
    """Decode the row of a content."""
    return _contents.decode(raw)


def read_many(tx: Tx, keys: SourceKeys, source: str, paths: Sequence[str]) -> list[TakenFile | None]:
    """Return the rows of these paths, in the same order; None for a file that was not taken."""
    space = keys.file.space(source)
    rows = tx.get_many([space[path] for path in paths])
    return [None if raw is None else _decoder.decode(raw) for raw in rows]


def page(tx: Tx, keys: SourceKeys, source: str, *, after: str, limit: int) -> list[tuple[str, TakenFile]]:
    """Return a page of the files that were taken, sorted by path."""
    lo, hi = keys.file.under(source)
    if after:
        lo = keys.file[source, after] + b"\x00"
    rows = tx.range(lo, hi, limit=limit, snapshot=True)
    return [(str(keys.file.unpack(row.key)[1]), _decoder.decode(row.value)) for row in rows]


def take(
    tx: Tx,
    keys: SourceKeys,
    source: str,
    files: Sequence[ListedFile],
    window: int,
    digests: Mapping[str, bytes] | None = None,
) -> None:
    """Add files to a window. The caller has checked in this transaction that the files may be taken.

    - digests: the digest of each file's content, if the source looks for copies.
    """
    rows = []
    for file in files:
        digest = b"" if digests is None else digests[file.path]
        row = TakenFile(file.version, file.size, window, digest=digest)
        rows.append((keys.file[source, file.path], encode(row)))
        if digest:
            content = KnownContent(file.path, window)
            rows.append((keys.content[source, digest], msgspec.msgpack.encode(content)))
    tx.set_many(rows, quiet=True)


def ignore(tx: Tx, keys: SourceKeys, source: str, changed: Sequence[ListedFile]) -> list[ListedFile]:
    """Record that files changed after they were taken; return those that were not reported yet."""
    unreported = []
    for file, row in zip(changed, read_many(tx, keys, source, [file.path for file in changed]), strict=True):
        if row is not None and file.version not in (row.version, row.ignored):
            new = msgspec.structs.replace(row, ignored=file.version)
            tx.set(keys.file[source, file.path], encode(new), quiet=True)
            unreported.append(file)
    return unreported


def release(tx: Tx, keys: SourceKeys, source: str, paths: Sequence[str], window: int) -> None:
    """Free files that a window did not read, so that the next listing can take them."""
    for path, row in zip(paths, read_many(tx, keys, source, paths), strict=True):
        if row is not None and row.window == window:
            tx.clear(keys.file[source, path], quiet=True)
            if row.digest:
                tx.clear(keys.content[source, row.digest], quiet=True)


def forget(tx: Tx, keys: SourceKeys, source: str, rows: Mapping[str, TakenFile]) -> set[str]:
    """Delete the rows of files, unless they have changed; return the paths of those that were deleted."""
    current = read_many(tx, keys, source, list(rows))
    unchanged = {path: row for (path, row), now in zip(rows.items(), current, strict=True) if now == row}
    for path, row in unchanged.items():
        tx.clear(keys.file[source, path], quiet=True)
        if row.digest:
            raw = tx.get(keys.content[source, row.digest])
            if raw is not None and decode_content(raw).path == path:
                tx.clear(keys.content[source, row.digest], quiet=True)
    return {*unchanged}
