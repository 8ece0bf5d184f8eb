"""Plan sources: check them, and bind each to the dataset that it fills."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.errors import DeclarationError
from tidemill.lots.checks import can_drop
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.declarations import SourceDecl
from tidemill.pipeline.plan.catalog import Catalog
from tidemill.pipeline.plan.stages import DeclareSource
from tidemill.pipeline.source_line import errors_at
from tidemill.sources.source import PlannedSource, SourceContext, SourceTarget
from tidemill.spark.drift import effective

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


class SourcePlanner:
    """Plans the sources of a pipeline."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pipeline = catalog.pipeline

    def plan(self) -> Iterator[PlannedSource]:
        for decl in self.pipeline.sources.values():
            with errors_at(decl.line):
                yield self._planned(decl)

    def _planned(self, decl: SourceDecl) -> PlannedSource:
        dataset = self.catalog.tables[decl.dataset].dataset
        assert dataset is not None
        self.catalog.expected(dataset, decl.checks)
        if dataset.unit is not None:
            raise DeclarationError(
                f"{decl.dataset} has intervals, but a source creates one lot per batch",
                hint="omit lots= for a dataset that has a source",
            )
        source = decl.source.resolve(source_context(self.pipeline, decl))
        quarantine = self._quarantine(decl, dataset)
        where = str(decl.line)
        self.catalog.stages.append(
            DeclareSource(dataset=dataset.id, label=decl.label, detail=source.description, where=where)
        )
        target = SourceTarget(
            pipeline=self.pipeline.name,
            dataset=dataset,
            schema=effective(self.pipeline.datasets[decl.dataset].dataset).schema,
            where=where,
            name=decl.name,
            checks=decl.checks,
            quarantine=quarantine,
        )
        source.check(target)
        return PlannedSource(source=source, target=target)

    def _quarantine(self, decl: SourceDecl, dataset: DatasetRow) -> DatasetId | None:
        """Plan the quarantine of a source, and return its id; None if the source itself has no quarantine.

        In that case, plan a quarantine for the checks of the dataset, if they can drop rows.
        """
        if decl.source.quarantines:
            return self.catalog.quarantine(dataset.id, None, decl.line, f"source of {decl.dataset}")
        if can_drop((*decl.checks, *self.pipeline.datasets[decl.dataset].expected)):
            self.catalog.quarantine(dataset.id, None, decl.line, f"checks of {dataset.name}")
        return None


def source_context(pipeline: "Pipeline", decl: SourceDecl) -> SourceContext:
    """Return the values that a source may take from its pipeline."""
    return SourceContext(
        pipeline=pipeline.name,
        dataset=decl.dataset,
        label=decl.label,
        base=pipeline.base,
        secret=lambda: pipeline.context.place.key.secret,
    )
