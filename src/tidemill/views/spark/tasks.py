"""What Spark's Python workers run: the ends of edges, the kernels of layers, and the sink of a step.

Between two layers travel rows (range, operator, tag, blob): a blob is an Arrow table, which Spark moves
without looking into it. Where Spark has to compute something on the way, rows of an operator come as a struct
column of their own instead. A task may run twice, or its worker may be killed after it wrote: its bundle and
its files have names that nobody else uses, and only what a task *told* counts, which Spark takes from one
attempt.
"""

import functools
import gc
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill import crash
from tidemill.clock import SystemClock
from tidemill.objects import Objects, open_place
from tidemill.objects.url import RemoteUrl
from tidemill.spark.lot_writer import packed
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
from tidemill.views.kernels.zsets import digest, net_rows
from tidemill.views.spark.lot_files import LotFilePart, LotReader
from tidemill.views.spark.memory import keep_memory
from tidemill.views.spark.row_sink import RowSink
from tidemill.views.spark.wire_format import HELLO, TOLD, WIRE, table_of, to_wire, wire_row
from tidemill.views.trace.batches import BATCH_BYTES, BATCH_ROWS, batched, split_rows
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.cache_folder import cache_folder
from tidemill.views.trace.layout import HASH, WEIGHT
from tidemill.views.trace.version import TraceVersion, read_version

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]
Write = Callable[[Callable[[], object]], object]
"""Has an object written, now or while the caller goes on."""


@dataclass(frozen=True)
class TaskSite:
    """Where the tasks of a step find and leave things. It is pickled into each plan, so it is small.

    Args:
        objects: where the object storage is; with the credentials its URL has, which no repr shows.
        version: the key of the version file, empty when there is none.
        prefix: the folder of bundles, of this attempt alone.
        folders: of each view the folder of its changes; other files lie below the prefix.
        cache: the folder of the local cache, or `off`; empty: where the machine keeps such things.
        apart: tasks are in processes of their own, and rows travel through Spark from one to the next.
    """

    objects: str | RemoteUrl
    version: str
    prefix: str
    folders: tuple[tuple[str, str], ...] = ()
    cache: str = ""
    apart: bool = True

    @property
    def shown(self) -> str:
        """The object storage, without secrets."""
        return self.objects if isinstance(self.objects, str) else self.objects.shown


# --- one worker process

_CHANCE = random.SystemRandom()


def write_now(write: Callable[[], object]) -> None:
    """A `Write` for a task that ends when all of its objects are there."""
    write()


def in_worker(task: Task) -> Task:
    """A task for a worker process, which has nothing else to do."""

    def run(batches: Batches) -> Batches:
        _frozen()
        return task(batches)

    return run


@functools.cache
def _frozen() -> None:
    """Once in a worker: what is loaded by now is never garbage, and a task has one core."""
    keep_memory()
    pa.set_cpu_count(1)
    gc.collect()
    gc.freeze()


_caches: dict[tuple[str, str], Cache] = {}
"""What this worker has open, by the object storage and the folder."""


def _cache(site: TaskSite) -> Cache:
    key = (site.shown, site.cache)
    if key not in _caches:
        objects = open_place(site.objects, clock=SystemClock())
        place = cache_folder(site.cache)
        _caches[key] = (
            Cache(objects, None)
            if place is None
            else Cache(objects, place.folder, limit_bytes=place.limit_bytes)
        )
    return _caches[key]


@functools.lru_cache(maxsize=16)
def _version(cache: Cache, key: str) -> TraceVersion:
    return read_version(cache.objects, key) if key else TraceVersion()


def _unique() -> str:
    """A name that no other task, attempt or machine uses."""
    return f"{os.getpid():x}-{_CHANCE.getrandbits(96):024x}"


# --- rows on the wire


class _Arrived:
    """What came to a task: packets for this layer, and rows that only pass through."""

    def __init__(self, batches: Batches, mine: frozenset[int]) -> None:
        self.packets: list[Packet] = []
        self.passing: list[pa.RecordBatch] = []
        self.told: list[pa.RecordBatch] = []
        self.ranges: set[int] = set()
        for batch in batches:
            tos, operators = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            for row, (to, operator) in enumerate(zip(tos, operators, strict=True)):
                self.ranges.add(to)
                if operator in mine:
                    tag = batch.column(2)[row].as_py()
                    self.packets.append(Packet(to, operator, tag, table_of(batch.column(3)[row])))
                elif operator != HELLO:
                    self.passing.append(batch.slice(row, 1).select(WIRE.names))


def _sent(plan: StepPlan, site: TaskSite, edge: Edge, rows: pa.Table, here: int | None = None) -> Batches:
    """Rows at the end of an edge, on the wire."""
    return to_wire(plan.send(edge, rows, here, compact=site.apart))


# --- the first layer: changes of tables


def sending(plan: StepPlan, site: TaskSite, operator: int, side: int) -> Task:
    """Rows c0, c1, … and `_w`, as Spark has read and computed them, to packets for a side of an operator."""

    def run(batches: Batches) -> Batches:
        for rows in _large(batches):
            yield from to_wire(plan.deliver(operator, side, rows, compact=site.apart))

    return run


def entering(plan: StepPlan, site: TaskSite, edges: Sequence[Edge]) -> Task:
    """Rows of a table at the ends of several edges, a struct column `e7` for edge 7, to packets."""

    def run(batches: Batches) -> Batches:
        for rows in _large(batches):
            for edge in edges:
                there = rows[f"e{edge.number}"].combine_chunks()
                mine = there.filter(there.is_valid()) if there.null_count else there
                if len(mine):
                    flat = pa.Table.from_arrays(mine.flatten(), names=[each.name for each in mine.type])
                    yield from _sent(plan, site, edge, flat)

    return run


FILES = pa.schema(
    [
        pa.field("to", pa.int32()),
        pa.field("table", pa.string()),
        pa.field("key", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("sign", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("part", pa.int32()),
        pa.field("parts", pa.int32()),
    ]
)
"""Files that are to be read, each a row; a row without a table says that there is a range."""


def reading(plan: StepPlan, site: TaskSite, tables: Mapping[str, tuple[LotReader, Sequence[Edge]]]) -> Task:
    """Files of lots (`FILES`) to packets along edges that only choose columns."""

    def run(batches: Batches) -> Batches:
        objects = _cache(site).objects
        for row in itertools.chain.from_iterable(batch.to_pylist() for batch in batches):
            to, table = row.pop("to"), row.pop("table")
            if table is None:
                yield wire_row(to, HELLO, "", b"")
                continue
            how, edges = tables[table]
            for rows in _large(
                one for part in how.rows(objects, LotFilePart(**row)) for one in part.to_batches()
            ):
                for edge in edges:
                    if edge.plain is not None:
                        yield from _sent(plan, site, edge, select_columns(rows, edge.plain))

    return run


def _large(batches: Batches) -> Iterator[pa.Table]:
    """Batches in tables that are worth packing."""
    for some in batched(batches, 4 * BATCH_ROWS, BATCH_BYTES):
        yield pa.Table.from_batches(some)


# --- a layer


def layer(plan: StepPlan, site: TaskSite, number: int, write: Write = write_now) -> Task:
    """The kernels of a layer; what needs Spark leaves as structs (`typed_schema`), the rest as packets."""
    typed = plan.spark_edges(number)
    schema = typed_schema(plan, number)
    last = number == plan.depth and not typed

    def run(batches: Batches) -> Batches:
        arrived = _Arrived(batches, frozenset(one.number for one in plan.layer(number)))
        made = itertools.chain(
            (_padded(batch, schema) for batch in arrived.passing),
            _computed(plan, site, number, arrived, typed, schema, write),
        )
        yield from _sunk(plan, site, made, write) if last else made

    return run


def _computed(
    plan: StepPlan,
    site: TaskSite,
    number: int,
    arrived: _Arrived,
    typed: dict[int, Any],
    schema: pa.Schema,
    write: Write,
) -> Batches:
    parts = packets_by_range(arrived.packets)
    for here in sorted(arrived.ranges):
        began = time.perf_counter()
        cache = _cache(site)
        bundle = Bundle(cache.objects, f"{site.prefix}{number:02}-{here:03}-{_unique()}.runs", cache)
        told = TaskReport(number, here)
        state = TaskState(TraceVersion() if plan.first else _version(cache, site.version), cache, bundle)

        for placed, piece in compute_layer(plan, number, here, parts.get(here, {}), state, told):
            yield from (_padded(batch, schema) for batch in _direct(plan, site, placed, piece, here))
            if placed.number in typed:
                yield from _structs(placed, piece, here, schema)
        write(bundle.write)
        crash.point("views.task.told")
        told.seconds = time.perf_counter() - began
        yield _padded(wire_row(here, TOLD, "", told.encode()), schema)
        if number < plan.depth:
            yield _padded(wire_row(here, HELLO, "", b""), schema)


def _direct(plan: StepPlan, site: TaskSite, placed: PlacedOperator, piece: pa.Table, here: int) -> Batches:
    for edge in plan.leaving(placed.number):
        if edge.plain is not None:
            yield from _sent(plan, site, edge, select_columns(piece, edge.plain), here)


def typed_schema(plan: StepPlan, number: int) -> pa.Schema:
    """The columns of a layer's rows: those of the wire, and structs of the operators that Spark reads."""
    fields = []
    for operator in plan.spark_edges(number):
        inner = [pa.field(each.name, each.type) for each in plan.chain.operators[operator].operator.out]
        fields.append(pa.field(f"n{operator}", pa.struct(inner)))
    return pa.schema([*WIRE, *fields])


def _structs(placed: PlacedOperator, piece: pa.Table, here: int, schema: pa.Schema) -> Batches:
    for portion in split_rows(piece, 65_536):
        (batch,) = portion.combine_chunks().to_batches()
        count = batch.num_rows
        mine = pa.StructArray.from_arrays(batch.columns, fields=list(schema.field(f"n{placed.number}").type))
        arrays: list[pa.Array] = [
            pa.array([here] * count, pa.int32()),
            pa.array([placed.number] * count, pa.int32()),
        ]
        arrays += [pa.nulls(count, kind) for kind in (pa.string(), pa.binary())]
        for each in list(schema)[4:]:
            arrays.append(mine if each.name == f"n{placed.number}" else pa.nulls(count, each.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _padded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if len(schema) == batch.num_columns:
        return batch
    extra = [pa.nulls(batch.num_rows, each.type) for each in list(schema)[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *extra], schema=schema)


# --- behind Spark's expressions


def packing(plan: StepPlan, site: TaskSite, number: int, write: Write = write_now) -> Task:
    """Rows that Spark has computed (a struct column `e7` for edge 7) to packets; those of views to files."""
    edges = [edge for edges in plan.spark_edges(number).values() for edge in edges]
    last = number == plan.depth

    def sent(held: dict[tuple[int, int], list[pa.Table]]) -> Batches:
        for (edge_number, to), tables in held.items():
            yield from _sent(plan, site, plan.chain.edges[edge_number], pa.concat_tables(tables), to)

    def packed(batches: Batches) -> Batches:
        held: dict[tuple[int, int], list[pa.Table]] = {}
        size = 0
        for batch in batches:
            blobs = batch.filter(pa.compute.is_valid(batch.column(3)))
            for row in range(blobs.num_rows):
                yield blobs.slice(row, 1).select(WIRE.names)
            tos = batch.column(0)
            for edge in edges if batch.num_columns > len(WIRE) else ():
                rows = batch.column(f"e{edge.number}")
                if rows.null_count == len(rows):
                    continue
                there = rows.is_valid()
                where = tos.filter(there)
                flat = pa.Table.from_arrays(rows.filter(there).flatten(), names=[f.name for f in rows.type])
                for to in pa.compute.unique(where).to_pylist():
                    mine = flat if len(where) == 0 else flat.filter(pa.compute.equal(where, to))
                    held.setdefault((edge.number, to), []).append(mine)
                    size += mine.nbytes
            if size >= BATCH_BYTES:
                yield from sent(held)
                held, size = {}, 0
        yield from sent(held)

    def run(batches: Batches) -> Batches:
        made = packed(batches)
        yield from _sunk(plan, site, made, write) if last else made

    return run


# --- the end


def _sunk(plan: StepPlan, site: TaskSite, batches: Batches, write: Write) -> Batches:
    """Write the rows of views, and give on what tasks told; that is all that reaches the driver."""
    views: dict[tuple[int, int], RowSink] = {}
    for batch in batches:
        tos, operators = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        for row, (to, operator) in enumerate(zip(tos, operators, strict=True)):
            if operator == TOLD:
                yield batch.slice(row, 1).select(WIRE.names)
            elif operator >= 0:
                if (operator, to) not in views:
                    views[operator, to] = RowSink(HASH if _output(plan, operator).identified else "")
                views[operator, to].add(table_of(batch.column(3)[row]))
    folders = dict(site.folders)
    objects = _cache(site).objects
    began = time.perf_counter()
    for (number, to), sink in sorted(views.items(), key=lambda item: item[0]):
        output = _output(plan, number)
        told = TaskReport(plan.depth + 1, to)
        for rows in sink.parts():
            folder = folders.get(output.view, f"{site.prefix}spill/")
            written = _write_view(objects, output, folder, rows, to, write)
            if written is not None:
                told.files.append(written)
        told.seconds, began = time.perf_counter() - began, time.perf_counter()
        yield wire_row(to, TOLD, "", told.encode())


def _output(plan: StepPlan, number: int) -> OutputSink:
    operator = plan.chain.operators[number].operator
    assert isinstance(operator, OutputSink)
    return operator


def _write_view(
    objects: Objects, operator: OutputSink, folder: str, rows: pa.Table, to: int, write: Write
) -> tuple[str, str, int, int, str] | None:
    width = len(operator.types)
    if not operator.identified:
        key = f"{folder}part-{to:05}-{_unique()}.parquet"
        return (operator.view, key, rows.num_rows, _parquet(objects, key, rows, write), "0")
    names = [f"c{i}" for i in range(width + 2)]
    netted = net_rows(rows.select([*names, WEIGHT]))
    if netted.num_rows == 0:
        return None
    found = digest(netted, f"c{width}", f"c{width + 1}", WEIGHT)
    key = f"{folder}part-{to:05}-{_unique()}.parquet"
    named = netted.rename_columns([*operator.names, "_h1", "_h2", "_weight"])
    size = _parquet(objects, key, named, write)
    return operator.view, key, netted.num_rows, size, f"{found:032x}"


def _parquet(objects: Objects, key: str, table: pa.Table, write: Write) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False, coerce_timestamps="us", **packed(table.schema))
    body = sink.getvalue()
    write(functools.partial(objects.put, key, memoryview(body)))
    return int(body.size)
