"""The tasks that Spark's Python workers run: they pack rows, run the kernels of layers, and write views.

Rows (range, operator, tag, blob) travel between two layers. A blob is an Arrow table, which Spark moves
without decoding it. If Spark must evaluate row expressions, the rows of an operator travel in a struct column
instead of a blob.

A task may run twice, or its worker may be killed after it has written. This is safe: the names of bundles and
files are unique, and only those in the task's report are used. Spark returns the report of one attempt.
"""

import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidemill import crash
from tidemill.clock import SystemClock
from tidemill.objects import open_place
from tidemill.objects.url import RemoteUrl
from tidemill.views.chain.chain import Edge, PlacedOperator
from tidemill.views.chain.layer_task import (
    Packet,
    StepPlan,
    TaskReport,
    TaskState,
    compute_layer,
    packets_by_range,
    select_columns,
)
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.spark.lot_files import LotFilePart, LotReader
from tidemill.views.spark.memory import keep_memory
from tidemill.views.spark.row_sink import (
    HELD_BYTES,
    LEAST_HELD_BYTES,
    RowSink,
    Write,
    unique_name,
    write_now,
    write_rows,
)
from tidemill.views.spark.shared_projection import EdgeColumns
from tidemill.views.spark.wire_format import RANGE, REPORT, WIRE, table_of, to_wire, wire_row
from tidemill.views.trace.batches import BATCH_BYTES, BATCH_ROWS, batched, split_rows
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.cache_folder import cache_folder
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


@dataclass(frozen=True)
class TaskPaths:
    """Where the tasks of a step read and write. It is pickled into each plan, so it is small.

    Args:
        objects: the object storage. Its URL can contain credentials, which `repr` does not show.
        version: the key of the version file; empty if there is none.
        prefix: the folder of bundles, for this attempt only.
        folders: the folder of each view's changes; other files are below the prefix.
        cache: the folder of the local cache, or `off`; empty for the machine's default.
        compact: whether rows leave the process and should use few bytes.
    """

    objects: str | RemoteUrl
    version: str
    prefix: str
    folders: tuple[tuple[str, str], ...] = ()
    cache: str = ""
    compact: bool = True

    @property
    def shown(self) -> str:
        """Return the URL of the object storage without secrets."""
        return self.objects if isinstance(self.objects, str) else self.objects.shown


# --- a worker process


def in_worker(task: Task) -> Task:
    """Return a task that first sets up its Python worker process."""

    def run(batches: Batches) -> Batches:
        _set_up_worker()
        return task(batches)

    return run


@functools.cache
def _set_up_worker() -> None:
    """Set up a worker once: use one core, keep freed memory, and never check loaded modules for garbage."""
    keep_memory()
    pa.set_cpu_count(1)
    gc.collect()
    gc.freeze()


_caches: dict[tuple[str, str], Cache] = {}
"""The open cache of this worker for each object storage and folder."""


def _cache(paths: TaskPaths) -> Cache:
    key = (paths.shown, paths.cache)
    if key not in _caches:
        objects = open_place(paths.objects, clock=SystemClock())
        folder = cache_folder(paths.cache)
        _caches[key] = (
            Cache(objects, None)
            if folder is None
            else Cache(objects, folder.folder, limit_bytes=folder.limit_bytes)
        )
    return _caches[key]


def forget_objects(place: str) -> None:
    """Forget the open caches of a temporary object storage in this process."""
    for key in [key for key in _caches if key[0] == place]:
        del _caches[key]


@functools.lru_cache(maxsize=16)
def _version(cache: Cache, key: str, within: HashRange) -> TraceVersion:
    return read_version(cache.objects, key, within) if key else TraceVersion()


# --- rows on the wire


class _Received:
    """The input of a task: packets for this layer, and rows that the task only passes on."""

    def __init__(self, batches: Batches, layer: frozenset[int]) -> None:
        self.packets: list[Packet] = []
        self.passing: list[pa.RecordBatch] = []
        self.ranges: set[int] = set()
        for batch in batches:
            tos, operators = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            for row, (to, operator) in enumerate(zip(tos, operators, strict=True)):
                self.ranges.add(to)
                if operator in layer:
                    tag = batch.column(2)[row].as_py()
                    self.packets.append(Packet(to, operator, tag, table_of(batch.column(3)[row])))
                elif operator != RANGE:
                    self.passing.append(batch.slice(row, 1).select(WIRE.names))


def _sent(plan: StepPlan, paths: TaskPaths, edge: Edge, rows: pa.Table, origin: int | None = None) -> Batches:
    """Yield the packets of rows at the end of an edge, as wire rows."""
    return to_wire(plan.send(edge, rows, origin, compact=paths.compact))


# --- the first layer: changes of tables


def delivery_task(plan: StepPlan, paths: TaskPaths, operator: int, side: int) -> Task:
    """Return a task that packs rows c0, c1, … and `_w` for a side of an operator."""

    def run(batches: Batches) -> Batches:
        for rows in _large_tables(batches):
            yield from to_wire(plan.deliver(operator, side, rows, compact=paths.compact))

    return run


def edges_task(plan: StepPlan, paths: TaskPaths, edges: Mapping[int, EdgeColumns]) -> Task:
    """Return a task that packs rows of a table for several edges.

    Its input is a projection that has the rows of these edges.
    """

    def run(batches: Batches) -> Batches:
        for projected in _large_tables(batches):
            for number, columns in edges.items():
                rows = columns.rows(projected)
                if rows.num_rows:
                    yield from _sent(plan, paths, plan.chain.edges[number], rows)

    return run


FILES = pa.schema(
    [
        pa.field("to", pa.int32()),
        pa.field("table", pa.string()),
        pa.field("key", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("sign", pa.int32()),
        pa.field("append", pa.int64()),
        pa.field("part", pa.int32()),
        pa.field("parts", pa.int32()),
    ]
)
"""The rows for `files_task`: one for each file to read. A row without a table only announces a range."""


def files_task(
    plan: StepPlan, paths: TaskPaths, tables: Mapping[str, tuple[LotReader, Sequence[Edge]]]
) -> Task:
    """Return a task that reads files of lots (`FILES`) and packs rows for edges that only select columns."""

    def run(batches: Batches) -> Batches:
        objects = _cache(paths).objects
        for row in itertools.chain.from_iterable(batch.to_pylist() for batch in batches):
            to, table = row.pop("to"), row.pop("table")
            if table is None:
                yield wire_row(to, RANGE, "", b"")
                continue
            reader, edges = tables[table]
            pieces = reader.rows(objects, LotFilePart(**row))
            for rows in _large_tables(batch for piece in pieces for batch in piece.to_batches()):
                for edge in edges:
                    if edge.plain is not None:
                        yield from _sent(plan, paths, edge, select_columns(rows, edge.plain))

    return run


def _large_tables(batches: Batches) -> Iterator[pa.Table]:
    """Combine batches into tables that are large enough to pack."""
    for group in batched(batches, 4 * BATCH_ROWS, BATCH_BYTES):
        yield pa.Table.from_batches(group)


# --- a layer


def layer_task(plan: StepPlan, paths: TaskPaths, number: int, write: Write = write_now) -> Task:
    """Return a task that runs the kernels of a layer.

    Rows that need Spark leave the task as structs (`layer_schema`), other rows as packets.
    """
    for_spark = plan.spark_edges(number)
    schema = layer_schema(plan, number)
    last = number == plan.depth and not for_spark

    def run(batches: Batches) -> Batches:
        received = _Received(batches, frozenset(placed.number for placed in plan.layer(number)))
        output = itertools.chain(
            (_padded(batch, schema) for batch in received.passing),
            _computed(plan, paths, number, received, for_spark, schema, write),
        )
        yield from _written(plan, paths, output, write) if last else output

    return run


def _computed(
    plan: StepPlan,
    paths: TaskPaths,
    number: int,
    received: _Received,
    for_spark: dict[int, list[Edge]],
    schema: pa.Schema,
    write: Write,
) -> Batches:
    parts = packets_by_range(received.packets)
    for range_number in sorted(received.ranges):
        began = time.perf_counter()
        cache = _cache(paths)
        name = f"{paths.prefix}{number:02}-{range_number:03}-{unique_name()}.runs"
        bundle = Bundle(cache.objects, name, cache)
        report = TaskReport(number, range_number)
        version = TraceVersion() if plan.first else _version(cache, paths.version, plan.ranges[range_number])
        state = TaskState(version, cache, bundle)
        packets = parts.get(range_number, {})
        for placed, piece in compute_layer(plan, number, range_number, packets, state, report):
            for batch in _direct_packets(plan, paths, placed, piece, range_number):
                yield _padded(batch, schema)
            if placed.number in for_spark:
                yield from _structs(placed, piece, range_number, schema)
        write(bundle.write)
        crash.point("views.task.reported")
        report.seconds = time.perf_counter() - began
        yield _padded(wire_row(range_number, REPORT, "", report.encode()), schema)
        if number < plan.depth:
            yield _padded(wire_row(range_number, RANGE, "", b""), schema)


def _direct_packets(
    plan: StepPlan, paths: TaskPaths, placed: PlacedOperator, piece: pa.Table, range_number: int
) -> Batches:
    for edge in plan.leaving(placed.number):
        if plan.is_direct(edge):
            yield from _sent(plan, paths, edge, plan.direct_rows(edge, piece), range_number)


def layer_schema(plan: StepPlan, number: int) -> pa.Schema:
    """Return the columns of a layer's output: wire columns, and a struct for each operator Spark reads."""
    fields = []
    for operator in plan.spark_edges(number):
        inner = [pa.field(each.name, each.type) for each in plan.chain.operators[operator].operator.out]
        fields.append(pa.field(f"n{operator}", pa.struct(inner)))
    return pa.schema([*WIRE, *fields])


def _structs(placed: PlacedOperator, rows: pa.Table, range_number: int, schema: pa.Schema) -> Batches:
    for piece in split_rows(rows, 65_536):
        (batch,) = piece.combine_chunks().to_batches()
        count = batch.num_rows
        structs = pa.StructArray.from_arrays(
            batch.columns, fields=list(schema.field(f"n{placed.number}").type)
        )
        arrays: list[pa.Array] = [
            pa.array([range_number] * count, pa.int32()),
            pa.array([placed.number] * count, pa.int32()),
        ]
        arrays += [pa.nulls(count, kind) for kind in (pa.string(), pa.binary())]
        for each in list(schema)[4:]:
            arrays.append(structs if each.name == f"n{placed.number}" else pa.nulls(count, each.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _padded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if len(schema) == batch.num_columns:
        return batch
    extra = [pa.nulls(batch.num_rows, each.type) for each in list(schema)[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *extra], schema=schema)


# --- after Spark's row expressions


def packing_task(
    plan: StepPlan,
    paths: TaskPaths,
    number: int,
    edges: Mapping[int, EdgeColumns],
    write: Write = write_now,
) -> Task:
    """Return a task that packs rows after Spark has evaluated row expressions.

    Its input has packets, and a projection that has the rows of these edges. After the last layer, the task
    writes the rows of views to files.
    """
    last = number == plan.depth

    def sent_packets(pending: dict[tuple[int, int], list[pa.Table]]) -> Batches:
        for (edge_number, to), tables in pending.items():
            yield from _sent(plan, paths, plan.chain.edges[edge_number], pa.concat_tables(tables), to)

    def packed(batches: Batches) -> Batches:
        pending: dict[tuple[int, int], list[pa.Table]] = {}
        size = 0
        for batch in batches:
            is_packet = pc.is_valid(batch.column(3))
            packets = batch.filter(is_packet).select(WIRE.names)
            for row in range(packets.num_rows):
                yield packets.slice(row, 1)
            if batch.num_columns == len(WIRE) or packets.num_rows == batch.num_rows:
                continue
            computed = batch.filter(pc.invert(is_packet))
            for to in pc.unique(computed.column(0)).to_pylist():
                projected = computed.filter(pc.equal(computed.column(0), to))
                for edge_number, columns in edges.items():
                    rows = columns.rows(projected)
                    if rows.num_rows:
                        pending.setdefault((edge_number, to), []).append(rows)
                        size += rows.nbytes
            if size >= BATCH_BYTES:
                yield from sent_packets(pending)
                pending, size = {}, 0
        yield from sent_packets(pending)

    def run(batches: Batches) -> Batches:
        output = packed(batches)
        yield from _written(plan, paths, output, write) if last else output

    return run


# --- files of views


def _written(plan: StepPlan, paths: TaskPaths, batches: Batches, write: Write) -> Batches:
    """Write the rows of views, and pass the reports of tasks on; only reports reach the driver."""
    sinks: dict[tuple[int, int], RowSink] = {}
    held_bytes = held_bytes_of(plan)
    for batch in batches:
        tos, operators = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        for row, (to, operator) in enumerate(zip(tos, operators, strict=True)):
            if operator == REPORT:
                yield batch.slice(row, 1).select(WIRE.names)
            elif operator >= 0:
                if (operator, to) not in sinks:
                    identity = HASH if _output(plan, operator).identified else ""
                    sinks[operator, to] = RowSink(identity, held_bytes)
                sinks[operator, to].add(table_of(batch.column(3)[row]))
    folders = dict(paths.folders)
    objects = _cache(paths).objects
    began = time.perf_counter()
    for (number, to), sink in sorted(sinks.items(), key=lambda item: item[0]):
        output = _output(plan, number)
        folder = folders.get(output.view, f"{paths.prefix}spill/")
        report = TaskReport(plan.depth + 1, to)
        for rows in sink.parts():
            file = write_rows(objects, output, folder, rows, to, write)
            if file is not None:
                report.files.append(file)
        report.seconds, began = time.perf_counter() - began, time.perf_counter()
        yield wire_row(to, REPORT, "", report.encode())


def held_bytes_of(plan: StepPlan) -> int:
    """Return how much memory the rows of each view may use in a task."""
    sinks = sum(isinstance(plan.chain.operators[number].operator, OutputSink) for number in plan.numbers)
    return max(LEAST_HELD_BYTES, HELD_BYTES // max(1, sinks))


def _output(plan: StepPlan, number: int) -> OutputSink:
    operator = plan.chain.operators[number].operator
    assert isinstance(operator, OutputSink)
    return operator
