"""The child process of a comparison: answers the requests of `bench.side` until its input ends.

Requests and answers are lines of JSON on stdin and stdout. It uses only the standard library and supports
old Python versions, because a peer may have another environment than Tidemill.
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., Any]


def answer(commands: Mapping[str, Command], *, versions: Mapping[str, str] | None = None) -> None:
    """Report the versions, then answer `{"do": name, ...arguments}` with the result of the command."""
    lines = sys.stdout
    sys.stdout = sys.stderr  # output of a library must not look like an answer
    _tell(lines, {"python": platform.python_version(), **(versions or {})})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = commands[request.pop("do")](**request)
        except Exception as error:
            _tell(lines, {"raised": f"{type(error).__name__}: {error}"})
            raise
        _tell(lines, result)


def _tell(lines: Any, value: Any) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that the work took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
