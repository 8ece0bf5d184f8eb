"""A step as one Spark job: a chain of layers with one exchange before each, and one action (DBSP-46).

No frame is consumed twice and none is kept: the plan is built anew for each step, since a frame that has run
would give what it gave before.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.views.chain.chain import Edge
from tidemill.views.chain.layer_task import TaskReport
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.spark import row_expressions, tasks
from tidemill.views.spark.executor import ChainExecutor
from tidemill.views.spark.failures import task_error
from tidemill.views.spark.lot_files import LotFilePart, LotReader
from tidemill.views.spark.step_inputs import StepInput
from tidemill.views.spark.wire_format import HELLO, WIRE, WIRE_DDL, task_reports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SparkExecutor(ChainExecutor):
    """Runs each job of a chain as one Spark job; see `ChainExecutor`."""

    def planned(self, inputs: Mapping[str, StepInput]) -> Callable[[], list[TaskReport]]:
        sent: list[DataFrame] = []
        direct: dict[str, tuple[LotReader, list[Edge]]] = {}
        for table, arriving in inputs.items():
            edges = self.plan.leaving(table)
            reading = arriving.reading() if all(edge.plain is not None for edge in edges) else None
            if reading is None:
                sent += self._entering(arriving.frame(), table)
            else:
                direct[table] = (reading, edges)
        files = [(table, file) for table in direct for file in inputs[table].files()]
        first = self._read(direct, files) if files else self._hello()
        return partial(self._collected, self._layers([first, *sent]))

    def _collected(self, frame: "DataFrame") -> list[TaskReport]:
        from pyspark.errors import PySparkException

        try:
            rows = frame.collect()
        except PySparkException as error:
            raise task_error(error) from error
        return task_reports(row[0] for row in rows)

    def _entering(self, frame: "DataFrame", table: str) -> "Iterator[DataFrame]":
        """The packets of a table's rows. However many operators read it, it is read once for all of them,
        and once more for each that explodes its rows.
        """
        edges = self.plan.leaving(table)
        together = [edge for edge in edges if not edge.expressions.explodes]
        if len(together) < 2:
            together = []
        for edge in edges:
            if edge not in together:
                yield self._sent(
                    edge.target,
                    edge.side,
                    row_expressions.apply_expressions(self.spark, frame, edge.expressions),
                )
        if together:
            ends = row_expressions.at_ends(frame, together, self.plan, self.types_of)
            yield ends.mapInArrow(tasks.in_worker(tasks.entering(self.plan, self.site, together)), WIRE_DDL)

    def _sent(self, number: int, side: int, df: "DataFrame") -> "DataFrame":
        operator = self.plan.chain.operators[number].operator
        if isinstance(operator, OutputSink) and operator.needs_spark:
            df = row_expressions.with_identity(df, len(operator.types), self.types_of(number))
        return df.mapInArrow(tasks.in_worker(tasks.sending(self.plan, self.site, number, side)), WIRE_DDL)

    def _layers(self, sent: "list[DataFrame]") -> "DataFrame":
        from pyspark.sql import functions as sf
        from pyspark.sql.pandas.types import from_arrow_schema

        frame, *others = sent
        for one in others:
            frame = frame.unionAll(one)
        for layer in range(1, self.plan.depth + 1):
            frame = frame.repartitionById(len(self.plan.ranges), sf.col("to"))
            schema = from_arrow_schema(tasks.typed_schema(self.plan, layer))
            frame = frame.mapInArrow(tasks.in_worker(tasks.layer(self.plan, self.site, layer)), schema)
            if self.plan.spark_edges(layer):
                frame = row_expressions.after_layer(frame, self.plan, layer, self.types_of)
                packing = tasks.in_worker(tasks.packing(self.plan, self.site, layer))
                frame = frame.mapInArrow(packing, WIRE_DDL)
        return frame.select("blob")

    def _read(
        self, direct: dict[str, tuple[LotReader, list[Edge]]], files: list[tuple[str, LotFilePart]]
    ) -> "DataFrame":
        """The packets of files that workers read, and a row for each range."""
        rows = [(here, None, *LotFilePart("", 0, 0, 0)) for here in range(len(self.plan.ranges))]
        columns = zip(*rows, *((0, table, *file) for table, file in files), strict=True)
        arrays = [pa.array(values, each.type) for values, each in zip(columns, tasks.FILES, strict=True)]
        frame = self.spark.createDataFrame(pa.Table.from_arrays(arrays, schema=tasks.FILES))
        return frame.mapInArrow(tasks.in_worker(tasks.reading(self.plan, self.site, direct)), WIRE_DDL)

    def _hello(self) -> "DataFrame":
        """A row for each range: so every range has a task in every layer, whatever came."""
        count = len(self.plan.ranges)
        columns = [range(count), [HELLO] * count, [""] * count, [b""] * count]
        arrays = [pa.array(values, each.type) for values, each in zip(columns, WIRE, strict=True)]
        return self.spark.createDataFrame(pa.Table.from_arrays(arrays, schema=WIRE))
