"""What is told when a view cannot be computed: which one, where it is declared, and what in it failed.

Spark's own words come with plans and stacks of Java. What a user needs of them is the first sentence, the
piece of the query that it is about, and of a function in Python the line that raised.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tidemill import errors
from tidemill.errors import StepLost, TidemillError, ViewFailed

_CONTEXT = re.compile(r"== SQL[^\n]*==\n(?P<line>[^\n]*)\n(?P<marks>[ ^]*\^)")
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_RAISED = re.compile(r"^(?P<said>[\w.]*(?:Error|Exception|Exit|Interrupt)\b(?::[^\n]*)?)\s*$", re.MULTILINE)
_OURS = re.compile(r"^tidemill\.errors\.(?P<kind>\w+): (?P<said>[^\n]*)", re.MULTILINE)
_END = re.compile(r"\n\nJVM stacktrace|\n== SQL|;\n'|SQLSTATE")
_MEMORY = re.compile(r"^(?:MemoryError|pyarrow\.lib\.ArrowMemoryError)\b", re.MULTILINE)
_MOST = 600
MORE_MEMORY = "give workers more memory, or more tasks; the step is run again, and none of it was kept"


class NamedView(Protocol):
    """A view, as far as it is told of."""

    @property
    def name(self) -> str: ...


@contextmanager
def failing_view(view: NamedView) -> Iterator[None]:
    """Whatever a computation of a view raises is told as the view's own failure (`ViewFailed`)."""
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:
        where = getattr(view, "where", "")
        raise ViewFailed(f"{where}{': ' if where else ''}view {view.name}: {error_text(error)}") from error


def task_error(error: Exception) -> Exception:
    """What a task of a step raised in its Python worker, as if it had been raised here; else the error.

    A damaged run file, or a storage that is full, is told by its own error with the name of the file. Spark
    shows those as a stack of Python inside of one of Java.
    """
    text = str(error)
    ours = list(_OURS.finditer(text))
    kind = getattr(errors, ours[-1]["kind"], None) if ours else None
    if isinstance(kind, type) and issubclass(kind, TidemillError):
        return kind(ours[-1]["said"])
    if _MEMORY.search(text):
        return StepLost("a Python worker had not enough memory for its part of a step", hint=MORE_MEMORY)
    if "Python worker exited unexpectedly" in text:
        return StepLost("a Python worker ended in the middle of a step, several times", hint=MORE_MEMORY)
    return error


def error_text(error: BaseException) -> str:
    """An error's words, without plans and stacks."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        return _of_python(text)[:_MOST]
    first = _END.split(text, maxsplit=1)[0]
    words = " ".join(first.split()) or type(error).__name__
    found = _CONTEXT.search(text)
    if found is not None:
        begin = found["marks"].index("^")
        words += f" In: {found['line'][begin : len(found['marks'])].strip()}"
    return words[:_MOST]


def _of_python(text: str) -> str:
    """The last line of a user's code in a stack of Python, and what was raised there."""
    lines = [one for one in _LINE.finditer(text) if "pyspark" not in one["file"]]
    raised = _RAISED.findall(text)
    words = raised[-1].rpartition("pyspark.")[2] if raised else " ".join(text.split())
    if not lines:
        return words
    last = lines[-1]
    return f"{words} ({last['file']}:{last['line']}, in {last['name']})"
