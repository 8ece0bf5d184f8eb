"""Which file a job of Spark failed over, and whether the file is to blame.

An error that was raised far down in a job reaches the driver as text, so text is what is searched.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import msgspec

_GLOB: Final = re.compile(r"[\\\[\]{}*?]")
_FAILED: Final = re.compile(r"\[FAILED_READ_FILE\.(\w+)\] [^\n]*?reading file (.+?)\. ([^\n]*)")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$.]+(?:Exception|Error): )+([^\n]*)", re.MULTILINE)
_AWAY: Final = re.compile(
    r"Permission denied|AccessControlException|AccessDenied|Forbidden|timed out|SocketTimeout|Connection re"
    r"|UnknownHost|NoRouteToHost|Unable to execute HTTP|Too many open files|No space left|OutOfMemoryError",
    re.IGNORECASE,
)


class ForeignFile(msgspec.Struct, frozen=True):
    """A file that others wrote: what it is called, and where Spark finds it, nothing encoded."""

    path: str
    uri: str
    size: int = 0

    @property
    def read_uri(self) -> str:
        """What Spark reads: taken literally where it would be taken for a pattern."""
        return _GLOB.sub(r"\\\g<0>", self.uri)


def culprit(error: BaseException, files: Sequence[ForeignFile]) -> ForeignFile | None:
    """The file that an error is about; None when it is about none of these."""
    found = _FAILED.search(str(error))
    if found is None:
        return None
    said = {plain(found[2]), plain(unquote(found[2]))}
    return next((file for file in files if plain(file.uri) in said), None)


def is_gone(error: BaseException) -> bool:
    """Was the file not there?"""
    found = _FAILED.search(str(error))
    return (found is not None and found[1] == "FILE_NOT_EXIST") or "FileNotFoundException" in str(error)


def is_out_of_reach(error: BaseException) -> bool:
    """Is it the way to the file that failed, and not what is in it?"""
    return _AWAY.search(str(error)) is not None


def reason(error: BaseException) -> str:
    """What is wrong with a file, for people."""
    text = str(error)
    found = _FAILED.search(text)
    said = "" if found is None or found[1] == "NO_HINT" else found[3].partition("SQLSTATE")[0].strip()
    causes = _CAUSE.findall(text)
    return (said or (causes[-1].strip() if causes else "") or text.strip().splitlines()[0])[:1000]


def plain(uri: str) -> str:
    """One spelling of a URI that is not encoded: Spark writes `file:/a`, and in some messages `file:///a`."""
    return re.sub(r"^file:/+", "file:/", uri)
