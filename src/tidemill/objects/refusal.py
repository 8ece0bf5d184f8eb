"""What a provider's refusal means, in our words.

obstore's messages hold the request's URL (for Azure with its signature), the server's whole answer and a dump
of Rust structures. Ours hold the kind of error, the HTTP status and the provider's code, nothing else, and do
not carry the original along: a traceback would print it (STO-14).
"""

import enum
import re

from obstore import exceptions


class Why(enum.Enum):
    """The kinds of refusal that are dealt with differently."""

    MISSING = "no such object"
    EXISTS = "something is there already"
    CONDITION = "the condition did not hold"
    RANGE = "the range is behind the end"
    NAME = "an object there has a name that is no key"
    UNSUPPORTED = "not supported"
    FULL = "no space left"
    DENIED = "not allowed"
    TRANSIENT = "no answer, or busy"
    """Trying again may help. A write may have landed all the same."""
    OTHER = "refused"


_FULL_CODES = {
    "InsufficientStorage",
    "InsufficientCapacity",
    "XMinioStorageFull",
    "QuotaExceeded",
    "StorageFull",
}
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}  # a 404 like that of an object
_RACE_CODES = {"ConditionalRequestConflict", "OperationAborted"}  # S3: undecided, ask again
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}


def why(error: BaseException) -> tuple[Why, str]:
    """The kind of a refusal, and a text that is fit to be shown."""
    text = str(error)
    code = _code(text)
    status = _status(text)
    kind = _kind(error, status, code, text)
    parts = [kind.value, *([f"HTTP {status}"] if status else []), *([code] if code else [])]
    if kind is Why.OTHER and not status:
        parts.append(type(error).__name__)  # the client itself would not send it
    if not status:
        parts += [word for word in ("Timeout", "Connect", "BadScheme") if re.search(rf"\b{word}\b", text)]
        if "dns error" in text:
            parts.append("the host is not known")
    return kind, ", ".join(parts)


def _kind(error: BaseException, status: int, code: str, text: str) -> Why:
    if code in _NO_BUCKET_CODES:
        return Why.OTHER
    if code in _RACE_CODES:
        return Why.TRANSIENT
    if code in _FULL_CODES or status == 507:
        return Why.FULL
    if isinstance(error, FileNotFoundError):
        return Why.MISSING
    if isinstance(error, exceptions.InvalidPathError):
        return Why.NAME
    if isinstance(error, exceptions.AlreadyExistsError):
        return Why.EXISTS
    if isinstance(error, exceptions.PreconditionError | exceptions.NotModifiedError):
        return Why.CONDITION
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError) or status == 501:
        return Why.UNSUPPORTED
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return Why.DENIED
    if status == 416:
        return Why.RANGE
    if status in _TRANSIENT_STATUS:
        return Why.TRANSIENT
    if not status and isinstance(error, exceptions.GenericError) and "BadScheme" not in text:
        return Why.TRANSIENT  # nothing was answered: refused, reset, timed out, or cut off in the middle
    return Why.OTHER


def _status(text: str) -> int:
    found = re.search(r"status code: (\d{3})\b", text)
    return int(found[1]) if found else 0


def _code(text: str) -> str:
    found = re.search(r"<Code>([A-Za-z0-9]{1,60})</Code>", text)
    return found[1] if found else ""


class Refused(Exception):
    """A request refused for good; `lost` when an earlier try of it had no answer and may have landed."""

    def __init__(self, kind: Why, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.lost = lost
