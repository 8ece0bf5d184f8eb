"""Reducers: pickle arrays and Arrow values for which the default method is wasteful or loses information.

- pickle writes an Arrow slice with the whole memory of its table: ten rows of a table of one gigabyte would
  take a gigabyte. So a value that is much smaller than its buffers is written in Arrow's stream format, which
  contains only the slice.
- numpy copies arrays that are not contiguous into the stream. It also copies dates and times, because their
  type cannot be exported as a buffer, and loses their byte order. So such arrays are written as raw memory
  and a type.

Pickles refer by name to the functions that rebuild these values. Read `stored_names` before you move these
functions.
"""

import functools
import pickle
from typing import Any

WASTE = 1.25
SPARE_BYTES = 64 * 1024


def reduce(obj: Any) -> Any:
    """Return how to pickle an array or an Arrow value; NotImplemented for all other values."""
    module = type(obj).__module__
    if module == "numpy":
        return _reduce_array(obj)
    if module.startswith("pyarrow"):
        return _reduce_slice(obj)
    return NotImplemented


def _reduce_array(obj: Any) -> Any:
    import numpy as np

    if type(obj) is not np.ndarray or obj.dtype.hasobject or not obj.itemsize:
        return NotImplemented
    contiguous = obj.flags.c_contiguous or obj.flags.f_contiguous
    if contiguous and _exported(obj.dtype):
        return NotImplemented
    array: Any = obj if contiguous else np.ascontiguousarray(obj)
    order = "C" if array.flags.c_contiguous else "F"
    raw = array.reshape(-1, order=order).view(np.uint8)
    return _array, (pickle.PickleBuffer(raw), obj.dtype, obj.shape, order)


@functools.lru_cache(maxsize=256)
def _exported(dtype: Any) -> bool:
    """Return whether numpy exports buffers of this type."""
    import numpy as np

    sample: Any = np.empty(0, dtype)
    try:
        memoryview(sample)
    except (ValueError, TypeError, BufferError):
        return False
    return True


def _array(raw: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    import numpy as np

    if 0 in shape:
        return np.empty(shape, dtype, order=order)
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape, order=order)


@functools.cache
def _kinds() -> Any:
    import pyarrow as pa

    return pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray


def _reduce_slice(obj: Any) -> Any:
    import pyarrow as pa

    if not isinstance(obj, _kinds()):
        return NotImplemented
    if obj.get_total_buffer_size() <= obj.nbytes * WASTE + SPARE_BYTES:
        return NotImplemented
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
