"""Named crash points: places where a test can make a process die. They do nothing until a test arms one.

Every durable write has a crash point before and after it. `point("publish.before_commit")` costs almost
nothing while no point is armed. A test can arm a point in two ways:

- in its own process: the point raises `Crashed`, a BaseException that Tidemill does not catch;
- in a child process, with the environment variable `TIDEMILL_CRASH=name[:n]`: the child kills itself at the
  n-th visit. The variable can list several points, separated by commas. Each time a supervisor restarts the
  child, the child uses the next point of the list.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENVIRONMENT = "TIDEMILL_CRASH"


class Crashed(BaseException):
    """Raised at an armed point, as if the process died there. Only the test that armed it may catch this."""


_armed: dict[str, Callable[[], None]] = {}
_seen: set[str] | None = None
_lock = threading.Lock()


def point(name: str) -> None:
    """Mark a place where the process may die."""
    if _seen is not None:
        _seen.add(name)
    if _armed:
        hit = _armed.get(name)
        if hit is not None:
            hit()


@contextmanager
def armed(name: str, *, visit: int = 1) -> Iterator[None]:
    """Raise `Crashed` at visit number `visit` to the point; other visits do nothing."""
    left = visit

    def hit() -> None:
        nonlocal left
        with _lock:
            left -= 1
            now = left == 0
        if now:
            raise Crashed(name)

    outer = _armed.get(name)
    _armed[name] = hit
    try:
        yield
    finally:
        if outer is None:
            _armed.pop(name, None)
        else:
            _armed[name] = outer


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Collect the names of the visited points, so that a test can kill the process at each of them."""
    global _seen
    outer, inner = _seen, set[str]()
    _seen = inner
    try:
        yield inner
    finally:
        if outer is not None:
            outer |= inner
        _seen = outer


def in_run(number: int) -> str:
    """Return the point that `TIDEMILL_CRASH` lists for run `number` of a process, counted from 0.

    The answer has the form `name[:n]`; it is empty if no point is listed for this run.
    """
    points = os.environ.get(ENVIRONMENT, "").split(",")
    return points[number] if number < len(points) else ""


def arm_from_environment() -> None:
    """Arm the first point that `TIDEMILL_CRASH` lists: the process kills itself at the n-th visit."""
    spec = in_run(0)
    if not spec:
        return
    name, _, visit = spec.partition(":")
    left = int(visit or "1")

    def hit() -> None:
        nonlocal left
        with _lock:
            left -= 1
            now = left == 0
        if now:
            os.kill(os.getpid(), signal.SIGKILL)

    _armed[name] = hit
