"""Where in the user's file something was declared, so that an error can point at it."""

import sys
from pathlib import Path

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
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not str(Path(file).resolve()).startswith(_PACKAGE):
            return Line() if file.startswith("<") else Line(_shown(file), frame.f_lineno)
        assert frame.f_back is not None
        frame = frame.f_back
    return Line()


def _shown(file: str) -> str:
    """Relative to where we are, where that is shorter to read."""
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
