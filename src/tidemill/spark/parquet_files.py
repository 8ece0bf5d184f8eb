"""Read Parquet files in object storage, and fetch only the byte ranges that are needed."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.errors import ObjectMissing, ObjectUnreadable
from tidemill.objects import ObjectInfo, Objects

_THREADS: Final = 16


class RangedFile(io.RawIOBase):
    """An object as a seekable file. Every read requests only the needed byte range."""

    def __init__(self, objects: Objects, key: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        self._offset = max(0, start + offset)
        return self._offset

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._offset)
        length = left if size is None or size < 0 else min(size, left)
        if length == 0:
            return b""
        body = self._objects.get_range(self._key, self._offset, length)
        self._offset += len(body)
        return body


def open_parquet(objects: Objects, key: str, size: int, *, buffer_bytes: int = 0) -> Any:
    """Open an object as a `pyarrow.parquet.ParquetFile`. Raise `ObjectUnreadable` if that fails.

    - buffer_bytes: how much of a column to fetch at once; 0 fetches the whole column of a row group.
    """
    try:
        return pq.ParquetFile(
            pa.PythonFile(RangedFile(objects, key, size), mode="r"), buffer_size=buffer_bytes
        )
    except MemoryError:
        raise  # Arrow raises this too; the file is not the cause
    except (pa.ArrowException, OSError, ObjectMissing) as error:
        raise unreadable(key, f"it is not a complete Parquet file: {error}") from error


def count_rows(objects: Objects, files: Sequence[ObjectInfo]) -> list[int]:
    """Return how many rows each file has, in the order of `files`. This reads only the footers."""
    if len(files) < 2:
        return [_rows(objects, info) for info in files]
    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="footers") as pool:
        return list(pool.map(lambda info: _rows(objects, info), files))


def _rows(objects: Objects, info: ObjectInfo) -> int:
    with open_parquet(objects, info.key, info.size) as file:
        return int(file.metadata.num_rows)


def first_value(objects: Objects, info: ObjectInfo, column: str) -> Any:
    """Read the value of a column in the first row of a file."""
    with open_parquet(objects, info.key, info.size) as file:
        index = file.schema_arrow.get_field_index(column)
        name = file.schema_arrow.field(index).name
        return next(file.iter_batches(1, columns=[name])).column(0)[0].as_py()


def unreadable(key: str, why: str) -> ObjectUnreadable:
    """Return the error for an object that cannot be read."""
    error = ObjectUnreadable(f"{key!r} cannot be read: {why}")
    error.key = key
    return error
