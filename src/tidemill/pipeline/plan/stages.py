"""The stages of a plan: their protocol, and the stages for datasets and sources.

A stage is a small frozen value that can be applied and described. The stages for arcs, templates, views and
certification are in separate modules.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tidemill.errors import DatasetChanged, DatasetUnknown
from tidemill.events import Event
from tidemill.lots import datasets, owners, staging
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.spark.drift import evolved
from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext


class StageStatus(StrEnum):
    """What applying a stage would do to the store."""

    NEW = "new"
    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    REFUSED = "refused"


class PlanStage(Protocol):
    """One step of a plan."""

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus: ...

    def apply(self, context: "PipelineContext", holder: str) -> Event | None:
        """Apply the stage as the node `holder`; return an event to emit, if any."""
        ...

    def describe(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class DeclareDataset:
    """Declare a dataset; `made_by` names the arc, source or check that writes it."""

    dataset: DatasetRow
    where: str
    made_by: str = ""

    def check(self, tx: Tx, keys: StepKeys) -> None:
        """Raise `DatasetChanged` if `apply` would raise it."""
        with self._explained():
            try:
                stored = datasets.read(tx, keys.lots, self.dataset.id)
            except DatasetUnknown:
                datasets.refuse_dropped(tx, keys.lots, self.dataset.id)
                return
            datasets.combine(stored, self.dataset, evolved)

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        try:
            self.check(tx, keys)
            stored = datasets.read(tx, keys.lots, self.dataset.id)
        except DatasetUnknown:
            return StageStatus.NEW
        except DatasetChanged:
            return StageStatus.REFUSED
        changed = datasets.differences(stored, self.dataset) or stored.drift is not self.dataset.drift
        return StageStatus.CHANGED if changed else StageStatus.SAME

    def apply(self, context: "PipelineContext", holder: str) -> None:
        def step(tx: Tx) -> None:
            with self._explained():
                datasets.declare(tx, context.keys.lots, self.dataset, evolved)
            owners.declare(tx, context.keys.lots, self.dataset.id, context.pipeline)
            if self.dataset.unit is not None and not self.made_by:
                staging.begin(tx, context.keys.lots, self.dataset.id)

        context.store.run(step)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the line of the declaration to an error."""
        try:
            yield
        except DatasetChanged as error:
            raise DatasetChanged(f"{self.where}: {error.message}", hint=error.hint) from error

    def describe(self) -> dict[str, str]:
        made_by = f" (by {self.made_by})" if self.made_by else ""
        return {
            "what": "dataset",
            "name": self.dataset.name,
            "detail": self.dataset.schema + made_by,
            "where": self.where,
        }


@dataclass(frozen=True)
class RetireDataset:
    """Retire a dataset that the pipeline no longer declares; its lots stay readable until it is dropped."""

    pipeline: str
    dataset: DatasetId
    name: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        declared = owners.read(tx, keys.lots, self.dataset).get(self.pipeline) == 0
        return StageStatus.REMOVED if declared else StageStatus.SAME

    def apply(self, context: "PipelineContext", holder: str) -> None:
        context.store.run(lambda tx: owners.retire(tx, context.keys.lots, self.dataset, self.pipeline))

    def describe(self) -> dict[str, str]:
        detail = f"no longer declared; its lots stay readable; to delete it: tidemill drop {self.name}"
        return {"what": "dataset", "name": self.name, "detail": detail, "where": ""}


@dataclass(frozen=True)
class RemovedSource:
    """Show a source that is no longer declared. Its dataset keeps the rows that it wrote."""

    pipeline: str
    label: str
    dataset: str
    origin: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        return StageStatus.REMOVED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        """Do nothing: the descriptions of the pipeline no longer contain it after the run."""

    def describe(self) -> dict[str, str]:
        detail = f"{self.origin}: no longer declared; {self.dataset} gets no more rows from it"
        return {"what": "source", "name": self.label, "detail": detail, "where": ""}


@dataclass(frozen=True)
class DeclareSource:
    """Show a source in the plan. A source has no row in the store, so its status is that of its dataset."""

    dataset: DatasetId
    label: str
    detail: str
    where: str

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        try:
            datasets.read(tx, keys.lots, self.dataset)
        except DatasetUnknown:
            return StageStatus.NEW
        return StageStatus.SAME

    def apply(self, context: "PipelineContext", holder: str) -> None:
        """Do nothing: another stage declares the dataset."""

    def describe(self) -> dict[str, str]:
        detail = f"{self.detail} -> {self.dataset.name}"
        return {"what": "source", "name": self.label, "detail": detail, "where": self.where}
