"""Tell an outage of the environment from an error of the user's code.

Spark reports a full disk and storage that does not respond as errors of a task, with a long stack trace. The
function that ran is not to blame, and a retry succeeds when the cause is gone.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemill.errors import DiskFull, ObjectUnavailable, TidemillError

NO_RESPONSE: Final = re.compile(
    r"java\.net\.(?:Connect|NoRouteToHost|UnknownHost|Socket|SocketTimeout)Exception"
    r"|(?:SdkClient|AWSClientIO|AWSServiceIO|AWSServiceThrottled|AWSStatus500)Exception"
    r"|(?:ConnectTimeout|NoHttpResponse)Exception"
    r"|\bStatus Code: 5\d\d\b"
)
"""How Java names the failure of a connection, and of a server, in the text of an error."""

_NO_RESPONSE_LINE: Final = re.compile(rf"(?:{NO_RESPONSE.pattern})[^\n]*")
_MOST_CHARS: Final = 300
_FULL: Final = re.compile(r"No space left on device|DiskErrorException|Disk quota exceeded")


@contextmanager
def outages() -> Iterator[None]:
    """Raise `DiskFull` or `ObjectUnavailable` if an outage is the cause of an error; do not change others."""
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:
        outage = outage_of(error)
        if outage is None:
            raise
        raise outage from error


def outage_of(error: BaseException) -> DiskFull | ObjectUnavailable | None:
    """Return the outage that caused an error; None if the cause is another one."""
    text = str(error)
    no_space = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if no_space or _FULL.search(text):
        return DiskFull("the disk for temporary files is full")
    reason = _NO_RESPONSE_LINE.search(text)
    if reason is None:
        return None
    return ObjectUnavailable(f"a server does not respond: {reason[0][:_MOST_CHARS]}")
