"""Execute a job of a step as one Spark job: layers with one exchange before each, and one action (DBSP-46).

No frame is consumed twice, and none is kept for the next step. Each step builds a new plan, because a frame
that has already run would return its old result.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.spark.sessions import frame_of
from tidemill.views.chain.chain import Edge
from tidemill.views.chain.layer_task import TaskReport
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.spark import row_expressions, tasks
from tidemill.views.spark.arrow_types import spark_schema
from tidemill.views.spark.executor import ChainExecutor
from tidemill.views.spark.failures import task_error
from tidemill.views.spark.lot_files import LotFilePart, LotReader
from tidemill.views.spark.step_inputs import StepInput
from tidemill.views.spark.wire_format import RANGE, WIRE, WIRE_DDL, task_reports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class SparkExecutor(ChainExecutor):
    """Runs each job of a chain as one Spark job; see `ChainExecutor`."""

    def planned(self, inputs: Mapping[str, StepInput]) -> Callable[[], list[TaskReport]]:
        packets: list[DataFrame] = []
        direct: dict[str, tuple[LotReader, list[Edge]]] = {}
        for table, step_input in inputs.items():
            edges = self.plan.leaving(table)
            reader = step_input.reader() if all(edge.plain is not None for edge in edges) else None
            if reader is None:
                packets += self._table_packets(step_input.frame(), table)
            else:
                direct[table] = (reader, edges)
        files = [(table, file) for table in direct for file in inputs[table].files()]
        first = self._file_packets(direct, files) if files else self._range_packets()
        return partial(self._collected, self._layers([first, *packets]))

    def _collected(self, frame: "DataFrame") -> list[TaskReport]:
        from pyspark.errors import PySparkException

        try:
            rows = frame.collect()
        except PySparkException as error:
            raise task_error(error) from error
        return task_reports(row[0] for row in rows)

    def _table_packets(self, frame: "DataFrame", table: str) -> "Iterator[DataFrame]":
        """Yield the packets of a table's rows.

        The table is read once for all operators, and again for each edge that explodes its rows.
        """
        edges = self.plan.leaving(table)
        together = [edge for edge in edges if not edge.expressions.explodes]
        if len(together) < 2:
            together = []
        for edge in edges:
            if edge not in together:
                yield self._edge_packets(frame, edge)
        if together:
            projection = row_expressions.along_edges(together, self.plan, self.types_of)
            rows = projection.apply(frame)
            yield _mapped(rows, tasks.edges_task(self.plan, self.paths, projection.edges))

    def _edge_packets(self, frame: "DataFrame", edge: Edge) -> "DataFrame":
        rows = row_expressions.apply_expressions(self.spark, frame, edge.expressions)
        operator = self.plan.chain.operators[edge.target].operator
        if isinstance(operator, OutputSink) and operator.needs_spark:
            rows = row_expressions.with_identity(rows, len(operator.types), self.types_of(edge.target))
        return _mapped(rows, tasks.delivery_task(self.plan, self.paths, edge.target, edge.side))

    def _layers(self, packets: "list[DataFrame]") -> "DataFrame":
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as sf

        frame = reduce(DataFrame.unionAll, packets)
        for layer in range(1, self.plan.depth + 1):
            frame = frame.repartitionById(len(self.plan.ranges), sf.col("to"))
            schema = spark_schema(tasks.layer_schema(self.plan, layer))
            frame = _mapped(frame, tasks.layer_task(self.plan, self.paths, layer), schema)
            if self.plan.spark_edges(layer):
                projection = row_expressions.after_layer(self.plan, layer, self.types_of)
                frame = projection.apply(frame, WIRE.names)
                frame = _mapped(frame, tasks.packing_task(self.plan, self.paths, layer, projection.edges))
        return frame.select("blob")

    def _file_packets(
        self, direct: dict[str, tuple[LotReader, list[Edge]]], files: list[tuple[str, LotFilePart]]
    ) -> "DataFrame":
        """Return the packets of files that workers read, and a packet for each range."""
        rows = [(number, None, *LotFilePart("", 0, 0, 0)) for number in range(len(self.plan.ranges))]
        columns = zip(*rows, *((0, table, *file) for table, file in files), strict=True)
        arrays = [pa.array(values, each.type) for values, each in zip(columns, tasks.FILES, strict=True)]
        frame = frame_of(self.spark, pa.Table.from_arrays(arrays, schema=tasks.FILES))
        return _mapped(frame, tasks.files_task(self.plan, self.paths, direct))

    def _range_packets(self) -> "DataFrame":
        """Return a packet for each range, so that every range has a task in every layer."""
        count = len(self.plan.ranges)
        columns = [range(count), [RANGE] * count, [""] * count, [b""] * count]
        arrays = [pa.array(values, each.type) for values, each in zip(columns, WIRE, strict=True)]
        return frame_of(self.spark, pa.Table.from_arrays(arrays, schema=WIRE))


def _mapped(frame: "DataFrame", task: tasks.Task, schema: "StructType | str" = WIRE_DDL) -> "DataFrame":
    return frame.mapInArrow(tasks.in_worker(task), schema)
