"""Records that are fetched, made into rows one by one: what does not fit is set aside, with the reason."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tidemill.errors import TidemillError

BAD: pa.Schema = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("record", pa.string()),
        ("error", pa.string()),
        ("check", pa.string()),
    ]
)
"""The columns of a quarantine table."""

Convert = Callable[[Any], pa.Table]


class Growing(Protocol):
    """Makes rows for a table that gains the columns which they bring (LOT-34)."""

    def columns(self, rows: Any, known: str) -> str:
        """The columns that a table has by now, with those of these rows."""
        ...

    def convert(self, rows: Any, columns: str) -> pa.Table:
        """Rows as a table of these columns; raises what is wrong."""
        ...


_MOST_TEXT = 64 << 10


class Record(NamedTuple):
    """A JSON object as it arrived, and where: a topic's partition and an offset, say."""

    file: str
    line: int
    text: bytes | None


class Sifted(NamedTuple):
    """Rows of the declared columns, and what did not fit; `columns` if the table has more by these rows."""

    rows: pa.Table
    bad: pa.Table
    columns: str = ""


def sift(
    records: Sequence[Record],
    convert: Convert,
    key: Sequence[str] = (),
    *,
    growing: Growing | None = None,
    known: str = "",
) -> Sifted:
    """Make rows of records.

    Args:
        records: in the order in which they arrived, which rows keep.
        convert: makes a table of dictionaries, or says what is wrong with one of them.
        key: columns that no row is without.
        growing: for a table that gains columns, makes rows instead.
        known: the columns that such a table has by now.
    """
    good: list[tuple[Record, dict[str, Any]]] = []
    bad: list[tuple[Record, str]] = []
    for record in records:
        try:
            good.append((record, _parsed(record.text)))
        except (ValueError, RecursionError) as error:
            bad.append((record, f"no JSON object: {error}"))
    columns = known
    if growing is not None:
        columns = growing.columns([row for _, row in good], known)
        convert = partial(growing.convert, columns=columns)
    tables: list[pa.Table] = []
    waiting = [good] if good else []
    while waiting:
        some = waiting.pop()
        try:
            tables.append(_with_key(convert([row for _, row in some]), key))
        except (TidemillError, _NoKey) as error:
            if len(some) == 1:
                bad.append((some[0][0], str(error).partition("\n")[0]))
            else:  # halves, the first one on top: however many are bad, each costs a few steps
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
    bad.sort(key=lambda one: (one[0].file, one[0].line))
    rows = pa.concat_tables(tables) if tables else convert([])
    kept = pa.Table.from_pylist([_kept(*one) for one in bad], schema=BAD)
    return Sifted(rows, kept, columns if columns != known else "")


class _NoKey(Exception):
    """A record without a value in a column of the key."""


def _with_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    for name in key:
        if rows.column(name).null_count:  # it was not there, or it does not fit and was kept beside
            raise _NoKey(f"the key column {name} is NULL")
    return rows


def _parsed(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise ValueError("there is no value")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}")  # noqa: TRY004 - told as any other wrong record is
    return found


def _kept(record: Record, error: str) -> dict[str, Any]:
    text = None if record.text is None else record.text[:_MOST_TEXT].decode(errors="replace")
    return {"file": record.file, "line": record.line, "record": text, "error": error[:2000], "check": None}
