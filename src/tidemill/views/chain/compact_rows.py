"""Encode rows in fewer bytes before they are sent to another process, so that sending takes less time.

- An integer column uses the smallest type that holds its values. Decimals of up to 18 digits become integers.
- Repeated strings become numbers that refer to a dictionary.
- A weight that all rows share is stored once.
- The hash of a key is dropped if computing it again is cheaper than sending it.

The schema metadata holds what `restored` needs to return exactly the same rows.
"""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.views.trace.consolidation import chunk
from tidemill.views.trace.key_hash import row_hashes
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.row_equality import fixed_width_values

COMPACTED_ROWS = 4_096
"""The minimum number of rows for which compaction is worth its time."""

_WIDE = b"wide"
_WEIGHT = b"weight"
_KEY = b"key"
_TEXTS = b"texts "  # followed by the name of a column
_FIRST_ROWS = 64
_SAMPLE = 1_024
_REPEATS = 8  # strings become numbers if each occurs this often in a sample, on average
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_STRINGS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def compacted(table: pa.Table, layout: Layout | None = None) -> pa.Table:
    """Return the same rows in fewer bytes. `restored` accepts the result or any slice of it.

    Args:
        table: the rows.
        layout: names the columns that the hash `_h` is computed from; None if the hash is computed in another
            way.
    """
    metadata: dict[bytes, bytes] = {}
    arrays: dict[str, pa.Array] = {}
    for name in table.column_names:
        array = chunk(table, name)
        if array.type in _STRINGS:
            arrays[name] = _encoded(array, name, metadata)
        elif name == WEIGHT and (weight := _common_weight(array)) is not None:
            metadata[_WEIGHT] = b"%d" % weight
        elif name != HASH:
            arrays[name] = _narrowed(array)
    if HASH in table.column_names:
        hashed = [] if layout is None else layout.hashed_names
        if layout is not None and arrays and all(_is_fast_to_hash(arrays[name].type) for name in hashed):
            metadata[_KEY] = json.dumps([hashed, layout.key, layout.fine]).encode()
        else:
            arrays[HASH] = chunk(table, HASH)
    if not arrays and metadata:
        return table
    names = [name for name in table.column_names if name in arrays]
    if not metadata and all(arrays[name].type == table.schema.field(name).type for name in names):
        return table
    metadata = {**(table.schema.metadata or {}), **metadata, _WIDE: table.schema.serialize().to_pybytes()}
    return pa.table([arrays[name] for name in names], names=names).replace_schema_metadata(metadata)


def restored(table: pa.Table) -> pa.Table:
    """Return the rows as they were before `compacted`."""
    metadata = table.schema.metadata or {}
    if _WIDE not in metadata:
        return table
    schema = pa.ipc.read_schema(pa.py_buffer(metadata[_WIDE]))
    coded: dict[str, pa.Array] = {}  # dictionary-encoded strings: faster to hash
    arrays: dict[str, pa.Array] = {}
    for name in table.column_names:
        array, kind = chunk(table, name), schema.field(name).type
        texts = metadata.get(_TEXTS + name.encode())
        if texts is None:
            arrays[name] = _widened(array, kind)
        else:
            values = chunk(pa.ipc.open_stream(texts).read_all(), name)
            coded[name] = pa.DictionaryArray.from_arrays(array, values)
            arrays[name] = values.take(array)
    if _WEIGHT in metadata:
        arrays[WEIGHT] = pa.array(np.full(table.num_rows, int(metadata[_WEIGHT]), np.int64))
    if _KEY in metadata:
        names, key, fine = json.loads(metadata[_KEY])
        hashed = [coded.get(name, arrays[name]) for name in names]
        arrays[HASH] = pa.array(row_hashes(hashed, table.num_rows, key, fine=fine))
    return pa.Table.from_arrays([arrays[each.name] for each in schema], schema=schema)


# --- integers


def _narrowed(array: pa.Array) -> pa.Array:
    integers = _as_integers(array)
    if integers is None or _smallest_type(integers[:_FIRST_ROWS]) == integers.type:
        return array
    kind = _smallest_type(integers)
    return array if kind.bit_width >= array.type.bit_width else integers.cast(kind, safe=False)


def _as_integers(array: pa.Array) -> pa.Array | None:
    """Return the values of a column as integers, or None if its type is not stored as integers."""
    kind = array.type
    if kind in _INTEGERS:
        return array
    if pat.is_date32(kind):
        return array.view(pa.int32())
    if pat.is_timestamp(kind) or pat.is_time64(kind):
        return array.view(pa.int64())
    if pat.is_decimal128(kind) and kind.precision <= 18:  # the upper half only repeats the sign
        low = np.ascontiguousarray(fixed_width_values(array, np.dtype((np.int64, (2,))))[:, 0])
        return pa.array(low, mask=_nulls(array))
    return None


def _smallest_type(integers: pa.Array) -> pa.DataType:
    ends = pc.min_max(integers)
    least, most = ends["min"].as_py() or 0, ends["max"].as_py() or 0
    for kind in _INTEGERS:
        limit = 1 << (kind.bit_width - 1)
        if -limit <= least and most < limit:
            return kind
    return pa.int64()


def _common_weight(weights: pa.Array) -> int | None:
    """Return the weight that all rows have, or None if the weights differ."""
    if weights.type != pa.int64() or weights.null_count or len(weights) == 0:
        return None
    ends = pc.min_max(weights)
    return int(ends["min"].as_py()) if ends["min"] == ends["max"] else None


def _widened(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pat.is_decimal128(kind):
        limbs = np.empty((len(array), 2), np.int64)
        limbs[:, 0] = pc.fill_null(array, 0).to_numpy()
        limbs[:, 1] = limbs[:, 0] >> 63
        return pa.Array.from_buffers(kind, len(array), [_validity(array), pa.py_buffer(limbs)])
    integers = array.cast(
        pa.int32() if kind.bit_width == 32 else pa.int64() if kind.bit_width == 64 else kind
    )
    return integers if integers.type == kind else integers.view(kind)


def _nulls(array: pa.Array) -> Any:
    return pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None


def _validity(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pc.is_valid(array).buffers()[1]


# --- strings


def _encoded(array: pa.Array, name: str, metadata: dict[bytes, bytes]) -> pa.Array:
    """Replace repeated strings with numbers, and add the dictionary to the metadata."""
    sample = array[:: max(1, len(array) // _SAMPLE)] if len(array) > _SAMPLE else array
    if _REPEATS * pc.count_distinct(sample, mode="all").as_py() > len(sample):
        return array
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    if _REPEATS * len(values) > len(array):
        return array
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([pa.field(name, array.type)])) as writer:
        writer.write_batch(pa.record_batch([values], names=[name]))
    metadata[_TEXTS + name.encode()] = sink.getvalue().to_pybytes()
    return _narrowed(encoded.indices)


def _is_fast_to_hash(kind: pa.DataType) -> bool:
    """Return whether values of this compacted type are fast to hash."""
    return bool(pat.is_primitive(kind) or pat.is_decimal128(kind))
