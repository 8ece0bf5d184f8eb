"""Headers of CSV files: columns go by their names, whatever their order, file by file.

Spark goes by place and drops the header unseen: a file whose columns changed places would be read wrong and
in silence. So the header of each file is read here, and files with equal headers are read together.
"""

import bz2
import csv
import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, cast

from tidemill.spark.culprits import ForeignFile
from tidemill.spark.formats import Reading, packing_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MOST = 1 << 20  # bytes of a header
_EXTRA = "_tidemill_extra_"


@dataclass(frozen=True)
class Header:
    """The columns of a file, in its order: declared ones with their types, others under names of ours.

    - unknown: from these names of ours to the file's own.
    """

    schema: "StructType"
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Files that are read alike; no header where there is none."""

    header: Header | None
    files: tuple[ForeignFile, ...]


def without(group: Group, file: ForeignFile) -> Group:
    """The same without one file."""
    return Group(group.header, tuple(each for each in group.files if each != file))


def grouped(
    files: Sequence[ForeignFile],
    schema: "StructType",
    reading: Reading,
    open_file: Callable[[str], BinaryIO],
    refused: dict[str, str],
) -> list[Group]:
    """Files by their headers; one whose header makes no sense is refused, one without any has no rows."""
    found: dict[tuple[str, ...], list[ForeignFile]] = {}
    for file in files:
        try:
            line = first_line(file.path, open_file)
        except (EOFError, zlib.error, OSError, ValueError) as error:
            refused[file.path] = f"its header cannot be read: {error}"
            continue
        if line is None:
            continue
        found.setdefault(tuple(split(line, reading)), []).append(file)
    groups = []
    for names, alike in found.items():
        header, wrong = _understood(names, schema)
        if header is None:
            refused.update((file.path, wrong) for file in alike)
        else:
            groups.append(Group(header, tuple(alike)))
    return groups


def first_line(path: str, open_file: Callable[[str], BinaryIO]) -> str | None:
    """The first line that is not blank; None when there is none."""
    with open_file(path) as raw:
        file = _unpacked(raw, packing_of(path))
        left = _MOST
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            text = line.decode("utf-8-sig", errors="replace").split("\r")[0].rstrip("\n")
            if text.strip():
                return text
    if left <= 0:
        raise ValueError(f"no end of its first line within {_MOST:,} bytes")
    return None


def _unpacked(raw: BinaryIO, packing: str) -> BinaryIO:
    if packing == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if packing == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if packing:
        raise ValueError(f"headers of {packing} files are not read; pack them as .gz or .bz2")
    return raw


def split(line: str, reading: Reading) -> list[str]:
    """The names in a header."""
    if len(reading.separator) > 1:
        names = line.split(reading.separator)
    elif reading.quote:
        same = reading.escape == reading.quote
        names = next(
            csv.reader(
                [line],
                delimiter=reading.separator,
                quotechar=reading.quote,
                escapechar=None if same else reading.escape,
            )
        )
    else:
        names = next(csv.reader([line], delimiter=reading.separator, quoting=csv.QUOTE_NONE))
    return [name.strip() for name in names]


def _understood(names: Sequence[str], schema: "StructType") -> tuple[Header | None, str]:
    from pyspark.sql.types import StringType, StructField, StructType

    exact = {field.name: field for field in schema.fields}
    folded = {field.name.casefold(): field for field in schema.fields}
    fields, seen, unknown = [], set(), {}
    for place, name in enumerate(names):
        declared = exact.get(name) or folded.get(name.casefold())
        if declared is None:
            fields.append(StructField(f"{_EXTRA}{place}", StringType()))
            unknown[f"{_EXTRA}{place}"] = name
            continue
        if declared.name in seen:
            return None, f"its header names {name!r} twice"
        seen.add(declared.name)
        fields.append(StructField(declared.name, declared.dataType))
    if not seen:
        return None, f"its header has none of the columns: {', '.join(names)[:300]}"
    return Header(StructType(fields), unknown), ""
