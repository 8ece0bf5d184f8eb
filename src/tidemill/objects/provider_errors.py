"""Classify the errors of storage providers, and remove secrets from their messages.

obstore's messages contain the URL of the request (for Azure with its signature), the whole response and a
dump of Rust structures. Tidemill's messages contain only the kind of error, the HTTP status and the
provider's code. They do not chain the original error, because a traceback would print it (STO-14).
"""

import enum
import re

from obstore import exceptions


class RefusalKind(enum.Enum):
    """The kinds of refusal that callers handle differently."""

    MISSING = "no such object"
    EXISTS = "the object already exists"
    CONDITION = "the condition did not hold"
    RANGE = "the range is after the end"
    NAME = "an object there has a name that is not a valid key"
    UNSUPPORTED = "not supported"
    FULL = "no space left"
    DENIED = "not allowed"
    CLOCK = "the clock of this machine is wrong"
    TRANSIENT = "no response, or busy"
    """A retry may help. A write may have succeeded anyway."""
    OTHER = "refused"


_FULL_CODES = {
    "InsufficientStorage",
    "InsufficientCapacity",
    "XMinioStorageFull",
    "QuotaExceeded",
    "StorageFull",
}
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}  # also a 404, like a missing object
_RACE_CODES = {"ConditionalRequestConflict", "OperationAborted"}  # S3 did not decide which write wins: retry
_CLOCK_CODES = {"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"}
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}


def classify(error: BaseException) -> tuple[RefusalKind, str]:
    """Return the kind of an error, and a text without secrets."""
    text = str(error)
    code = _code(text)
    status = _status(text)
    kind = _kind(error, status, code, text)
    parts = [kind.value, *([f"HTTP {status}"] if status else []), *([code] if code else [])]
    if kind is RefusalKind.OTHER and not status:
        parts.append(type(error).__name__)  # the client did not send the request
    if not status:
        parts += [word for word in ("Timeout", "Connect", "BadScheme") if re.search(rf"\b{word}\b", text)]
        if "dns error" in text:
            parts.append("unknown host")
    return kind, ", ".join(parts)


def _kind(error: BaseException, status: int, code: str, text: str) -> RefusalKind:
    if code in _NO_BUCKET_CODES:
        return RefusalKind.OTHER
    if code in _RACE_CODES:
        return RefusalKind.TRANSIENT
    if code in _CLOCK_CODES:
        return RefusalKind.CLOCK
    if code in _FULL_CODES or status == 507:
        return RefusalKind.FULL
    if isinstance(error, FileNotFoundError):
        return RefusalKind.MISSING
    if isinstance(error, exceptions.InvalidPathError):
        return RefusalKind.NAME
    if isinstance(error, exceptions.AlreadyExistsError):
        return RefusalKind.EXISTS
    if isinstance(error, exceptions.PreconditionError | exceptions.NotModifiedError):
        return RefusalKind.CONDITION
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError) or status == 501:
        return RefusalKind.UNSUPPORTED
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return RefusalKind.DENIED
    if status == 416:
        return RefusalKind.RANGE
    if status in _TRANSIENT_STATUS:
        return RefusalKind.TRANSIENT
    if not status and isinstance(error, exceptions.GenericError) and "BadScheme" not in text:
        return (
            RefusalKind.TRANSIENT
        )  # there was no response: refused, reset, timed out, or cut off in the middle
    return RefusalKind.OTHER


def _status(text: str) -> int:
    match = re.search(r"status code: (\d{3})\b", text)
    return int(match[1]) if match else 0


def _code(text: str) -> str:
    match = re.search(r"<Code>([A-Za-z0-9]{1,60})</Code>", text)
    return match[1] if match else ""


class Refusal(Exception):
    """A request that the provider refuses.

    `lost` means that an earlier try may have succeeded without a response.
    """

    def __init__(self, kind: RefusalKind, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.lost = lost
