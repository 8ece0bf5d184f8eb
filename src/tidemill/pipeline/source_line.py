"""Where in the user's file something was declared, so that an error can point at it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from tidemill.errors import DeclarationError, QueryError, TidemillError

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


def within(line: Line, text: str, row: int, column: int = 0) -> str:
    """Where in the user's file a place of a text is that is declared at a line.

    The text is looked for as it stands, behind the line first: a text that was put together is not found, and
    then the place is that of the declaration.

    Args:
        line: of the declaration.
        text: as it was declared.
        row: of the text, counted from 1.
        column: the same; 0 if that is not known.
    """
    try:
        source = Path(line.file).read_text()
    except (OSError, UnicodeDecodeError):
        return str(line)
    begins = sum(len(one) for one in source.splitlines(keepends=True)[: line.number - 1])
    at = source.find(text, begins)
    at = source.find(text) if at < 0 else at
    if at < 0:
        return str(line)
    before = source[:at]
    first, margin = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    place = column + (margin if row == 1 else 0)
    return f"{Line(line.file, first + row)}" + (f":{place}" if column else "")


@contextmanager
def at(line: Line) -> Iterator[None]:
    """Whatever is wrong inside is told with the line of its declaration."""
    try:
        yield
    except TidemillError as error:
        if isinstance(error, QueryError) or error.message.startswith(f"{line}: "):
            raise
        raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from error
