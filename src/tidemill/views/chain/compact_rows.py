"""Rows in few octets, for their way from one process to another: what moves them takes as long as they have.

Whole numbers take as many octets as the largest of a table needs, and decimals of up to 18 digits are whole
numbers. Texts that repeat are numbers too, beside a list of those that there are. A weight that all rows have
is said once. The hash of a key is left out where computing it again takes less than moving it. What is needed
to give the rows back to the bit travels in the metadata of their schema.
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
"""Fewer rows are not worth it."""

_WIDE = b"wide"
_WEIGHT = b"weight"
_KEY = b"key"
_TEXTS = b"texts "  # and the name of a column
_GLANCE = 64
_SAMPLE = 1_024
_RARE = 8  # texts are numbered if a sample has each so many times
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_TEXT = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def compacted(table: pa.Table, layout: Layout | None = None) -> pa.Table:
    """The same rows in fewer octets; `restored` gives them back, of a part of them as well.

    Args:
        table: the rows.
        layout: says of which columns `_h` is the hash; None where it is that of something else.
    """
    told: dict[bytes, bytes] = {}
    found: dict[str, pa.Array] = {}
    for name in table.column_names:
        array = chunk(table, name)
        if array.type in _TEXT:
            found[name] = _numbered(array, name, told)
        elif name == WEIGHT and (weight := _same(array)) is not None:
            told[_WEIGHT] = b"%d" % weight
        elif name != HASH:
            found[name] = _narrow(array)
    if HASH in table.column_names:
        hashed = [] if layout is None else layout.hashed_names
        if layout is not None and found and all(_is_quick(found[name].type) for name in hashed):
            told[_KEY] = json.dumps([hashed, layout.key, layout.fine]).encode()
        else:
            found[HASH] = chunk(table, HASH)
    if not found and told:
        return table
    kept = [name for name in table.column_names if name in found]
    if not told and all(found[name].type == table.schema.field(name).type for name in kept):
        return table
    told = {**(table.schema.metadata or {}), **told, _WIDE: table.schema.serialize().to_pybytes()}
    return pa.table([found[name] for name in kept], names=kept).replace_schema_metadata(told)


def restored(table: pa.Table) -> pa.Table:
    """The rows as they were before `compacted`."""
    told = table.schema.metadata or {}
    if _WIDE not in told:
        return table
    schema = pa.ipc.read_schema(pa.py_buffer(told[_WIDE]))
    coded: dict[str, pa.Array] = {}  # as the hash is quickly computed
    found: dict[str, pa.Array] = {}
    for name in table.column_names:
        array, kind = chunk(table, name), schema.field(name).type
        texts = told.get(_TEXTS + name.encode())
        if texts is None:
            found[name] = _widen(array, kind)
        else:
            every = chunk(pa.ipc.open_stream(texts).read_all(), name)
            coded[name] = pa.DictionaryArray.from_arrays(array, every)
            found[name] = every.take(array)
    if _WEIGHT in told:
        found[WEIGHT] = pa.array(np.full(table.num_rows, int(told[_WEIGHT]), np.int64))
    if _KEY in told:
        names, key, fine = json.loads(told[_KEY])
        hashed = [coded.get(name, found[name]) for name in names]
        found[HASH] = pa.array(row_hashes(hashed, table.num_rows, key, fine=fine))
    return pa.Table.from_arrays([found[each.name] for each in schema], schema=schema)


# --- whole numbers


def _narrow(array: pa.Array) -> pa.Array:
    whole = _whole(array)
    if whole is None or _fitting(whole[:_GLANCE]) == whole.type:
        return array
    kind = _fitting(whole)
    return array if kind.bit_width >= array.type.bit_width else whole.cast(kind, safe=False)


def _whole(array: pa.Array) -> pa.Array | None:
    """The values of a column as whole numbers, if they are something like that."""
    kind = array.type
    if kind in _WHOLE:
        return array
    if pat.is_date32(kind):
        return array.view(pa.int32())
    if pat.is_timestamp(kind) or pat.is_time64(kind):
        return array.view(pa.int64())
    if pat.is_decimal128(kind) and kind.precision <= 18:  # its upper half is the sign
        low = np.ascontiguousarray(fixed_width_values(array, np.dtype((np.int64, (2,))))[:, 0])
        return pa.array(low, mask=_nulls(array))
    return None


def _fitting(whole: pa.Array) -> pa.DataType:
    ends = pc.min_max(whole)
    least, most = ends["min"].as_py() or 0, ends["max"].as_py() or 0
    for kind in _WHOLE:
        limit = 1 << (kind.bit_width - 1)
        if -limit <= least and most < limit:
            return kind
    return pa.int64()


def _same(weights: pa.Array) -> int | None:
    """The weight that all rows have, if it is one."""
    if weights.type != pa.int64() or weights.null_count or len(weights) == 0:
        return None
    ends = pc.min_max(weights)
    return int(ends["min"].as_py()) if ends["min"] == ends["max"] else None


def _widen(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pat.is_decimal128(kind):
        limbs = np.empty((len(array), 2), np.int64)
        limbs[:, 0] = pc.fill_null(array, 0).to_numpy()
        limbs[:, 1] = limbs[:, 0] >> 63
        return pa.Array.from_buffers(kind, len(array), [_validity(array), pa.py_buffer(limbs)])
    whole = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64() if kind.bit_width == 64 else kind)
    return whole if whole.type == kind else whole.view(kind)


def _nulls(array: pa.Array) -> Any:
    return pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None


def _validity(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pc.is_valid(array).buffers()[1]


# --- texts


def _numbered(array: pa.Array, name: str, told: dict[bytes, bytes]) -> pa.Array:
    """Numbers in the place of texts that repeat; which they are is told."""
    some = array[:: max(1, len(array) // _SAMPLE)] if len(array) > _SAMPLE else array
    if _RARE * pc.count_distinct(some, mode="all").as_py() > len(some):
        return array
    encoded = array.dictionary_encode()
    every = encoded.dictionary
    if _RARE * len(every) > len(array):
        return array
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([pa.field(name, array.type)])) as writer:
        writer.write_batch(pa.record_batch([every], names=[name]))
    told[_TEXTS + name.encode()] = sink.getvalue().to_pybytes()
    return _narrow(encoded.indices)


def _is_quick(kind: pa.DataType) -> bool:
    """Whether values, as they travel, are quickly hashed."""
    return bool(pat.is_primitive(kind) or pat.is_decimal128(kind))
