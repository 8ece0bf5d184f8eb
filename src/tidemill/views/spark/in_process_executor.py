"""Execute a step in this process: run the tasks that a Spark job would run, and keep packets in memory.

Kernels, packets and reports come from the same functions as in a Spark job. Arrow evaluates the row
expressions that it can (`kernels.scalars`). Spark evaluates only the others: once for each table that has
such expressions, and once after each layer that has them. Without them, a small step takes little longer than
its kernels, and starts no Spark. If Arrow finds that its values need Spark, the job runs again without Arrow.

A step with many rows has several ranges and a thread for each: numpy and Arrow release the interpreter lock
while they compute. Other threads write objects at the same time, because writing to disk takes about as long
as the kernels. The step ends when all objects are written.

A step can be larger than estimated, because a changed key can have very many rows. The packets are in memory,
so their size is limited. Above the limit, the executor raises `TooLargeInProcess`, and Spark runs the step.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.spark.sessions import frame_of
from tidemill.views.chain.chain import Edge
from tidemill.views.chain.layer_task import TaskReport
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.kernels.scalars import NotComputed
from tidemill.views.spark import row_expressions, tasks
from tidemill.views.spark.arrow_types import spark_schema
from tidemill.views.spark.executor import ChainExecutor
from tidemill.views.spark.memory import expect_large_steps, keep_memory, release_memory
from tidemill.views.spark.row_sink import Write
from tidemill.views.spark.shared_projection import SharedProjection
from tidemill.views.spark.step_inputs import StepInput
from tidemill.views.spark.tasks import TaskPaths
from tidemill.views.spark.wire_format import RANGE, REPORT, WIRE, task_reports, to_wire, wire_row
from tidemill.views.trace.batches import split_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BYTES = 256 * 2**20
"""How many bytes of packets may be in memory."""

CALL_BYTES = 32 * 2**20
"""About how many bytes Spark computes at a time and returns to this process. They are in Java's heap, where
Spark needs several times as much. The default heap has 1 GB."""

WRITERS = 4
"""How many objects are written at the same time."""


class TooLargeInProcess(Exception):
    """A step needs more memory for its packets than this process may use."""


class InProcessExecutor(ChainExecutor):
    """Runs the jobs of a chain in this process; see `ChainExecutor`."""

    def planned(self, inputs: Mapping[str, StepInput]) -> Callable[[], list[TaskReport]]:
        return partial(self._run, inputs)

    def _run(self, inputs: Mapping[str, StepInput]) -> list[TaskReport]:
        keep_memory()
        try:
            self.plan = replace(self.plan, by_arrow=True)
            return self._reports(inputs)
        except NotComputed:  # the values of this step need Spark: perhaps they raise an error
            self.plan = replace(self.plan, by_arrow=False)
            return self._reports(inputs)

    def _reports(self, inputs: Mapping[str, StepInput]) -> list[TaskReport]:
        rows = [wire_row(number, RANGE, "", b"") for number in range(len(self.plan.ranges))]
        writes: list[Future[object]] = []
        with ThreadPoolExecutor(len(self.plan.ranges)) as threads, ThreadPoolExecutor(WRITERS) as writers:
            for table, step_input in inputs.items():
                rows += self._input_packets(step_input, self.plan.leaving(table), threads)
            for layer in range(1, self.plan.depth + 1):
                rows = self._layer(layer, rows, threads, lambda put: writes.append(writers.submit(put)))
            for write in writes:
                write.result()
        (expect_large_steps if len(self.plan.ranges) > 1 else release_memory)()
        return task_reports(
            row.column(3)[0].as_py() for batch in rows for row in _rows_of(batch) if _operator(row) == REPORT
        )

    @property
    def _local_paths(self) -> TaskPaths:
        return replace(self.paths, compact=False)

    def _input_packets(
        self, step_input: StepInput, edges: Sequence[Edge], threads: Executor
    ) -> Iterator[pa.RecordBatch]:
        """Yield the packets of a table's changes."""
        direct = [edge for edge in edges if self.plan.is_direct(edge)]
        table = step_input.table(threads.map) if direct else None
        if table is None:
            yield from self._computed_packets(step_input.frame(), edges)
            return
        rest = [edge for edge in edges if edge not in direct]
        if rest:
            yield from self._computed_packets(step_input.frame(), rest)
        pieces = list(split_rows(table, max(1, -(-table.num_rows // len(self.plan.ranges)))))
        for edge in direct:
            for packets in threads.map(partial(self._packed, edge), pieces):
                yield from packets

    def _packed(self, edge: Edge, rows: pa.Table) -> list[pa.RecordBatch]:
        return list(to_wire(self.plan.send(edge, self.plan.direct_rows(edge, rows))))

    def _computed_packets(self, frame: "DataFrame", edges: Sequence[Edge]) -> list[pa.RecordBatch]:
        """Return the packets of a table's changes after Spark's row expressions.

        One query evaluates all edges that do not explode rows. Each of the other edges has its own query.
        """
        packets: list[pa.RecordBatch] = []
        together = [edge for edge in edges if not edge.expressions.explodes]
        for edge in edges:
            if edge in together:
                continue
            rows = row_expressions.apply_expressions(self.spark, frame, edge.expressions)
            operator = self.plan.chain.operators[edge.target].operator
            if isinstance(operator, OutputSink) and operator.needs_spark:
                rows = row_expressions.with_identity(rows, len(operator.types), self.types_of(edge.target))
            packets += self._deliver(edge, _collected(rows))
        if together:
            projection = row_expressions.along_edges(together, self.plan, self.types_of)
            table = _collected(projection.apply(frame)).combine_chunks()
            for edge in together:
                packets += self._deliver(edge, projection.edges[edge.number].rows(table))
        return packets

    def _deliver(self, edge: Edge, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        task = tasks.delivery_task(self.plan, self._local_paths, edge.target, edge.side)
        return task(iter(rows.to_batches()))

    def _layer(
        self, number: int, rows: Iterable[pa.RecordBatch], threads: Executor, write: Write
    ) -> list[pa.RecordBatch]:
        """Run one task for each range of a layer, with the packets of the range; return the output rows."""
        parts: list[list[pa.RecordBatch]] = [[] for _ in self.plan.ranges]
        for batch in rows:
            for row in _rows_of(batch):
                parts[row.column(0)[0].as_py()].append(row)
        task = tasks.layer_task(self.plan, self._local_paths, number, write)
        outputs = threads.map(lambda part: _limited(task(iter(part))), parts)
        batches = _limited(itertools.chain.from_iterable(outputs))
        if not self.plan.spark_edges(number):
            return batches
        packed = [batch.select(WIRE.names) for batch in batches if not _has_structs(batch)]
        projection = row_expressions.after_layer(self.plan, number, self.types_of)
        structs = [batch for batch in batches if _has_structs(batch)]
        computed = self._projected(projection, structs)
        task = tasks.packing_task(self.plan, self._local_paths, number, projection.edges, write)
        return _limited(task(itertools.chain(packed, computed)))

    def _projected(
        self, projection: SharedProjection, structs: Sequence[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Let Spark evaluate row expressions, for so many rows at a time that the results fit its memory."""
        if not structs:
            return
        table = pa.Table.from_batches(structs)
        growth = max(1.0, projection.width / sum(field.type.num_fields for field in list(table.schema)[4:]))
        calls = max(1, -int(-table.nbytes * growth // CALL_BYTES))
        for rows in split_rows(table, -(-table.num_rows // calls), CALL_BYTES):
            frame = projection.apply(frame_of(self.spark, rows, spark_schema(rows.schema)), WIRE.names)
            yield from _collected(frame).to_batches()


def _limited(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Collect batches; raise `TooLargeInProcess` if they need too much memory."""
    collected, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > MOST_BYTES:
            raise TooLargeInProcess
        collected.append(batch)
    return collected


def _collected(frame: "DataFrame") -> pa.Table:
    """Return the rows of a frame as nullable columns: Spark forgets that a NULL struct has NULL fields."""
    from pyspark.sql.types import StructType

    schema = frame.schema.json()
    for name in ("nullable", "containsNull", "valueContainsNull"):
        schema = schema.replace(f'"{name}":false', f'"{name}":true')
    return frame.to(StructType.fromJson(json.loads(schema))).toArrow()


def _rows_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(row, 1) for row in range(batch.num_rows)]


def _has_structs(batch: pa.RecordBatch) -> bool:
    """Return whether the rows of a batch are structs for Spark, not packets."""
    return bool(batch.column(3).null_count)


def _operator(row: pa.RecordBatch) -> int:
    return int(row.column(1)[0].as_py())
