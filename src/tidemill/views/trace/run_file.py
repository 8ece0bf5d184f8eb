"""One sorted run as bytes: a head that says where each batch is, then batches of Arrow IPC.

    magic 8 | format u4 | batches u4 | bytes of the schema u4 | is the hash stored u4 | crc of the rest u4
    for each batch: first and last hash i8 | rows u4 | crc u4 | offset u8 | bytes u8 | crc of hashes u4
    schema message | compressed batch messages ...

Batches have at most 64k rows, fewer if these are wide, and two fences, their first and their last hash:
whoever looks for a hash reads the head and then only the batches whose fences enclose it. Each batch has a
checksum, so that a run that is not what was written is an error which names the file, and never a wrong
result.

Columns are stored by `byte_shuffle`. The hash, which is noise and would be much of a run of narrow rows, is
not stored where it follows from the key, and computed as rows are read; a checksum tells whether these are
the hashes that rows were sorted by.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import TraceCorrupt, TraceFormat
from tidemill.views.trace import byte_shuffle
from tidemill.views.trace.batches import row_bytes, split_rows
from tidemill.views.trace.consolidation import chunk, column
from tidemill.views.trace.key_hash import GLOBAL_HASH, row_hashes
from tidemill.views.trace.layout import HASH, Layout
from tidemill.views.trace.order import I64

FORMAT = 2
BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024**2
MAGIC = b"tidemill"

_HEADER = struct.Struct("<8sIIIII")
_BATCH = np.dtype(
    [
        *(("first", "<i8"), ("last", "<i8"), ("rows", "<u4"), ("crc", "<u4")),
        *(("at", "<u8"), ("size", "<u8"), ("hashes", "<u4")),
    ]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)  # a task has one core
_WIDE = 64  # octets of a key from which on a hash is little beside it, and takes long to compute
_SAMPLE = 32  # rows by which is decided whether hashes follow from keys; a checksum tells of all


@dataclass(frozen=True)
class RunHead:
    """What a run says of itself.

    Args:
        layout: its columns.
        batches: where each batch lies from the run's beginning, and what is in it.
        stores_hash: whether the hash is stored.
    """

    layout: Layout
    batches: np.ndarray[Any, Any]
    stores_hash: bool

    @property
    def schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def rows(self) -> int:
        return int(self.batches["rows"].sum())

    def between(self, low: int, high: int) -> np.ndarray[Any, Any]:
        """The numbers of the batches that may hold hashes from low to high."""
        return np.flatnonzero((self.batches["last"] >= low) & (self.batches["first"] <= high))

    def holding(self, hashes: np.ndarray[Any, Any], rest: np.int64) -> np.ndarray[Any, Any]:
        """The numbers of the batches whose fences enclose one of the hashes, which are sorted.

        Args:
            hashes: what is looked for.
            rest: bits that may be anything, and are none of the hashes'.
        """
        begin = np.searchsorted(hashes, self.batches["first"] & ~rest, "left")
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
    hashes: I64 = column(table, HASH)
    stores_hash = not _follow(hashes, table, layout)
    stored = byte_shuffle.stored_schema(layout.schema if stores_hash else layout.schema.remove(0))
    sink = pa.BufferOutputStream()
    found: list[tuple[int, ...]] = []
    with pa.ipc.new_stream(sink, stored, options=_OPTIONS) as writer:
        first_byte = len(stored.serialize())
        at, row = first_byte, 0
        for portion in split_rows(table, BATCH_ROWS, BATCH_BYTES):
            (batch,) = portion.combine_chunks().to_batches()
            writer.write_batch(byte_shuffle.shuffle(batch if stores_hash else batch.remove_column(0), stored))
            end, last = sink.tell(), row + batch.num_rows - 1
            fences = int(hashes[row]), int(hashes[last])
            found.append((*fences, batch.num_rows, 0, at, end - at, zlib.crc32(hashes[row : last + 1].data)))
            at, row = end, last + 1
    stream = sink.getvalue()
    octets = memoryview(stream)
    schema = layout.schema.serialize().to_pybytes()
    directory = np.array(found, _BATCH)
    for number, (*_, begin, size, _) in enumerate(found):
        directory["crc"][number] = zlib.crc32(octets[begin : begin + size])
    directory["at"] -= first_byte
    directory["at"] += _HEADER.size + directory.nbytes + len(schema)
    rest = directory.tobytes() + schema
    header = _HEADER.pack(MAGIC, FORMAT, len(found), len(schema), stores_hash, zlib.crc32(rest, stores_hash))
    return header + rest, stream.slice(first_byte, at - first_byte)


def _follow(hashes: I64, table: pa.Table, layout: Layout) -> bool:
    """Whether hashes need not be stored: they are those of keys that are quickly read."""
    if not layout.key:
        return bool((hashes == GLOBAL_HASH).all())
    hashed = table.select(layout.hashed_names)
    if row_bytes(hashed) > _WIDE:
        return False
    rows = np.linspace(0, len(hashes) - 1, min(len(hashes), _SAMPLE)).astype(np.int64)
    some = hashed.take(pa.array(rows)) if len(rows) < len(hashes) else hashed
    columns = [chunk(some, name) for name in hashed.column_names]
    found = row_hashes(columns, len(rows), layout.key, fine=layout.fine)
    return bool(np.array_equal(found, hashes[rows]))


def decode_head(body: bytes, layout: Layout, where: str) -> RunHead:
    """The head of a run; an error that names `where` unless its format and columns are known."""
    if len(body) < 12 or body[:8] != MAGIC:
        raise TraceCorrupt(f"{where} is not a run file")
    form = int.from_bytes(body[8:12], "little")
    if form != FORMAT:
        raise TraceFormat(f"{where} has format {form}; this release reads {FORMAT}")
    if len(body) < _HEADER.size:
        raise TraceCorrupt(f"the head of {where} is damaged")
    _, _, count, schema_bytes, stores_hash, crc = _HEADER.unpack_from(body)
    rest = memoryview(body)[_HEADER.size :]
    split = count * _BATCH.itemsize
    if len(rest) != split + schema_bytes or stores_hash > 1 or zlib.crc32(rest, stores_hash) != crc:
        raise TraceCorrupt(f"the head of {where} is damaged")
    schema = pa.ipc.read_schema(pa.py_buffer(bytes(rest[split:])))
    if not schema.equals(layout.schema):
        raise TraceFormat(
            f"{where} has the columns {schema.names}, not {layout.schema.names} with their types"
        )
    return RunHead(layout, np.frombuffer(bytes(rest[:split]), _BATCH), bool(stores_hash))


def decode_batch(body: bytes | memoryview, head: RunHead, number: int, where: str) -> pa.RecordBatch:
    """One batch out of its bytes, which are checked."""
    entry = head.batches[number]
    if len(body) != int(entry["size"]) or zlib.crc32(body) != int(entry["crc"]):
        raise TraceCorrupt(f"batch {number} of {where} is damaged")
    schema = head.schema if head.stores_hash else head.schema.remove(0)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), byte_shuffle.stored_schema(schema))
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceCorrupt(f"batch {number} of {where} cannot be read: {error}") from error
    if batch.num_rows != int(entry["rows"]):
        raise TraceCorrupt(f"batch {number} of {where} has {batch.num_rows} rows, not {int(entry['rows'])}")
    columns = byte_shuffle.unshuffle(batch, schema)
    if not head.stores_hash:
        hashed = columns[: len(head.layout.hashed_names)]
        hashes = row_hashes(hashed, batch.num_rows, head.layout.key, fine=head.layout.fine)
        if zlib.crc32(hashes.data) != int(entry["hashes"]):
            raise TraceCorrupt(f"keys in batch {number} of {where} have other hashes than it was sorted by")
        columns = [pa.array(hashes), *columns]
    return pa.RecordBatch.from_arrays(columns, schema=head.schema)
