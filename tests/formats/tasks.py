"""Functions of the futures in the frozen home, which names them by module: do not move or rename them."""

import os
import threading
from pathlib import Path

HOLD = "TIDEMILL_TESTS_HOLD"
"""Set in the worker that is killed while `waits` runs there."""


def add(x: int, y: int = 1) -> int:
    return x + y


def repeated(letter: str, times: int) -> str:
    return letter * times


def length(value: str) -> int:
    return len(value)


def refuses(why: str) -> None:
    raise LookupError(why)


def fails_once() -> str:
    """Raise the first time in a folder, then succeed."""
    if not Path("tried").exists():
        Path("tried").touch()
        raise ValueError("not yet")
    return "done"


def kills_worker() -> None:
    os._exit(9)


def waits() -> str:
    """Wait for ever where it is held, and else not at all."""
    if HOLD in os.environ:
        Path("began").touch()
        threading.Event().wait()
    return "went on"


class Counter:
    """An actor."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value
