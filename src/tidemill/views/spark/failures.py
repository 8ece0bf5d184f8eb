"""Error messages for views that cannot be computed: the view, where it is declared, and what failed.

Spark's messages include plans and Java stack traces. A user needs only the first sentence, the part of the
query that failed, and, for a Python function, the line that raised the error.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from tidemill import errors
from tidemill.errors import StepLost, TidemillError, ViewFailed, ViewRefused
from tidemill.spark.outages import outages
from tidemill.store.secrets import redact_text

_CONTEXT = re.compile(r"== SQL[^\n]*==\n(?P<line>[^\n]*)\n(?P<marks>[ ^]*\^)")
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_RAISED = re.compile(
    r"^(?P<message>[\w.]*(?:Error|Exception|Exit|Interrupt)\b(?::[^\n]*)?)\s*$", re.MULTILINE
)
_OWN = re.compile(r"^tidemill\.errors\.(?P<kind>\w+): (?P<message>[^\n]*)", re.MULTILINE)
_END = re.compile(r"\n\nJVM stacktrace|\n== SQL|;\n'|SQLSTATE")
_MEMORY = re.compile(r"^(?:MemoryError|pyarrow\.lib\.ArrowMemoryError)\b", re.MULTILINE)
_DATA = re.compile(r"SQLSTATE: (?:21|22|23|38|39|P0)\w{3}\b")
"""The classes of errors that rows and functions cause: cardinality, data, external routine, raised by SQL."""

_KERNEL = re.compile(r'File "[^"]*\btidemill/(?:views|spark)/')
_VALUE = re.compile(
    r"^(?:\w+\.)*(?:ArithmeticError|OverflowError|ZeroDivisionError|ValueError|ArrowInvalid)\b", re.MULTILINE
)
"""Errors of kernels that rows cause. Others, such as errors of storage, do not belong to a view."""

_MAX_CHARS = 600
MORE_MEMORY = (
    "give Python workers more memory, or use more tasks; nothing was stored, and the step runs again"
)


class NamedView(Protocol):
    """A view with a name for messages."""

    @property
    def name(self) -> str: ...


@contextmanager
def failing_view(view: NamedView) -> Iterator[None]:
    """Raise errors of a view's computation as `ViewFailed`, with the view's name and place.

    A view is not to blame for an outage, such as a full disk. If its function raises `SystemExit` or
    `KeyboardInterrupt`, this is a failure of the view. Signals only reach the main thread, so the exception
    does not come from a signal.
    """
    try:
        with outages():
            yield
    except ViewRefused as error:
        error.view = view.name
        raise
    except TidemillError:
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        refused = ViewRefused(
            f"the function of view {view.name} raised {type(error).__name__}",
            hint="do not exit inside a view function; to report a failure, raise an Exception such as"
            " ValueError",
        )
        refused.view = view.name
        raise refused from error
    except Exception as error:
        where = getattr(view, "where", "")
        failed = ViewFailed(f"{where}{': ' if where else ''}view {view.name}: {error_text(error)}")
        failed.view = view.name if _is_of_view(error) else None
        raise failed from error


@contextmanager
def failing_views() -> Iterator[None]:
    """Raise errors of expressions of views that are computed together as `ViewFailed`."""
    try:
        yield
    except ViewFailed as error:
        error.view = error.view or ""
        raise
    except TidemillError:
        raise
    except Exception as error:
        if not _is_of_rows(error):
            raise
        failed = ViewFailed(error_text(error))
        failed.view = ""
        raise failed from error


def _is_of_view(error: Exception) -> bool:
    """Return whether the query or the function of a view that is computed alone is the cause of an error."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, PySparkException

    if isinstance(error, AnalysisException) or _is_of_rows(error):
        return True
    return not isinstance(error, PySparkException | Py4JError | OSError | EOFError | MemoryError)


def _is_of_rows(error: Exception) -> bool:
    """Return whether an expression, a kernel or a Python function raised the error on the rows of a view."""
    text = str(error)
    if "Traceback (most recent call last)" not in text:
        return isinstance(error, ArithmeticError | pa.ArrowInvalid) or _DATA.search(text) is not None
    if task_error(error) is not error:
        return False
    return _VALUE.search(text) is not None or _KERNEL.search(text) is None


def task_error(error: Exception) -> Exception:
    """Return the error that a task raised in its Python worker; return any other error unchanged.

    Spark reports such an error as a Python stack trace inside a Java stack trace. If a run file is damaged or
    storage is full, the function returns the original error, which names the file.
    """
    text = str(error)
    own = list(_OWN.finditer(text))
    kind = getattr(errors, own[-1]["kind"], None) if own else None
    if isinstance(kind, type) and issubclass(kind, TidemillError):
        return kind(own[-1]["message"])
    if _MEMORY.search(text):
        return StepLost(
            "not enough memory: a Python worker could not finish its part of the step", hint=MORE_MEMORY
        )
    if "Python worker exited unexpectedly" in text:
        return StepLost("a Python worker exited several times during a step", hint=MORE_MEMORY)
    return error


def error_text(error: BaseException) -> str:
    """Return the message of an error without plans, stack traces and the passwords of URLs."""
    return redact_text(_message(error))[:_MAX_CHARS]


def _message(error: BaseException) -> str:
    text = str(error)
    if "Traceback (most recent call last)" in text:
        return _python_error(text)
    first = _END.split(text, maxsplit=1)[0]
    message = " ".join(first.split()) or type(error).__name__
    context = _CONTEXT.search(text)
    if context is not None:
        begin = context["marks"].index("^")
        message += f" In: {context['line'][begin : len(context['marks'])].strip()}"
    return message


def _python_error(text: str) -> str:
    """Return the exception of a Python stack trace, and the last line of user code in it."""
    lines = [line for line in _LINE.finditer(text) if "pyspark" not in line["file"]]
    raised = _RAISED.findall(text)
    message = raised[-1].rpartition("pyspark.")[2] if raised else " ".join(text.split())
    if not lines:
        return message
    last = lines[-1]
    return f"{message} ({last['file']}:{last['line']}, in {last['name']})"
