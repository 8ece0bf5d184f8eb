"""Where in the user's file something was declared, so that an error can point at it."""

import sys
from pathlib import Path
from types import FrameType

import msgspec

_PACKAGE = str(Path(__file__).resolve().parent.parent)


class Line(msgspec.Struct, frozen=True):
    """A line of the user's own code; empty where there is none, as in an interactive session."""

    file: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.file else "(interactive)"


def here() -> Line:
    """The innermost line outside of this package."""
    file, number = _caller()
    return Line() if file is None else Line(_shown(file), number)


def folder() -> Path:
    """The folder of the user's file, which its relative paths are relative to; else the one we are in."""
    file, _ = _caller()
    return Path.cwd() if file is None else Path(file).resolve().parent


def _caller() -> tuple[str | None, int]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not str(Path(file).resolve()).startswith(_PACKAGE):
            return (None, 0) if file.startswith("<") else (file, frame.f_lineno)
        frame = frame.f_back
    return None, 0


def _shown(file: str) -> str:
    """Relative to where we are, where that is shorter to read."""
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
