"""Partition columns as folders, and folders back as values.

A folder is called `by.COLUMN=VALUE`, made by Spark from a copy of the column as text. Spark alone would put
NULL, the empty string and the text `__HIVE_DEFAULT_PARTITION__` into one folder, and a long value into a name
no file system takes. So the copy holds the text in a spelling of its own:

    NULL            NULL, which Spark calls __HIVE_DEFAULT_PARTITION__
    ~text           the text as it is: the empty one, one that begins with ~, and Spark's name for NULL
    ~#digest        a text that is too long for a name, or has a character no name can have
    text            every other text

Spark percent-encodes what it must in a name. A value behind a digest is looked up in the file.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemill.errors import BadSchema
from tidemill.objects import Info, Objects
from tidemill.objects.key import KEY_BYTES, NAME_BYTES
from tidemill.schemas.columns import quoted
from tidemill.spark import footers

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
        df: what is written; `BadSchema` when it lacks a column, or has one that makes no folders.
        columns: in the order of the folders.
        prefix: where the folders are; all of a key must fit its limit.
        flag: a column of short texts that makes the outermost folders, and is not kept in the files.
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
        """The frame with its copies, brought together so that a value's rows are in few files."""
        from pyspark.sql import functions as sf

        if not self.copies:
            return df
        copies = [
            _spelled(sf.col(quoted(column)), self._types[column], room).alias(copy)
            for column, copy, room in zip(self.columns, self.copies, self._room, strict=True)
        ]
        columns = [sf.col(quoted(name)) for name in df.columns]
        return df.select(*columns, *copies).hint("rebalance", *[quoted(copy) for copy in self.copies])

    def values(self, objects: Objects, info: Info, path: str) -> dict[str, str | None]:
        """The values of a file's folders, as text; `path` is its key behind the prefix."""
        found: dict[str, str | None] = {}
        folders = path.split("/")[:-1]
        for column, folder in zip(self.columns, folders[len(folders) - len(self.columns) :], strict=True):
            spelled = unescaped(folder.partition("=")[2])
            if spelled == _NULL:
                found[column] = None
            elif spelled.startswith(_DIGEST):
                found[column] = _text(footers.first_value(objects, info, column))
            else:
                found[column] = spelled.removeprefix("~")
        return found


def _check(column: str, fields: "dict[str, DataType]") -> None:
    from pyspark.sql import types as st

    if column not in fields:
        raise BadSchema(
            f"there is no column {column!r} to partition by",
            hint=f"the columns are {', '.join(map(repr, fields))}",
        )
    kind = fields[column]
    if isinstance(kind, st.ArrayType | st.MapType | st.StructType | st.VariantType):
        raise BadSchema(
            f"{column!r} is {kind.simpleString()} and makes no folders", hint="partition by a simple column"
        )


def _copy_name(column: str, number: int, taken: Sequence[str]) -> str:
    """A name for the copy that no column has, and that fits a folder's name."""
    name = f"by.{column}"
    if len(_escaped(name).encode()) > NAME_BYTES // 3:
        name = f"by.{number}"
    while name.lower() in {other.lower() for other in taken}:
        name += "~"
    return name


def _spelled(value: "Column", kind: "DataType", room: int) -> "Column":
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    text = sf.hex(value) if isinstance(kind, st.BinaryType) else value.cast("string")
    digest = sf.concat(sf.lit(_DIGEST), sf.substring(sf.sha2(text, 256), 1, 32))
    # Each special character takes three bytes in the name; those that no name can have are the controls.
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
    """A value as Spark's cast to text writes it; only texts and bytes are ever too long for a name."""
    return value.hex().upper() if isinstance(value, bytes) else str(value)


def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def unescaped(name: str) -> str:
    """What Spark encoded in the name of a folder."""
    return _ENCODED.sub(lambda found: chr(int(found[1], 16)), name)
