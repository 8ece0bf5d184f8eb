"""What views read at a step: rows of datasets at its positions and tables of other views, as frames."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill.errors import CodeDiffers
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.spark.clock_alarms import ClockUse
from tidemill.views.spark.dataset_contents import dataset_frame
from tidemill.views.spark.view_tables import ViewTables
from tidemill.views.steps.commits import StepBatch
from tidemill.views.steps.inputs import InputReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ViewCode(Protocol):
    """A view's query, and what its table names mean."""

    @property
    def name(self) -> str: ...

    @property
    def sql(self) -> str: ...

    @property
    def function(self) -> "Callable[..., DataFrame] | None":
        """A function of the frames it reads, for a view that has no query."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """The tables that the function gets, in this order."""
        ...

    @property
    def circuit(self) -> ViewOutput | None:
        """Its query as a circuit; None if it has none."""
        ...

    @property
    def clock(self) -> ClockUse | None:
        """How it depends on the clock; None if it does not."""
        ...

    @property
    def refresh(self) -> str:
        """`full` recomputes it in every step."""
        ...

    @property
    def datasets(self) -> Mapping[str, DatasetId]:
        """Base datasets, by their names in the query."""
        ...

    @property
    def views(self) -> tuple[str, ...]:
        """Views of the same group, by their names."""
        ...


@dataclass(frozen=True)
class ViewSources:
    """Reads what views are computed from.

    Args:
        session: gives the Spark session when it is needed.
        tables: the tables of views.
        inputs: the lots of datasets.
        datasets: declarations, by id.
        views: code, by name.
    """

    session: "Callable[[], SparkSession]"
    tables: ViewTables
    inputs: InputReader
    datasets: Mapping[DatasetId, DatasetRow]
    views: Mapping[str, ViewCode]

    def code(self, view: str) -> ViewCode:
        """The code of a view; `CodeDiffers` if this program has none."""
        code = self.views.get(view)
        if code is None:
            raise CodeDiffers(f"this runner has no view {view!r}")
        return code

    def dataset(self, batch: StepBatch, dataset: DatasetId) -> "DataFrame":
        """The rows of a dataset at the position of the batch."""
        slices = self.inputs.at(dataset, batch.positions[dataset])
        return dataset_frame(self.session(), self.tables.storage, self.datasets[dataset], slices)

    def frames(self, view: str, batch: StepBatch, tables: Mapping[str, str]) -> "dict[str, DataFrame]":
        """What a view reads, by the names in its query.

        - tables: the manifests of the tables of views, as they are at the step.
        """
        code = self.code(view)
        frames = {name: self.dataset(batch, dataset) for name, dataset in code.datasets.items()}
        return frames | {name: self.tables.content(self.session(), tables[name]) for name in code.views}
