"""Read Arrow streams that other programs sent, within a limit of memory.

A few bytes of a stream can describe a table that no machine can hold: a column of NULLs needs no bytes,
compressed buffers may expand ten thousand times, and the rows of a dictionary column may share one large
value. So the size of every message is computed from its metadata before Arrow allocates memory for it.
"""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROW_BYTES = 3
"""A row of JSON lines has at least this many bytes. A stream may have as many rows as JSON lines can."""

# The fields of the metadata, by their numbers in Arrow's Message.fbs and Schema.fbs.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DATA = 1
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3


class StreamTooLarge(Exception):
    """The table of a stream would be larger than the limit."""


def read_stream(body: bytes, most_bytes: int) -> pa.Table:
    """Read the table of a stream; raise `StreamTooLarge`, or an error of Arrow if the stream is damaged.

    Args:
        body: the stream.
        most_bytes: how many bytes its columns may have after decompression.
    """
    rows = size = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        batch = _batch_of(message)
        if batch is not None:
            rows += batch.rows
            size += batch.size
            if rows > most_bytes // _ROW_BYTES or size > most_bytes:
                raise StreamTooLarge
    with pa.ipc.open_stream(body) as stream:
        table = stream.read_all()
    table.validate(full=True)  # wrong offsets or lengths would crash native code later
    if sum(_decoded_bytes(column) for column in table.columns) > most_bytes:
        raise StreamTooLarge
    return table


class _Batch:
    """The number of rows in a batch, and the size of its buffers after decompression."""

    def __init__(self, metadata: bytes, at: int, body: pa.Buffer | None) -> None:
        length = _field(metadata, at, _LENGTH)
        self.rows = 0 if length is None else int(struct.unpack_from("<q", metadata, length)[0])
        content = memoryview(b"" if body is None else body)
        self.size = len(content)
        buffers = _field(metadata, at, _BUFFERS)
        if buffers is None or _field(metadata, at, _COMPRESSION) is None:
            return
        first = _follow(metadata, buffers)
        (count,) = struct.unpack_from("<I", metadata, first)
        self.size = 0
        for number in range(count):
            offset, stored = struct.unpack_from("<qq", metadata, first + 4 + 16 * number)
            if stored >= 8 and 0 <= offset <= len(content) - 8:
                (expanded,) = struct.unpack_from("<q", content, offset)
                self.size += stored if expanded < 0 else expanded


def _batch_of(message: Any) -> _Batch | None:
    """Return the batch in a message; None if the message is a schema."""
    metadata = message.metadata.to_pybytes()
    try:
        root = _follow(metadata, 0)
        kind, header = _field(metadata, root, _HEADER_TYPE), _field(metadata, root, _HEADER)
        if kind is None or header is None or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            return None
        at = _follow(metadata, header)
        if metadata[kind] == _DICTIONARY_BATCH:
            data = _field(metadata, at, _DATA)
            if data is None:
                return None
            at = _follow(metadata, data)
        return _Batch(metadata, at, message.body)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid("the metadata of a message is damaged") from error


def _follow(metadata: bytes, at: int) -> int:
    """Return the place that an offset in FlatBuffers metadata points to."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the place of a field in a table of FlatBuffers metadata; None if the field has its default."""
    fields = table - int(struct.unpack_from("<i", metadata, table)[0])
    if not 0 <= fields < len(metadata):
        raise IndexError("a field lies outside the metadata of its message")
    (size,) = struct.unpack_from("<H", metadata, fields)
    place = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", metadata, fields + place) if place + 2 <= size else (0,)
    return table + int(offset) if offset else None


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """Return the size of a column after values that rows share are written out for each row."""
    types, kind, size = pa.types, column.type, int(column.nbytes)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return size + sum(_view_bytes(chunk) for chunk in column.chunks)
    if types.is_dictionary(kind) and not types.is_nested(kind.value_type) and not _shares(kind.value_type):
        if types.is_primitive(kind.value_type) or types.is_decimal(kind.value_type):
            return size + 32 * len(column)
        lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
        return size + sum(int(pc.sum(each).as_py() or 0) for each in lengths)
    if _shares(kind):
        raise pa.ArrowInvalid(f"columns of the type {kind} are not supported")
    return size


def _view_bytes(views: pa.Array) -> int:
    """Return the total length of texts that are stored as views: each view begins with its length."""
    numbers = np.frombuffer(views.buffers()[1], np.int32, 4 * (views.offset + len(views)))
    return int(numbers[4 * views.offset :: 4].sum(dtype=np.int64))


def _shares(kind: pa.DataType) -> bool:
    """Return whether rows of a type, or of a type inside of it, may share values."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or "view" in str(kind).partition("<")[0]:
        return True
    return any(_shares(kind.field(number).type) for number in range(kind.num_fields))
