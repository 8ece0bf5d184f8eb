"""What can be said of a file that is cut or broken, by its bytes alone."""

import gzip
import zlib
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from tidemill.spark.formats import packing_of

_MAGIC = (b"PAR1", b"PARE")
_PIECE = 1 << 20
_MOST_TAIL = 1 << 20


class Salvage(msgspec.Struct, frozen=True):
    """Of a cut file: how many whole lines it has, and the text behind the last of them."""

    lines: int
    tail: str


def not_parquet(size: int, open_file: Callable[[], BinaryIO]) -> str:
    """Why this is no whole Parquet file; empty if it may be one. Reads its ends alone."""
    with open_file() as file:
        if size < 12 or file.read(4) not in _MAGIC:
            return "it is no Parquet file"
        file.seek(-8, 2)
        end = file.read(8)
    if end[4:] not in _MAGIC or int.from_bytes(end[:4], "little") > size - 12:
        return "it is no whole Parquet file: its end is missing"
    return ""


def of_gzip(path: str, open_file: Callable[[str], BinaryIO]) -> Salvage | None:
    """The lines of a gzip file before the place where it is cut or broken; None if it is neither."""
    if packing_of(path) != ".gz":
        return None
    lines, tail = 0, b""
    with open_file(path) as raw, gzip.open(raw, "rb") as file:
        try:
            while piece := file.read1(_PIECE):
                lines += piece.count(b"\n")
                _, newline, behind = piece.rpartition(b"\n")
                tail = behind if newline else (tail + piece)[:_MOST_TAIL]
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return Salvage(lines, tail.decode(errors="replace"))
    return None
