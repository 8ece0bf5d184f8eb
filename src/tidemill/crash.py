"""Named crash points: places where a process may die, no-ops until a test arms one.

Every durable write has a point before and after it. `point("publish.before_commit")` costs one dictionary
look-up when nothing is armed. Tests arm a point in process (it raises `Crashed`, a BaseException that
nothing here catches) or by the environment variable `TIDEMILL_CRASH=name[:n]` in a child process, which
then ends like kill -9 on the n-th visit. Of several, `name[:n],name[:n]`, each is for one life of a process
that is started again when it has died.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENVIRONMENT = "TIDEMILL_CRASH"


class Crashed(BaseException):
    """The process is taken to be dead at this point; only the test that armed it may catch it."""


_armed: dict[str, Callable[[], None]] = {}
_seen: set[str] | None = None
_lock = threading.Lock()


def point(name: str) -> None:
    """A place where the process may die."""
    if _seen is not None:
        _seen.add(name)
    if _armed:
        hit = _armed.get(name)
        if hit is not None:
            hit()


@contextmanager
def armed(name: str, *, visit: int = 1) -> Iterator[None]:
    """Raise `Crashed` on the given visit to the point, then let later visits pass."""
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
    """Collect the names of the points that are visited: the enumeration a crash matrix walks through."""
    global _seen
    outer, inner = _seen, set[str]()
    _seen = inner
    try:
        yield inner
    finally:
        if outer is not None:
            outer |= inner
        _seen = outer


def in_life(number: int) -> str:
    """What the environment arms in a life of a process, the first being 0; empty if nothing."""
    lives = os.environ.get(ENVIRONMENT, "").split(",")
    return lives[number] if number < len(lives) else ""


def arm_from_environment() -> None:
    """Arm what `TIDEMILL_CRASH=name[:n]` names: the process kills itself on the n-th visit."""
    spec = in_life(0)
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
