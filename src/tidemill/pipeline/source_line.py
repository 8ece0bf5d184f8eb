"""Find the line of the user's file that contains a declaration, so that an error can name the line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from tidemill.errors import DeclarationError, QueryError, StoreError, TidemillError

_PACKAGE = str(Path(__file__).resolve().parent.parent)


class SourceLine(msgspec.Struct, frozen=True):
    """A line of the user's code; empty in an interactive session, which has no file."""

    file: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.file else "(interactive)"


def caller_line() -> SourceLine:
    """Return the innermost line of the call stack that is outside of this package."""
    file, number = _caller()
    return SourceLine() if file is None else SourceLine(shown_path(Path(file)), number)


def caller_folder() -> Path:
    """Return the folder of the user's file, to resolve relative paths; if unknown, the current folder."""
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


def shown_path(path: Path) -> str:
    """Return the path of a file, relative to the current folder if the file is below that folder."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def position_in(line: SourceLine, text: str, row: int, column: int = 0) -> str:
    """Return the position in the user's file of one row of a declared text, such as a query.

    This searches the file for the exact text, first after the declaration. If the user's code builds the
    text, the search does not find it. Then the result is the line of the declaration.

    Args:
        line: where the text is declared.
        text: the declared text.
        row: a row of the text, counted from 1.
        column: a column of that row, counted from 1; 0 if unknown.
    """
    try:
        source = Path(line.file).read_text()
    except (OSError, UnicodeDecodeError):
        return str(line)
    declared_at = sum(len(text_line) for text_line in source.splitlines(keepends=True)[: line.number - 1])
    start = source.find(text, declared_at)
    start = source.find(text) if start < 0 else start
    if start < 0:
        return str(line)
    before = source[:start]
    rows_before, margin = before.count("\n"), len(before) - (before.rfind("\n") + 1)
    file_column = column + (margin if row == 1 else 0)
    return f"{SourceLine(line.file, rows_before + row)}" + (f":{file_column}" if column else "")


@contextmanager
def errors_at(line: SourceLine) -> Iterator[None]:
    """Prefix the messages of errors raised inside the block with the line of the declaration.

    Errors of the store are not about a declaration; they are raised unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except TidemillError as error:
        if isinstance(error, QueryError) or error.message.startswith(f"{line}: "):
            raise
        raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from error
