"""A step in this process: the tasks of a Spark job one after the other, with rows handed over in memory.

The kernels, the packets and what tasks tell are those of a job, by the same functions. Spark is asked for
expressions alone, once for each table whose rows need one and once behind each layer that has some; where
rows only change their columns' places it is not asked at all. So a small step costs what its kernels cost.

A step of many rows has several ranges, and a thread for each: numpy and Arrow leave the interpreter to others
while they work. Objects are written meanwhile by threads of their own, since a disk is waited for as long as
kernels compute; the step ends when all of them are there.

A step may turn out to be large: a key that changed may have very many rows. What is on its way is held in
memory here, so there is a limit; `TooLargeInProcess` is raised beyond it, and Spark runs the step.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.views.chain.chain import Edge
from tidemill.views.chain.layer_task import TaskReport, select_columns
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.spark import row_expressions, tasks
from tidemill.views.spark.executor import ChainExecutor
from tidemill.views.spark.memory import give_back, keep_memory, used_much
from tidemill.views.spark.step_inputs import StepInput
from tidemill.views.spark.tasks import TaskSite, Write
from tidemill.views.spark.wire_format import HELLO, TOLD, WIRE, task_reports, to_wire, wire_row
from tidemill.views.trace.batches import split_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BYTES = 256 * 2**20
"""What may be on its way at once."""


WRITERS = 4
"""Objects that are written at once."""


class TooLargeInProcess(Exception):
    """A step holds more rows in memory than this process should."""


class InProcessExecutor(ChainExecutor):
    """Runs the jobs of a chain in this process; see `ChainExecutor`."""

    def planned(self, inputs: Mapping[str, StepInput]) -> Callable[[], list[TaskReport]]:
        return partial(self._run, inputs)

    def _run(self, inputs: Mapping[str, StepInput]) -> list[TaskReport]:
        keep_memory()
        rows = [wire_row(here, HELLO, "", b"") for here in range(len(self.plan.ranges))]
        written: list[Future[object]] = []
        with ThreadPoolExecutor(len(self.plan.ranges)) as threads, ThreadPoolExecutor(WRITERS) as writers:
            for table, arriving in inputs.items():
                rows += self._arrived(arriving, self.plan.leaving(table), threads)
            for layer in range(1, self.plan.depth + 1):
                rows = self._layer(layer, rows, threads, lambda put: written.append(writers.submit(put)))
            for one in written:
                one.result()
        (used_much if len(self.plan.ranges) > 1 else give_back)()
        return task_reports(
            row.column(3)[0].as_py() for batch in rows for row in _single(batch) if _operator(row) == TOLD
        )

    @property
    def _here(self) -> TaskSite:
        return replace(self.site, apart=False)

    def _arrived(
        self, arriving: StepInput, edges: Sequence[Edge], threads: Executor
    ) -> Iterator[pa.RecordBatch]:
        """The packets of a table's change."""
        plain = any(edge.plain is not None for edge in edges)
        table = arriving.table(threads.map) if plain else None
        if table is None:
            yield from self._asked(arriving.frame(), edges)
            return
        rest = [edge for edge in edges if edge.plain is None]
        if rest:
            yield from self._asked(arriving.frame(), rest)
        pieces = list(split_rows(table, max(1, -(-table.num_rows // len(self.plan.ranges)))))
        for edge in edges:
            if edge.plain is not None:
                for sent in threads.map(partial(self._packed, edge), pieces):
                    yield from sent

    def _packed(self, edge: Edge, rows: pa.Table) -> list[pa.RecordBatch]:
        assert edge.plain is not None, "an expression is Spark's"
        return list(to_wire(self.plan.send(edge, select_columns(rows, edge.plain))))

    def _asked(self, frame: "DataFrame", edges: Sequence[Edge]) -> list[pa.RecordBatch]:
        """The packets of a table's change, with what Spark computes; what explodes is asked for alone."""
        found: list[pa.RecordBatch] = []
        together = [edge for edge in edges if not edge.expressions.explodes]
        for edge in edges:
            if edge in together:
                continue
            rows = row_expressions.apply_expressions(self.spark, frame, edge.expressions)
            operator = self.plan.chain.operators[edge.target].operator
            if isinstance(operator, OutputSink) and operator.needs_spark:
                rows = row_expressions.with_identity(rows, len(operator.types), self.types_of(edge.target))
            found += self._sent_here(edge, _collected(rows))
        if together:
            rows = row_expressions.at_ends(frame, together, self.plan, self.types_of)
            given = _collected(rows).combine_chunks()
            for edge in together:
                found += self._sent_here(edge, _fields(given[f"e{edge.number}"]))
        return found

    def _sent_here(self, edge: Edge, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        return tasks.sending(self.plan, self._here, edge.target, edge.side)(iter(rows.to_batches()))

    def _layer(
        self, number: int, rows: Iterable[pa.RecordBatch], threads: Executor, write: Write
    ) -> list[pa.RecordBatch]:
        """The rows behind a layer: a task for each range gets what is for it."""
        parts: list[list[pa.RecordBatch]] = [[] for _ in self.plan.ranges]
        for batch in rows:
            for row in _single(batch):
                parts[row.column(0)[0].as_py()].append(row)
        task = tasks.layer(self.plan, self._here, number, write)
        made = _held(itertools.chain.from_iterable(threads.map(lambda part: _held(task(iter(part))), parts)))
        if not self.plan.spark_edges(number):
            return made
        given = [batch.select(WIRE.names) for batch in made if not _is_typed(batch)]
        if len(given) < len(made):
            there = pa.Table.from_batches([batch for batch in made if _is_typed(batch)])
            frame = row_expressions.after_layer(
                self.spark.createDataFrame(there), self.plan, number, self.types_of
            )
            given += _collected(frame).to_batches()
        return list(tasks.packing(self.plan, self._here, number, write)(iter(given)))


def _held(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > MOST_BYTES:
            raise TooLargeInProcess
        found.append(batch)
    return found


def _collected(frame: "DataFrame") -> pa.Table:
    """The rows of a frame. Fields of a struct may be NULL where it is, which Spark forgets on the way."""
    from pyspark.sql.types import StructType

    said = frame.schema.json()
    for may in ("nullable", "containsNull", "valueContainsNull"):
        said = said.replace(f'"{may}":false', f'"{may}":true')
    return frame.to(StructType.fromJson(json.loads(said))).toArrow()


def _single(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(row, 1) for row in range(batch.num_rows)]


def _is_typed(batch: pa.RecordBatch) -> bool:
    """Whether its rows are structs, which Spark has to see."""
    return bool(batch.column(3).null_count)


def _operator(row: pa.RecordBatch) -> int:
    return int(row.column(1)[0].as_py())


def _fields(column: pa.ChunkedArray) -> pa.Table:
    """The rows of a struct column that are there."""
    there = column.filter(column.is_valid()).combine_chunks()
    structs = there if isinstance(there, pa.StructArray) else pa.concat_arrays(there.chunks)
    return pa.Table.from_arrays(structs.flatten(), names=[each.name for each in column.type])
