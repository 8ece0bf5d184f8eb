"""The bytes of a sorted run: a head that locates the batches, then the batches in Arrow IPC format.

    magic 8 | format u4 | batches u4 | bytes of the schema u4 | is the hash stored u4 | crc of the rest u4
    for each batch: first and last hash i8 | rows u4 | crc u4 | offset u8 | bytes u8 | crc of hashes u4
    schema message | compressed batch messages ...

A batch has at most 64k rows, fewer if they are wide, and two *fences*: its first and its last hash. To look
up a hash, a reader needs the head and only the batches whose fences enclose the hash. Each batch has a
checksum, so a damaged run raises an error that names the file, and never gives a wrong result.

The columns are stored as the module `byte_shuffle` describes, so that they compress well. Hashes do not
compress, and would be a large share of a run of narrow rows. So hashes are not stored if they can be computed
from the key; reading recomputes them. A checksum verifies that these are the hashes by which the rows were
sorted.
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
_WIDE_KEY_BYTES = 64  # for wider keys, the hash is a small share of the run and slow to compute: store it
_SAMPLE = 32  # rows that decide whether hashes follow from keys; the checksum covers all rows


@dataclass(frozen=True)
class RunHead:
    """The head of a run.

    Args:
        layout: the columns of the run.
        batches: a directory that has, for each batch, its place in the run, its fences, rows and checksums.
        stores_hash: whether the run stores the hash.
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
        """Return the numbers of the batches that may contain hashes from low to high."""
        return np.flatnonzero((self.batches["last"] >= low) & (self.batches["first"] <= high))

    def batches_with(self, hashes: np.ndarray[Any, Any], rest: np.int64) -> np.ndarray[Any, Any]:
        """Return the numbers of the batches whose fences enclose one of the hashes.

        Args:
            hashes: the hashes to look up, sorted.
            rest: bits to ignore in the rows' hashes; they are zero in `hashes`.
        """
        begin = np.searchsorted(hashes, self.batches["first"] & ~rest, "left")
        end = np.searchsorted(hashes, self.batches["last"], "right")
        return np.flatnonzero(end > begin)

    def count(self, low: int, high: int) -> int:
        """Estimate how many rows have hashes from low to high; only the first and last batch are inexact."""
        inside = self.batches[self.between(low, high)]
        first, last = inside["first"].astype(np.float64), inside["last"].astype(np.float64)
        share = (np.minimum(last, high) - np.maximum(first, low) + 1.0) / (last - first + 1.0)
        return int(np.sum(np.clip(share, 0.0, 1.0) * inside["rows"]))


def encode(table: pa.Table, layout: Layout) -> tuple[bytes, pa.Buffer]:
    """Return the head and the batches of a run.

    The table must have at least one row, and its rows must be sorted by hash.
    """
    hashes: I64 = column(table, HASH)
    stores_hash = not _follow_from_keys(hashes, table, layout)
    stored = byte_shuffle.stored_schema(layout.schema if stores_hash else layout.schema.remove(0))
    sink = pa.BufferOutputStream()
    entries: list[tuple[int, ...]] = []
    with pa.ipc.new_stream(sink, stored, options=_OPTIONS) as writer:
        first_byte = len(stored.serialize())
        at, row = first_byte, 0
        for portion in split_rows(table, BATCH_ROWS, BATCH_BYTES):
            (batch,) = portion.combine_chunks().to_batches()
            writer.write_batch(byte_shuffle.shuffle(batch if stores_hash else batch.remove_column(0), stored))
            end, last = sink.tell(), row + batch.num_rows - 1
            fences = int(hashes[row]), int(hashes[last])
            entries.append(
                (*fences, batch.num_rows, 0, at, end - at, zlib.crc32(hashes[row : last + 1].data))
            )
            at, row = end, last + 1
    stream = sink.getvalue()
    octets = memoryview(stream)
    schema = layout.schema.serialize().to_pybytes()
    directory = np.array(entries, _BATCH)
    for number, (*_, begin, size, _) in enumerate(entries):
        directory["crc"][number] = zlib.crc32(octets[begin : begin + size])
    directory["at"] -= first_byte
    directory["at"] += _HEADER.size + directory.nbytes + len(schema)
    rest = directory.tobytes() + schema
    header = _HEADER.pack(
        MAGIC, FORMAT, len(entries), len(schema), stores_hash, zlib.crc32(rest, stores_hash)
    )
    return header + rest, stream.slice(first_byte, at - first_byte)


def _follow_from_keys(hashes: I64, table: pa.Table, layout: Layout) -> bool:
    """Return whether keys are fast to hash and give these hashes, so that hashes need not be stored."""
    if not layout.key:
        return bool((hashes == GLOBAL_HASH).all())
    hashed = table.select(layout.hashed_names)
    if row_bytes(hashed) > _WIDE_KEY_BYTES:
        return False
    rows = np.linspace(0, len(hashes) - 1, min(len(hashes), _SAMPLE)).astype(np.int64)
    sample = hashed.take(pa.array(rows)) if len(rows) < len(hashes) else hashed
    columns = [chunk(sample, name) for name in hashed.column_names]
    computed = row_hashes(columns, len(rows), layout.key, fine=layout.fine)
    return bool(np.array_equal(computed, hashes[rows]))


def decode_head(body: bytes, layout: Layout, where: str) -> RunHead:
    """Decode the header of a run; errors about its format or columns name `where`."""
    if len(body) < 12 or body[:8] != MAGIC:
        raise TraceCorrupt(f"{where} is not a run file")
    form = int.from_bytes(body[8:12], "little")
    if form != FORMAT:
        raise TraceFormat(f"{where} has format {form}; this release reads {FORMAT}")
    if len(body) < _HEADER.size:
        raise TraceCorrupt(f"the header of {where} is damaged")
    _, _, count, schema_bytes, stores_hash, crc = _HEADER.unpack_from(body)
    rest = memoryview(body)[_HEADER.size :]
    split = count * _BATCH.itemsize
    if len(rest) != split + schema_bytes or stores_hash > 1 or zlib.crc32(rest, stores_hash) != crc:
        raise TraceCorrupt(f"the header of {where} is damaged")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(bytes(rest[split:])))
    except (pa.ArrowException, OSError) as error:
        raise TraceCorrupt(f"the columns of {where} cannot be read: {error}") from error
    if not schema.equals(layout.schema):
        raise TraceFormat(
            f"{where} has the columns {schema.names} instead of {layout.schema.names}, or their types differ"
        )
    return RunHead(layout, np.frombuffer(bytes(rest[:split]), _BATCH), bool(stores_hash))


def decode_batch(body: bytes | memoryview, head: RunHead, number: int, where: str) -> pa.RecordBatch:
    """Decode one batch, and verify its checksums."""
    entry = head.batches[number]
    if len(body) != int(entry["size"]) or zlib.crc32(body) != int(entry["crc"]):
        raise TraceCorrupt(f"batch {number} of {where} is damaged")
    schema = head.schema if head.stores_hash else head.schema.remove(0)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), byte_shuffle.stored_schema(schema))
    except (pa.ArrowException, OSError) as error:
        raise TraceCorrupt(f"batch {number} of {where} cannot be read: {error}") from error
    if batch.num_rows != int(entry["rows"]):
        raise TraceCorrupt(f"batch {number} of {where} has {batch.num_rows} rows, not {int(entry['rows'])}")
    columns = byte_shuffle.unshuffle(batch, schema)
    if not head.stores_hash:
        hashed = columns[: len(head.layout.hashed_names)]
        hashes = row_hashes(hashed, batch.num_rows, head.layout.key, fine=head.layout.fine)
        if zlib.crc32(hashes.data) != int(entry["hashes"]):
            raise TraceCorrupt(
                f"batch {number} of {where} is damaged: it is not sorted by the hashes of its keys"
            )
        columns = [pa.array(hashes), *columns]
    return pa.RecordBatch.from_arrays(columns, schema=head.schema)


def check_run(body: bytes, where: str) -> None:
    """Verify all checksums of a run with any columns; raise `TraceCorrupt` if one does not match."""
    if len(body) < _HEADER.size or body[:8] != MAGIC:
        raise TraceCorrupt(f"{where} is not a run file")
    _, _, count, schema_bytes, stores_hash, crc = _HEADER.unpack_from(body)
    split = _HEADER.size + count * _BATCH.itemsize
    head = memoryview(body)[_HEADER.size : split + schema_bytes]
    if len(body) < split + schema_bytes or zlib.crc32(head, stores_hash & 1) != crc:
        raise TraceCorrupt(f"the header of {where} is damaged")
    for number, entry in enumerate(np.frombuffer(body[_HEADER.size : split], _BATCH)):
        batch = memoryview(body)[int(entry["at"]) : int(entry["at"]) + int(entry["size"])]
        if len(batch) != int(entry["size"]) or zlib.crc32(batch) != int(entry["crc"]):
            raise TraceCorrupt(f"batch {number} of {where} is damaged")
