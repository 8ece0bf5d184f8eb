"""The format of rows between two layers: (range, operator, tag, blob), where a blob is an Arrow table.

Spark moves blobs without decoding them. The time this takes grows with the size of the blobs, so packets may
be `compacted`.
"""

import struct
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.views.chain.compact_rows import restored
from tidemill.views.chain.layer_task import Packet, TaskReport

REPORT = -1
"""The operator number of a packet that contains the report of a task."""

RANGE = -2
"""The operator number of a packet that only announces a range, so that the range has a task in the next
layer."""

WIRE = pa.schema(
    [
        pa.field("to", pa.int32()),
        pa.field("operator", pa.int32()),
        pa.field("tag", pa.string()),
        pa.field("blob", pa.binary()),
    ]
)
WIRE_DDL = "to INT, operator INT, tag STRING, blob BINARY"

_END = 8  # bytes of the mark at the end of a stream


def to_wire(packets: Iterable[Packet]) -> Iterator[pa.RecordBatch]:
    """Convert packets to rows, one batch each."""
    for packet in packets:
        yield wire_row(packet.range, packet.operator, packet.tag, blob(packet.table))


def wire_row(to: int, operator: int, tag: str, body: bytes | pa.Buffer) -> pa.RecordBatch:
    """Return a batch with one row."""
    buffer = pa.py_buffer(body)
    offsets = pa.py_buffer(struct.pack("<ii", 0, buffer.size))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])
    ints = [pa.array([number], pa.int32()) for number in (to, operator)]
    return pa.RecordBatch.from_arrays([*ints, pa.array([tag]), value], schema=WIRE)


def blob(table: pa.Table) -> pa.Buffer:
    """Encode a table as one value."""
    batches = table.to_batches()
    size = table.schema.serialize().size + sum(map(pa.ipc.get_record_batch_size, batches)) + _END
    body = pa.allocate_buffer(size)
    sink = pa.FixedSizeBufferWriter(body)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return body


def table_of(body: pa.Scalar) -> pa.Table:
    """Decode the table in a value."""
    return restored(pa.ipc.open_stream(body.as_buffer()).read_all())


def task_reports(rows: Iterable[bytes]) -> list[TaskReport]:
    """Decode the reports of a step's tasks."""
    return [TaskReport.decode(bytes(row)) for row in rows]
