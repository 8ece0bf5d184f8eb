"""Columns as they are stored: octets of the same place together, which compresses well and quickly.

Rows of a run are sorted by a hash, so their values are in no order, and numbers that stand behind each other
have little in common but how large they are. The first octets of all values, then the second ones, and so on
do: those that are all zero take no room, those that are noise take no time. Of texts, lengths are stored
instead of where each begins. What is nested stays as it is.

What comes out is Arrow again: of numbers octets of the same width, which are not those of one value; of texts
two columns, their lengths and their octets, all of these as the value of the first row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

_OCTETS = pa.large_binary()
_LENGTHS = pa.binary(8)
_OFFSETS = {pa.string(): np.int32, pa.binary(): np.int32, pa.large_string(): np.int64, _OCTETS: np.int64}


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that these are stored as."""
    return pa.schema([each for one in schema for each in _stored_fields(one)])


def _stored_fields(one: pa.Field) -> Iterator[pa.Field]:
    if one.type in _OFFSETS:
        yield pa.field(one.name, _LENGTHS)
        yield pa.field(f"{one.name}.octets", _OCTETS)
    else:
        width = _width(one.type)
        yield pa.field(one.name, pa.binary(width)) if width > 1 else one


def shuffle(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """A batch as it is stored.

    Args:
        batch: of at least one row.
        stored: what `stored_schema` says of its columns.
    """
    found: list[pa.Array] = []
    for array in batch.columns:
        if array.type in _OFFSETS:
            found += _split_texts(array)
        elif _width(array.type) > 1:
            found.append(_with_octets(array, _octets(array).T, pa.binary(_width(array.type))))
        else:
            found.append(array)
    return pa.RecordBatch.from_arrays(found, schema=stored)


def unshuffle(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """The columns of a batch that was stored.

    Args:
        batch: as it was stored.
        schema: the columns that were.
    """
    stored = iter(batch.columns)
    return [_joined(next(stored), kind, stored) for kind in schema.types]


def _joined(array: pa.Array, kind: pa.DataType, more: Iterator[pa.Array]) -> pa.Array:
    if kind in _OFFSETS:
        return _join_texts(array, next(more), kind)
    width = _width(kind)
    if width <= 1:
        return array
    return _with_octets(array, _octets(array).reshape(width, len(array)).T, kind)


def _width(kind: pa.DataType) -> int:
    """The octets of a value, if it is nothing but these; else 0."""
    plain = pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind)
    return int(kind.bit_width) // 8 if plain else 0


def _octets(array: pa.Array) -> Any:
    """The values of a column, a row of octets each, NULLs too."""
    width = _width(array.type)
    data = array.buffers()[1]
    if data is None:  # all of them NULL
        return np.zeros((len(array), width), np.uint8)
    found = np.frombuffer(data, np.uint8, len(array) * width, array.offset * width)
    return found.reshape(len(array), width)


def _with_octets(array: pa.Array, octets: Any, kind: pa.DataType) -> pa.Array:
    """A column of these octets, NULL where the array is."""
    data = pa.py_buffer(np.ascontiguousarray(octets))
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
    every = np.full(count + 1, high - low, np.int64)
    every[0] = 0
    octets = pa.py_buffer(b"") if data is None else data.slice(low, high - low)
    return [
        _with_octets(array, lengths.T, _LENGTHS),
        pa.Array.from_buffers(_OCTETS, count, [None, pa.py_buffer(every), octets]),
    ]


def _join_texts(lengths: pa.Array, octets: pa.Array, kind: pa.DataType) -> pa.Array:
    count = len(lengths)
    plain = np.ascontiguousarray(_octets(lengths).reshape(8, count).T).view(np.int64).reshape(count)
    ends = np.zeros(count + 1, _OFFSETS[kind])
    np.cumsum(plain, out=ends[1:])
    data = octets.buffers()[2]
    whole = pa.py_buffer(b"") if data is None else data
    return pa.Array.from_buffers(kind, count, [_validity(lengths), pa.py_buffer(ends), whole])
