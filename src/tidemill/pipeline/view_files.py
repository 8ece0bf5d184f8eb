"""Read views from SQL files: each file `NAME.sql` holds the query of the view `NAME`.

Lines that start with `-- tidemill:` set the options of the view. They come before the query:

    -- tidemill: refresh = incremental
    -- tidemill: cadence = PT5M
    SELECT region, sum(amount) AS total FROM orders GROUP BY region

An error names the file and the line.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from tidemill.errors import DeclarationError
from tidemill.pipeline.pace import FASTEST, Pace
from tidemill.pipeline.source_line import SourceLine, errors_at, shown_path

OPTION = re.compile(r"\s*--\s*tidemill:\s*(.*)")
VIEW_OPTIONS = frozenset({"refresh", "group", "keep"})
PACE_OPTIONS = frozenset({"cadence", "debounce", "max_wait", "cron", "zone", "most_failures"})


class ViewFile(msgspec.Struct, frozen=True):
    """One SQL file: the name of its view, its text, and the options in its comments.

    - options: `refresh`, `group` and `keep`, as `Pipeline.view` takes them.
    """

    name: str
    sql: str
    line: SourceLine
    pace: Pace
    options: dict[str, Any]


def read_view_files(folder: Path) -> Iterator[ViewFile]:
    """Read all files `*.sql` in a folder, in the order of their names."""
    if not folder.is_dir():
        raise DeclarationError(f"the folder {folder} does not exist", hint="check the path of the SQL files")
    files = sorted(folder.glob("*.sql"))
    if not files:
        raise DeclarationError(
            f"the folder {folder} has no files with the ending .sql", hint="save each view as NAME.sql"
        )
    for file in files:
        yield read_view_file(file)


def read_view_file(file: Path) -> ViewFile:
    """Read one SQL file."""
    first = SourceLine(shown_path(file), 1)
    try:
        sql = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{file} cannot be read: {error}", hint="save the file as UTF-8") from None
    pace: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for number, text in enumerate(sql.splitlines(), start=1):
        matched = OPTION.fullmatch(text)
        if matched is None:
            continue
        with errors_at(SourceLine(first.file, number)):
            name, value = _option(matched[1])
            target = options if name in VIEW_OPTIONS else pace
            if name in target:
                raise DeclarationError(f"the option {name} is set twice", hint="remove one of the two lines")
            target[name] = _whole_number(name, value) if name == "most_failures" else value
    with errors_at(first):
        return ViewFile(
            name=file.stem,
            sql=sql.rstrip().removesuffix(";"),
            line=first,
            pace=Pace(**pace) if pace else FASTEST,
            options=options,
        )


def _option(text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    known = sorted(VIEW_OPTIONS | PACE_OPTIONS)
    if not equals or not value:
        raise DeclarationError(
            f"invalid option {text!r}", hint="write NAME = VALUE, for example: -- tidemill: keep = P30D"
        )
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(known)}"
        raise DeclarationError(f"unknown option {name!r}", hint=hint)
    return name, value


def _whole_number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise DeclarationError(f"{name} = {value} is not a whole number", hint=f"for example: {name} = 5")
    return int(value)
