"""Handle bad files from other programs: find the file that a job failed on, and salvage a broken file.

An error deep inside a Spark job reaches the driver as text, so this module searches the text for the file.
"""

import bz2
import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final, cast
from urllib.parse import unquote

import msgspec

from tidemill.spark.ingest.formats import compression_of

_GLOB: Final = re.compile(r"[\\\[\]{}*?]")
_FAILED: Final = re.compile(r"\[FAILED_READ_FILE\.(\w+)\] [^\n]*?reading file (.+?)\. ([^\n]*)")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$.]+(?:Exception|Error): )+([^\n]*)", re.MULTILINE)
_UNREACHABLE: Final = re.compile(
    r"Permission denied|AccessControlException|AccessDenied|Forbidden|timed out|SocketTimeout|Connection re"
    r"|UnknownHost|NoRouteToHost|Unable to execute HTTP|Too many open files|No space left|OutOfMemoryError",
    re.IGNORECASE,
)
_MAGIC: Final = (b"PAR1", b"PARE")
MOST_LINE_BYTES: Final = 16 << 20
"""A longer line may need more memory than Java has. Spark's JSON reader does not accept much longer texts."""

_LINE_END: Final = re.compile(rb"[\r\n]")
_CHUNK: Final = 1 << 20
_MOST_TAIL: Final = 1 << 20


class ForeignFile(msgspec.Struct, frozen=True):
    """A file that another program wrote.

    - path: the path below the source's folder.
    - uri: the full address, not percent-encoded.
    """

    path: str
    uri: str
    size: int = 0

    @property
    def read_uri(self) -> str:
        """The URI for Spark to read, with pattern characters escaped."""
        return _GLOB.sub(r"\\\g<0>", self.uri)


# --- errors of Spark


def failed_file(error: BaseException, files: Sequence[ForeignFile]) -> ForeignFile | None:
    """Return which of these files an error message names; None if it names none of them."""
    failed = _FAILED.search(str(error))
    if failed is None:
        return None
    spellings = {one_spelling(failed[2]), one_spelling(unquote(failed[2]))}
    return next((file for file in files if one_spelling(file.uri) in spellings), None)


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark raised an error, in a job or before it."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__name__ == "Py4JJavaError"


def is_missing(error: BaseException) -> bool:
    """Return whether an error means that the file does not exist."""
    failed = _FAILED.search(str(error))
    return (failed is not None and failed[1] == "FILE_NOT_EXIST") or "FileNotFoundException" in str(error)


def is_unreachable(error: BaseException) -> bool:
    """Return whether an error is about access to the file, and not about its content."""
    return _UNREACHABLE.search(str(error)) is not None


def reason(error: BaseException) -> str:
    """Return the reason why a file cannot be read, in one line."""
    text = str(error)
    failed = _FAILED.search(text)
    hint = "" if failed is None or failed[1] == "NO_HINT" else failed[3].partition("SQLSTATE")[0].strip()
    causes = _CAUSE.findall(text)
    return (hint or (causes[-1].strip() if causes else "") or text.strip().splitlines()[0])[:1000]


def one_spelling(uri: str) -> str:
    """Normalize a URI: Spark writes `file:/a`, and in some messages `file:///a`."""
    return re.sub(r"^file:/+", "file:/", uri)


# --- broken files


class Salvaged(msgspec.Struct, frozen=True):
    """The readable part of a truncated file: how many complete lines it has, and the text after them."""

    lines: int
    tail: str


def parquet_fault(size: int, open_file: Callable[[], BinaryIO]) -> str:
    """Return why a file is not a complete Parquet file; empty if it seems to be one. Reads only its ends."""
    with open_file() as file:
        if size < 12 or file.read(4) not in _MAGIC:
            return "it is not a Parquet file"
        file.seek(-8, 2)
        end = file.read(8)
    if end[4:] not in _MAGIC or int.from_bytes(end[:4], "little") > size - 12:
        return "it is not a complete Parquet file: its end is missing"
    return ""


def with_long_lines(files: Sequence[ForeignFile], open_file: Callable[[str], BinaryIO]) -> dict[str, str]:
    """Return why not to read the files that have a line of more than `MOST_LINE_BYTES`, by path."""
    numbers = {file.path: _long_line(file.path, open_file) for file in files}
    reason = f"has more than {MOST_LINE_BYTES:,} bytes, and may not fit into memory"
    return {path: f"line {number} {reason}" for path, number in numbers.items() if number}


def _long_line(path: str, open_file: Callable[[str], BinaryIO]) -> int:
    """Return the number of the first line that is too long; 0 if there is none."""
    number, length = 1, 0
    with open_file(path) as raw, contextlib.suppress(EOFError, zlib.error, OSError):
        match compression_of(path):
            case "":
                file = raw
            case ".gz":
                file = cast("BinaryIO", gzip.GzipFile(fileobj=raw))
            case ".bz2":
                file = cast("BinaryIO", bz2.BZ2File(raw))
            case _:
                return 0
        while chunk := file.read(_CHUNK):
            first = _LINE_END.search(chunk)
            length += len(chunk) if first is None else first.start()
            if length > MOST_LINE_BYTES:
                return number
            if first is not None:
                end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
                number, length = number + chunk.count(b"\n"), len(chunk) - end - 1
    return 0


def salvage_gzip(path: str, open_file: Callable[[str], BinaryIO]) -> Salvaged | None:
    """Count the lines up to the place where a gzip file is truncated or broken; None if the file is whole."""
    if compression_of(path) != ".gz":
        return None
    lines, tail = 0, b""
    with open_file(path) as raw, gzip.open(raw, "rb") as file:
        try:
            while chunk := file.read1(_CHUNK):
                lines += chunk.count(b"\n")
                _, newline, after = chunk.rpartition(b"\n")
                tail = after if newline else (tail + chunk)[:_MOST_TAIL]
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return Salvaged(lines, tail.decode(errors="replace"))
    return None
