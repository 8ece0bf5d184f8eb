"""What is told when a view cannot be computed: which one, where it is declared, and what in it failed.

Spark's own words come with plans and stacks of Java. What a user needs of them is the first sentence, the
piece of the query that it is about, and of a function in Python the line that raised.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tidemill.errors import TidemillError, ViewFailed

_CONTEXT = re.compile(r"== SQL[^\n]*==\n(?P<line>[^\n]*)\n(?P<marks>[ ^]*\^)")
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_RAISED = re.compile(r"^(?P<said>[\w.]*(?:Error|Exception|Exit|Interrupt)\b(?::[^\n]*)?)\s*$", re.MULTILINE)
_END = re.compile(r"\n\nJVM stacktrace|\n== SQL|;\n'|SQLSTATE")
_MOST = 600


class Told(Protocol):
    """A view, as far as it is told of."""

    @property
    def name(self) -> str: ...


@contextmanager
def telling(view: Told) -> Iterator[None]:
    """Whatever a computation of a view raises is told as the view's own failure (`ViewFailed`)."""
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:
        where = getattr(view, "where", "")
        raise ViewFailed(f"{where}{': ' if where else ''}view {view.name}: {said(error)}") from error


def said(error: BaseException) -> str:
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
