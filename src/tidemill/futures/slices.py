"""Slices of Arrow values: stored without the memory around them.

pickle takes a slice with all of the memory it was cut from: ten rows of a table of a gigabyte would be a
gigabyte. A value that holds much less than its buffers goes through Arrow's own stream format instead, which
writes what the slice holds and no more; that costs one copy of the slice.
"""

import functools
import pickle
from typing import Any

WASTE = 1.25
SPARE_BYTES = 64 * 1024


@functools.cache
def _kinds() -> Any:
    import pyarrow as pa

    return pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray


def reduce_slice(obj: Any) -> Any:
    """How to pickle an Arrow value that is much smaller than its memory; NotImplemented for all else."""
    if not type(obj).__module__.startswith("pyarrow") or not isinstance(obj, _kinds()):
        return NotImplemented
    if obj.get_total_buffer_size() <= obj.nbytes * WASTE + SPARE_BYTES:
        return NotImplemented
    import pyarrow as pa

    if isinstance(obj, pa.Table):
        kind, table = "table", obj
    elif isinstance(obj, pa.RecordBatch):
        kind, table = "batch", pa.Table.from_batches([obj])
    else:
        kind = "chunked" if isinstance(obj, pa.ChunkedArray) else "array"
        table = pa.table([obj], names=[""])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return _sliced, (kind, pickle.PickleBuffer(sink.getvalue()))


def _sliced(kind: str, body: Any) -> Any:
    """What `reduce_slice` stored; named in streams, so that neither name nor place may change."""
    import pyarrow as pa

    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    if kind == "table":
        return table
    if kind == "chunked":
        return table.column(0)
    batches = table.to_batches()
    if kind == "batch":
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0].column(0) if batches else pa.array([], type=table.schema.field(0).type)
