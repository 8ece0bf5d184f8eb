"""What a Parquet file says of itself, read by ranges: nothing but its end is fetched."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import ObjectMissing, ObjectUnreadable
from tidemill.objects import Info, Objects

_AT_ONCE: Final = 16


class RangedFile(io.RawIOBase):
    """An object as a file that can be read anywhere; every read is a ranged one."""

    def __init__(self, objects: Objects, key: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if length == 0:
            return b""
        body = self._objects.get_range(self._key, self._at, length)
        self._at += len(body)
        return body


def open_parquet(objects: Objects, key: str, size: int, *, buffer_bytes: int = 0) -> Any:
    """A `pyarrow.parquet.ParquetFile` on an object; `ObjectUnreadable` when it is none.

    - buffer_bytes: how much of a column is fetched at once; 0 is all of it that a row group has.
    """
    try:
        return pq.ParquetFile(
            pa.PythonFile(RangedFile(objects, key, size), mode="r"), buffer_size=buffer_bytes
        )
    except MemoryError:
        raise  # of Arrow's as well: it says nothing of the file
    except (pa.ArrowException, OSError, ObjectMissing) as error:
        raise unreadable(key, f"it is no whole Parquet file: {error}") from error


def count_rows(objects: Objects, found: Sequence[Info]) -> list[int]:
    """How many rows each file has, by its footer, in the order given."""
    if len(found) < 2:
        return [_rows(objects, info) for info in found]
    with ThreadPoolExecutor(min(_AT_ONCE, len(found)), thread_name_prefix="footers") as pool:
        return list(pool.map(lambda info: _rows(objects, info), found))


def _rows(objects: Objects, info: Info) -> int:
    with open_parquet(objects, info.key, info.size) as file:
        return int(file.metadata.num_rows)


def first_value(objects: Objects, info: Info, column: str) -> Any:
    """The value of a column in the first row of a file that has one."""
    with open_parquet(objects, info.key, info.size) as file:
        place = file.schema_arrow.get_field_index(column)
        name = file.schema_arrow.field(place).name
        return next(file.iter_batches(1, columns=[name])).column(0)[0].as_py()


def unreadable(key: str, why: str) -> ObjectUnreadable:
    """The error that names an object."""
    error = ObjectUnreadable(f"{key!r} cannot be read: {why}")
    error.key = key
    return error
