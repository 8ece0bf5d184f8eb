"""The alarm of a step: when time alone will change one of its views (DBSP-22).

However a step is computed, behind it the next moment is asked for at which a row passes a temporal filter
of a view, over the datasets at the step's positions and the tables of the views as the step leaves them. What
asks the clock in another way is due at the group's cadence, and without one only with its other steps.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId
from tidemill.spark.lot_reader import naming
from tidemill.views.spark import dataset_contents
from tidemill.views.spark.clock_alarms import ClockUse, next_crossing
from tidemill.views.spark.recompute import ViewCode
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps.commits import StepAlarm, StepBatch, StepOutput, StepPart
from tidemill.views.steps.inputs import InputReader
from tidemill.views.steps.stepper import Compute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Alarmed:
    """Computes steps by another computation, and says when the next one is due by time.

    Args:
        compute: what computes the views.
        session: gives the Spark session to use, when it is used.
        tables, inputs: where views and datasets are read.
        datasets, views: declarations and code, by id and by name.
        clocks: what views ask of the clock, by name; those that do not ask are left out.
    """

    def __init__(
        self,
        compute: Compute,
        session: "Callable[[], SparkSession]",
        tables: ViewTables,
        inputs: InputReader,
        datasets: Mapping[DatasetId, Dataset],
        views: Mapping[str, ViewCode],
        clocks: Mapping[str, ClockUse],
    ) -> None:
        self._compute = compute
        self._session = session
        self._tables = tables
        self._inputs = inputs
        self._datasets = datasets
        self._views = views
        self._clocks = clocks

    def __call__(self, batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        parts = self._compute(batch, attempt)
        asking = [view.name for view in batch.spec.views if view.name in self._clocks]
        if not asking:
            return parts
        made = batch.tables | {one.view: one.table for one in parts if isinstance(one, StepOutput)}
        times = [time for view in asking for time in self._times(view, batch, made, attempt)]
        return (*parts, StepAlarm(at=min(times, default=None)))

    def _times(self, view: str, batch: StepBatch, made: Mapping[str, str], attempt: str) -> list[int]:
        use, cadence_us = self._clocks[view], batch.spec.cadence_us
        found = [batch.now + cadence_us] if use.other and cadence_us else []
        if use.filters:
            spark = self._session()
            with naming(self._tables.storage):
                frames = self._frames(spark, view, batch, made)
                at = next_crossing(spark, use.filters, frames, batch.now, f"{attempt}_{batch.lot}")
            found += [] if at is None else [at]
        return found

    def _frames(
        self, spark: "SparkSession", view: str, batch: StepBatch, made: Mapping[str, str]
    ) -> "dict[str, DataFrame]":
        """What a view reads, by its names, as it was when the step had been computed."""
        code = self._views[view]
        frames = {
            name: dataset_contents.dataset_frame(
                spark,
                self._tables.storage,
                self._datasets[dataset],
                self._inputs.at(dataset, batch.positions[dataset]),
            )
            for name, dataset in code.datasets.items()
        }
        return frames | {name: self._tables.content(spark, made[name]) for name in code.views}
