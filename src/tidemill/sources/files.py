"""The processed-set: a row for every file that was taken (CLU-22).

A file is its path below its source's folder. The row says what the file was like (its version) and which
window it belongs to. It is written in the transaction that makes the window, on the strength of a read that
the store protects: of two nodes that find one file, one takes it.
"""

from collections.abc import Sequence

import msgspec

from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import Found
from tidemill.store import Tx


class TakenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that belongs to a window. `ignored` is a later version of it that was told of and not taken."""

    version: str
    size: int
    window: int
    ignored: str = ""


_decoder = msgspec.msgpack.Decoder(TakenFile)


def known(tx: Tx, keys: SourceKeys, source: str, paths: Sequence[str]) -> list[TakenFile | None]:
    """What was taken of these paths, in their order."""
    mine = keys.file.space(source)
    found = tx.get_many([mine[path] for path in paths])
    return [None if raw is None else _decoder.decode(raw) for raw in found]


def take(tx: Tx, keys: SourceKeys, source: str, files: Sequence[Found], window: int) -> None:
    """They belong to this window; the caller has looked in this transaction that they may."""
    rows = [
        (keys.file[source, file.path], msgspec.msgpack.encode(TakenFile(file.version, file.size, window)))
        for file in files
    ]
    tx.set_many(rows, quiet=True)


def ignore(tx: Tx, keys: SourceKeys, source: str, changed: Sequence[Found]) -> list[Found]:
    """Note that these changed after they were taken; those that nobody has told of yet."""
    untold = []
    for file, row in zip(changed, known(tx, keys, source, [file.path for file in changed]), strict=True):
        if row is not None and file.version not in (row.version, row.ignored):
            new = msgspec.structs.replace(row, ignored=file.version)
            tx.set(keys.file[source, file.path], msgspec.msgpack.encode(new), quiet=True)
            untold.append(file)
    return untold


def release(tx: Tx, keys: SourceKeys, source: str, paths: Sequence[str], window: int) -> None:
    """These were not read after all: whoever lists them next may take them. Others' rows stay."""
    for path, row in zip(paths, known(tx, keys, source, paths), strict=True):
        if row is not None and row.window == window:
            tx.clear(keys.file[source, path], quiet=True)


def listed(
    tx: Tx, keys: SourceKeys, source: str, after: str = "", limit: int = 1000
) -> list[tuple[str, TakenFile]]:
    """A page of what was taken, by path."""
    lo, hi = keys.file.under(source)
    if after:
        lo = keys.file[source, after] + b"\x00"
    rows = tx.range(lo, hi, limit=limit, snapshot=True)
    return [(str(keys.file.unpack(row.key)[1]), _decoder.decode(row.value)) for row in rows]
