"""The child's half of a comparison: answers the requests of `bench.side` until its input ends.

Requests and answers are lines of JSON on stdin and stdout. Standard library only, and old Python will do:
a peer may live in another environment than Tidemill.
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., Any]


def answer(commands: Mapping[str, Command], *, versions: Mapping[str, str] | None = None) -> None:
    """Say which versions run here, then answer `{"do": name, ...arguments}` with what the command returns."""
    lines = sys.stdout
    sys.stdout = sys.stderr  # what a library prints must not look like an answer
    _tell(lines, {"python": platform.python_version(), **(versions or {})})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            told = commands[request.pop("do")](**request)
        except Exception as error:
            _tell(lines, {"raised": f"{type(error).__name__}: {error}"})
            raise
        _tell(lines, told)


def _tell(lines: Any, value: Any) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


def timed(work: Callable[[], Any]) -> float:
    """The seconds that the work took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
