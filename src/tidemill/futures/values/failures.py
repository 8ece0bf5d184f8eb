"""Failures: store exceptions as text (type, message, traceback) and, if possible, as pickled objects.

An exception may be an object of the user's code. Its `__str__` may raise, and pickling or unpickling it may
fail. Unpickling often fails because the arguments of `__init__` are not the same as those in `args`. The
failure of the task must be recorded anyway, so the functions here do not raise for such an exception
(FUT-50). Passwords in URLs are removed from the texts: the page, the log and alerts show them (STO-14).
"""

import contextlib
import traceback

from tidemill.errors import without_java_frames
from tidemill.futures.protocol.rows import Failure
from tidemill.futures.values import pickling
from tidemill.futures.values.signatures import Signer
from tidemill.store.secrets import redact_text

MOST_PICKLED_BYTES = 24_000
MOST_MESSAGE = 4_000
MOST_TRACEBACK = 12_000
_DOMAIN = "exception"


def dump_failure(
    error: BaseException, signer: Signer, *, kind: str = "exception", node: str = "", at: int = 0
) -> Failure:
    """Return the failure record of an exception.

    Args:
        error: the exception that the task raised.
        signer: signs the pickled exception.
        kind: one of `rows.KINDS`.
        node: the node that ran the task.
        at: the time, by the store's clock.
    """
    pickled = _pickled(error)
    return Failure(
        kind=kind,
        type=_name(type(error)),
        message=_shortened(redact_text(_text(error)), MOST_MESSAGE),
        traceback=_shortened(redact_text(_traceback(error)), MOST_TRACEBACK),
        pickled=pickled,
        signature=signer.sign(_DOMAIN, pickled) if pickled else b"",
        node=node,
        at=at,
    )


def load_exception(failure: Failure, signer: Signer) -> BaseException | None:
    """Return the stored exception, with the remote traceback as a note.

    Return None if the exception cannot be loaded. Raise `BadSignature`, before anything is unpickled, if it
    was not signed with our key.
    """
    if not failure.pickled:
        return None
    signer.check(_DOMAIN, failure.signature, failure.pickled)
    error = _unpickled(failure.pickled)
    if error is None:
        return None
    with contextlib.suppress(Exception):  # a class may forbid new attributes
        where = f" on {failure.node}" if failure.node else ""
        error.add_note(f"remote traceback{where}:\n{failure.traceback}".rstrip())
    return error


def _pickled(error: BaseException) -> bytes:
    """Return the pickled exception; empty if it cannot be unpickled again."""
    try:
        content = pickling.pack(pickling.dump(error))
    except (Exception, SystemExit):  # noqa: BLE001 - see the top of this file
        return b""
    if len(content) > MOST_PICKLED_BYTES or _unpickled(content) is None:
        return b""
    return content


def _unpickled(content: bytes) -> BaseException | None:
    try:
        error = pickling.unpack(content, subject="the exception")
    except (Exception, SystemExit):  # noqa: BLE001 - see the top of this file
        return None
    return error if isinstance(error, BaseException) else None


def _name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return without_java_frames(str(error))
    except Exception as second:  # noqa: BLE001 - see the top of this file
        return f"<no message: its __str__ raised {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as second:  # noqa: BLE001 - see the top of this file
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{frames}{_name(type(error))}: <not shown: {type(second).__name__}>"


def _shortened(text: str, most: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be stored
    if len(text) <= most:
        return text
    omitted = len(text) - most
    return f"{text[: most // 2]}\n… {omitted} characters omitted …\n{text[-most // 2 :]}"
