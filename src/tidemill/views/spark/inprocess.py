"""A step in this process: the tasks of a Spark job one after the other, with rows handed over in memory.

The kernels, the packets and what tasks tell are those of a job, by the same functions. Spark is asked for
expressions alone: once for each table that moved, and once behind each layer. So many views can be computed
step after step in little time, which is what tests of kernels need.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.views.chain.chain import Edge
from tidemill.views.chain.stations import OutputStation
from tidemill.views.spark import legs, tasks
from tidemill.views.spark.job import Job
from tidemill.views.spark.tasks import HELLO, TOLD, wire_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class InProcess(Job):
    """One step of a chain in this process; see `Job`."""

    def planned(self, changes: "Mapping[str, DataFrame]") -> "DataFrame":
        """The step is computed here and now; the frame holds what its tasks told.

        Args:
            changes: as for `Job.planned`.
        """
        rows = [wire_row(here, HELLO, "", b"") for here in range(len(self.plan.ranges))]
        for table, frame in changes.items():
            rows += self._entering(frame, self.plan.leaving(table))
        for layer in range(1, self.plan.depth + 1):
            rows = self._layer(layer, rows)
        told = [row.column(3)[0].as_py() for batch in rows for row in _single(batch) if _node(row) == TOLD]
        return self.spark.createDataFrame([(one,) for one in told], "blob BINARY")

    def _entering(self, frame: "DataFrame", edges: Sequence[Edge]) -> list[pa.RecordBatch]:
        """The packets of a table's change; what explodes rows is asked for alone."""
        found: list[pa.RecordBatch] = []
        together = [edge for edge in edges if not edge.leg.explodes]
        for edge in edges:
            if edge in together:
                continue
            rows = legs.along(self.spark, frame, edge.leg)
            station = self.plan.chain.stations[edge.target].station
            if isinstance(station, OutputStation) and station.identified:
                rows = legs.identified(rows, len(station.types), self.kinds_of(edge.target))
            found += self._sent_here(edge, _collected(rows))
        if together:
            rows = legs.at_ends(frame, together, self.plan, self.kinds_of)
            given = _collected(rows).combine_chunks()
            for edge in together:
                found += self._sent_here(edge, _fields(given[f"e{edge.number}"]))
        return found

    def _sent_here(self, edge: Edge, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        return tasks.sending(self.plan, edge.target, edge.side)(iter(rows.to_batches()))

    def _layer(self, number: int, rows: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows behind a layer: a task for each range gets what is for it."""
        parts: list[list[pa.RecordBatch]] = [[] for _ in self.plan.ranges]
        for batch in rows:
            for row in _single(batch):
                parts[row.column(0)[0].as_py()].append(row)
        task = tasks.layer(self.plan, self.site, number)
        made = [batch for part in parts for batch in task(iter(part))]
        if not self.plan.typed(number):
            return made
        there = pa.Table.from_batches(made, tasks.typed_schema(self.plan, number))
        frame = legs.beyond(self.spark.createDataFrame(there), self.plan, number, self.kinds_of)
        given = _collected(frame).to_batches()
        return list(tasks.packing(self.plan, self.site, number)(iter(given)))


def _collected(frame: "DataFrame") -> pa.Table:
    """The rows of a frame. Fields of a struct may be NULL where it is, which Spark forgets on the way."""
    from pyspark.sql.types import StructType

    said = frame.schema.json()
    for may in ("nullable", "containsNull", "valueContainsNull"):
        said = said.replace(f'"{may}":false', f'"{may}":true')
    return frame.to(StructType.fromJson(json.loads(said))).toArrow()


def _single(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(row, 1) for row in range(batch.num_rows)]


def _node(row: pa.RecordBatch) -> int:
    return int(row.column(1)[0].as_py())


def _fields(column: pa.ChunkedArray) -> pa.Table:
    """The rows of a struct column that are there."""
    there = column.filter(column.is_valid()).combine_chunks()
    structs = there if isinstance(there, pa.StructArray) else pa.concat_arrays(there.chunks)
    return pa.Table.from_arrays(structs.flatten(), names=[each.name for each in column.type])
