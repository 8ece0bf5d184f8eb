"""Rows on their way between two layers: (range, operator, tag, blob), where a blob is an Arrow table.

Spark moves blobs without looking into them, and what that takes follows their bytes. So rows may have been
`narrowed` where they were cut into packets.
"""

import struct
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.views.chain.compact_rows import restored
from tidemill.views.chain.layer_task import Packet, TaskReport

TOLD = -1
"""The operator of a packet that is what a task told."""

HELLO = -2
"""The operator of a packet that only says that there is a range."""

WIRE = pa.schema(
    [
        pa.field("to", pa.int32()),
        pa.field("operator", pa.int32()),
        pa.field("tag", pa.string()),
        pa.field("blob", pa.binary()),
    ]
)
WIRE_DDL = "to INT, operator INT, tag STRING, blob BINARY"

_END = 8  # octets of the mark at the end of a stream


def to_wire(packets: Iterable[Packet]) -> Iterator[pa.RecordBatch]:
    """Packets as rows, one batch each."""
    for packet in packets:
        yield wire_row(packet.range, packet.operator, packet.tag, blob(packet.table))


def wire_row(to: int, operator: int, tag: str, body: bytes | pa.Buffer) -> pa.RecordBatch:
    """One row, as a batch of its own."""
    held = pa.py_buffer(body)
    offsets = pa.py_buffer(struct.pack("<ii", 0, held.size))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, held])
    ints = [pa.array([number], pa.int32()) for number in (to, operator)]
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
    return restored(pa.ipc.open_stream(body.as_buffer()).read_all())


def task_reports(rows: Iterable[bytes]) -> list[TaskReport]:
    """What the tasks of a step told."""
    return [TaskReport.decode(bytes(row)) for row in rows]
