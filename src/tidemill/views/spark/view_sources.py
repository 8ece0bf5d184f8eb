"""The inputs of views as DataFrames: datasets at the positions of the step, and tables of other views."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill.errors import CodeDiffers
from tidemill.lots.checks import Check
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
    """A view's query or function, and the tables that it reads."""

    @property
    def name(self) -> str: ...

    @property
    def sql(self) -> str: ...

    @property
    def function(self) -> "Callable[..., DataFrame] | None":
        """The function of a view without a query; it receives DataFrames."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """The tables that the function receives, in order."""
        ...

    @property
    def circuit(self) -> ViewOutput | None:
        """The query as a circuit; None if there is none."""
        ...

    @property
    def clock(self) -> ClockUse | None:
        """How the view depends on the clock; None if it never reads the clock."""
        ...

    @property
    def refresh(self) -> str:
        """How the view is refreshed; `full` recomputes it in every step."""
        ...

    @property
    def datasets(self) -> Mapping[str, DatasetId]:
        """The datasets that it reads, by their names in the query."""
        ...

    @property
    def views(self) -> tuple[str, ...]:
        """The views of the same group that it reads."""
        ...

    @property
    def copied(self) -> tuple[str, ...]:
        """The views of other groups that it reads, and the views that they read, inputs first.

        `circuit` contains their operators, and `datasets` the datasets that they read.
        """
        ...

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks of its rows."""
        ...

    @property
    def failures(self) -> str:
        """The view with its rows that fail a check; empty if it has no checks."""
        ...

    @property
    def checked(self) -> str:
        """If it contains the rows of another view that fail: that view."""
        ...


@dataclass(frozen=True)
class ViewSources:
    """Reads the inputs of views.

    Args:
        session: returns the Spark session when it is needed.
        tables: the tables of views.
        inputs: the lots of datasets.
        datasets: the declared datasets by id.
        views: the code of views by name.
    """

    session: "Callable[[], SparkSession]"
    tables: ViewTables
    inputs: InputReader
    datasets: Mapping[DatasetId, DatasetRow]
    views: Mapping[str, ViewCode]

    def code(self, view: str) -> ViewCode:
        """Return the code of a view; raise `CodeDiffers` if this program does not declare it."""
        code = self.views.get(view)
        if code is None:
            raise CodeDiffers(f"the code of this runner does not declare the view {view!r}")
        return code

    def dataset(self, batch: StepBatch, dataset: DatasetId, view: str = "") -> "DataFrame":
        """Return the rows of a dataset at the position of the batch.

        Args:
            batch: the step.
            dataset: the dataset.
            view: the view that reads the dataset; it may pass over lots.
        """
        slices = self.inputs.at(dataset, batch.positions[dataset])
        if view in batch.passed:
            slices = self.inputs.passing_over(dataset, slices, batch.passed[view])
        return dataset_frame(self.session(), self.tables.storage, self.datasets[dataset], slices)

    def frames(self, view: str, batch: StepBatch, tables: Mapping[str, str]) -> "dict[str, DataFrame]":
        """Return the tables that a view reads, by their names in its query.

        Args:
            view: the name of the view.
            batch: the step.
            tables: the manifests of the tables of views at the step.
        """
        code = self.code(view)
        frames = {name: self.dataset(batch, dataset, view) for name, dataset in code.datasets.items()}
        return frames | {name: self.tables.content(self.session(), tables[name]) for name in code.views}
