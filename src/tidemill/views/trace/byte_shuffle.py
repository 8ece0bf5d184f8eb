"""Byte shuffle: store the first bytes of all values together, then the second bytes, and so on.

Shuffled columns compress well and fast. The rows of a run are sorted by hash, so neighbouring values have
little in common except their magnitude. After the shuffle, high bytes are mostly equal and take almost no
space, and random low bytes take almost no time to compress. Strings are stored with lengths instead of
offsets. Nested columns are not changed.

The result is an Arrow batch again. A column of numbers becomes fixed-size binary of the same width. A text
column becomes two columns: the lengths, and all bytes together as the value of the first row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

_BYTES = pa.large_binary()
_LENGTHS = pa.binary(8)
_OFFSETS = {pa.string(): np.int32, pa.binary(): np.int32, pa.large_string(): np.int64, _BYTES: np.int64}


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns in which a run stores columns of this schema."""
    return pa.schema([stored for field in schema for stored in _stored_fields(field)])


def _stored_fields(field: pa.Field) -> Iterator[pa.Field]:
    if field.type in _OFFSETS:
        yield pa.field(field.name, _LENGTHS)
        yield pa.field(f"{field.name}.octets", _BYTES)
    else:
        width = _width(field.type)
        yield pa.field(field.name, pa.binary(width)) if width > 1 else field


def shuffle(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return a batch in its stored form.

    Args:
        batch: has at least one row.
        stored: the result of `stored_schema` for the batch.
    """
    arrays: list[pa.Array] = []
    for array in batch.columns:
        if array.type in _OFFSETS:
            arrays += _split_texts(array)
        elif _width(array.type) > 1:
            arrays.append(_with_bytes(array, _bytes(array).T, pa.binary(_width(array.type))))
        else:
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=stored)


def unshuffle(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """Return the original columns of a stored batch.

    Args:
        batch: in its stored form.
        schema: the original columns.
    """
    stored = iter(batch.columns)
    return [_unshuffle_column(next(stored), kind, stored) for kind in schema.types]


def _unshuffle_column(array: pa.Array, kind: pa.DataType, more: Iterator[pa.Array]) -> pa.Array:
    if kind in _OFFSETS:
        return _join_texts(array, next(more), kind)
    width = _width(kind)
    if width <= 1:
        return array
    return _with_bytes(array, _bytes(array).reshape(width, len(array)).T, kind)


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value of a fixed-width type; 0 for other types."""
    plain = pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind)
    return int(kind.bit_width) // 8 if plain else 0


def _bytes(array: pa.Array) -> Any:
    """Return the values of a column as a matrix with one row of bytes per value, including NULLs."""
    width = _width(array.type)
    data = array.buffers()[1]
    if data is None:  # all values are NULL
        return np.zeros((len(array), width), np.uint8)
    flat = np.frombuffer(data, np.uint8, len(array) * width, array.offset * width)
    return flat.reshape(len(array), width)


def _with_bytes(array: pa.Array, values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column with these bytes, and NULL where the array has NULL."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(array), [_validity(array), data])


def _validity(array: pa.Array) -> pa.Buffer | None:
    if array.null_count == 0:
        return None
    if array.offset == 0:
        return array.buffers()[0]
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def _split_texts(array: pa.Array) -> Sequence[pa.Array]:
    count, width = len(array), _OFFSETS[array.type]
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, width, count + 1, array.offset * np.dtype(width).itemsize)
    lengths = np.diff(ends).astype(np.int64).view(np.uint8).reshape(count, 8)
    low, high = int(ends[0]), int(ends[-1])
    one_value = np.full(count + 1, high - low, np.int64)
    one_value[0] = 0
    body = pa.py_buffer(b"") if data is None else data.slice(low, high - low)
    return [
        _with_bytes(array, lengths.T, _LENGTHS),
        pa.Array.from_buffers(_BYTES, count, [None, pa.py_buffer(one_value), body]),
    ]


def _join_texts(lengths: pa.Array, bodies: pa.Array, kind: pa.DataType) -> pa.Array:
    count = len(lengths)
    plain = np.ascontiguousarray(_bytes(lengths).reshape(8, count).T).view(np.int64).reshape(count)
    ends = np.zeros(count + 1, _OFFSETS[kind])
    np.cumsum(plain, out=ends[1:])
    data = bodies.buffers()[2]
    body = pa.py_buffer(b"") if data is None else data
    return pa.Array.from_buffers(kind, count, [_validity(lengths), pa.py_buffer(ends), body])
