"""One sorted run as bytes: a head that says where each batch is, then an Arrow IPC stream.

    magic 8 | format u4 | batches u4 | bytes of the schema u4 | crc of what follows, to the stream u4
    for each batch: first hash i8 | last hash i8 | rows u4 | crc u4 | offset u8 | bytes u8
    schema message | compressed batch messages ...

Batches have at most 64k rows, fewer if these are wide, and two fences, their first and their last hash:
whoever looks for a hash reads the head and then only the batches whose fences enclose it. Each batch has a
checksum, so that a run that is not what was written is an error which names the file, and never a wrong
result.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import TraceCorrupt, TraceFormat
from tidemill.views.trace.consolidate import column
from tidemill.views.trace.layout import HASH, Layout
from tidemill.views.trace.portions import portions

FORMAT = 1
BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024**2
MAGIC = b"tidemill"

_HEADER = struct.Struct("<8sIIII")
_BATCH = np.dtype(
    [("first", "<i8"), ("last", "<i8"), ("rows", "<u4"), ("crc", "<u4"), ("at", "<u8"), ("size", "<u8")]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)  # a task has one core


@dataclass(frozen=True)
class Head:
    """What a run says of itself: its columns, and where each batch lies from the run's beginning."""

    schema: pa.Schema
    batches: np.ndarray[Any, Any]

    @property
    def rows(self) -> int:
        return int(self.batches["rows"].sum())

    def between(self, low: int, high: int) -> np.ndarray[Any, Any]:
        """The numbers of the batches that may hold hashes from low to high."""
        return np.flatnonzero((self.batches["last"] >= low) & (self.batches["first"] <= high))

    def holding(self, hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The numbers of the batches whose fences enclose one of the hashes, which are sorted."""
        begin = np.searchsorted(hashes, self.batches["first"], "left")
        end = np.searchsorted(hashes, self.batches["last"], "right")
        return np.flatnonzero(end > begin)

    def count(self, low: int, high: int) -> int:
        """About how many rows have hashes from low to high: exact but for the batches at both ends."""
        inside = self.batches[self.between(low, high)]
        first, last = inside["first"].astype(np.float64), inside["last"].astype(np.float64)
        share = (np.minimum(last, high) - np.maximum(first, low) + 1.0) / (last - first + 1.0)
        return int(np.sum(np.clip(share, 0.0, 1.0) * inside["rows"]))


def encode(table: pa.Table, layout: Layout) -> tuple[bytes, pa.Buffer]:
    """The head and the rest of a run with these rows, sorted by hash; there is at least one row."""
    hashes = column(table, HASH)
    sink = pa.BufferOutputStream()
    found: list[tuple[int, int, int, int, int, int]] = []
    with pa.ipc.new_stream(sink, layout.schema, options=_OPTIONS) as writer:
        schema_bytes = len(layout.schema.serialize())
        at, row = schema_bytes, 0
        for portion in portions(table, BATCH_ROWS, BATCH_BYTES):
            (batch,) = portion.combine_chunks().to_batches()
            writer.write_batch(batch)
            end, last = sink.tell(), row + batch.num_rows - 1
            found.append((int(hashes[row]), int(hashes[last]), batch.num_rows, 0, at, end - at))
            at, row = end, last + 1
    stream = sink.getvalue()
    octets = memoryview(stream)
    head_bytes = _HEADER.size + len(found) * _BATCH.itemsize
    directory = np.array(found, _BATCH)
    for number, (_, _, _, _, at, size) in enumerate(found):
        directory["crc"][number] = zlib.crc32(octets[at : at + size])
    directory["at"] += head_bytes
    rest = directory.tobytes() + bytes(octets[:schema_bytes])
    header = _HEADER.pack(MAGIC, FORMAT, len(found), schema_bytes, zlib.crc32(rest))
    return header + rest, stream.slice(schema_bytes)


def decode_head(body: bytes, layout: Layout, where: str) -> Head:
    """The head of a run; an error that names `where` unless its format and columns are known."""
    if len(body) < _HEADER.size or body[:8] != MAGIC:
        raise TraceCorrupt(f"{where} is not a run file")
    _, form, count, schema_bytes, crc = _HEADER.unpack_from(body)
    if form > FORMAT:
        raise TraceFormat(f"{where} has format {form}; this release reads up to {FORMAT}")
    rest = memoryview(body)[_HEADER.size :]
    if form < 1 or len(rest) != count * _BATCH.itemsize + schema_bytes or zlib.crc32(rest) != crc:
        raise TraceCorrupt(f"the head of {where} is damaged")
    split = count * _BATCH.itemsize
    schema = pa.ipc.read_schema(pa.py_buffer(bytes(rest[split:])))
    if not schema.equals(layout.schema):
        raise TraceFormat(
            f"{where} has the columns {schema.names}, not {layout.schema.names} with their types"
        )
    return Head(schema, np.frombuffer(bytes(rest[:split]), _BATCH))


def decode_batch(body: bytes | memoryview, head: Head, number: int, where: str) -> pa.RecordBatch:
    """One batch out of its bytes, which are checked."""
    entry = head.batches[number]
    if len(body) != int(entry["size"]) or zlib.crc32(body) != int(entry["crc"]):
        raise TraceCorrupt(f"batch {number} of {where} is damaged")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), head.schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceCorrupt(f"batch {number} of {where} cannot be read: {error}") from error
    if batch.num_rows != int(entry["rows"]):
        raise TraceCorrupt(f"batch {number} of {where} has {batch.num_rows} rows, not {int(entry['rows'])}")
    return batch
