"""Columns that say where a row of a file comes from: its file, its line, and when the file arrived.

A source fills these columns if its declaration names them (`file_column=`, `line_column=`,
`arrived_column=`). The dataset declares them like any other column. Records do not contain them: a value
with the same name in a record is treated as undeclared.
"""

from typing import Final

import msgspec

from tidemill.errors import BadSource
from tidemill.schemas.columns import Schema
from tidemill.spark.ingest.formats import FormatOptions

TYPES: Final = {"file": "string", "line": "bigint", "arrived": "timestamp"}
"""The type of each column."""

SPELLED: Final = frozenset({"_file", "_line", "_arrived_at"})
"""Names that begin with _ and are allowed for these columns, although such names are reserved otherwise."""


class OriginColumns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The names of the columns that a source of files fills itself; empty for none.

    - file: the path of the file below the source's folder.
    - line: the line of the record in its file; lines are counted from 1, and the header is a line too.
    - arrived: when Tidemill found the file.
    """

    file: str = ""
    line: str = ""
    arrived: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the source fills."""
        return tuple(filter(None, (self.file, self.line, self.arrived)))

    def without(self, declared: Schema) -> Schema:
        """Return the columns that the files contain."""
        return Schema(tuple(column for column in declared.columns if column.name not in self.names))

    def check(self, table: str, declared: Schema, format_options: FormatOptions) -> None:
        """Raise `BadSource` if the dataset does not declare the columns, or if the format has no lines."""
        if self.line and not format_options.by_lines:
            what = "multiline records" if format_options.multiline else f"{format_options.format} files"
            raise BadSource(
                f"line_column={self.line!r} does not work with {what}: a record is not one line",
                hint="omit line_column=; file_column= and arrived_column= work with every format",
            )
        if len(set(self.names)) < len(self.names):
            raise BadSource("two of file_column=, line_column= and arrived_column= are equal")
        types = {column.name: str(column.type) for column in declared.columns}
        for option, wanted in TYPES.items():
            name = getattr(self, option)
            if name and types.get(name) != wanted:
                raise BadSource(
                    f"{option}_column={name!r}: the dataset {table}"
                    f" {f'declares it as {types[name].upper()}' if name in types else 'has no such column'}",
                    hint=f"declare it in the schema of the dataset: {name} {wanted.upper()}",
                )


class FileOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What one window fills these columns with.

    - columns: their names.
    - arrived_us: when Tidemill found the files of the window, in microseconds since 1970.
    """

    columns: OriginColumns
    arrived_us: int = 0


NO_ORIGIN: Final = FileOrigin(columns=OriginColumns())
