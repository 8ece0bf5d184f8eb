"""Retired tables: datasets and views that a pipeline no longer declares. They stay readable until dropped."""

from typing import TYPE_CHECKING

from tidemill.errors import UsageError
from tidemill.lots import owners
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import graph
from tidemill.publish import dropped_datasets
from tidemill.views.steps import retired as retired_views

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.pipeline.tables import RetiredDataset, RetiredView


def is_declared(pipeline: "Pipeline", dataset: DatasetId) -> bool:
    """Return whether a pipeline declares a dataset, as a dataset, the table of an arc or a quarantine."""
    names = [name for name in pipeline.names if name not in pipeline.views]
    declared = {graph.id_of(pipeline, name) for name in names}
    quarantines = {quarantine_of(table) for table in declared}
    return dataset in declared or (dataset in quarantines and dataset.name in pipeline.quarantines)


def label(pipeline: "Pipeline", dataset: DatasetId) -> str:
    """Return how users name a retired dataset: with its version, unless that is 1 and the name is free."""
    names = {*pipeline.names, *pipeline.quarantines}
    return dataset.name if dataset.version == "1" and dataset.name not in names else str(dataset)


def retired_datasets(pipeline: "Pipeline") -> dict[str, DatasetId]:
    """Return the datasets that a pipeline has retired, by the names that users give them."""
    context = pipeline.context
    owned = owners.of_pipeline(context.store, context.keys.lots, pipeline.name)
    return {label(pipeline, dataset): dataset for dataset, is_retired in owned.items() if is_retired}


def retired_tables(pipeline: "Pipeline") -> "dict[str, RetiredView | RetiredDataset]":
    """Return all retired tables by name."""
    from tidemill.pipeline.tables import RetiredDataset, RetiredView

    context = pipeline.context
    rows = context.store.run(lambda tx: retired_views.listed(tx, context.keys, pipeline.name))
    views = {row.view: RetiredView(pipeline, row) for row in rows if row.view not in pipeline.views}
    datasets = {
        name: RetiredDataset(pipeline, name, dataset) for name, dataset in retired_datasets(pipeline).items()
    }
    return {**datasets, **views}


def drop(pipeline: "Pipeline", name: str) -> "RetiredView | RetiredDataset":
    """Drop a retired table; return it. Raise `UsageError` if the pipeline has no such table."""
    tables = retired_tables(pipeline)
    if name in tables:
        tables[name].drop()
        return tables[name]
    if name in pipeline.names or name in pipeline.quarantines:
        raise UsageError(
            f"the pipeline {pipeline.name} still declares {name}",
            hint="remove it from the pipeline, run the pipeline once, then drop it",
        )
    raise UsageError(
        f"the pipeline {pipeline.name} has no retired table {name!r}",
        hint=f"its retired tables are: {', '.join(tables) or '(none)'}",
    )


def drop_dataset(pipeline: "Pipeline", dataset: DatasetId) -> bool:
    """Drop a retired dataset. Return False if it was already dropped or is declared again."""
    context = pipeline.context
    if dataset not in retired_datasets(pipeline).values():
        return False
    context.store.run(lambda tx: dropped_datasets.drop(tx, context.keys, dataset, pipeline.name))
    return True
