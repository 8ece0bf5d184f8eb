"""File formats, and the options to read them, as plain data that can be sent to any process."""

from enum import StrEnum
from pathlib import PurePosixPath

import msgspec

from tidemill.errors import BadSource
from tidemill.schemas.columns import Map, Simple, Type
from tidemill.schemas.type_table import parts_of


class Format(StrEnum):
    """The format of a file."""

    JSON = "json"  # one object per line
    CSV = "csv"
    PARQUET = "parquet"
    TEXT = "text"  # one row per line, in one column


ENDINGS = {
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".txt": Format.TEXT,
    ".text": Format.TEXT,
    ".log": Format.TEXT,
}
COMPRESSED = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"})
"""Endings of compressed files, which Spark decompresses itself."""


class FormatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the files of one source.

    - header: the first line of a CSV file names its columns, in any order. Without a header, the columns are
      in the order of the declaration.
    - multiline: a CSV record may have line breaks within quotes; a JSON file is one value over many lines.
    - null: the text that means NULL in CSV.
    - date_format, timestamp_format: in the notation of Spark; empty for ISO 8601.
    """

    format: Format
    header: bool = True
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    multiline: bool = False
    null: str = ""
    date_format: str = ""
    timestamp_format: str = ""

    def __post_init__(self) -> None:
        for name, value, longest in (
            ("separator", self.separator, 8),
            ("quote", self.quote, 1),
            ("escape", self.escape, 1),
        ):
            if not (name == "quote" or value) or len(value) > longest or "\n" in value or "\r" in value:
                raise BadSource(
                    f"{value!r} cannot be used as the CSV {name}",
                    hint="use a single character that is not a line break",
                )
        if self.separator == self.quote:
            raise BadSource(
                f"separator and quote are both {self.quote!r}", hint="use two different characters"
            )
        if self.multiline and self.format not in (Format.CSV, Format.JSON):
            raise BadSource(
                f"multiline does not work with {self.format}",
                hint="omit it; multiline is only for csv and json",
            )

    @property
    def by_lines(self) -> bool:
        """Whether every line is one record, so that a record has a line number."""
        return self.format is not Format.PARQUET and not self.multiline


def format_of(name: str) -> Format | None:
    """Return the format that the ending of a file name or pattern implies, such as `.csv` or `.csv.gz`."""
    endings = [ending.lower() for ending in PurePosixPath(name).suffixes]
    if endings and endings[-1] in COMPRESSED:
        endings.pop()
    return ENDINGS.get(endings[-1]) if endings else None


def why_not_read(file_format: Format, column_type: Type) -> str:
    """Return why Spark cannot read a type from files of a format; empty if it can."""
    if file_format is Format.CSV and not isinstance(column_type, Simple):
        return f"CSV has no values of the type {column_type}"
    if (
        file_format is Format.JSON
        and isinstance(column_type, Map)
        and not str(column_type.key).startswith("string")
    ):
        return f"the keys of a JSON object are texts, not {column_type.key}"
    return next(filter(None, (why_not_read(file_format, part) for part in parts_of(column_type))), "")


def compression_of(name: str) -> str:
    """Return the compression ending of a file name, such as `.gz`; empty if the file is not compressed."""
    ending = PurePosixPath(name).suffix.lower()
    return ending if ending in COMPRESSED else ""
