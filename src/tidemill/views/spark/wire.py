"""Rows on their way between two layers: (range, station, tag, blob), where a blob is an Arrow table.

Spark moves blobs without looking into them, and what that takes follows their bytes. So whole numbers travel
in as few octets as the largest of them needs, and decimals as whole numbers, wherever there are enough rows
for that to pay; the schema that the rows had travels along.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.views.chain.work import Packet, Told
from tidemill.views.trace.consolidate import chunk
from tidemill.views.trace.words import fixed

TOLD = -1
"""The station of a packet that is what a task told."""

HELLO = -2
"""The station of a packet that only says that there is a range."""

WIRE = pa.schema(
    [
        pa.field("to", pa.int32()),
        pa.field("station", pa.int32()),
        pa.field("tag", pa.string()),
        pa.field("blob", pa.binary()),
    ]
)
WIRE_DDL = "to INT, station INT, tag STRING, blob BINARY"

_NARROWED_ROWS = 4_096
_GLANCE = 64
_WIDE = b"wide"
_END = 8  # octets of the mark at the end of a stream
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def to_wire(packets: Iterable[Packet], *, narrow: bool) -> Iterator[pa.RecordBatch]:
    """Packets as rows, one batch each; `narrow` where they leave the process."""
    for packet in packets:
        few = not narrow or packet.table.num_rows < _NARROWED_ROWS
        yield wire_row(
            packet.range, packet.station, packet.tag, blob(packet.table if few else narrowed(packet.table))
        )


def wire_row(to: int, station: int, tag: str, body: bytes | pa.Buffer) -> pa.RecordBatch:
    """One row, as a batch of its own."""
    held = pa.py_buffer(body)
    offsets = pa.py_buffer(struct.pack("<ii", 0, held.size))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, held])
    ints = [pa.array([number], pa.int32()) for number in (to, station)]
    return pa.RecordBatch.from_arrays([*ints, pa.array([tag]), value], schema=WIRE)


def blob(table: pa.Table) -> pa.Buffer:
    """A table as one value."""
    batches = table.to_batches()
    size = table.schema.serialize().size + sum(map(pa.ipc.get_record_batch_size, batches)) + _END
    body = pa.allocate_buffer(size)
    sink = pa.FixedSizeBufferWriter(body)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return body


def table_of(body: pa.Scalar) -> pa.Table:
    """The table in a value."""
    return widened(pa.ipc.open_stream(body.as_buffer()).read_all())


def told_of(rows: Iterable[bytes]) -> list[Told]:
    """What the tasks of a step told."""
    return [Told.decode(bytes(row)) for row in rows]


# --- few octets


def narrowed(table: pa.Table) -> pa.Table:
    """The same rows in columns of fewer octets, where they fit; `widened` gives them back."""
    arrays = [_narrow(chunk(table, name)) for name in table.column_names]
    if all(mine.type == kind for mine, kind in zip(arrays, table.schema.types, strict=True)):
        return table
    told = {**(table.schema.metadata or {}), _WIDE: table.schema.serialize().to_pybytes()}
    return pa.table(arrays, names=table.column_names).replace_schema_metadata(told)


def widened(table: pa.Table) -> pa.Table:
    """The rows as they were before `narrowed`."""
    told = (table.schema.metadata or {}).get(_WIDE)
    if told is None:
        return table
    schema = pa.ipc.read_schema(pa.py_buffer(told))
    arrays = [_widen(chunk(table, each.name), each.type) for each in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


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
        low = np.ascontiguousarray(fixed(array, np.dtype((np.int64, (2,))))[:, 0])
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
