"""Exceptions as data: always the type, the message and the traceback as text; the exception itself if it can.

An exception is a user's object: its `__str__` may raise, it may not be picklable, or pickle and then not
unpickle, which is common (`__init__` with other arguments than `args`). None of that may stop a task from
failing properly, so nothing here raises on account of one (FUT-50).
"""

import contextlib
import traceback

from tidemill.futures.protocol.rows import Failure
from tidemill.futures.values import pickling
from tidemill.futures.values.signatures import Signer

MOST_PICKLED_BYTES = 24_000
MOST_MESSAGE = 4_000
MOST_TRACEBACK = 12_000
_DOMAIN = "exception"


def dump_failure(
    error: BaseException, signer: Signer, *, kind: str = "exception", node: str = "", at: int = 0
) -> Failure:
    """What is kept of an exception.

    Args:
        error: what the task raised.
        signer: signs the pickled exception.
        kind: one of `rows.KINDS`.
        node: where it happened.
        at: when, in store time.
    """
    pickled = _pickled(error)
    return Failure(
        kind=kind,
        type=_name(type(error)),
        message=_shortened(_text(error), MOST_MESSAGE),
        traceback=_shortened(_traceback(error), MOST_TRACEBACK),
        pickled=pickled,
        signature=signer.sign(_DOMAIN, pickled) if pickled else b"",
        node=node,
        at=at,
    )


def load_exception(failure: Failure, signer: Signer) -> BaseException | None:
    """The exception itself, with the remote traceback as a note; None when it was or is not to be had.

    `BadSignature` when it was not signed with our key: then it was not looked into.
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
    """The exception in one piece; empty unless it can be had back from that."""
    try:
        content = pickling.pack(pickling.dump(error))
    except (Exception, SystemExit):  # noqa: BLE001 - see the top of this file
        return b""
    if len(content) > MOST_PICKLED_BYTES or _unpickled(content) is None:
        return b""
    return content


def _unpickled(content: bytes) -> BaseException | None:
    try:
        error = pickling.unpack(content, what="the exception")
    except (Exception, SystemExit):  # noqa: BLE001 - see the top of this file
        return None
    return error if isinstance(error, BaseException) else None


def _name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
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
    left_out = len(text) - most
    return f"{text[: most // 2]}\n… {left_out} characters left out …\n{text[-most // 2 :]}"
