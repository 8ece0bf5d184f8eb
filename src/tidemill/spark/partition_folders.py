"""Convert the values of partition columns to folder names, and back.

A folder is called `by.COLUMN=VALUE`. Spark makes this name from a copy of the column as text. On its own,
Spark would put NULL, the empty string and the text `__HIVE_DEFAULT_PARTITION__` into one folder, and would
make names that are too long for a file system. So the copy contains an encoded text:

    NULL            NULL, which Spark calls __HIVE_DEFAULT_PARTITION__
    ~text           the empty text, a text that begins with ~, and Spark's name for NULL
    ~#digest        a text that is too long for a name, or has a control character
    text            every other text

Spark percent-encodes special characters in a name. If the name contains a digest, the value is read from the
file.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemill.errors import BadSchema
from tidemill.objects import ObjectInfo, Objects
from tidemill.objects.key import KEY_BYTES, NAME_BYTES
from tidemill.schemas.columns import quoted
from tidemill.spark import parquet_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_DIGEST: Final = "~#"
_FILE_BYTES: Final = 100  # of a file's own name, as Spark writes it
_ENCODED: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")  # what Spark encodes, as %XX


class Partitioning:
    """The folders of one write.

    Args:
        df: the frame. Raises `BadSchema` if it lacks a column, or if the column's type cannot name folders.
        columns: the partition columns, in the order of the folders.
        prefix: the folder that contains them. Its length counts, because keys have a maximum length.
        flag: a column of short texts that name the outermost folders. It is not written to the files.
    """

    def __init__(self, df: "DataFrame", columns: Sequence[str], prefix: str, flag: str | None = None) -> None:
        fields = {field.name: field.dataType for field in df.schema.fields} if columns else {}
        for column in columns:
            _check(column, fields)
        self.columns = tuple(columns)
        self.copies = tuple(_copy_name(column, n, df.columns) for n, column in enumerate(columns))
        self.flag = flag
        self.folders = self.copies if flag is None else (flag, *self.copies)
        self._types = fields
        room = (KEY_BYTES - len(prefix.encode()) - _FILE_BYTES) // max(1, len(columns))
        self._room = [min(NAME_BYTES, room) - len(_escaped(copy).encode()) - 2 for copy in self.copies]

    def prepare(self, df: "DataFrame") -> "DataFrame":
        """Add the copies of the columns, and let Spark put rows with equal values into few files."""
        from pyspark.sql import functions as sf

        if not self.copies:
            return df
        copies = [
            _spelled(sf.col(quoted(column)), self._types[column], room).alias(copy)
            for column, copy, room in zip(self.columns, self.copies, self._room, strict=True)
        ]
        columns = [sf.col(quoted(name)) for name in df.columns]
        return df.select(*columns, *copies).hint("rebalance", *[quoted(copy) for copy in self.copies])

    def values(self, objects: Objects, info: ObjectInfo, path: str) -> dict[str, str | None]:
        """Return the partition values of a file, as text. `path` is the file's key without the prefix."""
        values: dict[str, str | None] = {}
        folders = path.split("/")[:-1]
        for column, folder in zip(self.columns, folders[len(folders) - len(self.columns) :], strict=True):
            spelled = unescaped(folder.partition("=")[2])
            if spelled == _NULL:
                values[column] = None
            elif spelled.startswith(_DIGEST):
                values[column] = _text(parquet_files.first_value(objects, info, column))
            else:
                values[column] = spelled.removeprefix("~")
        return values


def _check(column: str, fields: "dict[str, DataType]") -> None:
    from pyspark.sql import types as st

    if column not in fields:
        raise BadSchema(
            f"the DataFrame has no column {column!r} to partition by",
            hint=f"use one of its columns: {', '.join(map(repr, fields))}",
        )
    data_type = fields[column]
    if isinstance(data_type, st.ArrayType | st.MapType | st.StructType | st.VariantType):
        raise BadSchema(
            f"cannot partition by {column!r}, which is {data_type.simpleString()}",
            hint="partition by a column of a simple type",
        )


def _copy_name(column: str, number: int, used: Sequence[str]) -> str:
    """Return a name for a column's copy that is not in use and is short enough for a folder."""
    name = f"by.{column}"
    if len(_escaped(name).encode()) > NAME_BYTES // 3:
        name = f"by.{number}"
    while name.lower() in {other.lower() for other in used}:
        name += "~"
    return name


def _spelled(value: "Column", data_type: "DataType", room: int) -> "Column":
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    text = sf.hex(value) if isinstance(data_type, st.BinaryType) else value.cast("string")
    digest = sf.concat(sf.lit(_DIGEST), sf.substring(sf.sha2(text, 256), 1, 32))
    # Each special character takes three bytes in the name. Control characters cannot be in a name.
    size = sf.octet_length(text) + 2 * sf.length(
        sf.regexp_replace(text, sf.lit(r"""[^"#%'*/:=?\\{\[\]^]"""), sf.lit(""))
    )
    return (
        sf.when(text.isNull(), sf.lit(None).cast("string"))
        .when((size > max(0, room)) | text.rlike(r"[\x00-\x1f\x7f]"), digest)
        .when((text == "") | (text == _NULL) | text.startswith("~"), sf.concat(sf.lit("~"), text))
        .otherwise(text)
    )


def _text(value: Any) -> str:
    """Convert a value to text as Spark does. Only texts and bytes get here: other values fit into a name."""
    return value.hex().upper() if isinstance(value, bytes) else str(value)


def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", name)


def unescaped(name: str) -> str:
    """Decode what Spark percent-encoded in the name of a folder."""
    return _ENCODED.sub(lambda match: chr(int(match[1], 16)), name)
