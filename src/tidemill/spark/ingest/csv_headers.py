"""Match the columns of CSV files by name, separately for each file.

Spark matches columns by position and ignores the header. It would silently read wrong values from a file
whose columns are in another order. So this module reads the header of each file, and groups files with equal
headers so that Spark reads them together.
"""

import bz2
import csv
import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, cast

from tidemill.spark.ingest.foreign_files import ForeignFile
from tidemill.spark.ingest.formats import FormatOptions, compression_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MOST_BYTES = 1 << 20  # of a header
_EXTRA = "_tidemill_extra_"


@dataclass(frozen=True)
class CsvHeader:
    """The columns of a CSV file, in the order of the file. Undeclared columns have generated names.

    - unknown: maps each generated name to the name in the file.
    """

    schema: "StructType"
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileGroup:
    """Files that are read in the same way; `header` is None for files without one."""

    header: CsvHeader | None
    files: tuple[ForeignFile, ...]


def without(group: FileGroup, file: ForeignFile) -> FileGroup:
    """Return the group without one file."""
    return FileGroup(group.header, tuple(other for other in group.files if other != file))


def grouped(
    files: Sequence[ForeignFile],
    schema: "StructType",
    format_options: FormatOptions,
    open_file: Callable[[str], BinaryIO],
    refused: dict[str, str],
) -> list[FileGroup]:
    """Group files with equal headers. Leave out empty files and files with a bad header.

    - refused: receives the reason for each file with a bad header.
    """
    by_names: dict[tuple[str, ...], list[ForeignFile]] = {}
    for file in files:
        try:
            line = first_line(file.path, open_file)
        except (EOFError, zlib.error, OSError, ValueError) as error:
            refused[file.path] = f"its header cannot be read: {error}"
            continue
        if line is None:
            continue
        by_names.setdefault(tuple(split(line, format_options)), []).append(file)
    groups = []
    for names, same_header in by_names.items():
        header, fault = _matched(names, schema)
        if header is None:
            refused.update((file.path, fault) for file in same_header)
        else:
            groups.append(FileGroup(header, tuple(same_header)))
    return groups


def first_line(path: str, open_file: Callable[[str], BinaryIO]) -> str | None:
    """Return the first line that is not blank; None if there is none."""
    with open_file(path) as raw:
        file = _decompressed(raw, compression_of(path))
        left = _MOST_BYTES
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            text = line.decode("utf-8-sig", errors="replace").split("\r")[0].rstrip("\n")
            if text.strip():
                return text
    if left <= 0:
        raise ValueError(f"its first line does not end within {_MOST_BYTES:,} bytes")
    return None


def _decompressed(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if compression == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if compression:
        raise ValueError(
            f"{compression} is not supported for a CSV file with a header; compress the file as .gz or .bz2"
        )
    return raw


def split(line: str, format_options: FormatOptions) -> list[str]:
    """Split a header into its names."""
    if len(format_options.separator) > 1:
        names = line.split(format_options.separator)
    elif format_options.quote:
        same = format_options.escape == format_options.quote
        names = next(
            csv.reader(
                [line],
                delimiter=format_options.separator,
                quotechar=format_options.quote,
                escapechar=None if same else format_options.escape,
            )
        )
    else:
        names = next(csv.reader([line], delimiter=format_options.separator, quoting=csv.QUOTE_NONE))
    return [name.strip() for name in names]


def _matched(names: Sequence[str], schema: "StructType") -> tuple[CsvHeader | None, str]:
    from pyspark.sql.types import StringType, StructField, StructType

    exact = {field.name: field for field in schema.fields}
    folded = {field.name.casefold(): field for field in schema.fields}
    fields, matched, unknown = [], set(), {}
    for number, name in enumerate(names):
        declared = exact.get(name) or folded.get(name.casefold())
        if declared is None:
            fields.append(StructField(f"{_EXTRA}{number}", StringType()))
            unknown[f"{_EXTRA}{number}"] = name
            continue
        if declared.name in matched:
            return None, f"its header names {name!r} twice"
        matched.add(declared.name)
        fields.append(StructField(declared.name, declared.dataType))
    if not matched:
        return None, f"its header has none of the declared columns; it has {', '.join(names)[:300]}"
    return CsvHeader(StructType(fields), unknown), ""
