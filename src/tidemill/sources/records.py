"""Convert fetched records to rows; a record that does not fit goes to quarantine with the reason."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from tidemill.errors import AppendRefused, TidemillError
from tidemill.sources.json_objects import check_object
from tidemill.sources.row_converters import Convert, EvolvingConverter
from tidemill.spark.input_rows import printable

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

_MOST_TEXT = 64 << 10


class SourceRecord(NamedTuple):
    """A JSON object as it arrived, and its origin: for example a topic's partition and an offset."""

    file: str
    line: int
    text: bytes | None


class ParsedRecords(NamedTuple):
    """The converted rows and the bad records. `columns` is set if the rows add columns."""

    rows: pa.Table
    bad: pa.Table
    columns: str = ""


def parse(
    records: Sequence[SourceRecord],
    convert: Convert,
    key: Sequence[str] = (),
    *,
    evolving: EvolvingConverter | None = None,
    columns: str = "",
) -> ParsedRecords:
    """Convert records to rows.

    Args:
        records: the records in the order in which they arrived. The rows keep this order.
        convert: converts dictionaries to a table.
        key: columns that every row must have.
        evolving: the converter to use instead of `convert`, if the dataset gains columns.
        columns: the columns that such a dataset has now.
    """
    good: list[tuple[SourceRecord, dict[str, Any]]] = []
    bad: list[tuple[SourceRecord, str]] = []
    for record in records:
        try:
            good.append((record, _parsed(record.text)))
        except AppendRefused as refused:
            bad.append((record, refused.message))
        except (ValueError, RecursionError) as error:
            bad.append((record, f"not a JSON object: {error}"))
    grown = columns
    if evolving is not None:
        grown = evolving.columns([row for _, row in good], columns)
        convert = partial(evolving.convert, columns=grown)
    tables: list[pa.Table] = []
    waiting = [good] if good else []
    while waiting:
        batch = waiting.pop()
        try:
            tables.append(_with_key(convert([row for _, row in batch]), key))
        except (TidemillError, _NoKey) as error:
            if len(batch) == 1:
                bad.append((batch[0][0], str(error).partition("\n")[0]))
            else:  # try each half, the first one next, so that a bad record costs only a few tries
                waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
    bad.sort(key=lambda entry: (entry[0].file, entry[0].line))
    rows = pa.concat_tables(tables) if tables else convert([])
    quarantined = pa.Table.from_pylist([_quarantined(record, error) for record, error in bad], schema=BAD)
    return ParsedRecords(rows, quarantined, grown if grown != columns else "")


class _NoKey(Exception):
    """A record without a value in a column of the key."""


def _with_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    for name in key:
        if rows.column(name).null_count:  # the value is missing, or it did not fit and was rescued
            raise _NoKey(f"the key column {name} is NULL")
    return rows


def _parsed(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise ValueError("the record has no value")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")  # noqa: TRY004 - the record is bad, not the program
    return check_object(value)


def _quarantined(record: SourceRecord, error: str) -> dict[str, Any]:
    text = None if record.text is None else record.text[:_MOST_TEXT].decode(errors="replace")
    return {
        "file": record.file,
        "line": record.line,
        "record": text,
        "error": printable(error[:2000]),
        "check": None,
    }
